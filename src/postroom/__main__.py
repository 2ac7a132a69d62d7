"""`python -m postroom` is the command line."""

from __future__ import annotations

from .cli import program

if __name__ == "__main__":
    program()
