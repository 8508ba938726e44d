"""A synthetic status of a run, with the shape that the gateway sends. No figure in it was measured."""

from __future__ import annotations

import math
import random
from typing import Any

START = 1_700_000_000.0
STEP_S = 5.4


def synthetic_record(step: int) -> dict[str, Any]:
    noise = random.Random(step)
    grown = 1 - math.exp(-step / 14)
    hotpot = min(1.0, max(0.0, 0.28 + 0.53 * grown + noise.gauss(0, 0.03)))
    wiki2 = min(1.0, max(0.0, 0.24 + 0.52 * grown**1.5 + noise.gauss(0, 0.03)))
    push, wait, update = 0.31 + noise.random() / 20, 0.9 + noise.random() * 0.8, 3.2 + noise.random() * 0.4
    return {
        "step": step,
        "version": step,
        "time_s": 40 + step * STEP_S,
        "reward": (hotpot + wiki2) / 2 + 0.12,
        "em": {"hotpot": hotpot, "wiki2": wiki2},
        "entropy": 0.42 * math.exp(-step / 40),
        "kl": 0.0008 * step,
        "ratio_mean": 1.0 + noise.gauss(0, 0.002),
        "ratio_max": 2.4 + noise.random(),
        "ratio_ess": 0.95,
        "clip_fraction": 0.031,
        "staleness_mean": 0.8 + noise.random() / 3,
        "staleness_max": 2,
        "logprob_mismatch_mean": 3.1e-6,
        "logprob_mismatch_max": 4.2e-5,
        "loss": -0.012 + noise.gauss(0, 0.004),
        "grad_norm": 0.41 + noise.random() / 5,
        "lr": 3e-4,
        "episodes": 256,
        "tokens": 47_360 + noise.randrange(2000),
        "action_tokens": 18_944 + noise.randrange(1000),
        "turns": 2.7,
        "truncated": 0.016,
        "zero_signal_groups": 5,
        "seconds": {
            "wait": wait,
            "update": update,
            "push": push,
            "step": wait + update + push,
        },
        "proximal_s": 0.1 * update,
        "forward_s": 0.3 * update,
        "backward_s": 0.5 * update,
        "optimizer_s": 0.05 * update,
        "tool_faults": step % 3,
        "by_staleness": {
            "0": {"tokens": 9_000, "ratio_ess": 1.0, "clip_fraction": 0.0, "logprob_mismatch_mean": 1e-8},
            "1": {"tokens": 7_000, "ratio_ess": 0.97, "clip_fraction": 0.02, "logprob_mismatch_mean": 5e-4},
            "2-3": {"tokens": 3_000, "ratio_ess": 0.91, "clip_fraction": 0.06, "logprob_mismatch_mean": 2e-3},
        },
        "tokens_per_s": 47_360 / (wait + update + push),
        "busy": update / (wait + update + push),
    }


def synthetic_evals(step: int) -> list[dict[str, Any]]:
    rows = []
    for version in range(0, step + 1, 20):
        grown = 1 - math.exp(-version / 14)
        for dataset, start, gain in (("hotpot", 0.29, 0.53), ("wiki2", 0.23, 0.54), ("musique", 0.02, 0.37)):
            em = start + gain * grown
            rows.append(
                {"version": version, "dataset": dataset, "em": em, "f1": em + 0.04, "sub_em": em + 0.02, "n": 300}
            )
    for dataset, em in (("hotpot", 0.27), ("wiki2", 0.22), ("musique", 0.03)):
        rows.append(
            {"version": 0, "dataset": dataset, "em": em, "f1": em, "sub_em": em, "n": 300, "baseline": "Naive RAG"}
        )
    return rows


