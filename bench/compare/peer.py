"""What the peers have in common: the program that is started to measure them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

from postroom.cli.bench.client import Peer


class ComparedPeer(Peer):
    """A peer that only the processes of the comparison know."""

    program: ClassVar[tuple[str, ...]] = (sys.executable, "-P", str(Path(__file__).with_name("worker.py")))
