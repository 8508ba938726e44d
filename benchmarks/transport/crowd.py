"""A thousand actors at one gateway: heartbeats, leases, and now and then a finished group.

The actors are sockets in one process that say what real ones would; the gateway is a real one
with its ledger on disk, in a process of its own. What it costs is its CPU time for each heartbeat.
"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection

import zmq

from benchmarks.transport.samples import TASK, trajectory
from benchmarks.transport.ways import run_config, serve_learner
from learner.gateway.ledger import Ledger
from learner.gateway.router import Gateway
from protocol.codec import decode, encode, encode_group
from protocol.messages import PROTOCOL_VERSION, Ack, Heartbeat, Hello, Leases, Pong, Unknown
from protocol.trajectory import Group

LEASES = 8
#: Groups that all actors together finish in a second.
GROUPS_PER_S = 50
#: Answers that come so many seconds after the last heartbeat still count.
_LATE_S = 5.0
_STATS = {
    "in_flight": 64, "episodes": 1000, "groups": 125, "groups_failed": 0, "groups_cancelled": 1, "turns": 4000,
    "tokens": 160000, "tokens_per_s": 3000.0, "latency_p50": 0.31, "latency_p99": 1.9,
    "servers": {"http://10.0.0.5:8100": {"requests": 4000, "p50": 0.31, "p99": 1.9}},
    "tools": {"search": {"calls": 3000, "faults": 12, "p50": 0.002, "p99": 0.02}},
    "faults": {"tool.malformed": 12}, "abandoned_threads": 0, "rss_mb": 180.0,
}  # fmt: skip


def receive_crowd(port: int, ledger: str, actors: int, pipe: Connection) -> None:
    config = run_config(port, max_peers=actors + 8)
    config = config.model_copy(update={"actor": config.actor.model_copy(update={"leases": LEASES})})
    serve_learner(Gateway(config, Ledger(ledger, [TASK], 0), "crowd", {}), pipe)


class _Actor:
    """One connection. It holds what it is given until it is told to finish one."""

    def __init__(self, context: zmq.Context, port: int, number: int) -> None:
        self.name = f"actor-{number}"
        self.held: list[str] = []
        self.welcome = False
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, self.name.encode())
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.hello()

    def hello(self) -> None:
        self.socket.send_multipart(encode(Hello(protocol=PROTOCOL_VERSION, actor_id=self.name, host="load", pid=1)))

    def beat(self) -> None:
        oldest = dict.fromkeys(self.held, 0)
        beat = Heartbeat(actor_id=self.name, capacity=LEASES, held=self.held, oldest=oldest, stats=_STATS)
        self.socket.send_multipart(encode(beat))

    def finish_one(self, members: list) -> None:
        if self.held:
            self.socket.send_multipart(encode_group(self.name, Group(self.held.pop(0), TASK.task_id, members)))

    def listen(self) -> int:
        """Read what came; the number of answers to heartbeats among it."""
        pongs = 0
        while self.socket.poll(0):
            message, _ = decode(self.socket.recv_multipart())
            match message:
                case Leases(leases=leases):
                    self.held += [lease.lease_id for lease in leases]
                case Pong():
                    pongs += 1
                case Unknown():
                    self.hello()
                case Ack():
                    pass
        return pongs


def _next(pipe: Connection) -> float | None:
    try:
        return pipe.recv()
    except EOFError:
        return None


def send_crowd(port: int, actors: int, pipe: Connection) -> None:
    """Takes seconds from the pipe; beats for so long, answers (heartbeats sent, answers that came)."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, actors + 16)
    crowd = [_Actor(context, port, number) for number in range(actors)]
    members = [trajectory(seed, tokens=100) for seed in range(8)]
    pipe.send("up")
    while (seconds := _next(pipe)) is not None:
        beats = pongs = groups = 0
        began = time.monotonic()
        while (gone := time.monotonic() - began) < seconds:
            while beats < gone * actors:
                actor = crowd[beats % actors]
                pongs += actor.listen()
                actor.beat()
                beats += 1
            while groups < gone * GROUPS_PER_S:
                random.choice(crowd).finish_one(members)
                groups += 1
            time.sleep(0.001)
        late = time.monotonic() + _LATE_S
        while pongs < beats and time.monotonic() < late:
            pongs += sum(actor.listen() for actor in crowd)
        pipe.send((beats, pongs, sum(len(actor.held) for actor in crowd)))
