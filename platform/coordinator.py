"""`python -m platform.coordinator`: the command line of the coordinator."""

from __future__ import annotations

from platform._early_ending import end_early_by_signals
from platform._own_packages import find_own_packages

if __name__ == "__main__":
    end_early_by_signals()
    find_own_packages()

    from platform.cli.app import main

    main()
