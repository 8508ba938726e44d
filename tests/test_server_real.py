"""One real vLLM server on the CPU: weight pushes while it generates, and what it answers meanwhile."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from configs.lora import LoraConfig
from configs.schema import Config
from learner.policy.model import PolicyModel, load_policy, named_weights
from learner.servers.probe import server_metrics, wait_healthy
from learner.servers.processes import Child, terminate
from learner.servers.serving import (
    SERVED_MODEL,
    check_model,
    check_port,
    server_command,
    server_urls,
)
from learner.weights.control import ControlError, Deadline, ServerControl
from learner.weights.push import WeightPusher
from learner.weights.transport import Weights
from learner.weights.verify import compare, digest

pytestmark = pytest.mark.timeout(400)

VOCAB, LENGTH = 1000, 1024
Policy = list[tuple[str, torch.Tensor]]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """Random weights large enough for logits that differ; a tied head, as the built-in policy has."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = Qwen2Config(
        vocab_size=VOCAB,
        **shape,
        num_key_value_heads=1,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.12,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCAB)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), eos_token="w1").save_pretrained(
        folder
    )
    return folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def config(model_folder) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(model_folder), "max_tokens": LENGTH},
            "server": {"port": free_port(), "kv_cache_gib": 0.5, "max_num_seqs": 64},
            # Buckets smaller than a layer: its q, k and v arrive in different ones.
            "weights": {"bucket_mb": 1, "timeout_s": 30, "verify": True},
        }
    )


@pytest.fixture(scope="module")
def server(config, tmp_path_factory):
    """The running server's processes, the API server first."""
    check_model(config)
    check_port(config.server.host, config.server.port)
    argv, env = server_command(config, 0)
    child = Child("server", argv, env, tmp_path_factory.mktemp("logs") / "server.log")
    child.start()
    try:
        wait_healthy(server_urls(config)[0], 200, lambda: child.exit_code is None, print)
        root = psutil.Process(child.process.pid)
        tree = [root, *root.children(recursive=True)]
        yield tree
    finally:
        terminate([child], grace_s=10)
    assert not psutil.wait_procs(tree, timeout=5)[1]


@pytest.fixture(scope="module")
def url(config, server) -> str:
    return server_urls(config)[0]


@pytest.fixture(scope="module")
def pusher(config, url):
    pusher = WeightPusher(config, [url])
    yield pusher
    pusher.close()


@pytest.fixture
def policies(model_folder):
    """seed → (its weights, a transformers model that has them). Seed 0 is the model folder."""

    def make(seed: int) -> tuple[Policy, Qwen2ForCausalLM]:
        model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05 * (seed > 0))
        return [(name, parameter.detach().clone()) for name, parameter in model.named_parameters()], model

    return make


def generate(url: str, prompt: list[int], tokens: int, **sampling) -> dict:
    body = {
        "token_ids": prompt,
        "model": SERVED_MODEL,
        "sampling_params": {"max_tokens": tokens, "temperature": 1.0, "logprobs": 1, "ignore_eos": True, **sampling},
    }
    answer = requests.post(f"{url}/inference/v1/generate", json=body, timeout=120)
    assert answer.status_code == 200, answer.text[:500]
    return answer.json()["choices"][0]


def sampled_logprobs(choice: dict) -> torch.Tensor:
    return torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]])


def spans(choice: dict) -> list[tuple[str, int, int]]:
    return [(s["version"], s["start"], s["end"]) for s in choice["weight_versions"]]


def recomputed(model: Qwen2ForCausalLM, prompt: list[int], choice: dict) -> torch.Tensor:
    ids = torch.tensor([prompt + choice["token_ids"]])
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    return logprobs[len(prompt) - 1 : -1].gather(1, ids[0, len(prompt) :, None])[:, 0]


