"""The engine against plain PyTorch: the same probabilities, the same gradient, the same step, however it is split."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, CohereForCausalLM, LlamaConfig, LlamaForCausalLM

from learner.policy import zero
from learner.policy.batch import Row
from learner.policy.checkpoint import load_checkpoint, save_checkpoint
from learner.policy.engine import PolicyEngine
from learner.policy.model import PolicyModel, inputs_of, load_policy
from learner.policy.packing import pack
from learner.run import checkpoints
from tests import plain_torch
from tests.two_ranks import FAMILY, batch, begin_alike, config, save_tiny_model, trajectory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def partition_everything(monkeypatch):
    monkeypatch.setattr(zero, "ZERO3_PERSISTENT", 0)


def assert_same_step(before, got, expected):
    """Steps taken by all weights together agree to a relative 1e-5."""
    assert list(got) == list(expected)
    delta = torch.cat([(got[n] - before[n]).flatten() for n in got])
    wanted = torch.cat([(expected[n] - before[n]).flatten() for n in got])
    assert wanted.norm() > 0 and (delta - wanted).norm() <= 1e-5 * wanted.norm()


def weights(model) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in AutoModelForCausalLM.from_pretrained(model).named_parameters()}


# ── packed rows ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("common", [0, 12, 40])
def test_packed_equals_unpacked_in_values_and_gradients(tmp_path, model, kind, checkpointing, common):
    if kind == "llama":
        torch.manual_seed(1)
        LlamaForCausalLM(
            LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3)
        ).save_pretrained(tmp_path)  # fmt: skip
        model = tmp_path
    rng = np.random.default_rng(0)
    episodes = [trajectory(rng, n) for n in (17, 40, 2, 17, 33)]
    begin_alike(episodes, common)
    scale = [torch.from_numpy(rng.normal(size=len(t)).astype(np.float32)) for t in episodes]
    rows = [row for t in episodes for row in Row.of(t, np.zeros(len(t), np.float32))]
    lm = load_policy(model)
    if checkpointing:
        lm.gradient_checkpointing_enable({"use_reentrant": False})
    policy = PolicyModel(lm)
    plain = AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa")
    batches = pack(rows, 60)[0]
    assert (sum(micro.computed for micro in batches) < sum(map(len, rows))) == (common > 0)
    for micro in batches:
        values, entropy = policy(**inputs_of(micro, CPU, 0.7))
        for i, got in zip(micro.rows, values.split(np.diff(micro.cu_seqlens).tolist()), strict=True):
            expected = plain_torch.logprobs(plain, episodes[i], 0.7)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
            (got * scale[i]).sum().backward(retain_graph=True)
            (expected * scale[i]).sum().backward()
        assert (entropy[micro.action_mask] > 0).all() and not entropy[~micro.action_mask].any()
    for (name, a), (_, b) in zip(lm.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_models_that_cannot_be_trained_exactly_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model.path: .*nowhere is not a model folder"):
        load_policy(tmp_path / "nowhere")
    CohereForCausalLM(
        CohereConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=2, logit_scale=0.25, initializer_range=1.0, bos_token_id=1, eos_token_id=2)
    ).save_pretrained(tmp_path)  # fmt: skip
    with pytest.raises(ValueError, match="more to its logits than one linear head"):
        load_policy(tmp_path)


# ── updates ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_tokens", [30, 100_000])
def test_one_step_equals_plain_torch(model, stage, micro_tokens):
    cfg = config(model, zero_stage=stage, micro_tokens=micro_tokens)
    engine = PolicyEngine(cfg)
    metrics = engine.update(*batch())
    expected, norms = plain_torch.update(cfg, *batch())
    assert metrics["micro_batches"] == (1 if micro_tokens > 1000 else 10)
    assert_same_step(weights(model), dict(engine.snapshot()), expected)
    assert metrics["grad_norm"] == pytest.approx(norms[0], rel=1e-5) and norms[0] > cfg.learner.optimizer.grad_clip


@pytest.mark.parametrize("proximal", ["recompute", "behaviour"])
def test_two_mini_batches_use_probabilities_of_before_the_update(model, proximal):
    cfg = config(model, mini_batches=2)
    cfg.algorithm.correction.proximal = proximal
    engine = PolicyEngine(cfg)
    metrics = engine.update(*batch(), version=3)
    expected, norms = plain_torch.update(cfg, *batch())
    assert_same_step(weights(model), dict(engine.snapshot()), expected)
    assert metrics["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    assert metrics["optimizer_steps"] == 2 and metrics["clip_fraction"] > 0
    assert metrics["zero_signal_groups"] == 1 and metrics["forward_tokens"] == 0.75 * metrics["tokens"]
    [(age, figures)] = metrics["by_staleness"].items()
    assert age == "2-3" and figures["ratio_mean"] == pytest.approx(metrics["ratio_mean"])
    assert figures["clip_fraction"] == metrics["clip_fraction"] and figures["ratio_max"] == metrics["ratio_max"]


@pytest.mark.parametrize("micro_tokens", [16, 4096])
def test_the_proximal_log_probabilities_of_an_update_are_those_of_the_policy_before_it(model, micro_tokens):
    cfg = config(model, mini_batches=2, micro_tokens=micro_tokens)
    engine = PolicyEngine(cfg)
    groups, advantages = batch()
    trajectories = [t for group in groups for t in group.trajectories]
    before = engine.score(trajectories, cfg.sampling.temperature)
    engine.update(groups, advantages)
    signal = [a.any() for values in advantages for a in values]
    assert sorted(engine.proximal) == [row for row, some in enumerate(signal) if some] and not all(signal)
    for row, values in engine.proximal.items():
        sampled = trajectories[row].action_mask.astype(bool)
        np.testing.assert_allclose(values[sampled], before[row][sampled], atol=1e-5)


#: Every loss, weight, mask, aggregation and regulariser at least once, and what of them is easy to get wrong together.
ALGORITHMS = {
    "dual_clip": {"loss": {"dual_clip": 1.5}, "correction": {"mask": {"type": "token", "low": 0.3, "high": 4.0}}},
    "gspo": {"loss": {"type": "gspo", "clip_low": 0.05, "clip_high": 0.05}, "aggregation": "sequence"},
    "gspo_bypass": {"loss": {"type": "gspo"}, "correction": {"proximal": "behaviour"}, "aggregation": "sequence"},
    "cispo": {"loss": {"type": "cispo", "clip_high": 0.1}, "correction": {"type": "sequence_tis"}, "aggregation": "constant"},
    "reinforce": {"loss": {"type": "reinforce"}, "correction": {"type": "sequence_tis", "cap": 1e6}},
    "reinforce_bypass": {"loss": {"type": "reinforce"}, "correction": {"proximal": "behaviour", "cap": 1.5}},
    "geometric": {"correction": {"type": "none", "mask": {"type": "geometric", "low": 0.7, "high": 1.6}}},
    "masked_bypass": {"correction": {"proximal": "behaviour", "mask": {"type": "token"}}, "aggregation": "sequence"},
    "kl_entropy": {"reference": {"coefficient": 0.2}, "entropy_bonus": 0.05, "aggregation": "sequence"},
    "kl_k1": {"reference": {"coefficient": 0.2, "estimator": "k1"}},
    "kl_k2": {"reference": {"coefficient": 0.2, "estimator": "k2"}, "aggregation": "constant"},
    "no_masks": {"masks": {"loss": False, "advantage": False}, "loss": {"type": "gspo"}, "entropy_bonus": 0.05},
}  # fmt: skip


@pytest.mark.parametrize("micro_tokens", [30, 100_000])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_the_step_of_plain_torch(model, name, micro_tokens):
    cfg = config(model, algorithm=ALGORITHMS[name], mini_batches=2, micro_tokens=micro_tokens)
    groups, advantages = batch()
    if not cfg.algorithm.masks.advantage:
        advantages = [[np.full(len(a), a.sum(), np.float32) for a in values] for values in advantages]
    engine = PolicyEngine(cfg)
    before = weights(model)
    if cfg.algorithm.reference.coefficient:
        plain_torch.disturb(engine)
        before = dict(engine.snapshot())
    metrics = engine.update(groups, advantages)
    expected, norms = plain_torch.update(cfg, groups, advantages)
    assert_same_step(before, dict(engine.snapshot()), expected)
    # The second gradient is taken where the first step led: what rounding moved there is larger by then.
    assert metrics["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-4)
    assert ("reference_kl" in metrics) == bool(cfg.algorithm.reference.coefficient)
    assert (metrics["masked_fraction"] > 0) == (cfg.algorithm.correction.mask.type != "none")


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("micro_tokens", [70, 100_000])
def test_what_episodes_begin_with_alike_is_computed_once_and_the_step_is_the_same(model, stage, micro_tokens):
    cfg = config(model, zero_stage=stage, micro_tokens=micro_tokens)
    engine = PolicyEngine(cfg)
    metrics = engine.update(*batch(common=20))
    expected, norms = plain_torch.update(cfg, *batch(common=20))
    assert_same_step(weights(model), dict(engine.snapshot()), expected)
    assert metrics["grad_norm"] == pytest.approx(norms[0], rel=1e-5)
    trained = 0.75 * metrics["tokens"]  # a group of four has no signal
    least = trained - 3 * (9 + 20 + 20)
    assert metrics["forward_tokens"] == least if micro_tokens > 1000 else least < metrics["forward_tokens"] < trained


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_whole_family_at_once_at_every_zero_stage(model, stage):
    cfg = config(model, algorithm=FAMILY, zero_stage=stage, mini_batches=2, micro_tokens=50)
    engine = PolicyEngine(cfg)
    metrics = engine.update(*batch())
    expected, _ = plain_torch.update(cfg, *batch(), apart=False)
    assert_same_step(weights(model), dict(engine.snapshot()), expected)
    assert metrics["forward_tokens"] == metrics["tokens"], "KL and entropy want the rows without signal too"


@pytest.mark.parametrize("algorithm", [{}, FAMILY], ids=["default", "with KL and entropy"])
def test_no_signal_makes_no_step(model, algorithm):
    engine = PolicyEngine(config(model, algorithm=algorithm, mini_batches=2))
    metrics = engine.update(*batch(signal=0.0))
    assert metrics["skipped_steps"] == 2 and metrics["optimizer_steps"] == 0 and metrics["zero_signal_groups"] == 4
    assert all(np.isfinite(value) for value in metrics.values() if not isinstance(value, dict))
    assert all(torch.equal(tensor, weights(model)[name]) for name, tensor in engine.parameters())


def test_learning_rate_zero_leaves_weights_and_sees_no_mismatch(model):
    engine = PolicyEngine(config(model, mini_batches=2, optimizer={"lr": 0.0}))
    groups, advantages = batch()
    for group in groups:
        for t, logprobs in zip(
            group.trajectories, engine.score(group.trajectories, engine.cfg.sampling.temperature), strict=True
        ):
            t.behaviour_logprobs = logprobs
    metrics = engine.update(groups, advantages)
    assert metrics["logprob_mismatch_max"] < 1e-5 and metrics["kl_k3"] < 1e-6
    assert metrics["ratio_mean"] == pytest.approx(1) and metrics["ratio_ess"] == pytest.approx(1)
    assert metrics["optimizer_steps"] == 2 and metrics["clip_fraction"] == 0
    assert all(torch.equal(tensor, weights(model)[name]) for name, tensor in engine.parameters())


def test_warm_up_is_linear_in_optimizer_steps(model):
    engine = PolicyEngine(config(model, optimizer={"lr": 0.4, "warmup_steps": 4}))
    assert [engine.update(*batch())["lr"] for _ in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_sums_micro_batches_like_one(model, stage):
    small = {"lr": 1e-3}
    _, exact = plain_torch.update(config(model, mini_batches=2, optimizer=small), *batch())
    for micro_tokens in (30, 100_000):
        cfg = config(model, zero_stage=stage, mini_batches=2, micro_tokens=micro_tokens, optimizer=small)
        cfg.model.dtype = "bfloat16"
        engine = PolicyEngine(cfg)
        assert engine.update(*batch())["grad_norm"] == pytest.approx(np.mean(exact), rel=0.05)
        assert {tensor.dtype for _, tensor in engine.parameters()} == {torch.bfloat16}


# ── checkpoints and export ───────────────────────────────────────────────────


@pytest.mark.parametrize("stage", [0, 3])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, model, stage):
    cfg = config(model, zero_stage=stage, mini_batches=2, optimizer={"lr": 1e-2, "warmup_steps": 7})
    engine = PolicyEngine(cfg)
    engine.update(*batch())
    save_checkpoint(engine, tmp_path, 1, {"version": 1}, keep=2)
    drawn = torch.rand(3)
    metrics = engine.update(*batch())
    resumed = PolicyEngine(cfg)
    assert load_checkpoint(resumed, tmp_path) == {"version": 1}
    assert torch.equal(torch.rand(3), drawn)
    again = resumed.update(*batch())
    assert all(again[name] == value for name, value in metrics.items() if not name.endswith("_s"))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(engine.parameters(), resumed.parameters(), strict=True))


def test_a_kill_while_saving_leaves_the_last_good_checkpoint(tmp_path, model, monkeypatch):
    engine = PolicyEngine(config(model))
    assert load_checkpoint(engine, tmp_path) is None
    for step in (1, 2, 3):
        save_checkpoint(engine, tmp_path, step, {"version": step}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3", "latest"]

    def die(*_):
        raise KeyboardInterrupt

    for part in ("seal", "replace_folder", "place"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(checkpoints, part, die)
            save_checkpoint(engine, tmp_path, 4, {"version": 4}, keep=2)
        assert load_checkpoint(engine, tmp_path) == {"version": 3}
    save_checkpoint(engine, tmp_path, 4, {"version": 4}, keep=2)
    assert load_checkpoint(engine, tmp_path) == {"version": 4}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-4", "latest"]


def test_a_checkpoint_of_another_layout_or_with_code_in_it_is_refused(tmp_path, model):
    engine = PolicyEngine(config(model))
    assert save_checkpoint(engine, tmp_path, 1, {}, keep=1) == 1
    folder = checkpoints.path_of(tmp_path, 1)
    with pytest.raises(ValueError, match=r"learner\.zero_stage=0"):
        load_checkpoint(PolicyEngine(config(model, zero_stage=1)), tmp_path)
    (state,) = folder.glob("engine/*model_states.pt")
    torch.save({"module": Path("x"), "harm": print}, state)
    checkpoints.seal(folder, json.loads((folder / checkpoints.STATE).read_text()))
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(engine, tmp_path)


@pytest.mark.parametrize("stage", [0, 3])
def test_export_is_a_whole_hugging_face_folder(tmp_path, model, stage):
    source = tmp_path / "source"
    save_tiny_model(source)
    (source / "tokenizer.json").write_text("{}")
    engine = PolicyEngine(config(source, zero_stage=stage))
    engine.update(*batch())
    for _ in range(2):  # the second replaces the first
        folder = engine.export(tmp_path / "out")
    assert (folder / "tokenizer.json").read_text() == "{}" and "rollway" not in (folder / "config.json").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]
    loaded = weights(folder)
    assert loaded.keys() == {name for name, _ in engine.parameters()}
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in engine.parameters())


# ── two ranks ────────────────────────────────────────────────────────────────


@pytest.mark.timeout(300)
def test_two_ranks_take_the_same_step_at_every_zero_stage(tmp_path, model):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("two_ranks.py")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, script, model, tmp_path], env=env, timeout=280, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    cfg = config(model)
    expected, norms = plain_torch.update(cfg, *batch())
    before = weights(model)
    family_expected, _ = plain_torch.update(config(model, algorithm=FAMILY, mini_batches=2), *batch(), apart=False)
    alone = PolicyEngine(cfg)
    before_scores = np.concatenate(alone.score(batch()[0][0].trajectories, cfg.sampling.temperature))
    metrics = alone.update(*batch())
    for stage in (0, 1, 2, 3):
        result = np.load(tmp_path / f"zero-{stage}.npz")
        got = {name: torch.from_numpy(result[name]) for name in expected}
        assert_same_step(before, got, expected)
        assert result["_grad_norm"] == pytest.approx(norms[0], rel=1e-5)
        assert result["_loss"] == pytest.approx(metrics["loss"], rel=1e-4)
        assert result["_mismatch"] == pytest.approx(metrics["logprob_mismatch_mean"], rel=1e-4)
        scores = np.concatenate(alone.score(batch()[0][0].trajectories, alone.cfg.sampling.temperature))
        np.testing.assert_allclose(result["_scores"], scores, atol=1e-4)
        family = np.load(tmp_path / f"family-{stage}.npz")
        assert_same_step(before, {name: torch.from_numpy(family[name]) for name in expected}, family_expected)
        np.testing.assert_allclose(family["_reference"], before_scores, atol=1e-4)
        assert result["_same"], f"ZeRO-{stage}: the update after a restored checkpoint differs"
