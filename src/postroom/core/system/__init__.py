"""The operating system: processes, files, watched folders, forked children.

What only Linux has (inotify, pidfds, /proc, prctl, OFD locks, epoll, its own clocks and file system numbers) is called
in this package and in `stores/bells/sockets.py` alone, each beside a twin that every Unix has. `LINUX` chooses, once;
`POSTROOM_PORTABLE=1` in the environment chooses the twins on Linux as well, so that they can be tested there
(tests/core/test_portable.py). docs/platforms.md lists the twins, and what they lack.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from .startup import deferring

#: The setting that forbids what only Linux has. All processes of a room have it, or none: they count time differently.
VARIABLE: Final = "POSTROOM_PORTABLE"
PORTABLE: Final = os.environ.get(VARIABLE, "0") not in ("", "0")
#: Whether the means of Linux may be used. (How C's structures are laid out is another question.)
LINUX: Final = sys.platform == "linux" and not PORTABLE

#: ctypes, signal and subprocess: most processes watch no folder, serve nobody and start no other.
__getattr__ = deferring(__name__, "children", "goodbye", "libc", "memory", "proc", "ps")
