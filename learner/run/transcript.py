"""An episode as a person reads it: prompt, turns with their versions, tool responses, rewards, outcome.

Each span of tokens is decoded by itself, straight from the trajectory; nothing is encoded again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from protocol.trajectory import Trajectory

#: Token ids → text, special tokens kept.
Decode = Callable[[list[int]], str]
Role = Literal["prompt", "policy", "environment"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens ``start`` to ``stop`` (half-open) of one author.

    versions: lowest and highest policy version that sampled them; None where none did.
    reward: sum of the rewards on them; None where there is none.
    """

    role: Role
    text: str
    start: int
    stop: int
    versions: tuple[int, int] | None = None
    reward: float | None = None


class Transcriber:
    """The functions below with the tokenizer of one model folder (or hub name)."""

    def __init__(self, model: str):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        self.decode: Decode = lambda ids: tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def text(self, trajectory: Trajectory) -> str:
        return render(trajectory, self.decode)

    def view(self, trajectory: Trajectory) -> dict[str, Any]:
        return view(trajectory, self.decode)


def segments(trajectory: Trajectory, decode: Decode) -> list[Segment]:
    """The whole episode in order, cut where a turn or a context begins or ends and where the action mask changes."""
    size, mask = len(trajectory), trajectory.action_mask.astype(bool)
    changes = np.flatnonzero(np.diff(mask)) + 1
    contexts = trajectory.segments.tolist()
    cuts = sorted({*contexts, size, *changes.tolist(), *trajectory.turns.reshape(-1).tolist()})
    return [_segment(trajectory, decode, start, stop, start in contexts) for start, stop in pairwise(cuts)]


def view(trajectory: Trajectory, decode: Decode) -> dict[str, Any]:
    """The episode as plain values for the dashboard's snapshot."""
    facts = trajectory.facts
    return {
        "task_id": facts.get("task_id"),
        "dataset": facts.get("dataset"),
        "reward": trajectory.total_reward,
        "metrics": facts.get("metrics") or {},
        "finish": facts.get("finish"),
        "tool_calls": facts.get("tool_calls") or [],
        "segments": [
            {"role": s.role, "text": s.text, "version": _plain_version(s.versions), "reward": s.reward}
            for s in segments(trajectory, decode)
        ],
    }


def render(trajectory: Trajectory, decode: Decode) -> str:
    """Markdown of one episode."""
    facts, parts = trajectory.facts, segments(trajectory, decode)
    sampled = trajectory.action_mask.astype(bool)
    lines = [
        f"## {_line(facts.get('dataset', ''))} {_line(facts.get('task_id', ''))}\n",
        f"Reward {trajectory.total_reward:.2f} · {_outcome(trajectory)}\n",
        f"{len(trajectory.turns)} turn{'s' * (len(trajectory.turns) != 1)} · {len(trajectory)} tokens, "
        f"{int(sampled.sum())} sampled · {_versions(_span(trajectory.versions[sampled]))}\n",
    ]
    calls: dict[int, list[dict[str, Any]]] = {}
    for call in facts.get("tool_calls") or []:
        calls.setdefault(int(call.get("turn", -1)), []).append(call)
    turn = -1
    for part in parts:
        if part.role == "policy":
            turn += part.start in trajectory.turns[:, 0]
        lines.append(f"**{_heading(part, turn)}**\n\n{fence(part.text)}\n")
        if part.role == "policy" and part.stop in trajectory.turns[:, 1]:
            lines += [f"- {_call(call)}" for call in calls.get(turn, [])]
            lines += [""] if calls.get(turn) else []
    return "\n".join(lines)


def fence(text: str) -> str:
    """A code block that the text cannot close; control characters become visible."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    ticks = "`" * (longest + 1)
    return f"{ticks}text\n{visible(text).rstrip(chr(10))}\n{ticks}"


def visible(text: str) -> str:
    """Control and format characters other than line breaks and tabs as ``\\x1b``."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode() for c in text
    )


def _segment(trajectory: Trajectory, decode: Decode, start: int, stop: int, first: bool) -> Segment:
    sampled = bool(trajectory.action_mask[start])
    role: Role = "policy" if sampled else "prompt" if first else "environment"
    rewards = trajectory.rewards[start:stop]
    return Segment(
        role=role,
        text=decode(trajectory.token_ids[start:stop].tolist()),
        start=start,
        stop=stop,
        versions=_span(trajectory.versions[start:stop]) if sampled else None,
        reward=float(rewards.sum(dtype=np.float64)) if rewards.any() else None,
    )


def _span(versions: np.ndarray) -> tuple[int, int] | None:
    return (int(versions.min()), int(versions.max())) if versions.size else None


def _plain_version(versions: tuple[int, int] | None) -> int | list[int] | None:
    if versions is None:
        return None
    return versions[0] if versions[0] == versions[1] else list(versions)


def _versions(versions: tuple[int, int] | None) -> str:
    if versions is None:
        return "nothing sampled"
    return f"version {versions[0]}" if versions[0] == versions[1] else f"versions {versions[0]} to {versions[1]}"


def _heading(part: Segment, turn: int) -> str:
    if part.role != "policy":
        return part.role
    reward = f" · reward {part.reward:+.2f}" if part.reward is not None else ""
    return f"turn {turn + 1} · {_versions(part.versions)} · {part.stop - part.start} tokens{reward}"


def _outcome(trajectory: Trajectory) -> str:
    facts = trajectory.facts
    finish = {
        "done": "answered",
        "max_turns": "cut: no turns left",
        "length": "cut: no tokens left",
        "error": "agent failed",
    }
    parts = [finish.get(str(facts.get("finish")), str(facts.get("finish", "?")))]
    for name in ("outcome_reward", "process_reward"):
        if isinstance(facts.get(name), (int, float)):
            parts.append(f"{name.removesuffix('_reward')} {facts[name]:+.2f}")
    for name, value in (facts.get("metrics") or {}).items():
        parts.append(
            f"{_line(name)} {value:.2f}" if isinstance(value, (int, float)) else f"{_line(name)} {_line(value)}"
        )
    return " · ".join(parts)


def _call(call: dict[str, Any]) -> str:
    latency = call.get("latency_s")
    took = f", {1000 * latency:.0f} ms" if isinstance(latency, (int, float)) else ""
    fault = f", fault: {_line(call['fault'])}" if call.get("fault") else ""
    return f"called {_line(call.get('name', '?'))}{took}{fault}"


def _line(value: Any) -> str:
    return visible(" ".join(str(value).split()))