SEGMENTS = [
    {
        "role": "prompt",
        "text": "<|im_start|>system\nAnswer with the search tool. # Tools …<|im_end|>\n<|im_start|>user\n"
        "In which city was the company founded that produced the film Silver Harbour?<|im_end|>\n<|im_start|>assistant\n",
        "version": None,
        "reward": None,
    },
    {
        "role": "policy",
        "text": '<tool_call>\n{"name": "search", "arguments": {"query": "Silver Harbour film"}}\n</tool_call>',
        "version": 41,
        "reward": 0.1,
    },
    {
        "role": "environment",
        "text": "<|im_end|>\n<|im_start|>user\n<tool_response>\nSilver Harbour is a film by Mara Lindqvist, produced by "
        "Northgate Pictures. It was released in 1974.\nSilver Morning is a film by Odo Renn, produced by Castle Works."
        "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        "version": None,
        "reward": None,
    },
    {
        "role": "policy",
        "text": "<think>produced by Northgate Pictures</think>\n<tool_call>\n"
        '{"name": "search", "arguments": {"query": "Northgate Pictures"}}\n</tool_call>',
        "version": [41, 42],
        "reward": 0.1,
    },
    {
        "role": "environment",
        "text": "<|im_end|>\n<|im_start|>user\n<tool_response>\nNorthgate Pictures is a company founded in Velden by Ilse "
        "Tamm. It makes films.\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        "version": None,
        "reward": None,
    },
    {
        "role": "policy",
        "text": "<think>founded in Velden</think>\n<answer>Velden</answer>",
        "version": 42,
        "reward": 1.0,
    },
]


def synthetic_snapshot(step: int = 42, steps: int = 60) -> dict[str, Any]:
    now = START + 40 + step * STEP_S + 2.1
    actors = [
        {
            "id": f"actor-{i}",
            "host": "laptop",
            "pid": 4100 + i,
            "age_s": 0.4 + i / 10,
            "held": 8,
            "capacity": 8,
            "stats": {
                "episodes": 5_512 + i,
                "in_flight": 64,
                "turns": 15_120,
                "tokens": 407_000,
                "tokens_per_s": 1_940.0 + 70 * i,
                "latency_p50": 0.61,
                "latency_p99": 1.9,
                "faults": {"tool.malformed": 12 + i, "tool.timeout": 3},
                "servers": {"http://127.0.0.1:8100": {"requests": 15_000, "p50": 0.6, "p99": 1.8 + i / 10}},
                "version": step - 1,
                "episodes_per_s": 12.5,
                "tools": {"search": {"calls": 9_800, "faults": 15 + i, "p50": 0.0021, "p99": 0.019}},
                "rss_mb": 143.2,
            },
        }
        for i in range(2)
    ]
    return {
        "run": {
            "id": "quickstart",
            "dir": "runs/quickstart",
            "started_at": START,
            "now": now,
            "step": step,
            "steps": steps,
            "version": step,
            "phase": "backward",
            "phase_since": now - 1.2,
            "status": "running",
            "model": "configs/models/tiny-agent",
            "staleness_bound": 2,
        },
        "history": [synthetic_record(i) for i in range(1, step + 1)],
        "evals": synthetic_evals(step),
        "queue": {
            "pending": 640,
            "leased": 16,
            "waiting": 14,
            "taken": 32,
            "capacity": 96,
            "consumed": 32 * step,
            "duplicates": 0,
            "lost": 0,
            "stale_dropped": 3,
            "failed": 1,
            "rejected_frames": 0,
            "epoch": 0,
        },
        "actors": actors,
        "servers": [
            {
                "url": "http://127.0.0.1:8100",
                "state": "current",
                "version": step,
                "running": 128,
                "waiting": 12,
                "kv_usage": 0.45,
                "prefix_hit_rate": 0.71,
                "tokens_per_s": 3_950.0,
                "last_push_s": 0.31,
                "silent_s": 0.0,
            }
        ],
        "latest": {
            "task_id": "hotpot-train-001377",
            "dataset": "hotpot",
            "reward": 1.2,
            "metrics": {"em": 1.0, "f1": 1.0},
            "finish": "done",
            "step": step,
            "tool_calls": [
                {"turn": 0, "name": "search", "latency_s": 0.002, "fault": None},
                {"turn": 1, "name": "search", "latency_s": 0.003, "fault": None},
            ],
            "segments": SEGMENTS,
        },
    }
