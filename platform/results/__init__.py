"""What runs gave: as a frame in one call, and as pictures.

`from platform.results import results` and `results()` is a pandas frame with a row a run.
"""

from platform.results.frames import COLUMNS, results

__all__ = ["COLUMNS", "results"]
