"""Tools named in the configuration: found, checked, given to any environment, opened and closed with the episode."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from actors.episode import EpisodeFailed, _call
from configs.load import load_config
from envs.base import StepResult, ToolEnv
from envs.configured import prepare_tools, shutdown_tools
from envs.registry import load_env
from tools.base import Tool, ToolGroup
from tools.python import Python
from tools.registry import SHORT_NAMES, Toolbox

HERE = "tests.test_tools_config"


class Counter(Tool):
    """Counts its calls of one episode; the class counts what is open."""

    name, description, parameters = "count", "Counts.", {"type": "object"}
    prepared: ClassVar[int] = 0
    open: ClassVar[int] = 0

    def __init__(self, start: int = 0):
        self.start, self.held = start, False

    async def prepare(self):
        Counter.prepared += 1
        if self.start < 0:
            raise ValueError("tool count: start is negative")

    def for_episode(self):
        mine = Counter(self.start)
        mine.held, mine.n = True, self.start
        Counter.open += 1
        return mine

    async def execute(self):
        self.n += 1
        return str(self.n)

    async def close(self):
        Counter.open -= self.held
        self.held = False


class Pair(ToolGroup):
    def tools(self):
        first, second = Counter().for_episode(), Counter().for_episode()
        first.name, second.name = "one", "two"
        return [first, second]


class Plain(ToolEnv):
    """An environment that knows of no configuration; its functions are plain ones, off the event loop."""

    tools: ClassVar = []

    @classmethod
    def setup(cls, word: str = "hello"):
        cls.word = word

    @classmethod
    def tasks(cls, split, dataset, limit=None):
        return [{"id": "1"}]

    def reset(self, task: dict[str, Any], seed: int):
        return [{"role": "user", "content": self.word}]

    def step(self, text, finish):
        return StepResult(done=True)

    def close(self):
        raise RuntimeError("cannot close")


class OwnTools(Plain):
    @classmethod
    def setup(cls, tools: list):
        cls.mine = tools


def names(tools):
    return [tool.name for tool in tools]


async def test_any_environment_is_given_tools_and_each_episode_its_own():
    before = Counter.open
    config = load_config(
        overrides=[
            "env.args={word: hi, tools: [calculator, {path: 'tests.test_tools_config:Counter', args: {start: 5}}]}"
        ]
    )
    env_class = load_env(f"{HERE}:Plain", config.env.args)
    one, two = env_class(), env_class()
    assert await one.reset({"id": "1"}, seed=0) == [{"role": "user", "content": "hi"}]
    await two.reset({"id": "1"}, seed=0)
    assert names(one.tools) == ["calculator", "count"] and Counter.open == before + 2
    assert [await one.tools[1].execute() for _ in range(2)] == ["6", "7"]
    assert await two.tools[1].execute() == "6"
    with pytest.raises(RuntimeError, match="cannot close"):
        await one.close()
    assert Counter.open == before + 1, "closed although the environment's own close failed"
    with pytest.raises(EpisodeFailed):
        await _call(two.close)
    assert Counter.open == before


async def test_configured_tools_come_after_the_environments_own():
    env = load_env("envs.multihop:MultiHopQA", {"top_k": 2, "tools": ["calculator"]})
    assert env.top_k == 2
    one = env()
    await one.reset(env.tasks("train", "hotpot", 1)[0], seed=0)
    assert names(one.tools) == ["search", "calculator"]
    turn = await one.step('<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>', "stop")
    assert turn.messages == [{"role": "tool", "name": "calculator", "content": "42"}]
    await one.close()


async def test_a_setup_that_has_tools_itself_gets_them():
    assert load_env(f"{HERE}:OwnTools", {"tools": ["calculator"]}).mine == ["calculator"]


async def test_a_group_counts_as_its_tools_and_is_prepared_once():
    Counter.prepared = 0
    box = Toolbox([{"path": f"{HERE}:Pair"}, {"path": f"{HERE}:Counter"}])
    assert Counter.prepared == 0, "constructing connects to nothing: the learner does it too"
    assert names(await box.open()) == ["one", "two", "count"]
    await box.open()
    assert Counter.prepared == 1


async def test_the_actor_hears_of_a_tool_that_cannot_be_had_before_any_episode():
    env = load_env(f"{HERE}:Plain", {"tools": [{"path": f"{HERE}:Counter", "args": {"start": -1}}]})
    with pytest.raises(ValueError, match="start is negative"):
        await prepare_tools([Plain, env])
    await shutdown_tools([Plain, env])


async def test_a_namesake_of_the_environments_own_tool_is_refused(tmp_path):
    env = load_env(
        "envs.multihop:MultiHopQA", {"tools": [{"path": "sql", "args": {"database": "x", "name": "search"}}]}
    )
    (tmp_path / "x").touch()
    one = env()
    env.toolbox._members[0].database = tmp_path / "x"
    with pytest.raises(ValueError, match="two tools are called 'search'"):
        await one.reset(env.tasks("train", "hotpot", 1)[0], seed=0)


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ("calculator", "want a list"),
        (["calculater"], "write module:Class, or one of calculator, python"),
        ([{"path": "nowhere:X"}], "PYTHONPATH"),
        ([{"path": "tools.sql:_cell"}], "not a Tool or ToolGroup class"),
        ([{"path": "sql"}], "missing a required argument: 'database'"),
        ([{"path": "sql", "args": {"database": "x", "rows": 3}}], "unexpected keyword argument 'rows'"),
        (
            [{"path": "sql", "args": {"database": "x", "max_rows": 0}}],
            "max_rows: Input should be greater than or equal",
        ),
        ([{"path": "python", "args": {"time_s": "soon"}}], "time_s: Input should be a valid number"),
        ([{"name": "sql"}], "path: Field required"),
        ([{"path": "sql", "arguments": {}}], "Extra inputs"),
        (["calculator", "calculator"], "two tools are called 'calculator'"),
        ([{"path": "mcp"}], "either command .* or url"),
        ([{"path": "mcp", "args": {"url": "ftp://x"}}], "want http"),
        ([{"path": "http", "args": {"name": "x", "description": "", "url": "x", "parameters": {}}}], "want http"),
    ],
)
def test_what_is_wrong_with_an_entry_is_one_line(tools, words):
    with pytest.raises(ValueError, match=words) as error:
        load_env("envs.multihop:MultiHopQA", {"tools": tools})
    assert str(error.value).startswith("env.args.tools: ") and "\n" not in str(error.value)


# ── docs/tools.md ────────────────────────────────────────────────────────────

DOCUMENT = (Path(__file__).parents[1] / "docs" / "tools.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def test_every_entry_of_the_document_is_one():
    """Arguments are checked by constructing; nothing is connected to."""
    preset, *entries = map(yaml.safe_load, blocks("yaml"))
    named = [entry for entry in [*preset["env"]["args"]["tools"], *(e for block in entries for e in block)]]
    shipped = [entry for entry in named if not (isinstance(entry, dict) and ":" in entry["path"])]
    assert {entry if isinstance(entry, str) else entry["path"] for entry in shipped} == set(SHORT_NAMES)
    for entry in shipped:
        Toolbox([entry])


def test_what_the_document_shows_as_arguments_of_python_are_its_defaults():
    [args] = [
        e["args"]
        for block in blocks("yaml")[1:]
        for e in yaml.safe_load(block)
        if isinstance(e, dict) and e["path"] == "python"
    ]
    defaults = {name: p.default for name, p in inspect.signature(Python).parameters.items()}
    assert args == defaults


@pytest.mark.parametrize("command", [line for block in blocks("bash") for line in block.strip().splitlines()])
def test_every_command_of_the_document_runs(command):
    python, *rest = shlex.split(command)
    assert python == "python"
    done = subprocess.run([sys.executable, *rest], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0 or rest == ["-m", "tools.python"], done.stderr
    assert "calculator" in done.stdout or "memory, CPU time" in done.stdout


async def test_the_tool_with_state_of_the_document():
    [code] = blocks("python")
    namespace = {"Tool": Tool}
    exec(code, namespace)
    tool = namespace["Notebook"]()
    one, two = tool.for_episode(), tool.for_episode()
    assert await one.execute(line="a") == "a" and await one.execute(line="b") == "a\nb"
    assert await two.execute(line="c") == "c"
    await one.close()
