"""Losses, corrections, aggregation, regularisers and diagnostics against values worked by hand."""

import math

import pytest
import torch

from configs.algorithm import (
    AlgorithmConfig,
    CispoLoss,
    CorrectionConfig,
    GeometricMask,
    GspoLoss,
    PpoClipLoss,
    ReinforceLoss,
    TokenMask,
)
from learner.algorithm.corrections import correction
from learner.algorithm.diagnostics import STALENESS_BINS, effective_sample_size, mismatch, staleness_bins
from learner.algorithm.losses import LOSSES, cispo, gspo, ppo_clip, reinforce
from learner.algorithm.objective import Scored, objective
from learner.algorithm.reduction import Tokens, Totals, aggregate, masked_sum
from learner.algorithm.regularisers import kl_loss


def tokens(mask: str, *lengths: int) -> Tokens:
    """``mask`` of ones and zeros, cut into episodes of ``lengths`` (one episode without)."""
    flags = torch.tensor([c == "1" for c in mask])
    bounds = torch.tensor([0, *(lengths or (len(mask),))]).cumsum(0).int()
    return Tokens.packed(flags, bounds)


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor(ratios).log()


#: Two episodes: prompt, two action tokens, a tool's token, an action token; prompt, action token, tool's token (the end).
PAIR = tokens("01101010", 5, 3)

# ── losses ───────────────────────────────────────────────────────────────────


def test_ppo_clip_by_hand():
    logprobs = logs(1.0, 1.5, 1.5, 0.5, 0.5).requires_grad_()
    advantages = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0])
    options = PpoClipLoss(clip_low=0.2, clip_high=0.28)
    loss, clipped = ppo_clip(logprobs, torch.zeros(5), advantages, tokens("11111"), options)
    torch.testing.assert_close(loss, torch.tensor([-2.0, -1.28, 1.5, -0.5, 0.8]))
    assert clipped.tolist() == [False, True, False, False, True]
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-2.0, 0.0, 1.5, -0.5, 0.0]))


def test_dual_clip_bounds_what_a_bad_token_may_cost():
    logprobs = logs(1.5, 4.0, 4.0).requires_grad_()
    advantages = torch.tensor([-1.0, -2.0, 2.0])
    loss, clipped = ppo_clip(logprobs, torch.zeros(3), advantages, tokens("111"), PpoClipLoss(dual_clip=3.0))
    torch.testing.assert_close(loss, torch.tensor([1.5, 6.0, -2.56]))
    assert clipped.tolist() == [False, True, True]
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([1.5, 0.0, 0.0]))


def test_gspo_has_one_ratio_an_episode_over_its_action_tokens():
    # first episode: ratios 2, 1/2, 8 on actions, geometric mean 2; second: 1.1. The tool's tokens must not matter.
    logprobs = logs(1, 2, 0.5, 1e9, 8, 1, 1.1, 1e-9).requires_grad_()
    advantages = torch.tensor([0, 1.0, -1.0, 0, 1.0, 0, 2.0, 0])
    options = GspoLoss(clip_low=0.2, clip_high=0.5)
    loss, clipped = gspo(logprobs, torch.zeros(8), advantages, PAIR, options)
    torch.testing.assert_close(loss[PAIR.mask], torch.tensor([-1.5, 2.0, -1.5, -2.2]))
    assert clipped[PAIR.mask].tolist() == [True, False, True, False]
    masked_sum(loss, PAIR.mask).backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([0, 0, 2.0, 0, 0, 0, -2.2, 0]))


def test_gspo_token_form_sums_to_the_gradient_of_gspo():
    """Zheng et al. 2025: with one advantage an episode, ∇(1/n Σ_t) = s · A · mean_t ∇ log π_t."""
    torch.manual_seed(0)
    logprobs, proximal = torch.randn(8).mul(0.01).requires_grad_(), torch.randn(8) * 0.01
    advantages = torch.tensor([0.7] * 5 + [-0.4] * 3)
    loss, _ = gspo(logprobs, proximal, advantages, PAIR, GspoLoss(clip_low=0.5, clip_high=0.5))
    aggregate(loss, PAIR, Totals(4, 2, 99), "sequence").backward()
    got, logprobs.grad = logprobs.grad.clone(), None
    s = PAIR.segment_mean(logprobs - proximal).exp()
    (-(s * torch.tensor([0.7, -0.4])).mean()).backward()
    torch.testing.assert_close(got, logprobs.grad)


