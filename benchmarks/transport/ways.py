"""Ways to bring a group from one process to another: Rollway's own, and plainer ones.

Each way is a pair of functions, ``send`` and ``receive``, that run in processes of their own.
Both say "up" on their pipe; ``send`` then takes numbers of groups from it, and says "done" when
so many were acknowledged. At most ``WINDOW`` groups are under way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import zmq
from aiohttp import web

from actors.link import Link
from benchmarks.transport.samples import TASK, as_lists, from_lists, group
from configs.schema import Config
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway, WaitTimeout
from protocol.codec import encode_group
from protocol.messages import Leases
from protocol.trajectory import Group

WINDOW = 4
BATCH = 32
_HOST = "127.0.0.1"


def run_config(port: int, **gateway: Any) -> Config:
    """A run whose groups never get too old."""
    return Config.model_validate(
        {
            "run": {"steps": 1_000_000},
            "model": {"max_tokens": 4096},
            "learner": {"groups": BATCH, "mini_batches": 1, "group_size": 8},
            "staleness": 1000,
            "actor": {"leases": WINDOW},
            "gateway": {"port": port, "lease_timeout_s": 7200.0, **gateway},
        }
    )


def serve_learner(gateway: Gateway, pipe: Connection, batch: int = BATCH) -> None:
    """Take batches as fast as they come, until the pipe closes."""
    logging.getLogger("rollway").setLevel(logging.ERROR)  # on a crowded machine leases come late: no news here
    gateway.start()
    gateway.set_servers(["http://127.0.0.1:1"])
    pipe.send("up")
    step = 0
    while not pipe.poll():
        with suppress(WaitTimeout):
            gateway.take_batch(batch, 0.2)
            step += 1
            gateway.commit(step)
            gateway.set_version(step)
            gateway.checkpointed(step)
    gateway.stop("over")


# ── Rollway: link, gateway, ledger ───────────────────────────────────────────


def receive_rollway(port: int, ledger: str, pipe: Connection) -> None:
    serve_learner(Gateway(run_config(port), Ledger(ledger, [TASK], 0), "transport", {}), pipe)


def send_rollway(port: int, ledger: str, pipe: Connection) -> None:
    made = group()

    async def main() -> None:
        link = Link(f"tcp://{_HOST}:{port}", "sender", 1.0)
        await link.connect(60.0)
        held: dict[str, asyncio.Task[None]] = {}
        places = asyncio.Semaphore(0)
        done = 0

        async def work(lease_id: str) -> None:
            nonlocal done
            await places.acquire()
            await link.deliver(Group(lease_id, TASK.task_id, made.trajectories))
            del held[lease_id]
            done += 1

        async def take() -> None:
            while True:
                event = await link.next_event()
                if isinstance(event, Leases):
                    for lease in event.leases:
                        held[lease.lease_id] = asyncio.create_task(work(lease.lease_id))

        async def beat() -> None:
            while True:
                link.update(WINDOW, list(held), {}, {"tokens_per_s": 1.0})
                await asyncio.sleep(0.5)

        jobs = [asyncio.create_task(take()), asyncio.create_task(beat())]
        pipe.send("up")
        with suppress(EOFError):
            while True:
                count = await asyncio.to_thread(pipe.recv)
                goal = done + count
                for _ in range(count):
                    places.release()
                while done < goal:
                    await asyncio.sleep(0.001)
                pipe.send("done")
        for job in jobs:
            job.cancel()

    asyncio.run(main())
    os._exit(0)


# ── raw ZeroMQ: the same bytes, made once ────────────────────────────────────


def receive_raw(port: int, _: str, pipe: Connection) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"tcp://{_HOST}:{port}")
        pipe.send("up")
        while not pipe.poll():
            while router.poll(200):
                identity, *_frames = router.recv_multipart(copy=False)
                router.send_multipart([identity.bytes, b"ack"])


def send_raw(port: int, _: str, pipe: Connection) -> None:
    frames = encode_group("sender", group())
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"tcp://{_HOST}:{port}")
        pipe.send("up")
        with suppress(EOFError):
            while True:
                left, under_way = pipe.recv(), 0
                while left or under_way:
                    while left and under_way < WINDOW:
                        dealer.send_multipart(frames, copy=False)
                        left, under_way = left - 1, under_way + 1
                    dealer.recv()
                    under_way -= 1
                pipe.send("done")


# ── pickle over a multiprocessing queue ──────────────────────────────────────


def receive_pickle(queues: tuple, lists: bool, pipe: Connection) -> None:
    groups, acks = queues
    pipe.send("up")
    while True:
        got = groups.get()
        if lists:
            got = from_lists(got)
        acks.put(got.lease_id)


def send_pickle(queues: tuple, lists: bool, pipe: Connection) -> None:
    groups, acks = queues
    made = as_lists(group()) if lists else group()
    pipe.send("up")
    with suppress(EOFError):
        while True:
            left, under_way = pipe.recv(), 0
            while left or under_way:
                while left and under_way < WINDOW:
                    groups.put(made)
                    left, under_way = left - 1, under_way + 1
                acks.get(timeout=60)
                under_way -= 1
            pipe.send("done")


# ── JSON over HTTP ───────────────────────────────────────────────────────────


def receive_json(port: int, _: str, pipe: Connection) -> None:
    async def take(request: web.Request) -> web.Response:
        got = from_lists(json.loads(await request.read()))
        return web.json_response({"ack": got.lease_id})

    async def main() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/group", take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, _HOST, port).start()
        pipe.send("up")
        await asyncio.to_thread(pipe.poll, None)

    asyncio.run(main())


def send_json(port: int, _: str, pipe: Connection) -> None:
    made = group()

    async def main() -> None:
        async with aiohttp.ClientSession() as session:

            async def worker(count: int) -> None:
                for _ in range(count):
                    body = json.dumps(as_lists(made))
                    async with session.post(f"http://{_HOST}:{port}/group", data=body) as response:
                        await response.json()

            pipe.send("up")
            with suppress(EOFError):
                while True:
                    count = await asyncio.to_thread(pipe.recv)
                    await asyncio.gather(*(worker(count // WINDOW) for _ in range(WINDOW)))
                    pipe.send("done")

    asyncio.run(main())


# ── the disk alone ───────────────────────────────────────────────────────────


def write_plain(folder: Path, count: int) -> None:
    """``count`` groups' bytes one after another, on disk after every ``BATCH``, as the ledger's are."""
    frames = [bytes(frame) for frame in encode_group("sender", group())]
    with open(folder / "plain", "wb", buffering=0) as file:
        for number in range(count):
            file.write(b"".join(frames))
            if number % BATCH == BATCH - 1:
                os.fsync(file.fileno())
    (folder / "plain").unlink()
