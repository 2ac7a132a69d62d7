"""Postroom itself, by its public names, with everything switched on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import postroom
from postroom.mail.agent import Agent
from postroom.mail.received import Received
from postroom.stores.sqlite.layout import sqlite_version

from .client import Client, Payload, Peer, Setup
from .filling import fill_room
from .plan import SPREAD


class PostroomClient(Client):
    """One agent of a SQLite room. A box that several consumers share is a channel; any other is an agent."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._room = postroom.open(f"sqlite:{setup.address}?sync={setup.sync}")
        self._agent = self._room.agent(f"{setup.me}-{id(self)}" if setup.crowd else setup.me)
        self._to = None if setup.crowd else setup.to
        self._channel = setup.to if setup.crowd else "general"
        self._channels = [setup.me] if setup.crowd else None

    def send(self, payload: Payload) -> None:
        self._agent.send(self._to, payload, channel=self._channel)

    def send_batch(self, payloads: Sequence[Payload]) -> None:
        self._agent.send_many([{"to": self._to, "payload": payload, "channel": self._channel} for payload in payloads])

    def receive(self, timeout_s: float) -> tuple[Payload, Received] | None:
        try:
            message = self._agent.receive(timeout_s, channels=self._channels)
        except postroom.ReceiveTimeout:
            return None
        return message.payload, message

    def ack(self, handle: Any) -> None:
        handle.ack()

    def messages(self, timeout_s: float) -> Iterator[Payload]:
        if self.setup.way != "listen":
            yield from super().messages(timeout_s)
            return
        for message in self._agent.listen(channels=self._channels, timeout_s=timeout_s):
            yield message.payload

    def ask(self, payload: Payload, timeout_s: float) -> Payload:
        if self.setup.way != "ask":
            return super().ask(payload, timeout_s)
        return self._agent.ask(self._to, payload, timeout_s).payload

    def answer(self, timeout_s: float) -> Iterator[None]:
        if self.setup.way != "ask":
            yield from super().answer(timeout_s)
            return
        for message in self._agent.listen(timeout_s=timeout_s):
            message.reply(message.payload)
            yield

    def prefill(self, count: int) -> None:
        fill_room(Path(self.setup.address), count, self.setup.me, self.setup.way)

    def close(self) -> None:
        self._room.close()


class SpreadClient(PostroomClient):
    """W7 with a thousand channels and a thousand agents: sends to one after the other, and receives as they do."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._agents = [self._room.agent(f"a{number}") for number in range(8)]
        self._named = setup.way.endswith("named channel")
        self._sent = self._received = 0

    def _turn(self, number: int) -> tuple[Agent, str]:
        return self._agents[number % len(self._agents)], f"c{number * 7 % SPREAD}"

    def send(self, payload: Payload) -> None:
        agent, channel = self._turn(self._sent)
        self._sent += 1
        self._agent.send(agent.name, payload, channel=channel)

    def receive(self, timeout_s: float) -> tuple[Payload, Received] | None:
        agent, channel = self._turn(self._received)
        self._received += 1
        message = agent.receive(timeout_s, channels=[channel] if self._named else None)
        return message.payload, message


class PostroomPeer(Peer):
    name = "postroom"
    about = "SQLite room, WAL"
    receive_ways = ("receive + ack", "listen")
    ask_ways = ("send + receive", "ask")
    depth_ways = ("pending", "finished", "spread", "spread, named channel")
    has_full_sync = True

    @staticmethod
    def versions() -> dict[str, str]:
        return {"postroom": postroom.__version__, "SQLite": sqlite_version()}

    @staticmethod
    def client(setup: Setup) -> Client:
        return SpreadClient(setup) if setup.way.startswith("spread") else PostroomClient(setup)
