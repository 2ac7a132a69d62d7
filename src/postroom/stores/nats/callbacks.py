"""The callbacks of a connection to NATS servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

#: The callback that hears a message on the loop as it came: its subject, its data, its headers.
Ear = Callable[[bytes, bytes, bytes], None]
#: The callback for a trouble of the connection.
Troubled = Callable[[Exception], Awaitable[None]]
