"""Real vLLM servers with our flags: checks, their command line, ``--role server``.

Imports neither torch nor vllm: whoever starts a server need not load one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from configs.logs import fail
from configs.pretrained import how_to_get
from configs.schema import Config
from configs.security import is_loopback
from learner.weights import weight_backend

#: The name under which every server offers the policy.
SERVED_MODEL = "policy"
#: Tokens of one engine step on a CPU: enough for a burst of prompts, short enough not to stall decoding.
CPU_BATCH_TOKENS = 4096
#: Kernels that oneDNN keeps compiled, one a shape. With its own limit of 1,024 an engine grows by 0.8 GB within minutes,
#: as batches of all sizes come by; with 256 by a third of that, at the same CPU time a request.
ONEDNN_KERNELS = 256
#: Entries of config.json that make the shapes of a model's parameters.
_SHAPE = (
    "architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings",
)  # fmt: skip


class ServerError(Exception):
    """A server cannot be started or reached; the message is one line and says what to do."""


# ── checks before a start ────────────────────────────────────────────────────


def check_model(config: Config) -> None:
    """Raise ServerError where ``model.path`` or a baseline's model cannot be served. A hub name is left to vLLM."""
    if not entry_points(group="vllm.general_plugins", name="rollway_gloo"):
        raise ServerError(f"Rollway is not installed for {sys.executable}: run pip install --no-deps -e . (make does)")
    own = _read_model("model.path", config.model.path)
    limit = own.get("max_position_embeddings")
    if limit and config.model.max_tokens > limit:
        raise ServerError(
            f"model.max_tokens {config.model.max_tokens} is beyond the {limit} positions of {config.model.path}"
        )
    for number, baseline in enumerate(config.baselines):
        other = _read_model(f"baselines.{number}.model", baseline.model)
        differing = sorted(key for key in _SHAPE if own.get(key) != other.get(key))
        if own and other and differing:
            raise ServerError(
                f"baselines.{number}.model {baseline.model} has another {', '.join(differing)} than model.path: "
                "a baseline takes the policy's place in the servers, so it must be of the same architecture; "
                "baselines=[] leaves it out"
            )


def _read_model(field: str, model: str) -> dict[str, Any]:
    """config.json of a model folder, checked; empty for a hub name."""
    if _is_hub_name(model):
        return {}
    path = Path(model)
    if not (path / "config.json").is_file():
        raise ServerError(f"{field} {path}: no such model folder (it needs a config.json){how_to_get(path)}")
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise ServerError(f"{field} {path}: no tokenizer in this folder (it needs a tokenizer.json)")
    try:
        return json.loads((path / "config.json").read_text())
    except ValueError as error:
        raise ServerError(f"{field} {path}: config.json is not valid JSON ({error})") from None


def _is_hub_name(path: str) -> bool:
    """``owner/name`` without a local folder ``owner``; anything else is a path."""
    owner = path.partition("/")[0]
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path)) and not Path(owner).exists()


