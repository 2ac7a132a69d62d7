"""Event listeners of a room: a function is called before and after each step (spans, metrics, events).

Free while nobody listens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

Listener = Callable[[str, Mapping[str, Any]], None]


class Hooks:
    """Listeners of one room, called in the thread that takes the step; what one raises reaches that caller."""

    def __init__(self) -> None:
        #: By event; empty as long as there never was a listener: then a caller need not even gather the details.
        self.listeners: dict[str, list[Listener]] = defaultdict(list)

    def on(self, event: str, listener: Listener) -> Callable[[], None]:
        """Call `listener(event, detail)` at every such event. Returns a function that ends it."""
        self.listeners[event].append(listener)
        return lambda: self.listeners[event].remove(listener)

    def tell(self, event: str, **detail: Any) -> None:
        """Call the listeners of the event, in the order in which they were added."""
        for listener in tuple(self.listeners.get(event, ())):
            listener(event, detail)
