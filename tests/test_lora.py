"""Low-rank adapters: only they train, everyone else sees one merged model, and all of it is exact."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM

pytest.importorskip("peft", reason="peft is not installed here: run make test")

from configs.load import ConfigError, load_config
from configs.lora import LoraConfig
from learner.evaluation.checkpoint import model_folder
from learner.policy import zero
from learner.policy.checkpoint import load_checkpoint, save_checkpoint
from learner.policy.engine import PolicyEngine
from learner.policy.model import PolicyModel, load_policy, named_weights
from learner.run import checkpoints
from tests import plain_torch
from tests.two_ranks import batch, save_tiny_model
from tests.two_ranks_lora import ADAPTERS, lora_config


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def partition_everything(monkeypatch):
    monkeypatch.setattr(zero, "ZERO3_PERSISTENT", 0)


def disturbed(model: Path, dtype: str = "float32", **options):
    """A model whose adapters do something."""
    lm = load_policy(model, dtype, LoraConfig(**ADAPTERS | options))
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.2)
    return lm


def plain(folder: Path) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in AutoModelForCausalLM.from_pretrained(folder).named_parameters()}


# ── the merged model ─────────────────────────────────────────────────────────


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_the_merged_model_computes_what_the_adapters_do(model, targets):
    lm = disturbed(model, targets=targets)
    merged = AutoModelForCausalLM.from_pretrained(model)
    assert [name for name, _ in named_weights(lm)] == [name for name, _ in merged.named_parameters()]
    moved = {name for name, tensor in named_weights(lm) if not torch.equal(tensor, merged.get_parameter(name))}
    adapted = ("q_proj", "down_proj") if targets != "all-linear" else ("_proj",)
    assert moved == {n for n, _ in merged.named_parameters() if n.endswith("weight") and any(a in n for a in adapted)}
    merged.load_state_dict(dict(named_weights(lm)), strict=False)
    episode = batch()[0][0].trajectories[1]
    ids = torch.from_numpy(episode.token_ids.astype(np.int64))[None]
    packed = {"cu_seq_lens_q": torch.tensor([0, len(episode)], dtype=torch.int32), "max_length_q": len(episode)}
    with torch.no_grad():
        got, want = lm(ids, use_cache=False, **packed).logits, merged(ids).logits
        start = AutoModelForCausalLM.from_pretrained(model)(ids).logits
    assert (got - want).norm() <= 3e-6 * want.norm() and (want - start).norm() > 0.1 * want.norm()


def test_half_precision_is_merged_in_float32_and_rounded_once(model):
    lm = disturbed(model, "bfloat16")
    layer = lm.model.layers[0].mlp.up_proj
    a, b = layer.lora_A["default"].weight.double(), layer.lora_B["default"].weight.double()
    exact = layer.base_layer.weight.double() + ADAPTERS["alpha"] / ADAPTERS["rank"] * (b @ a)
    got = dict(named_weights(lm))["model.layers.0.mlp.up_proj.weight"]
    assert got.dtype == torch.bfloat16 and (got != exact.to(torch.bfloat16)).float().mean() < 1e-3


# ── training ─────────────────────────────────────────────────────────────────


class Adapted(nn.Module):
    """W ↦ W + scale · B·A, as a parametrisation of torch's: what peft does, once more."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, scale: float):
        super().__init__()
        self.a, self.b, self.scale = nn.Parameter(a.clone()), nn.Parameter(b.clone()), scale

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.scale * self.b @ self.a


@pytest.fixture
def reference(monkeypatch):
    """``plain_torch`` with the adapters of a fresh policy, so that its weights after an update can be compared."""
    load = plain_torch.load

    def adapted(path: str):
        torch.manual_seed(0)
        start = dict(load_policy(path, lora=LoraConfig(**ADAPTERS)).named_parameters())
        lm = load(path).requires_grad_(False)
        for name in sorted({n.partition(".lora_A")[0] for n in start if ".lora_A" in n}):
            a, b = (start[f"{name}.lora_{m}.default.weight"].detach() for m in "AB")
            scale = ADAPTERS["alpha"] / ADAPTERS["rank"]
            parametrize.register_parametrization(lm.get_submodule(name), "weight", Adapted(a, b, scale))
        return lm

    monkeypatch.setattr(plain_torch, "load", adapted)


