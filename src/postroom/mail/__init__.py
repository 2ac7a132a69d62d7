"""Agents and messages: sending, receiving, settling, asking, serving. Never names a store."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: Files, handles, history, reasons, loops and tokens, with hashes, near names, chance and logging: a mere sender has none of them.
__getattr__ = deferring(__name__, "attachments", "handles", "history", "reasons", "receiving", "serving", "tokens")
