"""Agents and messages: sending, receiving, settling, asking, serving. Never names a store."""

from __future__ import annotations

from postroom.core.system.startup import deferring

#: What a mere sender has no use for: it comes with hashes, near names, chance and logging.
__getattr__ = deferring(
    __name__,
    "answers",
    "attachments",
    "cron",
    "groups",
    "handles",
    "history",
    "limiting",
    "people",
    "questions",
    "rate_limit",
    "reasons",
    "receipts",
    "receiving",
    "redaction_rules",
    "replaying",
    "retaining",
    "schedule",
    "searching",
    "serving",
    "signing",
    "threads",
    "tokens",
)