def test_cispo_keeps_the_gradient_of_clipped_tokens():
    logprobs = logs(1.0, 8.0, 0.25).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -2.0])
    loss, clipped = cispo(logprobs, torch.zeros(3), advantages, tokens("111"), CispoLoss(clip_low=0.5, clip_high=4.0))
    loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-1.0, -5.0, 1.0]))
    assert clipped.tolist() == [False, True, True]


def test_reinforce_by_hand():
    logprobs = torch.tensor([-1.0, -2.0]).requires_grad_()
    loss, clipped = reinforce(logprobs, torch.zeros(2), torch.tensor([2.0, -1.0]), tokens("11"), ReinforceLoss())
    assert loss.tolist() == [2.0, -2.0] and not clipped.any()


@pytest.mark.parametrize("options", [PpoClipLoss(dual_clip=3.0), GspoLoss(), CispoLoss(), ReinforceLoss()])
@pytest.mark.parametrize("kind", ["tis", "sequence_tis"])
@pytest.mark.parametrize("mask", ["none", "token", "geometric"])
def test_extreme_log_ratios_stay_finite(options, kind, mask):
    config = AlgorithmConfig(
        loss=options,
        correction={"type": kind, "mask": {"type": mask}},
        reference={"coefficient": 0.1},
        entropy_bonus=0.1,
    )
    logprobs = torch.tensor([0.0, -1e4, -1e30, 0.0]).requires_grad_()
    far = torch.tensor([-1e4, 0.0, 0.0, -1e30])
    row = scored(
        logprobs, proximal=far, behaviour=far.flip(0), reference=far, advantages=torch.tensor([1.0, -1, 1, -1])
    )
    for how in ("token", "sequence", "constant"):
        loss, sums, maxima = objective(
            config.model_copy(update={"aggregation": how}), row, tokens("1111", 2, 2), Totals(4, 2, 100)
        )
        loss.backward()
        assert loss.isfinite() and logprobs.grad.isfinite().all()
        assert all(v.isfinite().all() for v in (*sums.values(), *maxima.values()))


def scored(logprobs: torch.Tensor, **fields: torch.Tensor) -> Scored:
    n = len(logprobs)
    defaults = {
        "entropy": torch.zeros(n),
        "proximal": logprobs.detach(),
        "behaviour": logprobs.detach(),
        "sampled": torch.ones(n, dtype=torch.bool),
        "advantages": torch.zeros(n),
        "ages": torch.zeros(n, dtype=torch.int64),
    }
    return Scored(logprobs, **(defaults | fields))


# ── correction ───────────────────────────────────────────────────────────────


def test_token_weights_by_hand():
    proximal = logs(0.5, 0.25, 0.9).requires_grad_()
    behaviour, all_three = logs(0.5, 0.5, 0.3), tokens("111")
    weights, masked = correction(proximal, proximal, behaviour, all_three, CorrectionConfig(cap=2.0))
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.5, 2.0]))
    assert not weights.requires_grad and not masked.any()
    weights, _ = correction(proximal, proximal, behaviour, all_three, CorrectionConfig(type="none"))
    assert (weights == 1).all()


def test_sequence_weights_are_the_product_over_action_tokens():
    proximal = logs(1, 2, 0.5, 1e9, 1.5, 1, 3, 1e-9)
    weights, _ = correction(proximal, proximal, torch.zeros(8), PAIR, CorrectionConfig(type="sequence_tis", cap=2.0))
    torch.testing.assert_close(weights[PAIR.mask], torch.tensor([1.5, 1.5, 1.5, 2.0]))


