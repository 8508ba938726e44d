"""Advantage estimators against values worked by hand and against loops in plain Python."""

import math
import statistics

import numpy as np
import pytest

from protocol.trajectory import Trajectory
from tests.episodes import advantages, ends_on_a_tool, episode

GROUP_RELATIVE = ["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "turn_level"]

# ── by hand ──────────────────────────────────────────────────────────────────

#: Rewards 1, 0, 0, 1: mean 1/2, sample std sqrt(1/3); all tokens alike: population std 1/2.
BY_HAND = {
    "grpo": 0.5 / (math.sqrt(1 / 3) + 0.1),
    "dr_grpo": 0.5,
    "rloo": 2 / 3,  # 1 − (0 + 0 + 1)/3
    "reinforce_pp": 1.0,
    "reinforce_pp_baseline": 1.0,
    "turn_level": 0.5 / (math.sqrt(1 / 3) + 0.1),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_outcomes_by_hand_on_action_tokens_only(name):
    (values,) = advantages([[episode(1), episode(0), episode(0), episode(1)]], name)
    a = BY_HAND[name]
    np.testing.assert_allclose(values[0], [0, a, a, 0, a, a], rtol=1e-6)
    np.testing.assert_allclose(values[1], [0, -a, -a, 0, -a, -a], rtol=1e-6)
    assert values[0].dtype == np.float32


@pytest.mark.parametrize("name", BY_HAND)
def test_an_episode_that_ends_on_a_tool_message_keeps_its_outcome(name):
    (values,) = advantages([[ends_on_a_tool(1), ends_on_a_tool(0)]], name)
    assert values[0][1] == values[0][2] > 0 and values[1][2] < 0
    assert not values[0][[0, 3, 4]].any()


@pytest.mark.parametrize("name", GROUP_RELATIVE)
def test_a_truncated_episode_is_judged_like_any_other(name):
    (cut,) = advantages([[ends_on_a_tool(0.5), episode(1), episode(0)]], name)
    (whole,) = advantages([[ends_on_a_tool(0.5, terminated=True), episode(1), episode(0)]], name)
    np.testing.assert_array_equal(cut[0], whole[0])


@pytest.mark.parametrize("name", GROUP_RELATIVE)
@pytest.mark.parametrize(
    "group",
    [
        [episode(0.1)],
        [episode(0.1) for _ in range(7)],  # std of seven times float32 0.1 is 1e-17 in float64, not 0
        [episode(0.9, 0.1), episode(1.0, 0.0), episode(0.8, 0.2)],  # equal but for float32 rounding
    ],
)
def test_equal_rewards_and_a_lone_episode_give_exactly_zero(name, group):
    options = {"eps": 0.0} if name in ("grpo", "turn_level") else {}
    if name == "turn_level" and len(group) == 3:
        group = [episode(0.1 + 0.2), episode(0.3), episode(0.3)]  # elsewhere it tells by which turn earned it
    for batch in ([group], [group, [episode(1), episode(0), episode(0)]]):
        values = advantages(batch, name, options)
        assert all((v == 0).all() for v in values[0])
    assert any(v.any() for v in values[1])


def test_a_batch_of_equal_returns_is_silent_for_reinforce_pp():
    for group in ([episode(0.1)], [episode(0.1) for _ in range(7)]):
        assert not any(v.any() for v in advantages([group], "reinforce_pp")[0])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "turn_level"])
@pytest.mark.parametrize("norm", ["none", "group"])
def test_groups_do_not_touch_each_other(name, norm):
    other = [episode(5, (0.3, 0.9)), episode(3, 0.2)]
    for first in ([episode(1, 0.7), episode(0)], [episode(-70, 8.0), episode(100)]):
        both = advantages([first, other], name, process_reward_norm=norm)
        alone = advantages([other], name, process_reward_norm=norm)
        np.testing.assert_array_equal(both[1], alone[0])


