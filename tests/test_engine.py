"""The engine against plain PyTorch: the same probabilities, the same gradient, the same step, however it is split."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, CohereForCausalLM, LlamaConfig, LlamaForCausalLM

from learner.policy import checkpoint, zero
from learner.policy.batch import Row
from learner.policy.checkpoint import load_checkpoint, save_checkpoint
from learner.policy.engine import PolicyEngine
from learner.policy.model import PolicyModel, inputs_of, load_policy
from learner.policy.packing import pack
from tests.two_ranks import batch, config, save_tiny_model, trajectory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def partition_everything(monkeypatch):
    monkeypatch.setattr(zero, "ZERO3_PERSISTENT", 0)


# ── plain PyTorch: one unpacked row at a time, all logits ────────────────────


def plain_logprobs(lm, t, temperature) -> torch.Tensor:
    ids = torch.from_numpy(t.token_ids.astype(np.int64))
    logprobs = (lm(ids[None]).logits[0, :-1] / temperature).log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    return torch.cat([torch.zeros(1), logprobs]) * torch.from_numpy(t.action_mask.astype(np.float32))


def plain_update(cfg, groups, advantages) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Decoupled PPO clip with TIS written out, AdamW and clipping of torch: (weights after, gradient norms)."""
    o, temperature = cfg.learner.optimizer, cfg.sampling.temperature
    clip, correction = cfg.algorithm.loss, cfg.algorithm.correction
    lm = AutoModelForCausalLM.from_pretrained(cfg.model.path, dtype=torch.float32, attn_implementation="eager")
    adam = torch.optim.AdamW(lm.parameters(), lr=o.lr, betas=o.betas, eps=o.eps, weight_decay=o.weight_decay)
    with torch.no_grad():
        proximal = [[plain_logprobs(lm, t, temperature) for t in g.trajectories] for g in groups]
    norms, per = [], len(groups) // cfg.learner.mini_batches
    for start in range(0, len(groups), per):
        loss, count = 0.0, 0
        for g in range(start, start + per):
            for t, a, prox in zip(groups[g].trajectories, advantages[g], proximal[g], strict=True):
                mu, a = torch.from_numpy(t.behaviour_logprobs), torch.from_numpy(a)
                if correction.proximal == "behaviour":
                    prox = mu
                ratio = (plain_logprobs(lm, t, temperature) - prox).exp()
                weight = (prox - mu).exp().clamp(max=correction.cap)
                surrogate = torch.minimum(ratio * a, ratio.clamp(1 - clip.clip_low, 1 + clip.clip_high) * a)
                mask = torch.from_numpy(t.action_mask.astype(np.float32))
                loss, count = loss - (weight * surrogate * mask).sum(), count + mask.sum()
        adam.zero_grad()
        (loss / count).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(lm.parameters(), o.grad_clip)))
        adam.step()
    return {name: p.detach() for name, p in lm.named_parameters()}, norms


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
def test_packed_equals_unpacked_in_values_and_gradients(tmp_path, model, kind, checkpointing):
    if kind == "llama":
        torch.manual_seed(1)
        LlamaForCausalLM(
            LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3)
        ).save_pretrained(tmp_path)  # fmt: skip
        model = tmp_path
    rng = np.random.default_rng(0)
    episodes = [trajectory(rng, n) for n in (17, 40, 2, 17, 33)]
    scale = [torch.from_numpy(rng.normal(size=len(t)).astype(np.float32)) for t in episodes]
    rows = [Row.of(t, np.zeros(len(t), np.float32)) for t in episodes]
    lm = load_policy(model)
    if checkpointing:
        lm.gradient_checkpointing_enable({"use_reentrant": False})
    policy = PolicyModel(lm)
    plain = AutoModelForCausalLM.from_pretrained(model, attn_implementation="sdpa")
    for micro in pack(rows, 60)[0]:
        values, entropy = policy(**inputs_of(micro, CPU, 0.7))
        for i, got in zip(micro.rows, values.split(np.diff(micro.cu_seqlens).tolist()), strict=True):
            expected = plain_logprobs(plain, episodes[i], 0.7)
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
    expected, norms = plain_update(cfg, *batch())
    assert metrics["micro_batches"] == (1 if micro_tokens > 1000 else 10)
    assert_same_step(weights(model), dict(engine.snapshot()), expected)
    assert metrics["grad_norm"] == pytest.approx(norms[0], rel=1e-5) and norms[0] > cfg.learner.optimizer.grad_clip


@pytest.mark.parametrize("proximal", ["recompute", "behaviour"])
def test_two_mini_batches_use_probabilities_of_before_the_update(model, proximal):
    cfg = config(model, mini_batches=2)
    cfg.algorithm.correction.proximal = proximal
    engine = PolicyEngine(cfg)
    metrics = engine.update(*batch())
    expected, norms = plain_update(cfg, *batch())
    assert_same_step(weights(model), dict(engine.snapshot()), expected)
    assert metrics["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    assert metrics["optimizer_steps"] == 2 and metrics["clip_fraction"] > 0
    assert metrics["zero_signal_groups"] == 1 and metrics["forward_tokens"] == 0.75 * metrics["tokens"]


def test_no_signal_makes_no_step(model):
    engine = PolicyEngine(config(model, mini_batches=2))
    metrics = engine.update(*batch(signal=0.0))
    assert metrics["skipped_steps"] == 2 and metrics["optimizer_steps"] == 0 and metrics["zero_signal_groups"] == 4
    assert np.isfinite(list(metrics.values())).all()
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
    _, exact = plain_update(config(model, mini_batches=2, optimizer=small), *batch())
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

    for part in ("replace_folder", "replace_text"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(checkpoint, part, die)
            save_checkpoint(engine, tmp_path, 4, {"version": 4}, keep=2)
        assert load_checkpoint(engine, tmp_path) == {"version": 3}
    save_checkpoint(engine, tmp_path, 4, {"version": 4}, keep=2)
    assert load_checkpoint(engine, tmp_path) == {"version": 4}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-4", "latest"]


def test_a_checkpoint_of_another_layout_or_gone_or_with_code_in_it_is_refused(tmp_path, model):
    engine = PolicyEngine(config(model))
    folder = save_checkpoint(engine, tmp_path, 1, {}, keep=1)
    with pytest.raises(ValueError, match=r"learner\.zero_stage=0"):
        load_checkpoint(PolicyEngine(config(model, zero_stage=1)), tmp_path)
    (state,) = folder.glob("engine/*model_states.pt")
    torch.save({"module": Path("x"), "harm": print}, state)
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(engine, tmp_path)
    (tmp_path / "latest").write_text("checkpoint-9")
    with pytest.raises(ValueError, match="point it to one of checkpoint-1"):
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


@pytest.mark.timeout(180)
def test_two_ranks_take_the_same_step_at_every_zero_stage(tmp_path, model):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("two_ranks.py")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, script, model, tmp_path], env=env, timeout=170, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    cfg = config(model)
    expected, norms = plain_update(cfg, *batch())
    before = weights(model)
    alone = PolicyEngine(cfg)
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
        assert result["_same"], f"ZeRO-{stage}: the update after a restored checkpoint differs"
