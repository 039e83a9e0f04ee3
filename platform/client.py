"""`python -m platform.client`: the command line of a data holder."""

from __future__ import annotations

from platform._early_ending import end_early_by_signals
from platform._own_packages import find_own_packages

if __name__ == "__main__":
    end_early_by_signals()
    find_own_packages()

    from platform.cli.client_app import main

    main()