def test_returns_of_reinforce_pp_by_hand():
    # process 1 in the first turn, outcome 2 at the end; γ = 1/2 a token, 1/4 more from turn to turn
    batch = [[episode(2, 1.0), episode(0)]]
    got = advantages(batch, "reinforce_pp", {"gamma": 0.5}, turn_discount=0.25)[0]
    after = 2 * 0.5  # the return at the second turn's first token
    returns = [0.5 * (1 + 0.125 * after), 1 + 0.125 * after, after, 2.0]
    every = np.array([*returns, 0, 0, 0, 0])
    expected = (every - every.mean()) / every.std()
    np.testing.assert_allclose(got[0][[1, 2, 4, 5]], expected[:4], rtol=1e-6)
    np.testing.assert_allclose(got[1][[1, 2, 4, 5]], expected[4:], rtol=1e-6)


def test_turn_level_by_hand():
    # returns: (1.5, 1), (0, 0), and an episode of one turn that stands at its 1: means 5/6, 2/3
    values = advantages([[episode(1, 0.5), episode(0), episode(1, turns=1)]], "turn_level", {"eps": 0.0})[0]
    columns = [[1.5, 0, 1], [1, 0, 1]]
    sigma = math.sqrt(sum(statistics.variance(c) for c in columns) / 2)
    np.testing.assert_allclose(values[0], np.array([0, 1.5 - 5 / 6, 1.5 - 5 / 6, 0, 1 / 3, 1 / 3]) / sigma, rtol=1e-6)
    np.testing.assert_allclose(values[1], np.array([0, -5 / 6, -5 / 6, 0, -2 / 3, -2 / 3]) / sigma, rtol=1e-6)
    np.testing.assert_allclose(values[2], np.array([0, 1 / 6, 1 / 6]) / sigma, rtol=1e-5)


def test_turn_level_tells_which_turn_earned_it_where_totals_are_equal():
    early, late = episode(0, (1.0, 0.0)), episode(0, (0.0, 1.0))
    assert not any(v.any() for v in advantages([[early, late]])[0])
    first, second = advantages([[early, late]], "turn_level")[0]
    assert not first[1:3].any() and first[4] < 0 < second[4]


@pytest.mark.parametrize("seed", range(3))
def test_turn_level_is_grpo_where_only_outcomes_count(seed):
    rng = np.random.default_rng(seed)
    group = [episode(float(rng.normal()), turns=int(rng.integers(1, 5))) for _ in range(6)]
    for a, b in zip(*(advantages([group], name)[0] for name in ("grpo", "turn_level")), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


# ── against plain Python ─────────────────────────────────────────────────────


def plain(name: str, groups: list[list[Trajectory]]) -> list[list[list[float]]]:
    """Each estimator with its defaults, from its formula, in loops."""
    totals = [[math.fsum(t.rewards.tolist()) for t in g] for g in groups]
    spread = lambda t, a: [a if m else 0.0 for m in t.action_mask]
    match name:
        case "grpo":
            f = lambda r, rs: (r - statistics.mean(rs)) / (statistics.stdev(rs) + 0.1)
        case "dr_grpo" | "reinforce_pp_baseline":
            f = lambda r, rs: r - statistics.mean(rs)
        case "rloo":
            f = lambda r, rs: r - (sum(rs) - r) / (len(rs) - 1)
        case _:
            f = None
    if f:
        found = [
            [spread(t, f(r, rs)) for t, r in zip(g, rs, strict=True)] for g, rs in zip(groups, totals, strict=True)
        ]
    else:
        found = [
            [[math.fsum(t.rewards[k:]) if m else 0.0 for k, m in enumerate(t.action_mask)] for t in g] for g in groups
        ]
    if name.startswith("reinforce"):
        pool = [x for g, vs in zip(groups, found, strict=True) for t, v in zip(g, vs, strict=True)
                for x, m in zip(v, t.action_mask, strict=True) if m]  # fmt: skip
        mean, std = statistics.mean(pool), statistics.pstdev(pool)
        found = [
            [[(x - mean) / std if m else 0.0 for x, m in zip(v, t.action_mask, strict=True)]
             for t, v in zip(g, vs, strict=True)]
            for g, vs in zip(groups, found, strict=True)
        ]  # fmt: skip
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"])
def test_agrees_with_plain_python_on_random_batches(name, seed):
    rng = np.random.default_rng(seed)
    groups = [
        [
            episode(float(rng.normal()), tuple(rng.normal(size=n)), turns=n)
            for n in rng.integers(1, 5, size=int(rng.integers(2, 6)))
        ]
        for _ in range(4)
    ]
    for got, expected in zip(advantages(groups, name), plain(name, groups), strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
