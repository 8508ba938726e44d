"""The codec: what goes in comes out, and nothing but ProtocolError comes out of garbage."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import codec
from protocol.codec import ProtocolError, VersionError, decode, encode, encode_group
from protocol.messages import PROTOCOL_VERSION, GroupDone, Heartbeat, Hello, Status
from protocol.trajectory import NO_VERSION, Group
from tests.wire_samples import assert_same, group, trajectory

HELLO = Hello(protocol=PROTOCOL_VERSION, actor_id="a", host="h", pid=1)


def frames_of(sample: Group | None = None) -> list[bytes]:
    return [bytes(frame) for frame in encode_group("actor-0", sample or group("l1", "q1", 3))]


def with_header(frames: list[bytes], **changes) -> list[bytes]:
    return [msgpack.packb({**msgpack.unpackb(frames[0]), **changes}), *frames[1:]]


def test_plain_message_round_trip():
    beat = Heartbeat(actor_id="a", capacity=3, held=["x"], oldest={"x": 4}, stats={"tok/s": 1.5})
    assert decode(encode(beat)) == (beat, None)


def test_group_round_trip_is_exact_and_copies_nothing():
    sent = group("l1", "q1", 4, version=7)
    frames = frames_of(sent)
    message, received = decode(frames)
    assert isinstance(message, GroupDone) and message.actor_id == "actor-0"
    assert_same(sent, received)
    assert received.oldest_version == 7
    tokens = np.frombuffer(frames[1], "<i4")
    assert all(np.shares_memory(t.token_ids, tokens) for t in received.trajectories)


def test_numpy_scalars_are_sent_as_numbers():
    message, _ = decode(encode(Status(snapshot={"loss": np.float32(0.5), "n": np.int64(3)})))
    assert message.snapshot == {"loss": 0.5, "n": 3}


def test_values_that_cannot_be_sent_are_named():
    with pytest.raises(ProtocolError, match="Status: only plain values"):
        encode(Status(snapshot={"x": object()}))
    with pytest.raises(ProtocolError, match="goes with GroupDone"):
        encode(HELLO, group("l", "q"))


def test_another_protocol_version_is_named_even_if_its_fields_are_new():
    header = msgpack.packb({"type": "hello", "protocol": PROTOCOL_VERSION + 1, "brand_new": 1})
    with pytest.raises(VersionError, match=f"version {PROTOCOL_VERSION + 1} met version {PROTOCOL_VERSION}"):
        decode([header])


GOOD = frames_of()
BAD = {
    "no frames": ([], "0 frames"),
    "too many frames": ([*GOOD, b""], "8 frames"),
    "empty header": ([b""], "not MessagePack"),
    "trailing bytes": ([GOOD[0] + b"\0", *GOOD[1:]], "not MessagePack"),
    "extension type": ([msgpack.packb({"type": msgpack.ExtType(5, b"x")})], "not MessagePack"),
    "announces what it has not": ([b"\xdd\xff\xff\xff\xff"], "not MessagePack"),
    "not a map": ([msgpack.packb([1])], "valid dictionary"),
    "unknown type": ([msgpack.packb({"type": "attack"})], "does not match any of the expected tags"),
    "unknown field": ([msgpack.packb({**HELLO.model_dump(), "x": 1})], "Extra inputs"),
    "group without arrays": (GOOD[:1], "1 frames"),
    "arrays without group": ([*encode(HELLO), *GOOD[1:]], "want 1"),
    "one length missing": (with_header(GOOD, lengths=[6, 7]), "one entry a trajectory"),
    "empty group": (with_header(GOOD, lengths=[], turn_counts=[], terminated=[], facts=[]), "one entry"),
    "negative length": (with_header(GOOD, lengths=[-6, 7, 20]), "without tokens"),
    "huge lengths": (with_header(GOOD, lengths=[1 << 40, 1 << 40, 1 << 40]), "too many"),
    "lengths that do not fit": (with_header(GOOD, lengths=[6, 7, 9]), "token_ids has"),
    "turns that do not fit": (with_header(GOOD, turn_counts=[2, 2, 1]), "turns has"),
    "short array": ([*GOOD[:3], GOOD[3][:-1], *GOOD[4:]], "behaviour_logprobs has"),
}


@pytest.mark.parametrize(("frames", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_frames_are_refused_with_a_reason(frames, reason):
    with pytest.raises(ProtocolError, match=reason):
        decode(frames)


def nan_reward(t):
    t.rewards[-1] = np.nan


def reward_off_action(t):
    t.rewards[0] = 1.0


def no_version(t):
    t.versions[-1] = NO_VERSION


def positive_logprob(t):
    t.behaviour_logprobs[-1] = 0.5


def turn_outside(t):
    t.turns[-1, 1] = 99


def test_an_episode_takes_nothing_from_the_next_one():
    reaching, lending = group("l1", "q1"), group("l1", "q1")
    reaching.trajectories[0].turns[-1, 1] += 1
    with pytest.raises(ProtocolError, match="outside the tokens of its episode"):
        encode_group("a", reaching)
    first, second = lending.trajectories[:2]
    first.versions, second.versions = first.versions[:-1], np.append(first.versions[-1:], second.versions)
    with pytest.raises(ProtocolError, match=r"trajectory\.versions: want"):
        encode_group("a", lending)


@pytest.mark.parametrize("spoil", [nan_reward, reward_off_action, no_version, positive_logprob, turn_outside])
def test_invalid_trajectories_pass_neither_end(spoil, monkeypatch):
    bad = group("l1", "q1")
    spoil(bad.trajectories[1])
    with pytest.raises(ProtocolError, match="trajectory"):
        encode_group("a", bad)
    with monkeypatch.context() as patch:
        patch.setattr("protocol.codec.check_episodes", lambda *args: None)
        frames = frames_of(bad)
    with pytest.raises(ProtocolError, match="trajectory"):
        decode(frames)


def test_oversized_header_is_refused_unread(monkeypatch):
    monkeypatch.setattr(codec, "MAX_HEADER_BYTES", 100)
    with pytest.raises(ProtocolError, match="at most 100"):
        decode([b"\xc0" * 101])
    with pytest.raises(ProtocolError, match="at most 100"):
        encode(Status(snapshot={"x": "y" * 200}))


def test_a_group_in_which_nothing_was_sampled_has_no_version():
    silent = trajectory()
    silent.action_mask[:] = 0
    assert Group("l", "q", [silent]).oldest_version == NO_VERSION
    assert Group("l", "q", [silent, trajectory(version=3)]).oldest_version == 3


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=10,
)
HEADER_FIELDS = list(msgpack.unpackb(GOOD[0]))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_random_bytes_raise_nothing_but_protocol_error(frames):
    with pytest.raises(ProtocolError):
        decode(frames)


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(HEADER_FIELDS), PLAIN, max_size=3))
def test_headers_with_wrong_fields_raise_nothing_but_protocol_error(changes):
    with suppress(ProtocolError):
        decode(with_header(GOOD, **changes))


@settings(max_examples=500, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 10_000), st.integers(0, 255))
def test_one_changed_byte_raises_nothing_but_protocol_error(frame, place, value):
    frames = [bytearray(f) for f in GOOD]
    frames[frame][place % len(frames[frame])] = value
    with suppress(ProtocolError):
        decode([bytes(f) for f in frames])


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda t: t.facts.pop("dataset"), "facts.dataset"),
        (lambda t: t.facts.update(metrics={"em": "NaN!"}), "facts.metrics.em"),
        (lambda t: t.facts.update(metrics={"em": float("nan")}), "facts.metrics.em"),
        (lambda t: t.facts.update(tool_calls=5), "facts.tool_calls"),
        (lambda t: t.facts.update(tool_calls=[{"turn": 0, "name": "x", "latency_s": 0.1}]), "facts.tool_calls.0.fault"),
        (lambda t: t.facts.update(finish=["done"]), "facts.finish"),
        (lambda t: t.facts.update(outcome_reward=float("inf")), "facts.outcome_reward"),
        (lambda t: t.token_ids.__setitem__(0, -7), "token_ids: a negative id"),
    ],
)
def test_what_the_learner_will_read_is_checked_at_the_door(spoil, says):
    good = trajectory()
    good.validate()
    spoil(good)
    with pytest.raises(ValueError, match=says):
        good.validate()
