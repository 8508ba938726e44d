"""Shaped rewards, masks, groups with signal and the options of the algorithm, by hand."""

import math

import numpy as np
import pytest

from configs.algorithm import AlgorithmConfig
from configs.load import ConfigError, load_config
from configs.schema import Config
from learner.algorithm.advantages import ESTIMATORS
from learner.algorithm.rewards import has_signal, overlong_penalty, token_rewards
from learner.policy.batch import Row
from learner.resampling import take_groups
from protocol.trajectory import Group
from tests.episodes import advantages, episode

# ── rewards ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize(("weight", "totals"), [(1.0, [1.5, 1.0, 0]), (0.5, [1.25, 0.5, 0]), (0.0, [1, 0, 0])])
def test_process_rewards_are_weighted_against_the_outcome(name, weight, totals):
    group = [episode(1, 0.5), episode(0, 1.0), episode(0, 0.0)]
    got = [v[1] for v in advantages([group], name, process_reward_weight=weight)[0]]
    np.testing.assert_allclose(got, [v[1] for v in advantages([[episode(t) for t in totals]], name)[0]], rtol=1e-6)


def test_process_rewards_in_the_turn_of_the_answer_are_told_from_the_outcome():
    [[rewards]] = token_rewards(AlgorithmConfig(process_reward_weight=2.0), [Group("l", "t", [episode(1, (0.1, 0.3))])])
    np.testing.assert_allclose(rewards, [0, 0, 0.2, 0, 0, 1.6], rtol=1e-6)


def test_group_norm_makes_the_weight_independent_of_the_unit():
    def shaped(unit):
        group = Group("l", "t", [episode(1, (0.5 * unit, 0.25 * unit)), episode(0, -0.25 * unit), episode(0)])
        return token_rewards(AlgorithmConfig(process_reward_norm="group", process_reward_weight=0.3), [group])[0]

    np.testing.assert_allclose(shaped(1.0)[0], [0, 0, 0.2, 0, 0, 1.1], rtol=1e-5)
    np.testing.assert_allclose(shaped(1.0)[1], [0, 0, -0.1, 0, 0, 0], rtol=1e-5)
    for a, b in zip(shaped(1.0), shaped(40.0), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    none = token_rewards(AlgorithmConfig(process_reward_norm="group"), [Group("l", "t", [episode(1)])])[0]
    np.testing.assert_array_equal(none[0], episode(1).rewards)


def test_turn_discount_of_the_score():
    # 0.5 in turn 0, outcome 1 in turn 2: 0.5 + 0.81
    (values,) = advantages([[episode(1, 0.5, turns=3), episode(0)]], "dr_grpo", turn_discount=0.9)
    assert values[0][1] == pytest.approx((0.5 + 0.81) / 2)


def test_overlong_penalty_by_hand():
    assert [overlong_penalty(n, 100, 20) for n in (50, 80, 90, 100, 120)] == [0, 0, 0.5, 1, 1]
    config = AlgorithmConfig(overlong={"buffer_tokens": 4, "penalty": 0.5})
    [[rewards]] = token_rewards(
        config, [Group("l", "t", [episode(1)])], max_tokens=8
    )  # 6 tokens, the buffer begins at 4
    np.testing.assert_allclose(rewards, [0, 0, 0, 0, 0, 0.75])


@pytest.mark.parametrize(
    ("estimator", "kl"), [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 0.5 - 1 + math.log(2))]
)
def test_kl_in_the_reward_by_hand(estimator, kl):
    t = episode(1, logprobs=np.log([1, 0.5, 0.5, 1, 0.5, 0.5]))
    reference = np.log(np.array([7.0, 0.25, 0.5, 7.0, 0.5, 0.25], np.float32))
    config = AlgorithmConfig(reference={"coefficient": 0.1, "estimator": estimator, "where": "reward"})
    [[rewards]] = token_rewards(config, [Group("l", "t", [t])], reference_logprobs=[[reference]])
    np.testing.assert_allclose(rewards, [0, -0.1 * kl, 0, 0, 0, 1 - 0.1 * kl], atol=1e-7)


def test_a_reward_that_is_not_finite_fails_loudly():
    with pytest.raises(ValueError, match="task t: a reward is not finite"):
        advantages([[episode(1), episode(float("nan"))]])


# ── masks ────────────────────────────────────────────────────────────────────


def test_without_the_advantage_mask_tools_discount_and_receive():
    batch = [[episode(1), episode(0)]]
    masks = {"loss": True, "advantage": False}
    got = advantages(batch, "reinforce_pp", {"gamma": 0.5}, masks=masks)[0]
    every = np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 0, 0, 0, 0, 0])  # four steps back from the outcome, not three
    np.testing.assert_allclose(got[0][1:], ((every - every.mean()) / every.std())[:5], rtol=1e-6)
    assert got[0][0] == 0, "the prompt is nobody's credit"
    (grpo,) = advantages(batch, "grpo", masks=masks)
    assert grpo[0][1] == grpo[0][3] == grpo[0][5] > 0
    (turns,) = advantages([[episode(1, 1.0), episode(0)]], "turn_level", masks=masks)
    assert turns[0][3] == turns[0][2] != turns[0][4], "a tool's answer belongs to the turn that called it"


