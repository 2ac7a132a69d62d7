"""Tests that are about a means of Linux: left out where Postroom may not use it (POSTROOM_PORTABLE=1)."""

from __future__ import annotations

import pytest

from postroom.core.system import LINUX


def needs_linux(what: str) -> pytest.MarkDecorator:
    """Leave a test out that is about `what`, which other systems do not have."""
    return pytest.mark.skipif(not LINUX, reason=f"only Linux has {what}")