def prompt(seed: int, length: int = 40) -> list[int]:
    return torch.randint(2, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_push_makes_the_server_equal_bit_for_bit(url, pusher, policies):
    weights, model = policies(1)
    report = pusher.push(weights, 1)
    assert report.errors() == {}
    assert ServerControl(url, Deadline(10)).weight_version() == "1"
    assert pusher.current_servers() == [url]
    choice = generate(url, prompt(0), 30)
    assert spans(choice) == [("1", 0, 30)]
    difference = (sampled_logprobs(choice) - recomputed(model, prompt(0), choice)).abs()
    assert difference.mean() <= 1e-4
    print(f"\npush of {report.servers[0].nbytes / 1e6:.1f} MB, verified: {report.as_record()}")


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.qkv_proj.weight"),
        ("model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.qkv_proj.bias"),
        ("model.layers.2.mlp.down_proj.weight", "model.layers.2.mlp.down_proj.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("model.embed_tokens.weight", "lm_head.weight"),
    ],
)
def test_verification_finds_one_changed_bit(url, pusher, policies, name, reported):
    weights, _ = policies(1)
    pusher.push(weights, 1)
    changed = dict(weights)
    changed[name] = changed[name].clone()
    changed[name].flatten()[-1].view(torch.int32).bitwise_xor_(1)
    digests = {n: digest(t) for n, t in changed.items()}
    wrong = compare(ServerControl(url, Deadline(30)), Weights(changed, 1, 1 << 20), digests, Deadline(30))
    assert f"{reported}: differs from the learner's" in wrong
    assert len(wrong) == (2 if "embed" in name else 1)


def test_merged_adapters_are_the_servers_weights_bit_for_bit(url, pusher, model_folder):
    pytest.importorskip("peft", reason="peft is not installed here: run make test")
    lm = load_policy(model_folder, lora=LoraConfig(rank=4))
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.1)
    assert pusher.push([(name, tensor.clone()) for name, tensor in named_weights(lm)], 5).errors() == {}
    choice = generate(url, prompt(9), 30)
    ids = np.array(prompt(9) + choice["token_ids"], np.int64)
    sampled = np.arange(len(ids)) >= 40
    packed = {"token_ids": ids, "position_ids": np.arange(len(ids)), "action_mask": sampled,
              "cu_seqlens": np.array([0, len(ids)], np.int32)}  # fmt: skip
    with torch.no_grad():
        logprobs, _ = PolicyModel(lm)(
            **{name: torch.from_numpy(array) for name, array in packed.items()}, longest=len(ids), temperature=1.0
        )
    difference = (sampled_logprobs(choice) - logprobs[40:]).abs()
    print(
        f"\nlearner with adapters, server with the sum: mean |Δ log π| {difference.mean():.1e}, max {difference.max():.1e}"
    )
    assert difference.mean() <= 1e-4


def test_generation_across_a_push_has_both_versions_and_exact_logprobs(url, pusher, policies):
    (old_weights, old), (new_weights, new) = policies(2), policies(3)
    pusher.push(old_weights, 10)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(generate, url, prompt(1), 900)
        wait_until(
            lambda: server_metrics(url)["generated_tokens"] > before, before := server_metrics(url)["generated_tokens"]
        )
        report = pusher.push(new_weights, 11)
        choice = request.result()
    assert report.errors() == {}
    (first, start, middle), (second, middle_too, end) = spans(choice)
    assert (first, second, start, end) == ("10", "11", 0, 900) and middle == middle_too and 0 < middle < 900
    got = sampled_logprobs(choice)
    early = (got - recomputed(old, prompt(1), choice)).abs()[:middle]
    later = (got - recomputed(new, prompt(1), choice)).abs()[middle:]
    print(f"\nswitch at token {middle}: mean |Δ| {early.mean():.1e} before, {later.mean():.1e} after")
    assert early.mean() <= 1e-4 and later.mean() <= 1e-4
    # The two policies are far apart, so a stale cache or head could not have passed.
    assert (recomputed(old, prompt(1), choice) - recomputed(new, prompt(1), choice)).abs().mean() > 0.1