def test_token_mask_is_two_sided_and_keeps_the_ratio_inside():
    proximal = logs(0.4, 0.6, 1.0, 4.0, 6.0)
    options = CorrectionConfig(cap=10.0, mask=TokenMask(low=0.5, high=5.0))
    weights, masked = correction(proximal, proximal, torch.zeros(5), tokens("11110"), options)
    torch.testing.assert_close(weights[:4], torch.tensor([0.0, 0.6, 1.0, 4.0]))
    assert masked.tolist() == [True, False, False, False, False], "what is not in the loss is not masked out of it"


def test_geometric_mask_takes_whole_episodes():
    # geometric means over action tokens: 2 and 1.1
    proximal = logs(1, 2, 0.5, 1e9, 8, 1, 1.1, 1e-9)
    options = CorrectionConfig(type="none", mask=GeometricMask(low=0.5, high=1.5))
    weights, masked = correction(proximal, proximal, torch.zeros(8), PAIR, options)
    assert weights[PAIR.mask].tolist() == [0, 0, 0, 1] and masked[PAIR.mask].tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("own_ratio", "proximal", "weight"),
    [(True, "recompute", 1.5), (False, "recompute", 3.0), (True, "behaviour", 1.0), (False, "behaviour", 3.0)],
)
def test_what_the_weight_is_of(own_ratio, proximal, weight):
    """π_prox/μ beside a loss with π_θ/π_prox; π_θ/μ beside one without; nothing where the loss has π_θ/μ itself."""
    options = CorrectionConfig(cap=10.0, proximal=proximal)
    anchor = logs(1.0) if proximal == "behaviour" else logs(1.5)
    weights, _ = correction(logs(3.0), anchor, logs(1.0), tokens("1"), options, own_ratio=own_ratio)
    assert float(weights) == pytest.approx(weight)
    assert LOSSES["reinforce"].own_ratio is False


# ── aggregation ──────────────────────────────────────────────────────────────


def test_aggregation_by_hand():
    losses = torch.tensor([9.0, 1, 2, 9, 3, 9, 4, 9])
    totals = Totals(tokens=4, episodes=2, max_tokens=10)
    assert float(aggregate(losses, PAIR, totals, "token")) == 10 / 4
    assert float(aggregate(losses, PAIR, totals, "sequence")) == (6 / 3 + 4) / 2
    assert float(aggregate(losses, PAIR, totals, "constant")) == 10 / (2 * 10)


@pytest.mark.parametrize("how", ["token", "sequence", "constant"])
def test_parts_add_up_and_empty_ones_are_zero_with_a_gradient(how):
    losses = torch.arange(8.0).requires_grad_()
    totals = Totals(tokens=4, episodes=2, max_tokens=10)
    whole = aggregate(losses, PAIR, totals, how)
    parts = aggregate(losses[:5], tokens("01101"), totals, how) + aggregate(losses[5:], tokens("010"), totals, how)
    torch.testing.assert_close(whole, parts)
    infinite = torch.full((8,), float("inf"), requires_grad=True)
    nothing = aggregate(infinite, tokens("00000000", 5, 3), Totals(0, 0, 10), how)
    nothing.backward()
    assert nothing == 0 and (infinite.grad == 0).all()


def test_an_empty_mask_gives_zero_with_a_gradient():
    values = torch.tensor([1.0, float("inf")], requires_grad=True)
    total = masked_sum(values, torch.zeros(2, dtype=torch.bool))
    total.backward()
    assert total == 0 and (values.grad == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_an_all_masked_row_adds_nothing(name):
    config = AlgorithmConfig(
        loss={"type": name}, reference={"coefficient": 1.0}, entropy_bonus=1.0, aggregation="sequence",
        correction={"mask": {"type": "geometric"}},
    )  # fmt: skip
    logprobs = torch.zeros(3, requires_grad=True)
    row = scored(logprobs, sampled=torch.zeros(3, dtype=torch.bool), advantages=torch.ones(3), reference=torch.ones(3))
    loss, sums, _ = objective(config, row, tokens("000"), Totals(5, 2, 10))
    loss.backward()
    assert loss == 0 and (logprobs.grad == 0).all() and all(not v.any() for v in sums.values())


# ── KL, entropy ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("estimator", "value"), [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 0.5 - 1 + math.log(2))]
)
def test_kl_by_hand(estimator, value):
    assert float(kl_loss(logs(0.5), logs(0.25), estimator)) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(("estimator", "exact"), [("k2", True), ("k3", False), ("k1", False)])
