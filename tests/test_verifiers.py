"""Environments of the verifiers library: their tasks, and episodes that it plays on a canned server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from actors.episode import EpisodeFailed, Limits
from envs.base import TaskSource
from envs.registry import load_env
from protocol.messages import Task
from tests import agent_cases
from tests.agent_cases import LIMITS, says

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
WORDS = {"env": {"taskset": {"id": "reverse-words"}}, "select": {"limit": 3}}
SHOP = '''
import verifiers.v1 as vf

__all__ = ["ShopTaskset"]

class Prices(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    def price(self, item: str) -> str:
        """Price of one unit."""
        return {"pear": "7"}.get(item, "unknown")

class ShopTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Prices(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float("7" in trace.last_reply)

class ShopTaskset(vf.Taskset[ShopTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        while True:
            yield ShopTask(vf.TaskData(prompt="Price of a pear?", system_prompt="You shop."), self.config.task)

if __name__ == "__main__":
    Prices.run()
'''


def source(**environments):
    return load_env("envs.verifiers_tasks:VerifiersTasks", {"environments": environments}, TaskSource)


def test_without_the_library_a_line_says_how_to_get_it(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "verifiers"] or ["verifiers"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"pip install --no-deps -r configs/requirements/verifiers\.txt"):
        source(words={**WORDS, "select": {"limit": 4}}).tasks("train", "words")
    with pytest.raises(ValueError, match="has no 'word'; it has words"):
        source(words=WORDS).tasks("train", "word")
    with pytest.raises(ValueError, match="unknown field 'selected'"):
        source(words={"env": {}, "selected": {}}).tasks("train", "words")


@pytest.fixture
def library(monkeypatch, tmp_path):
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    (tmp_path / "shop_taskset.py").write_text(SHOP)
    for folder in (EXAMPLES, tmp_path):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # tool servers are processes


async def play(task, *turns, limits=LIMITS):
    from actors.openai import verifiers_agent

    agent_cases.verifiers_run, agent_cases.TASK = verifiers_agent.run, task
    scored = "actors.openai.verifiers_agent:score"
    return await agent_cases.play(says(*turns), "verifiers_run", score=scored, limits=limits)


def task_of(payload) -> Task:
    return Task(task_id=payload["id"], dataset="words", payload=payload)


async def test_an_environment_runs_and_its_reward_is_the_episodes(library, monkeypatch):
    monkeypatch.setattr(agent_cases, "TASK", None)
    first, *rest = source(words=WORDS).tasks("train", "words")
    assert len(rest) == 2 and first["data"]["prompt"] == "Write backwards: stone"
    episode, requests = await play(task_of(first), "enots")
    assert episode.facts["metrics"] == {"em": 1.0, "alike": 1.0, "exact": 1.0, "contexts": 1.0}
    assert episode.rewards[-1] == 1.0 and len(requests) == 1
    episode, _ = await play(task_of(first), "stone")
    assert 0 < episode.facts["outcome_reward"] < 1 and episode.facts["metrics"]["exact"] == 0.0


async def test_tools_of_a_task_are_called_and_a_limit_ends_the_episode_with_what_there_is(library, monkeypatch):
    monkeypatch.setattr(agent_cases, "TASK", None)
    shop = source(words={"env": {"taskset": {"id": "shop-taskset"}}})
    with pytest.raises(ValueError, match=r"no end; set select\.limit"):
        shop.tasks("train", "words")
    [task] = shop.tasks("eval", "words", limit=1)
    call = '<tool_call>{"name": "prices_price", "arguments": {"item": "pear"}}</tool_call>'
    episode, requests = await play(task_of(task), call, "It is 7.")
    assert episode.facts["outcome_reward"] == 1.0 and len(requests) == 2 and episode.segments.tolist() == [0]
    assert [(c["name"], c["fault"]) for c in episode.facts["tool_calls"]] == [("prices_price", None)]
    episode, requests = await play(task_of(task), call, call, limits=Limits(1, 1500, 200))
    assert len(requests) == 1 and episode.facts["finish"] == "max_turns" and episode.facts["outcome_reward"] == 0.0


async def test_what_fails_in_the_library_fails_the_episode(library, monkeypatch):
    from actors.openai.verifiers_agent import env_config

    monkeypatch.setattr(agent_cases, "TASK", None)
    [task] = source(words={**WORDS, "select": {"limit": 1}}).tasks("train", "words")
    with pytest.raises(EpisodeFailed, match="ValidationError"):
        await play(task_of({**task, "data": {**task["data"], "answer": None}}), "x")
    with pytest.raises(ValueError, match="would all be the policy"):
        env_config({"id": "user-sim", "taskset": {"id": "reverse-words"}})
