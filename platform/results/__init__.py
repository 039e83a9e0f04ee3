"""The results of runs, as a pandas frame and as pictures; sweeps of many runs.

After `from platform.results import results`, `results()` returns a frame with one row per run.
"""

from platform.results.frames import COLUMNS, results

__all__ = ["COLUMNS", "results"]
