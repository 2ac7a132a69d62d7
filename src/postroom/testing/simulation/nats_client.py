"""The client of a simulated NATS server: what a room uses of nats-py, over a network that may be faulty."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

from postroom.stores.nats.callbacks import Ear, Troubled
from postroom.stores.nats.link import Loop

from .nats_server import VERSION, Hears, Packet, SimulatedServer, Subscriptions, parse_headers

#: Answers to requests come under such subjects; all else that is heard is a push.
INBOX: Final = "_INBOX."


class ClientError(Exception):
    """Stands for the errors of nats-py."""


class Network:
    """What is between the clients and the server. This one loses nothing, and is never late."""

    #: What the server takes at once.
    max_payload = 1024 * 1024

    def __init__(self, now_ns: Callable[[], int], choose: Callable[[int], int] = lambda _: 0) -> None:
        self.server = SimulatedServer(now_ns, self.route)
        self.subscriptions = Subscriptions(choose)
        self._inboxes = count(1)

    def new_inbox(self) -> str:
        return f"{INBOX}{next(self._inboxes):022d}"

    def down_s(self, client: SimulatedClient) -> float:
        """For how long the client cannot connect; 0 when it can."""
        return 0

    def send(self, client: SimulatedClient, packets: Sequence[Packet]) -> None:
        """A client has written these to its connection, in one go."""
        for packet in packets:
            self.server.take(packet)

    def ping(self, client: SimulatedClient, pong: Callable[[], None]) -> None:
        """A client asks whether its connection stands."""
        self.deliver(client, pong)

    def deliver(self, client: SimulatedClient, call: Callable[[], None], subject: bytes = INBOX.encode()) -> None:
        """This is on its way to a client, under that subject."""
        client.come(call)

    def route(self, subject: str, data: bytes, headers: bytes) -> None:
        """The server tells of this."""
        for hears in self.subscriptions.hearers(subject):
            hears(subject.encode(), data, headers)


class HeardMessage(NamedTuple):
    """A message as nats-py gives it."""

    data: bytes
    headers: dict[str, str]


class ClientSubscription:
    """A subscription of a client, also through reconnects."""

    def __init__(self, client: SimulatedClient, pattern: str, queue: str, ear: Ear | None) -> None:
        self._client = client
        self._pattern = pattern
        self._queue = queue
        self._ear = ear
        self._number = 0
        self._heard: deque[HeardMessage] = deque()
        self._came = asyncio.Event()

    def begin(self, subscriptions: Subscriptions) -> None:
        """From now on the server knows of it."""
        self._number = subscriptions.add(self._pattern, self._queue, self._hears)

    def end(self, subscriptions: Subscriptions) -> None:
        """The server forgets it."""
        subscriptions.remove(self._number)

    def _hears(self, subject: bytes, data: bytes, headers: bytes) -> None:
        """On the way to the client. In the server's time."""
        self._client.receive(self, subject, data, headers)

    def hear(self, subject: bytes, data: bytes, headers: bytes) -> None:
        """It has come. On the client's loop."""
        if self._ear is not None:
            self._ear(subject, data, headers)
        else:
            self._heard.append(HeardMessage(data, parse_headers(headers.decode())))
            self._came.set()

    async def next_msg(self, timeout: float) -> HeardMessage:  # noqa: ASYNC109  (nats-py's)
        try:
            async with asyncio.timeout(timeout):
                while not self._heard:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise ClientError("nats: timeout") from None
        return self._heard.popleft()

    async def unsubscribe(self) -> None:
        self._client.drop(self)


Callback = Callable[[], Awaitable[None]]
#: What is done when something has come over a connection.
Came = Callable[[], None]


