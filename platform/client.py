"""`python -m platform.client`: the command line of a data holder."""

from __future__ import annotations

from platform.cli.client_app import main

if __name__ == "__main__":
    main()
