"""Advantages, losses, corrections and log-probabilities against values worked by hand."""

import math

import numpy as np
import pytest
import torch

from configs.schema import AlgorithmConfig, CorrectionConfig, GrpoAdvantage, PpoClipLoss
from learner.algorithm.advantages import compute_advantages
from learner.algorithm.corrections import effective_sample_size, importance_weights, mismatch
from learner.algorithm.losses import masked_sum, ppo_clip
from learner.policy import logprobs as logprobs_module
from learner.policy.logprobs import LogprobHead
from protocol.trajectory import Group, Trajectory

# ── advantages ───────────────────────────────────────────────────────────────


def episode(outcome: float, process: float = 0.0) -> Trajectory:
    """Tokens: prompt, turn of two, tool answer, turn of two."""
    mask = np.array([0, 1, 1, 0, 1, 1], "u1")
    rewards = np.array([0, 0, process, 0, 0, outcome], "<f4")
    return Trajectory(
        np.arange(6, dtype="<i4"), mask, np.where(mask, -1, 0).astype("<f4"), np.where(mask, 0, -1).astype("<i4"),
        rewards, np.array([[1, 3], [4, 6]], "<i4"), True, {"outcome_reward": outcome, "process_reward": process},
    )  # fmt: skip


def grpo(groups, eps=0.1, weight=1.0):
    config = AlgorithmConfig(advantage=GrpoAdvantage(eps=eps), process_reward_weight=weight)
    return compute_advantages(config, [Group("l", "t", g) for g in groups])


def test_grpo_by_hand_on_action_tokens_only():
    # rewards 1, 0, 0, 1: mean 1/2, sample std sqrt(1/3)
    (values,) = grpo([[episode(1), episode(0), episode(0), episode(1)]])
    a = 0.5 / (math.sqrt(1 / 3) + 0.1)
    np.testing.assert_allclose(values[0], [0, a, a, 0, a, a], rtol=1e-6)
    np.testing.assert_allclose(values[1], [0, -a, -a, 0, -a, -a], rtol=1e-6)
    assert values[0].dtype == np.float32


def test_groups_do_not_touch_each_other():
    both = grpo([[episode(1), episode(0)], [episode(5), episode(3)]])
    np.testing.assert_array_equal(both[1][0], grpo([[episode(5), episode(3)]])[0][0])


@pytest.mark.parametrize(
    "group",
    [
        [episode(0.1)],
        [episode(0.1) for _ in range(7)],  # std of seven times float32 0.1 is 1e-17 in float64, not 0
        [episode(0.9, 0.1), episode(1.0, 0.0), episode(0.8, 0.2)],  # equal but for float32 rounding
    ],
)
def test_equal_rewards_and_a_lone_episode_give_exactly_zero(group):
    (values,) = grpo([group], eps=0.0)
    assert all((v == 0).all() for v in values)


def test_process_rewards_are_weighted_against_the_outcome():
    group = [episode(1, 0.5), episode(0, 1.0), episode(0, 0)]
    for weight, totals in [(1.0, [1.5, 1.0, 0]), (0.5, [1.25, 0.5, 0]), (0.0, [1, 0, 0])]:
        (values,) = grpo([group], weight=weight)
        r = np.array(totals)
        np.testing.assert_allclose([v[1] for v in values], (r - r.mean()) / (r.std(ddof=1) + 0.1), rtol=1e-6)


def test_a_reward_that_is_not_finite_fails_loudly():
    with pytest.raises(ValueError, match="task t: a reward is not finite"):
        grpo([[episode(1), episode(float("nan"))]])


# ── loss ─────────────────────────────────────────────────────────────────────


def test_ppo_clip_by_hand():
    ratio = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5])
    logprobs = ratio.log().requires_grad_()
    advantages = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0])
    loss, clipped = ppo_clip(logprobs, torch.zeros(5), advantages, PpoClipLoss(clip_low=0.2, clip_high=0.28))
    torch.testing.assert_close(loss, torch.tensor([-2.0, -1.28, 1.5, -0.5, 0.8]))
    assert clipped.tolist() == [False, True, False, False, True]
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-2.0, 0.0, 1.5, -0.5, 0.0]))


