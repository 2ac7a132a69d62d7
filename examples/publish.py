"""News for everybody who asked for it: each subscriber gets a copy of its own, also one who is away.

python examples/publish.py
"""

from __future__ import annotations

import tempfile

import postroom


def read_news(room: postroom.Room, name: str) -> None:
    for news in room.agent(name).listen(timeout_s=0):  # what is there; does not wait for more
        print(f"{name} reads: {news.payload['text']}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, postroom.open(f"sqlite:{folder}/room") as room:
        ada = room.agent("ada")
        for name in ("bob", "cleo"):
            room.agent(name).subscribe("news")

        copies = ada.publish("news", {"text": "version 1.0 is out"})
        print(f"ada told {len(copies)} subscribers")
        read_news(room, "bob")

        room.agent("bob").unsubscribe("news")
        copies = ada.publish("news", {"text": "version 1.1 is out"})
        print(f"ada told {len(copies)} subscriber")

        read_news(room, "bob")  # not subscribed any more
        read_news(room, "cleo")  # was away, and has both


if __name__ == "__main__":
    main()
