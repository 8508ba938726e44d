"""GAE, V-trace and the critic: by hand, against slow references, against plain PyTorch, and learning."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from configs.algorithm import AlgorithmConfig
from configs.load import ConfigError, dump_config, load_config
from learner.algorithm.actor_critic import loss_masks
from learner.algorithm.advantages import compute_advantages, compute_value_targets
from learner.algorithm.returns import clipped_value_loss, explained_variance, gae, vtrace
from learner.policy import zero
from learner.policy.checkpoint import load_checkpoint, save_checkpoint
from learner.policy.critic import Critic
from learner.policy.engine import PolicyEngine
from learner.update import update
from protocol.trajectory import Group, Trajectory
from tests.two_ranks import VOCAB, save_tiny_model, trajectory
from tests.two_ranks_critic import actor_critic_config, lessons, scored_batch

# ── the recursions by hand ───────────────────────────────────────────────────

REWARDS, VALUES = np.array([0.5, 0.0, 1.0]), np.array([0.4, 0.2, 0.8])


@pytest.mark.parametrize("bootstrap", [0.0, 2.0])
def test_gae_with_lambda_one_is_the_return_less_the_value(bootstrap):
    advantages, targets = gae(REWARDS, VALUES, bootstrap, 0.5, 1.0)
    # G_2 = 1 + V_end / 2, G_1 = G_2 / 2, G_0 = 1/2 + G_1 / 2
    last = 1 + bootstrap / 2
    returns = [0.5 + last / 4, last / 2, last]
    np.testing.assert_allclose(targets, returns)
    np.testing.assert_allclose(advantages, returns - VALUES)


def test_gae_with_lambda_zero_is_the_td_error_and_between_a_mixture():
    td = [0.5 + 0.5 * 0.2 - 0.4, 0.5 * 0.8 - 0.2, 1 + 0.5 * 2 - 0.8]  # 0.2, 0.2, 1.2
    np.testing.assert_allclose(gae(REWARDS, VALUES, 2.0, 0.5, 0.0)[0], td)
    np.testing.assert_allclose(gae(REWARDS, VALUES, 2.0, 0.5, 0.5)[0], [0.2 + 0.25 * 0.5, 0.2 + 0.25 * 1.2, 1.2])


def test_vtrace_by_hand():
    """Ratios 4, 1/2 and 2 under ρ̄ = 3, c̄ = 1: ρ = 3, 1/2, 2 and c = 1, 1/2, 1."""
    log_ratios = np.log([4.0, 0.5, 2.0])
    advantages, targets = vtrace(REWARDS, VALUES, 0.0, 0.5, 1.0, log_ratios, rho_cap=3.0, c_cap=1.0)
    deltas = [3 * 0.2, 0.5 * 0.2, 2 * 0.2]
    v2 = 0.8 + deltas[2]  # 1.2
    v1 = 0.2 + deltas[1] + 0.5 * 0.5 * (v2 - 0.8)  # 0.4
    v0 = 0.4 + deltas[0] + 0.5 * 1.0 * (v1 - 0.2)  # 1.1
    np.testing.assert_allclose(targets, [v0, v1, v2])
    np.testing.assert_allclose(advantages, [0.5 + 0.5 * v1 - 0.4, 0.5 * v2 - 0.2, 1.0 - 0.8])


def test_vtrace_survives_extreme_ratios():
    for log_ratio in (-1e30, 1e30):
        found = vtrace(REWARDS, VALUES, 1.0, 1.0, 1.0, np.full(3, log_ratio), rho_cap=1.0, c_cap=1.0)
        assert np.isfinite(found).all()
    np.testing.assert_allclose(
        vtrace(REWARDS, VALUES, 1.0, 1.0, 1.0, np.full(3, -1e30), 1.0, 1.0)[1], VALUES, atol=1e-7
    )


# ── independent references: sums written out, quadratic and slow ─────────────


@st.composite
def episodes(draw):
    n = draw(st.integers(0, 12))
    numbers = st.floats(-5, 5, allow_nan=False, width=32)
    arrays = [np.array(draw(st.lists(numbers, min_size=n, max_size=n)), float) for _ in range(3)]
    unit = st.floats(0, 1, allow_nan=False)
    return *arrays, draw(numbers), draw(unit), draw(unit)


@given(episodes())
@settings(max_examples=60, deadline=None)
def test_gae_equals_the_sum_of_discounted_td_errors(episode):
    r, v, _, end, gamma, lam = episode
    following = [*v, end][1:]
    deltas = [r[t] + gamma * following[t] - v[t] for t in range(len(r))]
    expected = [sum((gamma * lam) ** (u - t) * deltas[u] for u in range(t, len(r))) for t in range(len(r))]
    advantages, targets = gae(r, v, end, gamma, lam)
    np.testing.assert_allclose(advantages, expected, atol=1e-9)
    np.testing.assert_allclose(targets, advantages + v, atol=1e-9)


@given(episodes(), st.floats(1.0, 4.0))
@settings(max_examples=60, deadline=None)
def test_vtrace_equals_the_definition_with_its_product_of_weights(episode, rho_cap):
    r, v, log_ratios, end, gamma, lam = episode
    n, c_cap = len(r), 1.0
    following = [*v, end][1:]
    rho = [min(rho_cap, math.exp(x)) for x in log_ratios]
    c = [lam * min(c_cap, math.exp(x)) for x in log_ratios]
    expected = [
        v[s]
        + sum(gamma ** (t - s) * math.prod(c[s:t]) * rho[t] * (r[t] + gamma * following[t] - v[t]) for t in range(s, n))
        for s in range(n)
    ]
    advantages, targets = vtrace(r, v, end, gamma, lam, log_ratios, rho_cap, c_cap)
    np.testing.assert_allclose(targets, expected, atol=1e-8)
    after = [*expected, end][1:]
    np.testing.assert_allclose(advantages, [r[t] + gamma * after[t] - v[t] for t in range(n)], atol=1e-8)


@given(episodes())
@settings(max_examples=40, deadline=None)
def test_on_policy_vtrace_targets_are_the_td_lambda_returns_and_with_lambda_one_the_n_step_returns(episode):
    r, v, _, end, gamma, lam = episode
    ones = np.zeros(len(r))
    np.testing.assert_allclose(
        vtrace(r, v, end, gamma, lam, ones, 1.0, 1.0)[1], gae(r, v, end, gamma, lam)[1], atol=1e-9
    )
    n_step = [
        sum(gamma ** (u - t) * r[u] for u in range(t, len(r))) + gamma ** (len(r) - t) * end for t in range(len(r))
    ]
    advantages, targets = vtrace(r, v, end, gamma, 1.0, ones, 1.0, 1.0)
    np.testing.assert_allclose(targets, n_step, atol=1e-9)
    np.testing.assert_allclose(advantages, n_step - v, atol=1e-9)


# ── whole episodes: tool tokens, ends, limits ────────────────────────────────


def episode(outcome: float, process: float = 0.0, terminated: bool = True, tool_tokens: int = 1) -> Trajectory:
    """Tokens: prompt, turn of two, tool answer, turn of two; cut ones end on another tool answer."""
    tail = 0 if terminated else 1
    mask = np.array([0, 1, 1, *[0] * tool_tokens, 1, 1, *[0] * tail], "u1")
    rewards = np.zeros(len(mask), "<f4")
    second = 3 + tool_tokens
    rewards[2], rewards[second + 1] = process, outcome
    return Trajectory(
        np.arange(len(mask), dtype="<i4"), mask, np.where(mask, -1, 0).astype("<f4"), np.where(mask, 0, -1).astype("<i4"),
        rewards, np.array([[1, 3], [second, second + 2]], "<i4"), terminated,
        {"outcome_reward": outcome, "process_reward": process, "finish": "done" if terminated else "max_turns"},
    )  # fmt: skip


def judge(options: dict, t: Trajectory, values, logprobs=None, **algorithm):
    config = AlgorithmConfig.model_validate({"advantage": {"whiten": False, **options}, **algorithm})
    inputs = {"values": [[np.asarray(values, np.float32)]]}
    if logprobs is not None:
        inputs["logprobs"] = [[np.asarray(logprobs, np.float32)]]
    groups = [Group("l", "t", [t])]
    [[advantages]] = compute_advantages(config, groups, **inputs)
    [[targets]] = compute_value_targets(config, groups, **inputs)
    assert advantages.dtype == targets.dtype == np.float32
    return advantages, targets


def test_tool_tokens_neither_discount_nor_carry_a_value():
    options = {"type": "gae", "gamma": 0.5, "lam": 0.5}
    # V after each token. States from which the tool goes on (7) or nobody (9) do not matter.
    one, _ = judge(options, episode(1.0, 0.25), [0.1, 0.2, 7, 0.3, 0.4, 9])
    four, targets = judge(options, episode(1.0, 0.25, tool_tokens=4), [0.1, 0.2, 7, 7, 7, 7, 0.3, 0.4, 9])
    td = np.array([0.1 - 0.1, 0.25 + 0.15 - 0.2, 0.2 - 0.3, 1.0 - 0.4])
    by_hand = [td[0] + (td[1] + (td[2] + td[3] / 4) / 4) / 4, td[1] + (td[2] + td[3] / 4) / 4, td[2] + td[3] / 4, td[3]]
    np.testing.assert_allclose(four, [0, *by_hand[:2], 0, 0, 0, 0, *by_hand[2:]], atol=1e-6)
    np.testing.assert_allclose(one, [0, *by_hand[:2], 0, *by_hand[2:]], atol=1e-6)
    np.testing.assert_allclose(targets, [0, *(by_hand + np.array([0.1, 0.2, 0.3, 0.4]))[:2], 0, 0, 0, 0,
                                         by_hand[2] + 0.3, by_hand[3] + 0.4], atol=1e-6)  # fmt: skip


def test_only_an_episode_that_a_limit_cut_is_bootstrapped():
    values = [0.1, 0.2, 7, 0.3, 0.4, 0.6]
    cut, targets = judge({"type": "gae"}, episode(0.0, terminated=False), values)
    np.testing.assert_allclose(targets, [0, 0.6, 0.6, 0, 0.6, 0.6, 0], atol=1e-6)
    assert cut[6] == 0, "a tool answer at the end gets no credit"
    _, targets = judge({"type": "gae", "bootstrap": False}, episode(0.0, terminated=False), values)
    assert not targets.any()
    _, targets = judge({"type": "gae"}, episode(1.0), values[:5])
    np.testing.assert_allclose(targets, [0, 1, 1, 0, 1, 1], atol=1e-6)


def test_turn_discount_applies_between_turns_only():
    _, targets = judge({"type": "gae"}, episode(1.0), np.zeros(6), turn_discount=0.5)
    np.testing.assert_allclose(targets, [0, 0.5, 0.5, 0, 1, 1], atol=1e-6)


def test_with_the_advantage_mask_off_tool_tokens_discount_and_carry():
    options = {"type": "gae", "gamma": 0.5}
    masks = {"loss": False, "advantage": False}
    _, targets = judge(options, episode(1.0), np.zeros(6), masks=masks)
    np.testing.assert_allclose(targets, [0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], atol=1e-6)
    config = AlgorithmConfig.model_validate({"advantage": options, "masks": masks})
    [[mask]] = loss_masks(config.masks, [Group("l", "t", [episode(1.0)])])
    np.testing.assert_array_equal(mask, [0, 1, 1, 1, 1, 1])
    [[mask]] = loss_masks(AlgorithmConfig(masks={"advantage": False}).masks, [Group("l", "t", [episode(1.0)])])
    np.testing.assert_array_equal(mask, [0, 1, 1, 0, 1, 1])


def test_vtrace_takes_ratios_of_learner_and_sampler_on_action_tokens():
    t = episode(1.0)  # log μ = −1 on action tokens
    on_policy = np.where(t.action_mask, -1.0, 0.0)
    values = [0.1, 0.2, 7, 0.3, 0.4, 9]
    same, targets = judge({"type": "vtrace"}, t, values, on_policy)
    expected, returns = judge({"type": "gae"}, t, values)
    np.testing.assert_allclose(same, expected, atol=1e-6)
    np.testing.assert_allclose(targets, returns, atol=1e-6)
    # The last action is now half as likely: its TD error of 0.6 counts half, and hands back a half of nothing.
    advantages, targets = judge({"type": "vtrace"}, t, values, on_policy + np.log([1, 1, 1, 1, 1, 0.5]))
    np.testing.assert_allclose(targets, [0, 0.7, 0.7, 0, 0.7, 0.7], atol=1e-6)
    np.testing.assert_allclose(advantages, [0, 0.6, 0.5, 0, 0.4, 0.6], atol=1e-6)


def test_whitening_is_over_all_action_tokens_of_the_batch_and_leaves_equal_ones_zero():
    groups = [Group("l", "t", [episode(1.0), episode(0.0)]), Group("m", "u", [episode(0.25, tool_tokens=3)])]
    config = AlgorithmConfig.model_validate({"advantage": {"type": "gae"}})
    zeros = [[np.zeros(len(t), np.float32) for t in group.trajectories] for group in groups]
    advantages = compute_advantages(config, groups, values=zeros)
    pool = np.concatenate([a[t.action_mask > 0] for g, v in zip(groups, advantages) for t, a in zip(g.trajectories, v)])
    assert pool.mean() == pytest.approx(0, abs=1e-6) and pool.std() == pytest.approx(1, abs=1e-6)
    assert not any(a[t.action_mask == 0].any() for g, v in zip(groups, advantages) for t, a in zip(g.trajectories, v))
    [equal] = compute_advantages(config, [Group("l", "t", [episode(0.1)] * 7)], values=[zeros[0][:1] * 7])
    assert not any(a.any() for a in equal)


def test_an_episode_in_which_the_policy_wrote_nothing():
    t = episode(0.0)
    t.action_mask[:], t.rewards[:] = 0, 0
    advantages, targets = judge({"type": "gae"}, t, np.ones(6))
    assert not advantages.any() and not targets.any()


def test_an_estimator_without_what_it_needs_says_so():
    for options in ("gae", "vtrace"):
        config = AlgorithmConfig.model_validate({"advantage": {"type": options}})
        with pytest.raises(ValueError, match=f"{options} needs the critic's values"):
            compute_advantages(config, [Group("l", "t", [episode(1.0)])])


# ── value loss and explained variance ────────────────────────────────────────


def test_clipped_value_loss_by_hand():
    values = torch.tensor([0.5, 0.5, -0.5, 0.1], requires_grad=True)
    old, targets = torch.zeros(4), torch.tensor([1.0, 0.0, 1.0, 1.0])
    loss, clipped = clipped_value_loss(values, old, targets, 0.2)
    # Beyond the bound towards the target: held. Beyond it away from the target: not. Inside it: free.
    torch.testing.assert_close(loss, torch.tensor([0.8**2, 0.5**2, 1.5**2, 0.9**2]) / 2)
    assert clipped.tolist() == [True, False, False, False]
    loss.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([0.0, 0.5, -1.5, -0.9]))
    plain, clipped = clipped_value_loss(values, old, targets, None)
    torch.testing.assert_close(plain, (values - targets).square() / 2)
    assert not clipped.any()


def test_gradient_of_the_value_loss_by_finite_differences():
    rng = torch.Generator().manual_seed(0)
    values, old, targets = (torch.randn(200, generator=rng, dtype=torch.float64) for _ in range(3))
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: clipped_value_loss(v, old, targets, 0.2)[0], values, eps=1e-7, atol=1e-5)


def test_explained_variance_by_hand():
    targets = np.array([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(targets, targets) == 1
    assert explained_variance(np.full(4, 9.0), targets) == 0
    assert explained_variance(-targets, targets) == -3
    assert explained_variance(targets + 5, targets) == 1, "an offset is not variance"
    assert explained_variance(np.arange(3.0), np.ones(3)) == 0 and explained_variance(np.zeros(0), np.zeros(0)) == 0


# ── the engine against plain PyTorch ─────────────────────────────────────────


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def partition_everything(monkeypatch):
    monkeypatch.setattr(zero, "ZERO3_PERSISTENT", 0)


def build(cfg) -> tuple[PolicyEngine, Critic]:
    engine = PolicyEngine(cfg)
    return engine, Critic.beside(engine)


class PlainCritic:
    """One unpacked row at a time, AdamW and clipping of torch."""

    def __init__(self, cfg):
        self.cfg, o = cfg, cfg.critic.optimizer
        self.backbone = AutoModelForCausalLM.from_pretrained(cfg.model.path, attn_implementation="eager").model
        self.head = torch.nn.Linear(self.backbone.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.weights = [*self.backbone.parameters(), *self.head.parameters()]
        self.adam = torch.optim.AdamW(self.weights, o.lr, o.betas, o.eps, o.weight_decay)

    def value(self, t):
        ids = torch.from_numpy(t.token_ids.astype(np.int64))[None]
        return self.head(self.backbone(input_ids=ids).last_hidden_state)[0, :, 0]

    def values(self, groups):
        with torch.no_grad():
            return np.concatenate([self.value(t).numpy() for group in groups for t in group.trajectories])

    def update(self, groups, values, targets, masks) -> tuple[float, list[float]]:
        per, total, tokens, norms = len(groups) // self.cfg.learner.mini_batches, 0.0, 0, []
        for start in range(0, len(groups), per):
            part = range(start, start + per)
            count = sum(m.sum() for g in part for m in masks[g])
            loss = 0.0
            for g in part:
                for t, old, target, mask in zip(groups[g].trajectories, values[g], targets[g], masks[g], strict=True):
                    at = np.flatnonzero(mask)
                    v, old, target = self.value(t)[at - 1], torch.from_numpy(old[at - 1]), torch.from_numpy(target[at])
                    eps = self.cfg.critic.clip
                    bounded = old + (v - old).clamp(-eps, eps)
                    loss = loss + torch.maximum((v - target) ** 2, (bounded - target) ** 2).sum() / 2
            self.adam.zero_grad()
            (loss / count).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(self.weights, self.cfg.critic.optimizer.grad_clip)))
            self.adam.step()
            total, tokens = total + loss.item(), tokens + count
        return total / tokens, norms


def flat(values) -> np.ndarray:
    return np.concatenate([v for group in values for v in group])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_tokens", [30, 100_000])
def test_an_update_equals_plain_torch_however_it_is_packed(model, stage, micro_tokens):
    cfg = actor_critic_config(model, zero_stage=stage, micro_tokens=micro_tokens, mini_batches=2)
    _, critic = build(cfg)
    groups = scored_batch()
    assert not flat(critic.values(groups)).any(), "before the first step V is 0"
    metrics = critic.update(groups, *lessons(groups))
    plain = PlainCritic(cfg)
    loss, norms = plain.update(groups, *lessons(groups))
    assert metrics["value_loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["value_grad_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    assert 0.05 < metrics["value_clip_fraction"] < 0.95
    expected = plain.values(groups)
    assert np.linalg.norm(flat(critic.values(groups)) - expected) < 1e-5 * np.linalg.norm(expected)


def test_an_empty_mini_batch_makes_no_step(model):
    """Fewer groups than mini-batches, and one whose policy wrote nothing."""
    _, critic = build(actor_critic_config(model, mini_batches=2))
    groups = scored_batch()[:1]
    values, targets, masks = lessons(groups)
    assert critic.update(groups, values, targets, masks)["value_grad_norm"] > 0
    before = flat(critic.values(groups))
    metrics = critic.update(groups, values, targets, [[np.zeros_like(m) for m in masks[0]]])
    assert metrics["value_loss"] == metrics["value_grad_norm"] == metrics["explained_variance"] == 0
    np.testing.assert_array_equal(flat(critic.values(groups)), before)


def test_bfloat16_gives_about_the_same_values(model):
    cfg = actor_critic_config(model, zero_stage=2, mini_batches=2)
    exact, groups = PlainCritic(cfg), scored_batch()
    exact.update(groups, *lessons(groups))
    cfg.model.dtype = "bfloat16"
    _, critic = build(cfg)
    critic.update(groups, *lessons(groups))
    values, expected = flat(critic.values(groups)), exact.values(groups)
    assert np.linalg.norm(values - expected) < 0.1 * np.linalg.norm(expected)


@pytest.mark.timeout(180)
def test_two_ranks_share_one_command_channel_and_agree_with_one_at_every_zero_stage(tmp_path, model):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("two_ranks_critic.py")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, script, model, tmp_path], env=env, timeout=170, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    cfg, groups = actor_critic_config(model, mini_batches=2), scored_batch()
    _, alone = build(cfg)
    metrics = alone.update(groups, *lessons(groups))
    expected = flat(alone.values(groups))
    for stage in (0, 1, 2, 3):
        result = np.load(tmp_path / f"zero-{stage}.npz")
        assert np.linalg.norm(result["values"] - expected) < 1e-5 * np.linalg.norm(expected)
        for name in ("value_loss", "value_clip_fraction", "value_grad_norm", "value_mean"):
            assert result[name] == pytest.approx(metrics[name], rel=1e-5), name
        assert result["same"], f"ZeRO-{stage}: the update after a restored checkpoint differs"


# ── with the policy: order, warm-up, learning ────────────────────────────────


def weights(engine) -> list[torch.Tensor]:
    return [tensor for _, tensor in engine.snapshot()]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("advantage", ["gae", "vtrace"])
def test_an_update_trains_both_and_judges_with_the_critic_as_it_was(model, advantage):
    cfg = actor_critic_config(model, advantage={"type": advantage, "whiten": False}, mini_batches=2)
    engine, critic = build(cfg)
    groups, before = scored_batch(), weights(engine)
    update(cfg, engine, critic, groups, 0)
    judged = critic.values(groups)
    logprobs = [engine.score(group.trajectories, cfg.sampling.temperature) for group in groups]
    expected = compute_advantages(cfg.algorithm, groups, values=judged, logprobs=logprobs)
    done = update(cfg, engine, critic, groups, 1)
    np.testing.assert_allclose(flat(done.advantages), flat(expected), atol=1e-6)
    assert not same(weights(engine), before) and not np.array_equal(flat(critic.values(groups)), flat(judged))
    assert {"loss", "value_loss", "explained_variance", "value_mean", "value_clip_fraction"} <= done.metrics.keys()
    assert done.metrics["critic_warmup"] == 0


def test_in_warm_up_only_the_critic_learns(model):
    cfg = actor_critic_config(model, critic={"warmup_steps": 2})
    engine, critic = build(cfg)
    groups, before = scored_batch(), weights(engine)
    for version in range(2):
        metrics = update(cfg, engine, critic, groups, version).metrics
        assert metrics["critic_warmup"] == 1 and metrics["value_grad_norm"] > 0 and metrics["optimizer_steps"] == 0
    assert same(weights(engine), before)
    assert update(cfg, engine, critic, groups, 2).metrics["optimizer_steps"] == 1
    assert not same(weights(engine), before)


def test_where_no_critic_is_needed_none_is_built(model):
    engine = PolicyEngine(load_config(overrides=[f"model.path={model}"]))
    assert Critic.beside(engine) is None


def coin_episodes(rng: np.random.Generator, count: int) -> list[Group]:
    """The second token decides what an episode earns: 0, ½ or 1."""
    trajectories = []
    for _ in range(count):
        t = trajectory(rng, int(rng.integers(8, 24)))
        t.action_mask[:2], t.action_mask[-3:] = 0, 1
        kind = t.token_ids[1] = rng.integers(3)
        t.rewards[-1] = t.facts["outcome_reward"] = kind / 2
        trajectories.append(t)
    return [Group("l", "t", trajectories[i : i + 4]) for i in range(0, count, 4)]


@pytest.mark.timeout(400)  # seconds where a core is free
def test_the_critic_learns_to_predict_returns(model):
    """On new episodes each time, before it has trained on them: nothing can be learnt by heart."""
    critic = {"warmup_steps": 1, "optimizer": {"lr": 1e-2}}
    cfg = actor_critic_config(model, critic=critic, mini_batches=4, groups=16, micro_tokens=100_000)
    engine, critic = build(cfg)
    rng = np.random.default_rng(0)
    explained = [
        update(cfg, engine, critic, coin_episodes(rng, 64), 0).metrics["explained_variance"] for _ in range(14)
    ]
    assert max(explained[:2]) < 0.1 and min(explained[-3:]) > 0.8, explained


# ── checkpoints ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stage", [0, 3])
def test_policy_and_critic_resume_bit_for_bit(tmp_path, model, stage):
    cfg = actor_critic_config(model, zero_stage=stage, mini_batches=2, optimizer={"lr": 1e-2})
    cfg.critic.optimizer.warmup_steps = 7
    engine, critic = build(cfg)
    groups = scored_batch()
    update(cfg, engine, critic, groups, 0)
    save_checkpoint(engine, tmp_path, 1, {"version": 1}, keep=2, critic=critic)
    metrics = update(cfg, engine, critic, groups, 1).metrics
    resumed = build(cfg)
    assert load_checkpoint(resumed[0], tmp_path, resumed[1]) == {"version": 1}
    again = update(cfg, *resumed, groups, 1).metrics
    assert {k: v for k, v in again.items() if not k.endswith("_s")} == {
        k: v for k, v in metrics.items() if not k.endswith("_s")
    }
    assert same(weights(engine), weights(resumed[0]))
    np.testing.assert_array_equal(flat(critic.values(groups)), flat(resumed[1].values(groups)))


def test_a_kill_between_policy_and_critic_leaves_the_last_good_checkpoint(tmp_path, model, monkeypatch):
    cfg = actor_critic_config(model)
    engine, critic = build(cfg)
    save_checkpoint(engine, tmp_path, 1, {"version": 1}, keep=1, critic=critic)
    saved = flat(critic.values(scored_batch()))
    update(cfg, engine, critic, scored_batch(), 1)

    def die(folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(critic, "save_state", die)
        save_checkpoint(engine, tmp_path, 2, {"version": 2}, keep=1, critic=critic)
    assert load_checkpoint(engine, tmp_path, critic) == {"version": 1}
    np.testing.assert_array_equal(flat(critic.values(scored_batch())), saved)


def test_a_checkpoint_with_or_without_a_critic_is_not_mistaken_for_the_other(tmp_path, model):
    engine, critic = build(actor_critic_config(model))
    save_checkpoint(engine, tmp_path, 1, {}, keep=1, critic=critic)
    with pytest.raises(ValueError, match=r"holds a critic and this run has none: set algorithm\.advantage\.type"):
        load_checkpoint(engine, tmp_path)
    save_checkpoint(engine, tmp_path, 2, {}, keep=1)
    with pytest.raises(ValueError, match="holds no critic and this run has one"):
        load_checkpoint(engine, tmp_path, critic)


# ── mistakes ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["critic.clip=0.1"], "critic: algorithm.advantage.type grpo has no use for a critic"),
        (["algorithm.advantage.type=vtrace", "algorithm.correction.type=none"], "vtrace leaves the importance weight"),
        (["algorithm.advantage.type=vtrace", "algorithm.advantage.c_cap=2"], "c_cap (2.0) must not be above rho_cap"),
        (["algorithm.advantage.type=gae", "critic.warmup_steps=5", "run.steps=5"], "critic.warmup_steps (5) must be"),
        (["algorithm.advantage.type=gae", "algorithm.advantage.rho_cap=1"], "rho_cap: unknown option"),
        (["algorithm.advantage.type=gae", "critic.clip=0"], "critic.clip"),
        (["algorithm.advantage.type=gae", "algorithm.advantage.lam=1.5"], "lam"),
    ],
)
def test_wrong_options_are_one_line(overrides, says):
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=overrides)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_critic_comes_with_the_estimator_and_reads_back_from_the_run_folder(tmp_path):
    assert load_config().critic is None
    config = load_config(overrides=["algorithm.advantage.type=gae"])
    assert config.critic is not None and config.critic.clip == 0.2
    for one in (config, load_config()):
        (tmp_path / "config.yaml").write_text(dump_config(one))
        assert load_config(tmp_path / "config.yaml") == one
    assert load_config(overrides=["algorithm.advantage.type=gae", "critic.clip=null"]).critic.clip is None


def test_a_model_that_cannot_be_the_critic_is_refused(tmp_path, model):
    cfg = actor_critic_config(model, critic={"path": str(tmp_path / "nowhere")})
    engine = PolicyEngine(cfg)
    with pytest.raises(FileNotFoundError, match=r"critic.path: .*nowhere is not a model folder"):
        Critic.beside(engine)
    small = Qwen2Config(
        vocab_size=VOCAB - 1, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    Qwen2ForCausalLM(small).save_pretrained(tmp_path / "small")
    cfg.critic.path = str(tmp_path / "small")
    with pytest.raises(ValueError, match=r"critic\.path: .*small knows 96 tokens and the policy 97"):
        Critic.beside(engine)
