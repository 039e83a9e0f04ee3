"""`python -m platform.client`: the command line of a data holder."""

from __future__ import annotations

from platform._own_packages import find_own_packages

if __name__ == "__main__":
    find_own_packages()

    from platform.cli.client_app import main

    main()
