"""How much memory this process has in use."""

from __future__ import annotations

import os
import resource
import sys

from . import LINUX


class MemoryGauge:
    """How much memory this process has in use. Made in the process that it is about; reading it costs microseconds."""

    def __init__(self) -> None:
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        try:
            self._descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC) if LINUX else None
        except OSError:
            self._descriptor = None

    def bytes(self) -> int:
        """Resident memory; where the system does not tell, the most there ever was."""
        if self._descriptor is not None:
            return int(os.pread(self._descriptor, 64, 0).split()[1]) * self._page_bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
