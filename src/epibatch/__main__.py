"""`python -m epibatch`: the command line."""

from __future__ import annotations

from epibatch.cli import main

if __name__ == "__main__":
    main()
