"""`python -m minigrad <command>`: see `minigrad.cli`."""
from __future__ import annotations

import sys

from minigrad.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
