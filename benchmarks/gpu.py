"""What one GPU does: ``python -m benchmarks.gpu``.

- *update*: ``PolicyEngine.update`` in bfloat16 on packed episodes of lognormal lengths (median 300, 99th percentile
  2,000 tokens): tokens per second, share of the time in each part, peak memory, and model FLOP utilisation: 6 FLOPs
  a parameter and token, and attention's, over the peak of the GPU's dense bfloat16 (PaLM, Chowdhery et al. 2022,
  appendix B). Log-probabilities are counted on the policy's tokens only, as they are computed.
- *attention*: the packed kernel, forward and backward, against one fused call a sequence.
- *head*: log-probabilities and entropies, forward and backward, against all logits at once.
- *copy*: a broadcast over NCCL between two GPUs where there are two, else a copy inside the one.

Without a GPU it says so and ends with 3. Measured with CUDA events, each the median of several rounds after two
that warm up. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.fuzz_gateway import free_port
from benchmarks.learner_step import work
from configs.schema import Config
from learner.policy.logprobs import LogprobHead
from learner.policy.model import packed_attention

NO_GPU = 3
#: Peak of dense bfloat16 by a part of the device's name, TFLOP/s (makers' data sheets).
PEAK_TFLOPS = {"A100": 312, "H100 PCIe": 756, "H100": 989, "H200": 989, "B200": 2250, "L40S": 362, "4090": 165}
WARM_UP = 2
_COPY_BYTES = 1 << 30


def milliseconds(work_once: Callable[[], Any], rounds: int) -> float:
    """Of one call on the GPU."""
    took = []
    for number in range(WARM_UP + rounds):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work_once()
        last.record()
        last.synchronize()
        if number >= WARM_UP:
            took.append(first.elapsed_time(last))
    return median(took)


def update_flops(body: int, head: int, layers: int, width: int, sizes: list[int], scored: int) -> float:
    """Of forward and backward, nothing recomputed.

    body, head: parameters of the linear layers, and of the head. width: heads × their dimension. A causal token sees
    half of its sequence: 2 matrix products of 2 · width · T²/2 FLOPs a layer, three times with the backward pass.
    """
    attention = sum(6 * layers * width * size**2 for size in sizes)
    return 6.0 * body * sum(sizes) + 6.0 * head * scored + attention


def update_config(model: Path, micro_tokens: int) -> Config:
    learner = {"groups": 1, "mini_batches": 1, "micro_tokens": micro_tokens, "devices": [0], "zero_stage": 1}
    return Config.model_validate(
        {"model": {"path": str(model), "dtype": "bfloat16", "max_tokens": 8192}, "learner": learner}
    )


def measure_update(folder: Path, size: str, episodes: int, micro_tokens: int, rounds: int) -> dict[str, Any]:
    from learner.policy.engine import PolicyEngine

    work.save_model(folder, size)
    engine = PolicyEngine(update_config(folder, micro_tokens))
    sizes = work.lengths(episodes)
    batch = work.batch(sizes, engine.vocabulary)
    torch.cuda.reset_peak_memory_stats()
    metrics: list[dict[str, Any]] = []
    took = milliseconds(lambda: metrics.append(engine.update(*batch)), rounds)
    hidden, layers, vocabulary = work.MODELS[size]
    head = hidden * vocabulary
    body = sum(p.numel() for p in engine.lm.parameters()) - head  # tied: the embedding is the head
    scored = sum(int(t.action_mask.sum()) for group in batch[0] for t in group.trajectories)
    parts = ("forward_s", "backward_s", "optimizer_s")
    return {
        "tokens_per_s": 1000 * sum(sizes) / took,
        "tflops": update_flops(body, head, layers, hidden, sizes, scored) / took / 1e9,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "parameters": head + body,
        "parts": {part: median(m[part] for m in metrics[WARM_UP:]) for part in parts},
    }


def measure_attention(sizes: list[int], rounds: int, heads: int = 16, dimension: int = 128) -> dict[str, float]:
    """Milliseconds of both, as ``packed_attention`` is given its arguments; Hkv is a quarter of Hq."""
    bounds = torch.tensor([0, *sizes], dtype=torch.int32).cumsum(0, dtype=torch.int32).cuda()

    def made(count: int) -> Tensor:
        return torch.randn(1, count, sum(sizes), dimension, dtype=torch.bfloat16, device="cuda", requires_grad=True)

    q, k, v = made(heads), made(heads // 4), made(heads // 4)

    def packed() -> None:
        out, _ = packed_attention(torch.nn.Identity(), q, k, v, None, cu_seq_lens_q=bounds, max_length_q=max(sizes))
        out.sum().backward()

    def one_by_one() -> None:
        parts = zip(q.split(sizes, 2), k.split(sizes, 2), v.split(sizes, 2), strict=True)
        attend = torch.nn.functional.scaled_dot_product_attention
        torch.cat([attend(*qkv, is_causal=True, enable_gqa=True) for qkv in parts], 2).sum().backward()

    return {"packed_ms": milliseconds(packed, rounds), "one_by_one_ms": milliseconds(one_by_one, rounds)}


def measure_head(tokens: int, rounds: int, hidden: int = 2048, vocabulary: int = 151_936) -> dict[str, float]:
    """Milliseconds and peak memory of the fused head and of all logits at once, forward and backward."""
    weight = torch.nn.Parameter(torch.randn(vocabulary, hidden, dtype=torch.bfloat16, device="cuda") * 0.02)
    states = torch.randn(tokens, hidden, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,), device="cuda")
    head = LogprobHead(weight)

    def fused() -> None:
        head(states, targets, 1.0)[0].sum().backward()

    def at_once() -> None:
        every = (states @ weight.T).float().log_softmax(-1)
        every.gather(1, targets[:, None]).sum().backward()

    found = {}
    for name, way in (("fused", fused), ("all_logits", at_once)):
        weight.grad = states.grad = None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found[f"{name}_ms"] = milliseconds(way, rounds)
        found[f"{name}_gib"] = (torch.cuda.max_memory_allocated() - before) / 2**30
    return found


def measure_copy(rounds: int) -> dict[str, Any]:
    """GB/s of a copy inside the GPU (read and written once), or of a broadcast to a second one."""
    if torch.cuda.device_count() < 2:
        source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return {
            "copy": "inside one GPU",
            "gb_per_s": _COPY_BYTES / 1e6 / milliseconds(lambda: target.copy_(source), rounds),
        }
    with tempfile.TemporaryDirectory(prefix="rollway-nccl-") as folder:
        result = Path(folder, "result")
        mp.spawn(_broadcast, (free_port(), rounds, str(result)), nprocs=2)
        return {"copy": "NCCL broadcast", "gb_per_s": float(result.read_text())}


def _broadcast(rank: int, port: int, rounds: int, result: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    tensor = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    took = milliseconds(lambda: dist.broadcast(tensor, 0), rounds)
    dist.destroy_process_group()
    if rank == 0:
        Path(result).write_text(str(_COPY_BYTES / 1e6 / took))


def main(argv: list[str] | None = None) -> int:
    """0; 3 where there is no GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small model, few rounds: under a minute")
    parser.add_argument("--rounds", type=int, default=10, help="how often each is measured (default 10)")
    parser.add_argument(
        "--peak-tflops", type=float, help="the GPU's peak in dense bfloat16, where it is not known here"
    )
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print(
            "no GPU: this torch sees none, so nothing was measured. On a GPU machine install configs/requirements/gpu.txt"
        )
        print(json.dumps({"device": None}))
        return NO_GPU
    os.environ["DS_ACCELERATOR"] = "cuda"
    name = torch.cuda.get_device_name()
    peak = args.peak_tflops or next((value for part, value in PEAK_TFLOPS.items() if part in name), None)
    size, episodes, micro, rounds = ("small", 64, 16_384, 3) if args.quick else ("large", 256, 8192, args.rounds)
    with tempfile.TemporaryDirectory(prefix="rollway-gpu-") as folder:
        update = measure_update(Path(folder), size, episodes, micro, rounds)
    result = {
        "device": name,
        "update": update | {"mfu": update["tflops"] / peak if peak else None},
        "attention": measure_attention(work.lengths(64), rounds),
        "head": measure_head(8192, rounds),
        "bandwidth": measure_copy(rounds),
    }
    _show(result)
    print(json.dumps(result))
    return 0


def _show(result: dict[str, Any]) -> None:
    table = Table(title=result["device"], show_header=False)
    for part in ("update", "attention", "head", "bandwidth"):
        for key, value in result[part].items():
            table.add_row(part, key, f"{value:,.3g}" if isinstance(value, float) else str(value))
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    if result["update"]["mfu"] is None:
        print("model FLOP utilisation: the peak of this GPU is not known; give it with --peak-tflops")


if __name__ == "__main__":
    sys.exit(main())
