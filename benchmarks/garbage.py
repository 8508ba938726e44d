"""What a hostile peer may send: seeded, endless, of every kind that a receiver could trip over.

Each generator is a function of a ``random.Random`` and yields messages (lists of frames).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np

from protocol.codec import GROUP_FRAMES, encode, encode_group
from protocol.limits import Limits
from protocol.messages import PROTOCOL_VERSION, Goodbye, GroupFailed, Heartbeat, Hello, StatusRequest
from protocol.trajectory import NO_VERSION, Group, Trajectory

Frames = list[bytes]

#: Messages that mutations start from: making them anew each time would be most of the work.
_STOCK = 64
#: Every so many messages, one that is large.
_LARGE = 50

#: Values that fit no field, or just do.
_ODD: list[Any] = [None, True, -1, 0, 2**31, 2**63, -(2**63), 1e308, float("nan"), float("inf"), "", "x" * 5000, b"\xff", [],
                   {}, [[]], {"a": {"b": []}}, [None] * 200, "\0", "../..", {"type": "hello"}]  # fmt: skip


def episode(rng: random.Random, task_id: str, dataset: str, version: int = 0) -> Trajectory:
    """A small valid trajectory of one turn."""
    size = rng.randint(4, 40)
    mask = np.ones(size, "u1")
    mask[:2] = 0
    rewards = np.zeros(size, "<f4")
    rewards[-1] = rng.random()
    return Trajectory(
        token_ids=np.arange(size, dtype="<i4"),
        action_mask=mask,
        behaviour_logprobs=np.where(mask, -0.5, 0).astype("<f4"),
        versions=np.where(mask, version, NO_VERSION).astype("<i4"),
        rewards=rewards,
        turns=np.array([[2, size]], "<i4"),
        facts={
            "task_id": task_id,
            "dataset": dataset,
            "metrics": {"em": 1.0},
            "tool_calls": [{"turn": 0, "name": "search", "latency_s": 0.1, "fault": None}],
        },
    )


def group(rng: random.Random, lease_id: str, task_id: str, dataset: str, size: int, version: int = 0) -> Group:
    return Group(lease_id, task_id, [episode(rng, task_id, dataset, version) for _ in range(size)])


def valid(rng: random.Random, name: str) -> Frames:
    """A message that is in order, of a peer called ``name``; its leases are made up."""
    kind = rng.randrange(6)
    if kind == 0:
        return encode(Hello(protocol=PROTOCOL_VERSION, actor_id=name, host="h", pid=rng.randrange(9)))
    if kind == 1:
        held = [f"lease-{rng.randrange(99)}" for _ in range(rng.randrange(4))]
        return encode(Heartbeat(actor_id=name, capacity=0, held=held, oldest=dict.fromkeys(held, 1), stats={"a": [1]}))
    if kind == 2:
        return encode(GroupFailed(actor_id=name, lease_id="lease", reason="r"))
    if kind == 3:
        return encode(Goodbye(actor_id=name))
    if kind == 4:
        return encode(StatusRequest(protocol=PROTOCOL_VERSION, since_step=rng.randrange(9)))
    return [bytes(frame) for frame in encode_group(name, group(rng, "lease", "q0", "toy", rng.randint(1, 4)))]


def mutate(rng: random.Random, frames: Frames) -> Frames:
    """``frames`` with one to three things wrong."""
    frames = list(frames)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(frames)) if frames else 0
        match rng.randrange(8):
            case 0 if frames and frames[at]:  # flipped bytes
                body = bytearray(frames[at])
                for _ in range(rng.randint(1, 4)):
                    body[rng.randrange(len(body))] = rng.randrange(256)
                frames[at] = bytes(body)
            case 1 if frames:  # cut
                frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
            case 2 if frames:  # longer
                frames[at] += rng.randbytes(rng.randint(1, 64))
            case 3 if frames:  # a frame lost
                del frames[at]
            case 4:  # a frame more
                frames.insert(at, rng.randbytes(rng.randrange(32)))
            case 5:  # frames in another order
                rng.shuffle(frames)
            case _ if frames:  # a field with another value
                frames[0] = _change_field(rng, frames[0])
    return frames


def mutants(rng: random.Random, name: str) -> Iterator[Frames]:
    sound = [valid(rng, name) for _ in range(_STOCK)]
    while True:
        yield mutate(rng, rng.choice(sound))


def noise(rng: random.Random, name: str) -> Iterator[Frames]:
    """Random frames, most of them short, in any number."""
    while True:
        yield [rng.randbytes(int(rng.paretovariate(0.6)) % 4096) for _ in range(rng.randrange(2 * GROUP_FRAMES))]


def liars(rng: random.Random, name: str) -> Iterator[Frames]:
    """Sound headers whose arrays, counts or announced sizes are not what they say."""
    announced = [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\x7f\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdd\x00\x00\x40\x00" * 900,
    ]
    sound = [bytes(frame) for frame in encode_group(name, group(rng, "lease", "q0", "toy", 2))]
    while True:
        fields, arrays = msgpack.unpackb(sound[0]), sound[1:]
        match rng.randrange(5):
            case 0:
                fields["lengths"] = [rng.choice([1, 2**20, 2**40, -5, 7]) for _ in fields["lengths"]]
            case 1:
                fields["turn_counts"] = [rng.choice([0, 2**30, -1, 3]) for _ in fields["turn_counts"]]
            case 2:
                arrays[rng.randrange(len(arrays))] = rng.randbytes(rng.randrange(3000))
            case 3:
                for field in ("lengths", "turn_counts", "terminated", "facts"):
                    fields[field] = fields[field] * rng.randrange(_size(rng, 10, 5000))
            case 4:
                yield [rng.choice(announced) + rng.randbytes(rng.randrange(64)), *arrays]
                continue
        yield [msgpack.packb(fields), *arrays]


def nests(rng: random.Random, name: str) -> Iterator[Frames]:
    """Headers that are deep, wide or both."""
    while True:
        depth = rng.choice([5, 20, 400, 510])
        value: Any = 1
        for _ in range(depth):
            value = [value] if rng.random() < 0.5 else {"k": value}
        match rng.randrange(4):
            case 0:
                yield encode_raw(
                    {"type": "heartbeat", "actor_id": name, "capacity": 1, "held": [], "stats": {"s": value}}
                )
            case 1:
                yield [rng.choice([b"\x91", b"\x81\xa0", b"\xdc\x00\x01"]) * _size(rng, 100, 20000)]
            case 2:
                yield [
                    b"\xdd"
                    + (wide := _size(rng, 300, 30000)).to_bytes(4)
                    + rng.choice([b"\x90", b"\x80", b"\xa1x"]) * wide
                ]
            case 3:
                facts = {"task_id": "q0", "dataset": "toy", "extra": value}
                yield mutate_header(name, {"facts": [facts, facts]})


def giants(rng: random.Random, name: str, limits: Limits) -> Iterator[Frames]:
    """About as large as a frame may be, or larger, among small ones; or far too many frames."""
    while True:
        match rng.randrange(2 * _LARGE):
            case 0:
                yield [bytes(limits.frame_bytes + rng.choice([-1, 0, 1, 4096]))]
            case 1:
                yield [b""] * rng.choice([100, 5000])
            case _:
                yield [rng.randbytes(64)] * rng.choice([1, GROUP_FRAMES])


KINDS: dict[str, Callable[[random.Random, str], Iterator[Frames]]] = {
    "mutants": mutants,
    "noise": noise,
    "liars": liars,
    "nests": nests,
}


def _size(rng: random.Random, small: int, large: int) -> int:
    return large if rng.randrange(_LARGE) == 0 else small


def encode_raw(fields: dict[str, Any]) -> Frames:
    """A header that our own encoder might refuse to write."""
    return [msgpack.packb(fields)]


def mutate_header(name: str, changes: dict[str, Any]) -> Frames:
    """A valid group of two episodes with some fields of its header replaced."""
    head, *arrays = (bytes(f) for f in encode_group(name, group(random.Random(0), "lease", "q0", "toy", 2)))
    return [msgpack.packb({**msgpack.unpackb(head), **changes}), *arrays]


def _change_field(rng: random.Random, head: bytes) -> bytes:
    try:
        fields = msgpack.unpackb(head)
        target = fields
        while isinstance(target, dict | list) and target:
            key = rng.choice(list(target)) if isinstance(target, dict) else rng.randrange(len(target))
            if not isinstance(target[key], dict | list) or not target[key] or rng.random() < 0.3:
                target[key] = rng.choice(_ODD)
                break
            target = target[key]
        return msgpack.packb(fields)
    except (ValueError, TypeError, msgpack.UnpackException):  # spoilt by an earlier change
        return head