def test_expected_gradients_of_kl_losses(estimator, exact):
    """Over all tokens of a small vocabulary: k2's is the KL's own, k1's is zero."""
    logits, reference = torch.tensor([0.3, -0.2, 0.9], requires_grad=True), torch.tensor([0.5, 0.1, 0.4]).log()
    pi = logits.log_softmax(0)
    (pi.detach().exp() * kl_loss(pi, reference, estimator)).sum().backward()
    got, logits.grad = logits.grad.clone(), None
    pi = logits.log_softmax(0)
    (pi.exp() * (pi - reference)).sum().backward()
    assert torch.allclose(got, logits.grad, atol=1e-6) == exact
    if estimator == "k1":
        assert torch.allclose(got, torch.zeros(3), atol=1e-6)


def test_regularisers_are_not_weighted_and_need_no_advantage():
    config = AlgorithmConfig(
        reference={"coefficient": 0.5, "estimator": "k1"}, entropy_bonus=0.25, correction={"mask": {"type": "token"}}
    )
    row = scored(logs(0.5, 0.5), behaviour=logs(0.01, 0.5), reference=logs(0.25, 0.5), entropy=torch.tensor([1.0, 2.0]))
    loss, sums, _ = objective(config, row, tokens("11"), Totals(2, 1, 10))
    assert float(loss) == pytest.approx((0.5 * math.log(2) - 0.25 * 3.0) / 2, rel=1e-6)
    assert float(sums["masked"].sum()) == 1 and float(sums["reference_kl"]) == pytest.approx(math.log(2))


# ── diagnostics ──────────────────────────────────────────────────────────────


def test_mismatch_by_hand():
    mask, bins = torch.tensor([True, True, False]), torch.zeros(3, dtype=torch.int64)
    sums, maxima = mismatch(logs(0.5, 0.9, 1.0), logs(0.5, 0.3, 1e-9), mask, bins, 2.0)
    expected = {
        "count": 2,
        "abs": math.log(3),
        "ratio": 4,
        "ratio_sq": 10,
        "truncated": 1,
        "k1": -math.log(3),
        "k3": 2 - math.log(3),
    }
    assert {k: pytest.approx(float(v[0]), rel=1e-5) for k, v in sums.items()} == expected
    assert float(maxima["abs"][0]) == pytest.approx(math.log(3)) and float(maxima["ratio"][0]) == pytest.approx(3)
    assert effective_sample_size(4.0, 10.0, 2) == pytest.approx(0.8)
    none, peak = mismatch(torch.zeros(2), torch.full((2,), -5.0), torch.zeros(2, dtype=torch.bool), bins[:2], 2.0)
    assert all(not v.any() for v in (*none.values(), *peak.values()))
    assert effective_sample_size(0.0, 0.0, 0) == 0.0


def test_figures_by_staleness():
    ages = torch.tensor([0, 1, 2, 3, 4, 7, 8, 99])
    bins = staleness_bins(ages)
    assert [STALENESS_BINS[b] for b in bins] == ["0", "1", "2-3", "2-3", "4-7", "4-7", "8+", "8+"]
    sums, maxima = mismatch(logs(1, 1, 2, 3, 1, 1, 1, 4), torch.zeros(8), ages != 99, bins, 2.0)
    assert sums["count"].tolist() == [1, 1, 2, 2, 1] and sums["ratio"].tolist() == pytest.approx([1, 1, 5, 2, 1])
    assert maxima["ratio"].tolist() == pytest.approx([1, 1, 3, 1, 1])
