"""What a program's commands were watched by ends with the tests of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _no_guard_is_left() -> Iterator[None]:
    yield
    pipeline = sys.modules.get("postroom.lang.run.pipeline")
    if pipeline is not None:
        pipeline.end_own()
