"""A measured process of the comparison: that of `postroom bench`, with the peers added."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import compare  # noqa: F401  (adds the peers)
from postroom.cli.bench.worker import main

if __name__ == "__main__":
    main()