def wait_until(condition, *_, timeout_s: float = 20.0) -> None:
    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "the server does not generate"
        time.sleep(0.02)


def test_new_requests_see_no_stale_prefix(url, pusher, policies):
    (old_weights, _), (new_weights, new) = policies(4), policies(5)
    pusher.push(old_weights, 20)
    shared = prompt(2, 300)
    generate(url, shared, 4)
    pusher.push(new_weights, 21)
    choice = generate(url, shared, 20)
    assert (sampled_logprobs(choice) - recomputed(new, shared, choice)).abs().mean() <= 1e-4


def test_pushes_while_32_requests_are_in_flight(url, pusher, policies):
    both = [policies(6)[0], policies(7)[0]]
    pusher.push(both[0], 30)
    with ThreadPoolExecutor(32) as pool:
        requests_ = [pool.submit(generate, url, prompt(100 + i), 300) for i in range(32)]
        wait_until(lambda: server_metrics(url)["running"] == 32)
        reports = [pusher.push(both[version % 2], version) for version in range(31, 36)]
        choices = [request.result() for request in requests_]
    assert [report.errors() for report in reports] == [{}] * 5
    assert all(len(choice["token_ids"]) == 300 for choice in choices)
    versions = {version for choice in choices for version, _, _ in spans(choice)}
    assert len(versions) > 2
    assert all(choice["weight_versions"][-1]["end"] == 300 for choice in choices)


TRAINER = """
import os, sys, torch
from learner.weights.control import Deadline, ServerControl
from learner.weights.transport import GlooTransport, Weights
from learner.weights.buckets import pack, plan_buckets
import threading
url, folder = sys.argv[1:]
from safetensors.torch import load_file
weights = Weights({n: p + 1 for n, p in load_file(folder + "/model.safetensors").items()}, 41, 1 << 20)
print("ready", flush=True)
sys.stdin.readline()
control, transport = ServerControl(url, Deadline(30)), GlooTransport()
transport.connect(control, Deadline(30))
control.pause()
control.start()
info = weights.describe() | {"bucket_bytes": weights.bucket_bytes}
threading.Thread(target=control.update, args=(info,), daemon=True).start()
bucket = plan_buckets(weights.specs, weights.bucket_bytes)[0]
transport._group.broadcast(pack(bucket, weights.tensors))
os.kill(os.getpid(), 9)  # after the first of several buckets
"""


def test_killed_trainer_leaves_the_server_paused_and_the_next_push_brings_it_back(
    config, url, pusher, policies, model_folder
):
    weights, model = policies(8)
    pusher.push(weights, 40)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(
            [sys.executable, "-c", TRAINER, url, str(model_folder)], env=env, text=True, **pipes
        ) as trainer,
        ThreadPoolExecutor(1) as pool,
    ):
        assert trainer.stdout.readline() == "ready\n"
        waiting = pool.submit(generate, url, prompt(3), 900)
        wait_until(lambda: server_metrics(url)["running"] == 1)
        trainer.communicate("go\n", timeout=60)
        assert trainer.returncode == -9
        control = ServerControl(url, Deadline(30))
        assert control.is_paused() and control.weight_version() == "40"
        # It serves nothing now: neither the request in flight nor a new one.
        with pytest.raises(requests.Timeout):
            requests.post(
                f"{url}/inference/v1/generate",
                json={"token_ids": [5], "model": SERVED_MODEL, "sampling_params": {"max_tokens": 1}},
                timeout=1,
            )
        assert not waiting.done()
        # The old pusher's group was taken over by the dead trainer, so its first try must fail, loudly.
        report = pusher.push(weights, 42)
        assert list(report.errors()) == [url] and pusher.current_servers() == [] and control.is_paused()
        assert pusher.state(url)["state"] == "excluded"
        assert pusher.rejoin().errors() == {} and pusher.current_servers() == [url]
        assert [version for version, _, _ in spans(waiting.result())] == ["40", "42"]
    choice = generate(url, prompt(4), 30)
    assert (sampled_logprobs(choice) - recomputed(model, prompt(4), choice)).abs().mean() <= 1e-4


