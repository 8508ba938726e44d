"""The actor's end of the protocol for coroutines; the talking is done by ``WireThread``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from actors.wire import LinkError, WireThread
from protocol.codec import encode_group
from protocol.messages import Ack, Cancel, Goodbye, GroupFailed, Leases, Message, Shutdown, Welcome
from protocol.trajectory import Group

__all__ = ["Event", "Link", "LinkError"]

Event = Leases | Cancel | Shutdown


class Link:
    """One actor's connection. All coroutines belong to the event loop that ``connect`` ran on.

    heartbeat_s: pace until the learner is heard; its ``Welcome`` tells the one to keep.
    thread: what talks to the learner; a simulation has one without a socket.
    """

    def __init__(
        self, address: str, actor_id: str, heartbeat_s: float, thread: Callable[..., WireThread] = WireThread
    ) -> None:
        self._address, self._actor_id, self._heartbeat_s = address, actor_id, heartbeat_s
        self._make_thread = thread
        self._error: LinkError | None = None
        self._acks: dict[str, asyncio.Future[None]] = {}  # by lease

    @property
    def servers(self) -> list[str]:
        """Servers that have the current weights."""
        return self._thread.servers

    @property
    def version(self) -> int:
        """The learner's policy version."""
        return self._thread.version

    @property
    def learner_age_s(self) -> float:
        """Seconds since the learner was last heard."""
        return time.monotonic() - self._thread.heard

    async def connect(self, timeout_s: float) -> Welcome:
        """Say Hello until the learner answers. Raises ``LinkError`` after ``timeout_s`` or on a rejection.

        ``timeout_s`` is also the longest silence of the learner that the link bears later.
        """
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | LinkError] = asyncio.Queue()
        self._welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._thread = self._make_thread(self._address, self._actor_id, self._heartbeat_s, timeout_s, self._from_thread)
        self._thread.start()
        try:
            return await self._welcome
        except BaseException:
            await self._close()
            raise

    async def next_event(self) -> Event:
        """What the learner wants next. Raises ``LinkError`` when it is gone.

        A ``Cancel`` may name leases that are over already: ignore those.
        """
        event = await self._events.get()
        if isinstance(event, LinkError):
            self._events.put_nowait(event)  # for whoever asks again
            raise event
        return event

    def update(self, capacity: int, held: list[str], oldest: dict[str, int], stats: dict[str, Any]) -> None:
        """Say how things are (see ``Heartbeat``): told by the next heartbeat, at once if credit changed.

        Leases whose group is being delivered count as held until they are acknowledged.
        """
        self._thread.report(capacity=capacity, held=list(held), oldest=dict(oldest), stats=dict(stats))

    async def deliver(self, group: Group) -> None:
        """Send a finished group until the learner acknowledges it.

        Raises ``ProtocolError`` where the group is not a valid one, ``LinkError`` when the learner is gone.
        """
        frames = encode_group(self._actor_id, group)
        if self._error:
            raise self._error
        ack = self._acks[group.lease_id] = self._loop.create_future()
        self._thread.deliver(group.lease_id, frames)
        try:
            await ack
        finally:
            del self._acks[group.lease_id]
            self._thread.withdraw(group.lease_id)

    async def fail(self, lease_id: str, reason: str) -> None:
        """Hand a lease back. Leave it out of ``held`` from now on: should this message be
        lost, the learner finds out from the heartbeats."""
        self._thread.request(GroupFailed(actor_id=self._actor_id, lease_id=lease_id, reason=reason[:2000]))

    async def goodbye(self) -> None:
        """Hand all leases back and close. Takes about a second where the learner is gone."""
        self._thread.request(Goodbye(actor_id=self._actor_id))
        await self._close()

    async def _close(self) -> None:
        if not await asyncio.to_thread(self._thread.close):
            raise LinkError(f"the thread of the link to {self._address} does not end")

    def _from_thread(self, event: Message | LinkError) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
            self._loop.call_soon_threadsafe(self._on_event, event)

    def _on_event(self, event: Message | LinkError) -> None:
        match event:
            case Welcome():
                if not self._welcome.done():  # else the learner has restarted
                    self._welcome.set_result(event)
            case Ack(lease_id=lease_id):
                ack = self._acks.get(lease_id)
                if ack and not ack.done():
                    ack.set_result(None)
            case LinkError():
                self._error = event
                for future in (self._welcome, *self._acks.values()):
                    if not future.done():
                        future.set_exception(event)
                self._events.put_nowait(event)
            case _:
                self._events.put_nowait(event)