class SimulatedClient:
    """What `RoomClient` is to a room, with a simulated network in the place of sockets."""

    def __init__(self, network: Network, loop: asyncio.AbstractEventLoop, come: Callable[[Came], object]) -> None:
        self.server: dict[str, Any] = {"version": VERSION, "jetstream": True}
        self.max_payload = network.max_payload
        self.is_connected = self._is_closed = False
        self._network = network
        self._loop = loop
        #: Hands the loop what has come over the connection. In anybody's time.
        self.come = come
        self._subscriptions: dict[ClientSubscription, None] = {}
        self._unsent: list[Packet] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_disconnect: Callback
        self._on_reconnect: Callback

    # Connecting

    async def connect(self, *, disconnected_cb: Callback, reconnected_cb: Callback, **_: object) -> None:
        self._on_disconnect, self._on_reconnect = disconnected_cb, reconnected_cb
        await self._reach()
        self.is_connected = True

    def cut(self) -> None:
        """The connection breaks, and the client notices. In anybody's time."""
        if self.is_connected:
            self.is_connected = False
            for each in self._subscriptions:
                each.end(self._network.subscriptions)
            self._unsent.clear()
            self._loop.call_soon_threadsafe(self._begin, self._come_back)

    def vanish(self) -> None:
        """Its process is gone, and the server sees that."""
        self.is_connected = False
        for each in self._subscriptions:
            each.end(self._network.subscriptions)

    def _begin(self, call: Callback) -> None:
        task = self._loop.create_task(_run(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reach(self) -> None:
        """Knock until there is a server, as nats-py does."""
        while not self._is_closed and (down_s := self._network.down_s(self)):  # noqa: ASYNC110
            await asyncio.sleep(min(1.0, down_s))

    async def _come_back(self) -> None:
        await self._on_disconnect()
        await self._reach()
        if not self._is_closed:
            self.is_connected = True
            for each in self._subscriptions:
                each.begin(self._network.subscriptions)
            await self._on_reconnect()

    async def force_reconnect(self) -> None:
        self.cut()

    async def close(self) -> None:
        self._is_closed, self.is_connected = True, False
        for each in tuple(self._subscriptions):
            self.drop(each)
        await self._on_disconnect()

    # Sending

    def new_inbox(self) -> str:
        return self._network.new_inbox()

    def send(self, subject: str, data: bytes, reply: str = "", head: str = "") -> None:
        if not self.is_connected:
            raise ConnectionError
        self._unsent.append(Packet(subject, data, reply, head))
        if reply:  # the messages before it are of the same batch
            packets, self._unsent = self._unsent, []
            self._network.send(self, packets)

    async def sent(self) -> None:
        """Nothing is left to be sent."""

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if self.is_connected:  # nats-py would keep it until it is connected again
            self._network.send(self, [Packet(subject, data, reply)])

    async def flush(self, timeout: float) -> None:  # noqa: ASYNC109  (nats-py's)
        pong = asyncio.Event()
        if self.is_connected:
            self._network.ping(self, pong.set)
        try:
            async with asyncio.timeout(timeout):
                await pong.wait()
        except TimeoutError:
            raise ClientError("nats: timeout") from None

    # Hearing

    def receive(self, subscription: ClientSubscription, subject: bytes, data: bytes, headers: bytes) -> None:
        """This is on its way to the client. In the server's time."""
        self._network.deliver(self, partial(self._hear, subscription, subject, data, headers), subject)

    def _hear(self, subscription: ClientSubscription, subject: bytes, data: bytes, headers: bytes) -> None:
        if subscription in self._subscriptions and self.is_connected:
            subscription.hear(subject, data, headers)

    async def subscribe(self, subject: str, queue: str = "", ear: Ear | None = None) -> ClientSubscription:
        subscription = ClientSubscription(self, subject, queue, ear)
        self._subscriptions[subscription] = None
        if self.is_connected:
            subscription.begin(self._network.subscriptions)
        return subscription

    async def hear(self, subject: str, ear: Ear, queue: str = "") -> ClientSubscription:
        return await self.subscribe(subject, queue, ear)

    async def unhear(self, subscription: ClientSubscription) -> None:
        self.drop(subscription)

    def drop(self, subscription: ClientSubscription) -> None:
        """It is not heard any more."""
        if self._subscriptions.pop(subscription, self) is None:
            subscription.end(self._network.subscriptions)


async def _run(call: Callback) -> None:
    await call()


class NetworkBackground(Loop):
    """The background loop of this real process, whose clients talk to a simulated server."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    def client(self, access: object, troubled: Troubled) -> tuple[Any, type[Exception]]:
        loop = asyncio.get_running_loop()
        return SimulatedClient(self._network, loop, loop.call_soon_threadsafe), ClientError


__all__ = ["INBOX", "ClientError", "Hears", "Network", "NetworkBackground", "SimulatedClient"]
