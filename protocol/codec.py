"""Message ↔ ZeroMQ frames: one MessagePack header, then the arrays of a group as raw frames.

Frames may come from a stranger. Every size is checked before memory is taken for it (``limits``),
and whatever is wrong with them ends in ``ProtocolError``, never in another exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgpack
import numpy as np
from pydantic import TypeAdapter, ValidationError

from protocol.limits import Limits, TooMuch, check_shape
from protocol.messages import PROTOCOL_VERSION, AnyMessage, GroupDone, Message
from protocol.trajectory import TOKEN_FIELDS, Group, Trajectory, check_episodes, check_segments

Frame = bytes | memoryview

MAX_HEADER_BYTES = 16 << 20
MAX_GROUP_TOKENS = 16 << 20
#: Largest frame that any peer may send; sockets refuse larger ones (ZMQ_MAXMSGSIZE).
MAX_FRAME_BYTES = max(MAX_HEADER_BYTES, MAX_GROUP_TOKENS * max(d.itemsize for d in TOKEN_FIELDS.values()))
#: Header, the per-token arrays, the turns.
GROUP_FRAMES = 1 + len(TOKEN_FIELDS) + 1

_TURNS = np.dtype("<i4")
_ADAPTER: TypeAdapter[AnyMessage] = TypeAdapter(AnyMessage)


class ProtocolError(ValueError):
    """These frames are not a message of ours; the text says what is wrong with them."""


class VersionError(ProtocolError):
    """The peer speaks another version of the protocol."""


def encode(message: Message, group: Group | None = None) -> list[Frame]:
    """Frames of ``message``; a ``GroupDone`` takes its ``group``, whose arrays are joined field by field.

    Raises ``ProtocolError`` on values that MessagePack cannot carry, on a header over
    ``MAX_HEADER_BYTES`` and on a group that a receiver would refuse.
    """
    if isinstance(message, GroupDone) != (group is not None):
        raise ProtocolError("a group goes with GroupDone, and with nothing else")
    try:
        header = msgpack.packb(dict(message), default=_plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{type(message).__name__}: only plain values can be sent: {error}") from None
    if len(header) > MAX_HEADER_BYTES:
        raise ProtocolError(f"{type(message).__name__}: header of {len(header)} bytes, at most {MAX_HEADER_BYTES}")
    return [header] if group is None else [header, *_join(group)]


def encode_group(actor_id: str, group: Group) -> list[Frame]:
    """The ``GroupDone`` of ``group`` with its arrays, as ``encode`` would make it."""
    trajectories = group.trajectories
    rewritten = any(len(t.segments) > 1 for t in trajectories)
    try:
        message = GroupDone(
            actor_id=actor_id,
            lease_id=group.lease_id,
            task_id=group.task_id,
            lengths=[len(t) for t in trajectories],
            turn_counts=[len(t.turns) for t in trajectories],
            terminated=[t.terminated for t in trajectories],
            facts=[t.facts for t in trajectories],
            segments=[t.segments[1:].tolist() for t in trajectories] if rewritten else [],
        )
    except ValidationError as error:
        raise ProtocolError(_first(error)) from None
    _check_counts(message)
    return encode(message, group)


def decode(frames: Sequence[Frame], limits: Limits | None = None) -> tuple[Message, Group | None]:
    """Inverse of ``encode``. The arrays are read-only views of the frames: nothing is copied.

    limits: what the receiver takes from peers that it does not trust. Without them only the
    bounds of the protocol hold: for what a learner says to those that chose it, and for the ledger.
    Raises ``VersionError`` where the header names another protocol version, else ``ProtocolError``.
    """
    if len(frames) not in (1, GROUP_FRAMES):
        raise ProtocolError(f"{len(frames)} frames: a message has 1, a group {GROUP_FRAMES}")
    message = _decode_header(frames[0], limits)
    if not isinstance(message, GroupDone):
        if len(frames) != 1:
            raise ProtocolError(f"{message.type}: {len(frames)} frames, want 1")
        return message, None
    if len(frames) != GROUP_FRAMES:
        raise ProtocolError(f"group_done: {len(frames)} frames, want {GROUP_FRAMES}")
    return message, _cut(message, frames, limits.tokens if limits else MAX_GROUP_TOKENS)


def _decode_header(frame: Frame, limits: Limits | None) -> Any:
    if len(frame) > MAX_HEADER_BYTES:
        raise ProtocolError(f"header of {len(frame)} bytes, at most {MAX_HEADER_BYTES}")
    try:
        if limits:
            check_shape(frame, limits)
        # Without explicit limits msgpack bounds every string and container by the frame's
        # own size, so a header cannot announce more than it carries. No extension types.
        fields = msgpack.unpackb(frame, max_ext_len=0)
    except TooMuch as error:
        raise ProtocolError(str(error)) from None
    except (ValueError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"header is not MessagePack: {error}") from None
    if isinstance(fields, dict) and fields.get("protocol", PROTOCOL_VERSION) != PROTOCOL_VERSION:
        raise VersionError(
            f"protocol version {str(fields['protocol'])[:20]} met version {PROTOCOL_VERSION}: "
            "run the same release of Rollway on both ends"
        )
    try:
        return _ADAPTER.validate_python(fields)
    except ValidationError as error:
        raise ProtocolError(_first(error)) from None


def _check_counts(message: GroupDone, most: int = MAX_GROUP_TOKENS) -> int:
    """Σ lengths, after checking that every count in the header is possible."""
    size = len(message.lengths)
    if not size or {len(message.turn_counts), len(message.terminated), len(message.facts)} != {size}:
        raise ProtocolError("group_done: lengths, turn_counts, terminated and facts want one entry a trajectory")
    if message.segments and len(message.segments) != size:
        raise ProtocolError("group_done: segments wants one entry a trajectory, or none")
    if min(message.lengths) < 1 or min(message.turn_counts) < 0:
        raise ProtocolError("group_done: a trajectory without tokens, or with a negative number of turns")
    tokens = sum(message.lengths)
    turns = sum(message.turn_counts)
    if tokens > most or turns > tokens:
        raise ProtocolError(f"group_done: {tokens} tokens, {turns} turns: too many, at most {most}")
    return tokens


def _join(group: Group) -> list[Frame]:
    members = group.trajectories
    try:
        for member in members:  # each by itself: joined, wrong sizes could make up for each other
            member.check_shapes()
        joined = {name: np.concatenate([getattr(t, name) for t in members]) for name in TOKEN_FIELDS}
        turns = np.concatenate([t.turns for t in members])
        sizes = np.array([len(t) for t in members]), np.array([len(t.turns) for t in members])
        check_episodes(joined, turns, *sizes, [t.facts for t in members])
        for member in members:
            check_segments(member.segments[1:].tolist(), member.action_mask, member.turns)
    except ValueError as error:
        raise ProtocolError(f"lease {group.lease_id}: {error}") from None
    arrays = [*joined.values(), turns.astype(_TURNS, copy=False)]
    return [memoryview(array.reshape(-1).view(np.uint8)) for array in arrays]


def _cut(message: GroupDone, frames: Sequence[Frame], most: int) -> Group:
    tokens = _check_counts(message, most)
    flat = {}
    for (name, dtype), frame in zip(TOKEN_FIELDS.items(), frames[1:], strict=False):
        flat[name] = _array(name, frame, dtype, tokens)
    turns = _array("turns", frames[-1], _TURNS, 2 * sum(message.turn_counts)).reshape(-1, 2)
    try:
        check_episodes(flat, turns, np.array(message.lengths), np.array(message.turn_counts), message.facts)
    except ValueError as error:
        raise ProtocolError(str(error)) from None

    spans = pairwise(accumulate(message.lengths, initial=0))
    turn_spans = pairwise(accumulate(message.turn_counts, initial=0))
    trajectories = []
    segments = message.segments or [[]] * len(message.lengths)
    for (start, end), (first, last), terminated, facts, later in zip(
        spans, turn_spans, message.terminated, message.facts, segments, strict=True
    ):
        fields = {name: array[start:end] for name, array in flat.items()}
        member = Trajectory(**fields, turns=turns[first:last], terminated=terminated, facts=facts)
        if later:
            try:
                check_segments(later, member.action_mask, member.turns)
            except ValueError as error:
                raise ProtocolError(str(error)) from None
            member.segments = np.array([0, *later], _TURNS)
        trajectories.append(member)
    return Group(message.lease_id, message.task_id, trajectories, frames)


def _array(name: str, frame: Frame, dtype: np.dtype, count: int) -> np.ndarray:
    size = memoryview(frame).nbytes
    if size != count * dtype.itemsize:
        raise ProtocolError(f"group_done: {name} has {size} bytes, want {count} × {dtype.itemsize}")
    return np.frombuffer(frame, dtype)


def _plain(value: Any) -> Any:
    """What MessagePack does not know: messages in messages, and numpy scalars, which metrics often are."""
    if isinstance(value, Message):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not plain")


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part)[:40] for part in detail['loc'])}: {detail['msg']}"[:400]
