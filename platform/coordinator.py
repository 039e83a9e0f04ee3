"""`python -m platform.coordinator`: the command line of the coordinator."""

from __future__ import annotations

from platform.cli.app import main

if __name__ == "__main__":
    main()
