"""The room as a page: `postroom web` serves it, and an event stream for other programs, on this machine alone."""

from __future__ import annotations