def check_port(host: str, port: int, section: str = "server") -> None:
    """Raise ServerError where this machine could not listen on ``host``:``port``, the options of ``section``."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(
                f"port {port} on {host} is in use: stop what runs there or choose another {section}.port"
            ) from None
        raise ServerError(
            f"cannot listen on {host}:{port}: {error.strerror}; check {section}.host and {section}.port"
        ) from None


def check_address(config: Config) -> None:
    """Raise ServerError where other machines could reach a server and nobody said that they may.

    vLLM's ``--api-key`` is no help: it guards /v1 only, not the routes for weights and worker calls.
    """
    server = config.server
    if not is_loopback(server.host) and not server.insecure:
        raise ServerError(
            f"server.host {server.host} can be reached by other machines, and vLLM has no keys for its weight routes: "
            "keep 127.0.0.1 and tunnel to it (docs/security.md), or, on a network of your own, set server.insecure=true"
        )


# ── command line ─────────────────────────────────────────────────────────────


def server_urls(config: Config) -> list[str]:
    """Base URLs: ``server.urls``, or those of the servers started here."""
    if config.server.urls:
        return [url.rstrip("/") for url in config.server.urls]
    host = "127.0.0.1" if config.server.host == "0.0.0.0" else config.server.host
    return [f"http://{host}:{config.server.port + index}" for index in range(config.server.count)]


def server_command(config: Config, index: int) -> tuple[list[str], dict[str, str]]:
    """(argv, variables to add to the environment) of server ``index``."""
    server = config.server
    argv = [
        # The "vllm serve" command of the CPU build looks for a distribution of another name.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", config.model.path),
        *("--served-model-name", SERVED_MODEL),
        *("--host", server.host),
        *("--port", str(server.port + index)),
        *("--dtype", config.model.dtype),
        *("--seed", str(config.run.seed + index)),
        *("--max-model-len", str(config.model.max_tokens)),
        *("--max-num-seqs", str(server.max_num_seqs)),
        *("--tensor-parallel-size", str(server.tensor_parallel)),
        # Tokens in, tokens out (/inference/v1/generate) is part of this.
        "--enable-scale-out",
        "--enable-prefix-caching",
        # Log-probabilities of the distribution that was sampled, temperature and top-p included.
        *("--logprobs-mode", "processed_logprobs"),
        # Else the model folder's generation_config (top_k, repetition_penalty, …) would bend the sampling.
        *("--generation-config", "vllm"),
        *("--weight-transfer-config", json.dumps({"backend": weight_backend(config)})),
        *("--worker-extension-cls", "learner.weights.verify.WeightVerifier"),
        "--disable-uvicorn-access-log",
    ]
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}  # the weight routes exist in dev mode only
    if Path(config.model.path).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    extra_argv, extra_env = _gpu_part(config, index) if server.devices else _cpu_part(config, index)
    return [*argv, *extra_argv, *server.extra_args], env | extra_env


def _gpu_part(config: Config, index: int) -> tuple[list[str], dict[str, str]]:
    devices = config.server.devices[index]
    return (
        ["--gpu-memory-utilization", str(config.server.gpu_memory_utilization)],
        {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))},
    )


def _cpu_part(config: Config, index: int) -> tuple[list[str], dict[str, str]]:
    # Compiling takes longer than it saves; blocks of 32 let short shared prefixes be reused.
    # A prompt is never split: for a seeded request vLLM rewinds the random generator after a
    # partial prefill, which CPU generators cannot do, and the whole engine dies of it.
    argv = [
        "--enforce-eager",
        "--no-enable-chunked-prefill",
        "--max-num-batched-tokens",
        str(max(CPU_BATCH_TOKENS, config.model.max_tokens)),
        "--kv-cache-memory-bytes",
        str(int(config.server.kv_cache_gib * 2**30)),
        "--block-size",
        "32",
    ]
    env = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(ONEDNN_KERNELS)}
    cores = cpu_cores(config, index, sorted(os.sched_getaffinity(0)))
    if cores is None:
        # One compute thread needs no worker process of its own: one start-up (10 s) and one
        # hop a step less. vLLM takes the executor by this variable; threads are not bound.
        return argv, env | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    return argv, env | {"VLLM_CPU_OMP_THREADS_BIND": cores}


def cpu_cores(config: Config, index: int, allowed: list[int]) -> str | None:
    """Cores of server ``index``'s compute threads in vLLM's notation (one list a worker), None for one free thread.

    "auto" shares the upper half of the ``allowed`` cores between the servers started here
    and leaves the lower half to learner and actors; a machine that only serves leaves it to vLLM.
    """
    server = config.server
    if server.cpu_threads != "auto":
        return server.cpu_threads
    if server.urls:
        return "auto"
    workers = server.count * server.tensor_parallel
    share = max(1, len(allowed) // 2 // workers)
    if share == 1 and server.tensor_parallel == 1:
        return None
    pool = allowed[-min(len(allowed), share * workers) :]
    lists = [[pool[(first + n) % len(pool)] for n in range(share)] for first in range(0, share * workers, share)]
    mine = lists[index * server.tensor_parallel : (index + 1) * server.tensor_parallel]
    return "|".join(",".join(map(str, cores)) for cores in mine)


def main(config: Config) -> int:
    """``--role server``: become the first server of the configuration, in the foreground."""
    try:
        check_address(config)
        check_model(config.model_copy(update={"baselines": []}))  # those are the learner's business
        check_port(config.server.host, config.server.port)
    except ServerError as error:
        return fail(error, 2)
    argv, env = server_command(config, 0)
    where = f"http://{config.server.host}:{config.server.port}"
    print(f"starting vLLM with {config.model.path} at {where}; what follows is its own log", flush=True)
    os.execve(argv[0], argv, {**os.environ, **env})
