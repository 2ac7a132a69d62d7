"""Helpers of the tests: where things lie, servers, proxies, models, and programs that tests start."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PROGRAMS = TESTS / "support" / "programs"
EXAMPLES = ROOT / "examples"
DOCS = ROOT / "docs"