def test_extreme_log_ratios_stay_finite():
    logprobs = torch.tensor([0.0, -1e4, -1e30, 0.0]).requires_grad_()
    loss, _ = ppo_clip(
        logprobs, torch.tensor([-1e4, 0.0, 0.0, -1e30]), torch.tensor([1.0, -1.0, 1.0, -1.0]), PpoClipLoss()
    )
    loss.sum().backward()
    assert loss.isfinite().all() and logprobs.grad.isfinite().all()
    weights = importance_weights(torch.tensor([0.0, -1e4]), torch.tensor([-1e4, 0.0]), CorrectionConfig(cap=2.0))
    assert weights[0] == 2.0 and 0 <= weights[1] < 1e-6


def test_an_empty_mask_gives_zero_with_a_gradient():
    values = torch.tensor([1.0, float("inf")], requires_grad=True)
    total = masked_sum(values, torch.zeros(2, dtype=torch.bool))
    total.backward()
    assert total == 0 and (values.grad == 0).all()


# ── correction ───────────────────────────────────────────────────────────────


def test_truncated_importance_sampling_by_hand():
    proximal = torch.tensor([0.5, 0.25, 0.9]).log().requires_grad_()
    behaviour = torch.tensor([0.5, 0.5, 0.3]).log()
    weights = importance_weights(proximal, behaviour, CorrectionConfig(cap=2.0))
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5, 2.0]))
    assert not weights.requires_grad
    assert (importance_weights(proximal, behaviour, CorrectionConfig(type="none")) == 1).all()


def test_mismatch_by_hand():
    mask = torch.tensor([True, True, False])
    sums, maxima = mismatch(torch.tensor([0.5, 0.9, 1.0]).log(), torch.tensor([0.5, 0.3, 1e-9]).log(), mask, 2.0)
    expected = {
        "abs": math.log(3),
        "ratio": 4.0,
        "ratio_sq": 10.0,
        "truncated": 1.0,
        "k1": -math.log(3),
        "k3": 2 - math.log(3),
    }
    assert {k: pytest.approx(float(v), rel=1e-5) for k, v in sums.items()} == expected
    assert float(maxima["abs"]) == pytest.approx(math.log(3)) and float(maxima["ratio"]) == pytest.approx(3)
    assert effective_sample_size(4.0, 10.0, 2) == pytest.approx(0.8)
    none, peak = mismatch(torch.zeros(2), torch.full((2,), -5.0), torch.zeros(2, dtype=torch.bool), 2.0)
    assert all(float(v) == 0 for v in (*none.values(), *peak.values()))
    assert effective_sample_size(0.0, 0.0, 0) == 0.0


# ── log-probabilities in chunks ──────────────────────────────────────────────


@pytest.mark.parametrize("chunk_logits", [1, 7 * 11, 1 << 20])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_head_equals_full_log_softmax(monkeypatch, chunk_logits, temperature):
    monkeypatch.setitem(logprobs_module.CHUNK_LOGITS, "cpu", chunk_logits)
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(11, 5))
    hidden = torch.randn(23, 5, requires_grad=True)
    targets, scale = torch.randint(0, 11, (23,)), torch.randn(23)
    got, entropy = LogprobHead(weight)(hidden, targets, temperature)
    (got * scale).sum().backward()
    gradients = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    full = (hidden @ weight.T / temperature).log_softmax(-1)
    expected = full.gather(1, targets[:, None]).squeeze(1)
    (expected * scale).sum().backward()
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(entropy, -(full.exp() * full).sum(-1))
    torch.testing.assert_close(gradients, (hidden.grad, weight.grad))


def test_chunked_head_on_no_tokens_still_gives_gradients():
    weight = torch.nn.Parameter(torch.randn(11, 5))
    hidden = torch.randn(3, 5, requires_grad=True)
    got, _ = LogprobHead(weight)(hidden[:0], torch.zeros(0, dtype=torch.int64), 1.0)
    got.sum().backward()
    assert (weight.grad == 0).all() and (hidden.grad == 0).all()
