"""Runs `python -m platform` as the standard library's module does: one line about this machine.

The package is a superset of that module, its command included. Sotto's own commands are
`python -m platform.coordinator` and `python -m platform.client`.
"""

from __future__ import annotations

import runpy
import sysconfig

if __name__ == "__main__":
    runpy.run_path(sysconfig.get_path("stdlib") + "/platform.py", run_name="__main__")
