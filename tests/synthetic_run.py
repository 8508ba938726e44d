"""A synthetic run folder, written by the code that writes real ones. No figure in it was measured."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from configs.schema import Config
from learner.gateway.ledger import Ledger
from learner.run.episodes import episode_record, group_records
from learner.run.folder import RunFolder
from protocol.messages import Task
from protocol.trajectory import NO_VERSION, Group, Trajectory
from tests.synthetic_snapshot import STEP_S, synthetic_evals, synthetic_record

GROUP_SIZE = 4

#: What an attacker would write: it must never act as markup, script, terminal code or bidirectional text.
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}\x1b[31m\u202e${1}"

_QUESTIONS = {
    "hotpot": "When was the star of Blind Castle born?",
    "wiki2": "Which of Silver Harbour and Odd Morning came out first?",
}


def synthetic_run(path: Path, steps: int = 12, hostile: bool = False, config: dict | None = None) -> Path:
    """A finished run of ``steps`` steps with a ledger, episodes and evaluations."""
    options = {"learner": {"groups": 2, "mini_batches": 1, "group_size": GROUP_SIZE}, "log": {"trackers": []}}
    settings = Config.model_validate({**options, **(config or {}), "run": {"dir": path, "steps": steps}})
    with RunFolder.open(settings) as folder:
        evals = synthetic_evals(steps)
        for step in range(1, steps + 1):
            for row in [e for e in evals if e["version"] == step - 1 and not e.get("baseline")]:
                folder.log({"eval": row, "step": step - 1})
            record = synthetic_record(step) | {"episodes": 2 * GROUP_SIZE, "tool_faults": step % 5}
            folder.log(record)
            group, advantages = synthetic_group(step, hostile)
            proximal = [t.behaviour_logprobs + np.float32(0.3) * t.action_mask for t in group.trajectories]
            folder.log_episodes(group_records(group, advantages, step, decode, proximal))
        for row in [e for e in evals if e["version"] == steps and not e.get("baseline")]:
            folder.log({"eval": row, "step": steps})
        folder.log_episodes([episode_record(group.trajectories[0], steps, "eval", "eval-1", decode)])
        _ledger(path / "ledger.sqlite", steps, settings)
        folder.write_summary(
            {
                "eval": [e for e in evals if not e.get("baseline")],
                "baselines": [e for e in evals if e.get("baseline")],
                "train_datasets": ["hotpot", "wiki2"],
                "wall_s": 40 + steps * STEP_S,
                "steps": steps,
                "ledger": {"consumed": 2 * steps, "duplicates": 0, "lost": 0, "stale_dropped": 0},
                "staleness": {"mean": 0.9, "max": 2},
                "logprob_mismatch": {"mean": 2e-8, "max": 3e-5},
                "weight_sync": {"count": steps, "mean_s": 0.3, "max_s": 0.4},
                "learner_busy_fraction": 0.6,
            }
        )
    return path


def decode(ids: list[int]) -> str:
    """A tokenizer of our own: an id is a code point."""
    return "".join(map(chr, ids))


def synthetic_group(step: int, hostile: bool = False) -> tuple[Group, list[np.ndarray]]:
    """A group at ``step`` and its advantages; its first members succeed, its last one has a faulty call."""
    dataset = ("hotpot", "wiki2")[step % 2]
    members = [_episode(step, i, dataset, hostile) for i in range(GROUP_SIZE)]
    rewards = np.array([t.total_reward for t in members])
    scaled = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 0.1)
    advantages = [np.where(t.action_mask, a, 0.0).astype(np.float32) for t, a in zip(members, scaled, strict=True)]
    return Group(f"lease-{step}", members[0].facts["task_id"], members), advantages


def _episode(step: int, index: int, dataset: str, hostile: bool) -> Trajectory:
    noise = random.Random(step * 100 + index)
    good, last = index < 2, index == GROUP_SIZE - 1
    question = _QUESTIONS[dataset] + (HOSTILE if hostile else "")
    answer = "1974" if good else "I do not know"
    spans = [
        (f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", False),
        ('<think>look it up</think>\n<tool_call>\n{"name": "search", "arguments": {"query": "Blind Castle"}}\n</tool_call><|im_end|>', True),
        (f"\n<|im_start|>user\n<tool_response>\nBlind Castle: a film with Ilse Tamm. {HOSTILE if hostile else ''}\n</tool_response><|im_end|>\n<|im_start|>assistant\n", False),
        (f"<answer>{answer}{HOSTILE if hostile else ''}</answer><|im_end|>", True),
    ]  # fmt: skip
    ids = [ord(c) for text, _ in spans for c in text]
    mask = np.array([sampled for text, sampled in spans for _ in text], dtype=np.uint8)
    ends = np.cumsum([len(text) for text, _ in spans])
    first, second = max(0, step - 2), max(0, step - 1)
    versions = np.where(mask, np.where(np.arange(len(ids)) < ends[1], first, second), NO_VERSION).astype("<i4")
    rewards = np.zeros(len(ids), dtype="<f4")
    rewards[ends[1] - 1], rewards[ends[3] - 1] = 0.1, 1.0 if good else 0.0
    fault = "timeout" if last else None
    return Trajectory(
        token_ids=np.array(ids, dtype="<i4"),
        action_mask=mask,
        behaviour_logprobs=np.array([-noise.expovariate(4) if m else 0.0 for m in mask], dtype="<f4"),
        versions=versions,
        rewards=rewards,
        turns=np.array([[ends[0], ends[1]], [ends[2], ends[3]]], dtype=np.int32),
        terminated=not last,
        facts={
            "task_id": f"{dataset}-train-{step:04d}" + (HOSTILE if hostile else ""),
            "dataset": dataset,
            "seed": 0,
            "finish": "max_turns" if last else "done",
            "outcome_reward": float(good),
            "process_reward": 0.1,
            "metrics": {"em": float(good), "f1": float(good)},
            "tool_calls": [{"turn": 0, "name": "search", "latency_s": 0.01 + noise.random() / 50, "fault": fault}],
        },
    )


def _ledger(path: Path, steps: int, config: Config) -> None:
    tasks = [Task(task_id=f"task-{i}", dataset="hotpot", payload={}) for i in range(7)]
    ledger = Ledger(path, tasks, config.run.seed)
    for step in range(1, steps + 1):
        units = [ledger.lease() for _ in range(2)]
        for place, unit in enumerate(units):
            group, _ = synthetic_group(step + place)
            ledger.deliver(unit.seq, "actor-0", group)
        ledger.consume([unit.seq for unit in units], step)
        ledger.checkpointed(step)
    ledger.close()
