"""Episodes of several contexts: on the wire, before the estimators, as rows, on paper."""

from __future__ import annotations

import numpy as np
import pytest

from learner.algorithm.context import response_mask
from learner.policy.batch import Row, by_trajectory, mini_batches
from learner.policy.packing import pack
from learner.run.transcript import segments
from protocol.codec import ProtocolError, decode, encode_group
from protocol.trajectory import NO_VERSION, Group, Trajectory
from tests.episodes import advantages
from tests.wire_samples import assert_same, trajectory


def two_contexts(outcome: float = 1.0) -> Trajectory:
    """Prompt of two, turn of two, tool; another prompt of two, turn of one."""
    mask = np.array([0, 0, 1, 1, 0, 0, 0, 1], "u1")
    rewards = np.zeros(8, "<f4")
    rewards[-1] = outcome
    return Trajectory(
        token_ids=np.arange(8, dtype="<i4"),
        action_mask=mask,
        behaviour_logprobs=-mask.astype("<f4"),
        versions=np.where(mask, 3, NO_VERSION).astype("<i4"),
        rewards=rewards,
        turns=np.array([[2, 4], [7, 8]], "<i4"),
        facts={"task_id": "t", "dataset": "toy", "outcome_reward": outcome, "process_reward": 0.0},
        segments=np.array([0, 5], "<i4"),
    )


def test_segments_survive_the_wire_beside_episodes_without():
    sent = Group("L", "t", [two_contexts(), trajectory(7)])
    _, got = decode(encode_group("a", sent))
    assert_same(sent, got)
    assert [t.segments.tolist() for t in got.trajectories] == [[0, 5], [0]]
    plain, _ = decode(encode_group("a", Group("L", "t", [trajectory(7)])))
    assert plain.segments == [], "nothing is sent where there is nothing to say"


@pytest.mark.parametrize(
    ("starts", "says"),
    [([0, 2], "a token that the policy wrote"), ([0, 8], "outside"), ([0, 5, 5], "in order"), ([0, 3], "policy wrote")],
)
def test_segments_that_cannot_be_are_refused(starts, says):
    wrong = two_contexts()
    wrong.segments = np.array(starts, "<i4")
    with pytest.raises(ValueError, match=says):
        wrong.validate()
    with pytest.raises(ProtocolError, match=says):
        encode_group("a", Group("L", "t", [wrong]))
    wrong.segments = np.array([1, 5], "<i4")
    with pytest.raises(ValueError, match="begins at 0"):
        wrong.validate()


def test_a_receiver_checks_them_too():
    frames = encode_group("a", Group("L", "t", [two_contexts()]))
    header = bytes(frames[0])
    for wrong in (b"\x91\x91\x02", b"\x92\x91\x05\x90"):  # within a turn; one entry too many
        changed = header.replace(b"\xa8segments\x91\x91\x05", b"\xa8segments" + wrong)
        assert changed != header
        with pytest.raises(ProtocolError, match="segments"):
            decode([changed, *frames[1:]])


def test_a_segment_is_a_row_and_a_group_is_compared_by_episode():
    good, bad = two_contexts(1.0), two_contexts(0.0)
    [[one, other]] = advantages([[good, bad]], "grpo")
    assert one[2] == one[3] == one[7] > 0.5 and not one[[0, 1, 4, 5, 6]].any()
    np.testing.assert_allclose(one, -other)
    rows = [row for rows in mini_batches([Group("L", "t", [good, bad])], [[one, other]], 1, version=4) for row in rows]
    assert [row.token_ids.tolist() for row in rows] == [[0, 1, 2, 3, 4], [5, 6, 7]] * 2
    assert [row.action_tokens for row in rows] == [2, 1, 2, 1] and rows[1].ages.tolist() == [0, 0, 1]
    [[micro]] = pack(rows, 100)
    assert micro.cu_seqlens.tolist() == [0, 5, 8, 13, 16] and micro.position_ids[5] == 0


def test_values_of_rows_become_those_of_trajectories():
    members = [two_contexts(), trajectory(6)]
    by_row = {0: np.arange(5.0), 1: np.arange(3.0), 2: np.ones(6)}
    found = by_trajectory(members, by_row)
    assert found[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2] and len(found[1]) == 6
    del by_row[1]
    assert list(by_trajectory(members, by_row)) == [1], "nothing is made up for a missing row"


def test_masks_and_lengths_know_where_contexts_begin():
    episode = two_contexts()
    assert response_mask(episode).astype(int).tolist() == [0, 0, 1, 1, 1, 0, 0, 1]
    [first, second] = Row.of(episode, np.ones(8), mask_tools=False)
    assert first.loss_mask.tolist() == [0, 0, 1, 1, 1] and second.loss_mask.tolist() == [0, 0, 1]
    assert episode.longest_context == 5 and trajectory(9).longest_context == 9
    penalised = advantages([[episode, two_contexts(0.0)]], overlong={"buffer_tokens": 2}, max_tokens=5)
    [[free, _]] = advantages([[episode, two_contexts(0.0)]])
    np.testing.assert_allclose(penalised[0][0], free, rtol=1e-5)


def test_a_person_sees_each_context_begin_with_its_prompt():
    parts = segments(two_contexts(), lambda ids: " ".join(map(str, ids)))
    assert [(part.role, part.text) for part in parts] == [
        ("prompt", "0 1"), ("policy", "2 3"), ("environment", "4"), ("prompt", "5 6"), ("policy", "7"),
    ]  # fmt: skip