@pytest.mark.parametrize("loss", [True, False])
@pytest.mark.parametrize("advantage", [True, False])
def test_which_tokens_each_mask_lets_in(loss, advantage):
    t = episode(1)
    (values,) = advantages([[t, episode(0)]], masks={"loss": loss, "advantage": advantage})
    [row] = Row.of(t, values[0], version=3, mask_tools=loss)
    assert row.loss_mask.tolist() == ([0, 1, 1, 0, 1, 1] if loss else [0, 1, 1, 1, 1, 1])
    assert bool(row.advantages[3]) == (not loss and not advantage)
    assert row.ages.tolist() == [0, 3, 3, 0, 3, 3]


# ── groups with signal ───────────────────────────────────────────────────────


def test_has_signal_looks_at_what_is_weighted():
    by_process = Group("l", "t", [episode(1, 0.5), episode(1, 0.0)])
    assert has_signal(by_process, AlgorithmConfig())
    assert not has_signal(by_process, AlgorithmConfig(process_reward_weight=0.0))
    assert not has_signal(Group("l", "t", [episode(1)]), AlgorithmConfig())
    lengths = Group("l", "t", [episode(1, turns=2), episode(1, turns=3)])
    assert not has_signal(lengths, AlgorithmConfig(overlong={"buffer_tokens": 100}))


def stream(*signals: bool):
    """A gateway that hands out groups in this order, and what it was asked for."""
    asked, groups = [], [Group("l", f"t{i}", [episode(1), episode(0 if s else 1)]) for i, s in enumerate(signals)]

    def take(count):
        asked.append(count)
        return [groups.pop(0) for _ in range(count)]

    return take, asked


def dynamic(rounds: int, groups: int = 4, staleness: int = 2) -> Config:
    return load_config(
        overrides=[f"algorithm.dynamic_sampling.rounds={rounds}", f"learner.groups={groups}",
                   f"staleness={staleness}"]
    )  # fmt: skip


def test_dynamic_sampling_asks_for_what_is_missing():
    take, asked = stream(1, 0, 0, 1, 1, 0, 1)
    kept, vain = take_groups(dynamic(5), take)
    assert [g.task_id for g in kept] == ["t0", "t3", "t4", "t6"] and [g.task_id for g in vain] == ["t1", "t2", "t5"]
    assert asked == [4, 2, 1]


def test_dynamic_sampling_stops_after_its_rounds_and_at_what_the_gate_lets_through():
    take, asked = stream(*[0] * 3, 1, *[0] * 20)
    kept, vain = take_groups(dynamic(1), take)
    assert asked == [4, 3] and len(kept) == 1 and len(vain) == 6
    take, asked = stream(*[0] * 30)
    kept, vain = take_groups(dynamic(9, staleness=1), take)
    assert asked == [4, 4] and len(kept) == 4 and len(vain) == 4, "(η + 1) · groups = 8; the step still gets a batch"
    take, asked = stream(0, 0, 1, 1)
    assert len(take_groups(dynamic(0), take)[0]) == 4 and asked == [4]


# ── options ──────────────────────────────────────────────────────────────────


def test_every_estimator_of_the_options_is_registered():
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=["algorithm.advantage.type=?"])
    assert all(f"'{name}'" in str(caught.value) for name in ESTIMATORS)
    for name in ESTIMATORS:
        path = ["algorithm.advantage.path=module:function"] if name == "custom" else []
        assert load_config(overrides=[f"algorithm.advantage.type={name}", *path]).algorithm.advantage.type == name


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["masks.loss=false", "correction.proximal=behaviour"], "masks.loss false needs correction.proximal recompute"),
        (["correction.type=sequence_tis", "correction.proximal=behaviour"], "sequence_tis has no effect"),
        (["overlong.buffer_tokens=5000"], "must be below model.max_tokens (1024)"),
        (["correction.mask.low=0.5"], "algorithm.correction.mask.low: unknown option with this algorithm.correction.mask.type"),
        (["correction.mask.type=token", "correction.mask.high=0.5"], "algorithm.correction.mask.high: "),
        (["loss.type=gpso"], "algorithm.loss.type: must be one of 'ppo_clip', 'gspo', 'cispo', 'reinforce' (got 'gpso')"),
        (["loss.dual_clip=1"], "algorithm.loss.dual_clip: Input should be greater than 1"),
        (["aggregation=mean"], "algorithm.aggregation: Input should be 'token', 'sequence' or 'constant'"),
        (["turn_discount=0"], "algorithm.turn_discount"),
        (["reference.coefficient=.inf"], "algorithm.reference.coefficient"),
    ],
)  # fmt: skip
def test_impossible_combinations_are_one_clear_line(overrides, says):
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[f"algorithm.{override}" for override in overrides])
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_dynamic_sampling_and_lock_step_exclude_each_other():
    with pytest.raises(ConfigError, match="dynamic_sampling needs staleness of at least 1"):
        dynamic(1, staleness=0)