def matrices(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Layer and A or B → the matrix, from peft's names or from ``Adapted``'s."""
    short = {
        n.replace(".parametrizations.weight.0.", ".lora_").replace(".default.weight", ""): t for n, t in weights.items()
    }
    return {n.replace("lora_a", "lora_A").replace("lora_b", "lora_B"): t for n, t in short.items() if "lora_" in n}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_only_adapters_train_and_as_in_plain_torch(model, reference, stage):
    cfg = lora_config(model, zero_stage=stage, mini_batches=2)
    expected, norms = plain_torch.update(cfg, *batch())
    engine = PolicyEngine(cfg)
    assert {n for n, p in engine.lm.named_parameters() if p.requires_grad} == {
        n for n, _ in engine.lm.named_parameters() if ".lora_" in n
    }
    before, frozen = dict(engine.snapshot()), plain(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in frozen.items()), "new adapters change something"
    metrics = engine.update(*batch())
    assert metrics["grad_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    after = dict(engine.snapshot())
    for name, tensor in frozen.items():
        assert torch.equal(after[name], tensor) == (not name.endswith("_proj.weight")), name
    wanted = matrices(expected)
    step = torch.cat([
        (wanted[f"{n}.lora_B"] @ wanted[f"{n}.lora_A"]).flatten() * ADAPTERS["alpha"] / ADAPTERS["rank"]
        for n in sorted({name.partition(".lora_")[0] for name in wanted})
    ])  # fmt: skip
    got = torch.cat([
        (after[f"{n}.weight"] - before[f"{n}.weight"]).flatten()
        for n in sorted({name.partition(".lora_")[0] for name in wanted})
    ])  # fmt: skip
    assert wanted and step.norm() > 0 and (got - step).norm() <= 1e-4 * step.norm()


@pytest.mark.parametrize("stage", [1, 3])
def test_half_precision_trains(model, stage):
    cfg = lora_config(model, zero_stage=stage, optimizer={"lr": 1e-2})
    cfg.model.dtype = "bfloat16"
    engine = PolicyEngine(cfg)
    before = dict(engine.snapshot())
    assert engine.update(*batch())["grad_norm"] > 0
    moved = [name for name, tensor in engine.parameters() if not torch.equal(tensor, before[name])]
    assert moved and all(name.endswith("_proj.weight") for name in moved)


def test_with_gradient_checkpointing_the_step_is_the_same(model):
    updates = []
    for checkpointing in (False, True):
        cfg = lora_config(model)
        cfg.model.gradient_checkpointing = checkpointing
        engine = PolicyEngine(cfg)
        engine.update(*batch())
        updates.append(dict(engine.snapshot()))
    for name, tensor in updates[0].items():
        torch.testing.assert_close(tensor, updates[1][name])


# ── checkpoints and export ───────────────────────────────────────────────────


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_checkpoint_holds_the_adapters_alone_and_goes_on_bit_for_bit(tmp_path, model, stage):
    cfg = lora_config(model, zero_stage=stage, optimizer={"lr": 1e-2})
    engine = PolicyEngine(cfg)
    engine.update(*batch())
    save_checkpoint(engine, tmp_path, 1, {}, keep=1)
    engine.update(*batch())
    resumed = PolicyEngine(cfg)
    load_checkpoint(resumed, tmp_path)
    resumed.update(*batch())
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(engine.parameters(), resumed.parameters(), strict=True))
    files = list(checkpoints.path_of(tmp_path, 1).rglob("*model_states.pt"))
    kept = [zero.SafeCheckpointEngine().load(str(file)) for file in files]
    assert kept and all(".lora_" in name for state in kept for name in state["module"])
    assert not any(state.get("frozen_param_fragments") for state in kept)


def test_a_checkpoint_fits_only_the_adapters_and_the_model_that_it_was_written_with(tmp_path, model):
    save_checkpoint(PolicyEngine(lora_config(model)), tmp_path, 1, {}, keep=1)
    other = lora_config(model)
    other.model.lora = LoraConfig(**ADAPTERS | {"alpha": 3.0})
    whole = lora_config(model)
    whole.model.lora = None
    moved = lora_config(save_tiny_model(tmp_path / "copy"))
    for cfg in (other, whole, moved):
        with pytest.raises(ValueError, match=r"set model\.lora and model\.path as they were"):
            load_checkpoint(PolicyEngine(cfg), tmp_path)


def test_weights_of_another_module_are_refused(tmp_path, model):
    zero_model = PolicyEngine(lora_config(model))._ds
    zero_model.save(tmp_path, "engine")
    cfg = lora_config(model)
    cfg.model.lora = LoraConfig(**ADAPTERS | {"targets": ["q_proj", "k_proj"]})
    with pytest.raises(ValueError, match=r"the checkpoint is of another model: .*lora_A.* do not fit"):
        PolicyEngine(cfg)._ds.load(tmp_path, "engine")


@pytest.mark.parametrize("stage", [0, 3])
def test_exports_and_checkpoints_become_merged_model_folders(tmp_path, model, stage):
    cfg = lora_config(model, zero_stage=stage)
    engine = PolicyEngine(cfg)
    engine.update(*batch())
    expected = dict(engine.snapshot())
    run = tmp_path / "run"
    save_checkpoint(engine, run / "checkpoints", 1, {}, keep=1)
    (run / "config.yaml").write_text(f"model: {{path: {model}, dtype: float32, lora: {cfg.model.lora.model_dump()}}}")
    for folder in (engine.export(tmp_path / "out"), Path(model_folder(str(run), tmp_path / "scratch"))):
        loaded = plain(folder)
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
        assert "lora" not in (folder / "config.json").read_text()


def test_the_reference_is_the_model_without_adapters(model):
    cfg = lora_config(model)
    cfg.algorithm.reference.coefficient = 0.1
    engine = PolicyEngine(cfg)
    episodes = batch()[0][0].trajectories
    start = np.concatenate(engine.score(episodes, 1.0))
    engine.update(*batch())
    np.testing.assert_allclose(np.concatenate(engine.score(episodes, 1.0, reference=True)), start, atol=1e-5)
    assert np.abs(np.concatenate(engine.score(episodes, 1.0)) - start).max() > 1e-2


# ── what is told to a person ─────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("targets", "words"),
    [(["q_proj", "query"], "no linear layer is called query; there are down_proj, gate_proj, k_proj"),
     (["embed_tokens"], "no linear layer is called embed_tokens"), (["lm_head"], "no linear layer is called lm_head")],
)  # fmt: skip
def test_a_target_that_is_not_there_is_told(model, targets, words):
    with pytest.raises(ValueError, match=rf"model\.lora\.targets: {words}"):
        load_policy(model, lora=LoraConfig(targets=targets))


def test_without_peft_the_package_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"model\.lora needs the package peft"):
        load_policy(model, lora=LoraConfig())
    assert isinstance(PolicyModel(load_policy(model)), PolicyModel), "without lora nobody needs it"


def test_options_come_from_the_command_line():
    assert load_config(overrides=["model.lora={}"]).model.lora == LoraConfig()
    assert load_config(overrides=["model.lora.targets=[q_proj]"]).model.lora.targets == ["q_proj"]
    assert load_config().model.lora is None
    for wrong in ("rank=0", "alpha=0", "targets=[]", "dropout=0.1"):
        with pytest.raises(ConfigError, match=r"model\.lora\."):
            load_config(overrides=[f"model.lora.{wrong}"])


# ── two ranks ────────────────────────────────────────────────────────────────


@pytest.mark.timeout(300)
def test_two_ranks_train_the_same_adapters_at_every_zero_stage(tmp_path, model):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = Path(__file__).with_name("two_ranks_lora.py")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, script, model, tmp_path], env=env, timeout=280, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    alone = PolicyEngine(lora_config(model))
    before = dict(alone.snapshot())
    alone.update(*batch())
    expected = dict(alone.snapshot())
    delta = torch.cat([(expected[name] - before[name]).flatten() for name in expected])
    for stage in (0, 1, 2, 3):
        result = np.load(tmp_path / f"zero-{stage}.npz")
        got = torch.cat([(torch.from_numpy(result[name]) - before[name]).flatten() for name in expected])
        assert (got - delta).norm() <= 1e-4 * delta.norm()
        assert result["_same"], f"ZeRO-{stage}: the update after a restored checkpoint differs"
