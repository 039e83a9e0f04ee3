"""`python -m platform.coordinator`: the command line of the coordinator."""

from __future__ import annotations

from platform._own_packages import find_own_packages

if __name__ == "__main__":
    find_own_packages()

    from platform.cli.app import main

    main()