def test_wrong_parameters_are_refused_and_excluded(url, pusher, policies):
    weights, _ = policies(9)
    shape = [(name, tensor[:, :10] if name.endswith("down_proj.weight") else tensor) for name, tensor in weights]
    report = pusher.push(shape, 50)
    assert list(report.errors()) == [url] and "status 500" in report.errors()[url]
    assert ServerControl(url, Deadline(10)).is_paused() and pusher.current_servers() == []
    assert pusher.push(weights, 51).errors() == {}
    assert pusher.current_servers() == [url]


def test_metrics(url, pusher, policies):
    before = server_metrics(url)
    generate(url, prompt(5, 100), 7)
    generate(url, prompt(5, 100), 7)
    after = server_metrics(url)
    assert after["generated_tokens"] - before["generated_tokens"] == 14
    assert after["running"] == after["waiting"] == 0 and 0 < after["prefix_hit_rate"] < 1


def test_push_times(config, url, policies):
    quick = WeightPusher(
        config.model_copy(update={"weights": config.weights.model_copy(update={"verify": False})}), [url]
    )
    rows = [quick.push(policies(1)[0], 60 + i).servers[0] for i in range(5)]
    quick.close()
    print("\n" + "\n".join(f"push {r.seconds:.3f} s, paused {r.paused_s:.3f} s, wire {r.wire_s:.3f} s" for r in rows))
    assert all(r.error is None and r.seconds < 10 for r in rows)


def run_role_server(*overrides: str) -> subprocess.CompletedProcess:
    root = Path(__file__).parents[1]
    argv = [sys.executable, str(root / "run.py"), "--role", "server", *overrides]
    return subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=60)


def test_bad_input_is_one_clear_line(config, url, model_folder):
    missing = run_role_server("model.path=/nowhere/model")
    assert missing.returncode != 0 and missing.stderr.strip().count("\n") == 0
    assert "model.path /nowhere/model: no such model folder" in missing.stderr
    taken = run_role_server(f"model.path={model_folder}", f"server.port={config.server.port}")
    assert taken.returncode != 0 and taken.stderr.strip().count("\n") == 0
    assert f"port {config.server.port} on 127.0.0.1 is in use" in taken.stderr


def test_vllms_nccl_pieces_are_as_our_transport_uses_them():
    from vllm.distributed.weight_transfer import nccl_common
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

    info = nccl_common.NCCLWeightTransferInitInfo(
        master_address="10.0.0.1",
        master_port=1,
        rank_offset=1,
        world_size=3,
        packed=True,
        packed_buffer_size_bytes=1 << 20,
        packed_num_buffers=2,
    )
    assert nccl_common.worker_init_payload(info)["master_address"] == "10.0.0.1"
    assert list(inspect.signature(nccl_common.trainer_init).parameters) == ["init_info", "rank"]
    wanted = {"iterator", "group", "src", "post_iter_func", "buffer_size_bytes", "num_buffers"}
    assert set(inspect.signature(packed_nccl_broadcast_producer).parameters) == wanted


def test_a_server_that_is_not_there():
    nowhere = f"http://127.0.0.1:{free_port()}"
    report = WeightPusher(Config.model_validate({"weights": {"timeout_s": 5}}), [nowhere]).push(
        [("a", torch.zeros(1))], 1
    )
    assert "is the server running" in report.errors()[nowhere]
    with pytest.raises(ControlError):
        ServerControl(nowhere, Deadline(5)).pause()


def test_a_killed_api_server_takes_its_engine_along(server):
    """Last in this file: it ends the shared server."""
    assert len(server) >= 2
    server[0].kill()
    assert not psutil.wait_procs(server[1:], timeout=10)[1]
