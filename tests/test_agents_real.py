"""Agents on a real vLLM server and a real learner, a few steps each: an OpenAI script, and an environment of verifiers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire_samples import free_port

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
SMALL = [
    "run.steps=2", "learner.groups=2", "learner.group_size=4", "learner.mini_batches=1", "eval.every=0",
    "eval.final_size=2", "baselines=[]", "weights.verify=true", "actor.count=1", "actor.leases=2",
]  # fmt: skip

pytestmark = pytest.mark.timeout(900)


def train(folder: Path, *args: str) -> tuple[dict, list[dict], list[dict]]:
    """(summary, step records, recorded episodes) of a run with these options."""
    command = [sys.executable, "run.py", *args, *SMALL, f"run.dir={folder}"]
    command += [f"server.port={free_port()}", f"gateway.port={free_port()}"]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=840)
    logs = "\n".join(f"--- {p.name}\n{p.read_text()[-2000:]}" for p in sorted((folder / "logs").glob("*.log")))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{logs}"
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    episodes = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    steps = [record for record in records if "eval" not in record]
    return json.loads((folder / "summary.json").read_text()), steps, [e for e in episodes if e["kind"] == "train"]


def check(summary: dict, steps: list[dict]) -> None:
    assert [step["step"] for step in steps] == [1, 2] and all(step["episodes"] == 8 for step in steps)
    assert summary["ledger"]["consumed"] == 4 and summary["ledger"]["lost"] == 0
    assert any(step["grad_norm"] > 0 for step in steps), "something was learnt from"
    mismatch = summary["logprob_mismatch"]  # the learner scores what the endpoint recorded
    assert mismatch["mean"] <= 1e-4 and mismatch["max"] <= 1e-2


def test_a_script_with_the_openai_client_is_trained(tmp_path):
    options = ["agent.path=search_agent:run", "agent.reward=search_agent:score"]
    summary, steps, episodes = train(tmp_path / "run", *options)
    check(summary, steps)
    assert all(step["turns"] > 1.5 for step in steps)
    assert any(call["name"] == "search" and call["fault"] is None for e in episodes for call in e["tool_calls"])
    text = "".join(segment["text"] for segment in episodes[0]["segments"])
    assert "<tool_call>" in text and "<tool_response>" in text


def test_an_environment_of_verifiers_is_trained(tmp_path):
    pytest.importorskip(
        "verifiers.v1", reason="verifiers is not installed: pip install --no-deps -r configs/requirements/verifiers.txt"
    )
    summary, steps, episodes = train(tmp_path / "run", "--config", str(EXAMPLES / "verifiers.yaml"))
    check(summary, steps)
    assert {"em", "alike", "exact"} <= set(episodes[0]["metrics"])
    assert "Write backwards" in episodes[0]["segments"][0]["text"]
