"""``--role eval``: the mathematics of scores, an endpoint over real HTTP, checkpoints as models, what is left behind."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from configs.load import dump_config, load_config
from configs.schema import Config
from envs.base import StepResult, ToolEnv
from envs.registry import load_env
from learner.evaluate import eval_tasks
from learner.evaluation import endpoint, report
from learner.evaluation import main as role
from learner.evaluation.checkpoint import _joined, model_folder
from learner.evaluation.endpoint import EndpointError, Reply
from learner.evaluation.rival import answers, score_endpoint
from learner.evaluation.scores import (
    Outcome,
    bootstrap,
    by_task,
    difference,
    kind_of,
    pass_at_k,
    score,
    summarise,
    wilson,
)
from learner.run import checkpoints
from protocol.messages import Task

ROOT = Path(__file__).parents[1]
TINY = "configs/models/tiny-agent"
KEY = "sk-very-secret-4711"


def outcome(em: float, task="a", dataset="hotpot", kind="", finish="done", **more) -> Outcome:
    return Outcome(task, dataset, kind, finish, 2, {} if finish == "failed" else {"em": em, **more})


# ── mathematics ──────────────────────────────────────────────────────────────


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices_with_a_solved_sample(numbers):
    n, solved, k = numbers
    choices = list(itertools.combinations([True] * solved + [False] * (n - solved), k))
    assert pass_at_k(n, solved, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_refuses_what_cannot_be():
    for numbers in ((4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)):
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(*numbers)


def test_wilson_is_that_of_the_books_and_sound_at_the_edges():
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I, method 3
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(20, 20)[0] == pytest.approx(1 - 0.1611, abs=1e-4) and wilson(20, 20)[1] == 1.0


def test_bootstrap_is_the_normal_interval_of_many_tasks_and_always_the_same():
    values = [i % 7 / 7 for i in range(700)]
    low, high = bootstrap(values)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    assert (low, high) == bootstrap(values)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert low < statistics.mean(values) < high


def test_an_interval_takes_the_method_that_fits_its_values():
    assert score([1.0, 0.0, 1.0]).method == "wilson"
    assert score([1.0, 0.5, 1.0]).method == "bootstrap"
    assert score([1.0] * 8).low < 0.7  # eight of eight is no certainty


def test_samples_are_averaged_by_task_and_failures_count_as_not_answered():
    solved = [outcome(1, "a"), outcome(1, "a"), outcome(0, "a"), outcome(0, "a")]
    lost = [outcome(0, "b"), outcome(0, "b"), outcome(0, "b"), outcome(1, "b", finish="failed")]
    [record] = summarise(solved + lost, samples=4)
    assert (record["tasks"], record["samples"], record["failed"]) == (2, 4, 1)
    assert record["metrics"]["em"]["mean"] == pytest.approx((0.5 + 0.0) / 2)
    assert {k: found["mean"] for k, found in record["pass"].items()} == {
        "1": pytest.approx(0.25),
        "2": pytest.approx((1 - 1 / 6) / 2),
        "4": pytest.approx(0.5),
    }


def test_scores_by_kind_stand_below_their_data_set():
    found = summarise([outcome(1, "a", kind="bridge2"), outcome(0, "b", kind="comparison"), outcome(1, "c", "gsm")], 1)
    assert [(r["dataset"], r["kind"], r["metrics"]["em"]["mean"]) for r in found] == [
        ("hotpot", None, 0.5),
        ("hotpot", "bridge2", 1.0),
        ("hotpot", "comparison", 0.0),
        ("gsm", None, 1.0),
    ]
    assert found[0]["pass"] == {}


def test_a_task_says_its_kind_or_how_many_passages_it_takes():
    assert kind_of({"kind": "bridge3", "gold_titles": ["a"]}) == "bridge3"
    assert kind_of({"gold_titles": ["a", "b"]}) == "2 passages" and kind_of({"gold_titles": ["a"]}) == "1 passage"
    assert kind_of({"question": "?"}) == ""


def test_a_difference_is_paired():
    """Two models that differ on one kind of task only: unpaired intervals overlap widely, the paired one excludes 0."""
    ours = [outcome(float(i % 2 or i % 10 == 0), str(i)) for i in range(200)]
    theirs = [outcome(float(i % 2), str(i)) for i in range(200)]
    gap = difference(by_task(ours, "em"), by_task(theirs, "em"), "hotpot")
    assert gap.mean == pytest.approx(0.1) and 0.05 < gap.low < 0.1 < gap.high < 0.15
    assert difference(by_task(ours, "em"), {}, "hotpot") is None


# ── the report ───────────────────────────────────────────────────────────────


def test_the_report_is_written_compared_and_shown(tmp_path):
    config = load_config(overrides=["eval.samples=2", "eval.temperature=0.7"])
    kinds = {"a": "bridge2", "b": "bridge2", "c": "comparison"}
    ours = [outcome(float(t != "c" or s), t, kind=kinds[t], f1=0.5) for t in "abc" for s in range(2)]
    theirs = [dataclasses.replace(o, metrics={"em": 0.0}) for o in ours]
    mine, other = (report.make(config, outcomes, time.time()) for outcomes in (ours, theirs))
    report.write(other, tmp_path / "other.json")
    report.compare(mine, report.read(tmp_path / "other.json"), tmp_path / "other.json")
    assert mine["difference"]["em"]["hotpot"]["mean"] == pytest.approx(5 / 6)
    console = Console(file=io.StringIO(), width=140)
    console.print(report.table(mine))
    text = console.file.getvalue()
    assert re.search(r"^hotpot +0\.833 \[0\.500, 1\.000\] ", text, re.MULTILINE), text
    assert "EM avg@2" in text and "pass@2" in text and "  bridge2 " in text and "wilson or bootstrap" in text
    stranger = report.make(config, [outcome(1, "z")], time.time())
    with pytest.raises(report.ReportError, match=r"eval\.against.*no task of this evaluation"):
        report.compare(stranger, report.read(tmp_path / "other.json"), tmp_path / "other.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"outcomes": [{"em": 1}], "model": "m"}', None])
def test_what_is_no_report_is_one_line(tmp_path, text):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(report.ReportError, match=r"eval\.against: .*other\.json (is not the file|cannot be read)"):
        report.read(path)


def test_other_metrics_are_shown_where_there_is_no_em():
    found = report.make(Config(), [Outcome("a", "own", "", "done", 1, {"profit": 0.25})], time.time())
    console = Console(file=io.StringIO(), width=100)
    console.print(report.table(found))
    assert "profit" in console.file.getvalue() and "0.250" in console.file.getvalue()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("eval.samples=4", "set eval.temperature"),
        ("eval.endpoint=http://127.0.0.1:9/v1", "eval.endpoint_model go together"),
    ],
)
def test_options_that_do_not_fit_are_one_line(override, says):
    from configs.load import ConfigError

    with pytest.raises(ConfigError, match=re.escape(says)):
        load_config(overrides=[override])


# ── an endpoint ──────────────────────────────────────────────────────────────


class Endpoint:
    """An OpenAI-compatible server with a script: body → message, status, or None to drop the connection."""

    def __init__(self, script):
        self.script, self.requests, self.headers = script, [], []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}/v1".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _answer(self, request):
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        reply = self.script(body)
        if reply is None:
            request.transport.close()
            return web.Response()
        if isinstance(reply, int):
            return web.Response(status=reply, text=f"no: {request.headers.get('Authorization')}")
        finish = "tool_calls" if reply.get("tool_calls") else reply.pop("finish", "stop")
        return web.json_response(
            {"choices": [{"message": reply, "finish_reason": finish}], "usage": {"total_tokens": reply.pop("n", 50)}}
        )


def called(**arguments) -> dict:
    function = {"name": "search", "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": "call-1", "type": "function", "function": function}]}


def setup(url: str, *overrides: str):
    """(config, environment, tasks) of two hotpot questions of the built-in world."""
    options = [f"eval.endpoint={url}", "eval.endpoint_model=other", "env.eval=[hotpot]", *overrides]
    config = load_config(overrides=options)
    return config, load_env(config.env.path, config.env.args), eval_tasks(config, "hotpot", 2)


def knows(tasks):
    """A script that searches the first gold title, then gives the right answer."""
    gold = {task.payload["question"]: task.payload for task in tasks}

    def script(body):
        asked = next(m["content"] for m in body["messages"] if m["role"] == "user")
        if body["messages"][-1]["role"] == "user":
            return called(query=gold[asked]["gold_titles"][0])
        return {"content": f"<answer>{gold[asked]['answers'][0]}</answer>"}

    return script


async def test_an_endpoint_plays_the_same_tasks_with_the_same_tools(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", KEY)
    async with Endpoint(None) as server:
        config, env, tasks = setup(server.url, "eval.api_key_env=OTHER_KEY", "eval.request={top_p: 0.9, seed: null}")
        server.script = knows(tasks)
        found = await score_endpoint(config, env, tasks)
    assert [(o.task_id, o.metrics["em"], o.metrics["searches"], o.finish, o.turns) for o in found] == [
        (task.task_id, 1.0, 1.0, "done", 2) for task in tasks
    ]
    assert all(o.metrics["found"] == 0.5 and o.kind == "bridge2" for o in found)
    first, second = server.requests[0], server.requests[-1]
    assert first["tools"][0]["function"]["name"] == "search" and first["model"] == "other"
    assert first["top_p"] == 0.9 and "seed" not in first and first["temperature"] == 0
    call, response = second["messages"][-2:]
    assert call["tool_calls"][0]["id"] == response["tool_call_id"] == "call-1" and response["content"]
    assert {h["Authorization"] for h in server.headers} == {f"Bearer {KEY}"}


async def test_what_an_endpoint_writes_wrong_is_told_to_it_and_the_episode_goes_on():
    def script(body):
        if len(body["messages"]) == 1:
            return called() | {"tool_calls": [{"id": "x", "function": {"name": "search", "arguments": '{"query": '}}]}
        if len(body["messages"]) == 3:
            return {"content": '<tool_call>{"name": "search", "arguments": {"query": "film"}}</tool_call>'}
        return {"content": "I give up", "n": 5000}

    async with Endpoint(script) as server:
        config, env, tasks = setup(server.url)
        [found] = await score_endpoint(config, env, tasks[:1])
    assert found.finish == "length" and found.turns == 3 and found.metrics["em"] == 0
    roles = [[m["role"] for m in body["messages"]] for body in server.requests]
    assert roles[1] == ["user", "assistant", "tool"] and roles[2] == [*roles[1], "assistant", "user"]
    assert "not valid JSON" in server.requests[1]["messages"][-1]["content"]
    assert server.requests[2]["messages"][-1]["content"].startswith("<tool_response>")


async def test_failures_are_tried_again_and_then_counted(monkeypatch, caplog):
    monkeypatch.setattr(endpoint, "PAUSE_S", 0.01)
    bad = iter([500, None, 429])
    async with Endpoint(None) as server:
        config, env, tasks = setup(server.url)
        good = knows(tasks)
        server.script = lambda body: next(bad, good(body))
        assert [o.metrics["em"] for o in await score_endpoint(config, env, tasks)] == [1.0, 1.0]
        server.script = lambda body: good(body) if tasks[0].payload["question"] in str(body) else 503
        found = await score_endpoint(config, env, tasks)
    assert [(o.finish, o.metrics.get("em")) for o in found] == [("done", 1.0), ("failed", None)]
    assert "HTTP 503" in caplog.text and f"({endpoint.TRIES} tries)" in caplog.text


async def test_a_refusal_ends_the_evaluation_without_telling_the_key(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", KEY)
    async with Endpoint(lambda body: 401) as server:
        config, env, tasks = setup(server.url, "eval.api_key_env=OTHER_KEY")
        with pytest.raises(EndpointError, match=r"refused the request: HTTP 401: no: Bearer \[key\]"):
            await score_endpoint(config, env, tasks)
    monkeypatch.delenv("OTHER_KEY")
    with pytest.raises(EndpointError, match="OTHER_KEY is not set"):
        await score_endpoint(config, env, tasks)


class Moody(ToolEnv):
    """Plain functions, and a metric that is no number."""

    @classmethod
    def tasks(cls, split, dataset, limit=None):
        return [{"id": "nan"}, {"id": "fine"}, {"id": "raises"}]

    def reset(self, task, seed):
        self.task = task["id"]
        return [{"role": "user", "content": "go"}]

    def step(self, text, finish):
        if self.task == "raises":
            raise RuntimeError("no")
        return StepResult(done=True, info={"metrics": {"em": math.nan if self.task == "nan" else 0.5}})


async def test_an_environment_that_fails_costs_its_own_task_only():
    async with Endpoint(lambda body: {"content": "x"}) as server:
        config = setup(server.url)[0]
        tasks = [Task(task_id=p["id"], dataset="own", payload=p) for p in Moody.tasks("eval", "own")]
        found = await score_endpoint(config, Moody, tasks)
    assert [(o.finish, o.metrics) for o in found] == [("failed", {}), ("done", {"em": 0.5}), ("failed", {})]


def test_every_call_is_answered_by_its_id_and_by_nothing_else():
    calls = [{"id": str(i), "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(2)]
    nudge = {"role": "user", "content": "again"}
    short = answers(Reply("", calls, "stop", None), [{"role": "tool", "content": "one"}, nudge])
    assert [(m["role"], m.get("tool_call_id")) for m in short] == [("tool", "0"), ("tool", "1"), ("user", None)]
    long = answers(Reply("", calls[:1], "stop", None), [{"role": "tool", "content": t} for t in "ab"])
    assert [m["role"] for m in long] == ["tool", "user"] and "b" in long[1]["content"]


def test_the_role_scores_an_endpoint_from_the_command_line(tmp_path, monkeypatch, capsys):
    """The whole role, with the server in a thread of this process."""
    import asyncio
    import threading

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), None
    server = Endpoint(None)

    async def serve():
        nonlocal over
        over = asyncio.Event()
        async with server:
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(timeout=10)
    config, _, tasks = setup(server.url, "eval.final_size=2", f"eval.output={tmp_path / 'deep' / 'one.json'}")
    server.script = knows(tasks)
    assert role.main(config) == 0
    shown = capsys.readouterr().out
    assert "1.000 [0.342, 1.000]" in shown and "one.json" in shown
    written = json.loads((tmp_path / "deep" / "one.json").read_text())
    assert (written["model"], written["endpoint"]) == ("other", server.url) and len(written["outcomes"]) == 2
    server.script = lambda body: 404
    assert role.main(config) == 1
    assert capsys.readouterr().err.startswith("error: ")
    loop.call_soon_threadsafe(over.set)
    thread.join(timeout=10)


# ── models ───────────────────────────────────────────────────────────────────


@pytest.fixture(params=["whole", "parts"])
def run_folder(request, tmp_path):
    """A run with one checkpoint in DeepSpeed's form, of weights that are those of its model.path plus 1."""
    import torch

    from learner.policy.model import PolicyModel, load_policy

    folder, aside = tmp_path / "run", tmp_path / "aside"
    (aside / "engine").mkdir(parents=True)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(Config()))
    policy = PolicyModel(load_policy(TINY))
    if request.param == "whole":
        state = {name: tensor + 1 for name, tensor in policy.state_dict().items()}
        torch.save({"module": state}, aside / "engine" / "mp_rank_00_model_states.pt")
    else:  # ZeRO-3 on two ranks: each tensor halved
        named = {name: parameter.detach() + 1 for name, parameter in policy.named_parameters()}
        padded = [torch.nn.functional.pad(t.flatten(), (0, t.numel() % 2)).view(2, -1) for t in named.values()]
        for rank in range(2):
            flat = torch.cat([halves[rank] for halves in padded])
            name = f"zero_pp_rank_{rank}_mp_rank_00"
            optimizer = {"fp32_flat_groups": [flat[:1000].clone(), flat[1000:].clone()]}
            torch.save({"optimizer_state_dict": optimizer}, aside / "engine" / f"{name}_optim_states.pt")
            shapes = [{name: tensor.shape for name, tensor in named.items()}]
            torch.save({"param_shapes": shapes}, aside / "engine" / f"{name}_model_states.pt")
    checkpoints.seal(aside, {"step": 7})
    checkpoints.place(aside, folder / "checkpoints", 7)
    return folder


def test_a_checkpoint_becomes_a_model_that_transformers_loads(run_folder, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = dict(AutoModelForCausalLM.from_pretrained(TINY).named_parameters())
    for number, path in enumerate((run_folder, run_folder / "checkpoints" / "checkpoint-7")):
        (tmp_path / str(number)).mkdir()
        folder = model_folder(str(path), tmp_path / str(number))
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder).chat_template
        for name, parameter in model.named_parameters():
            assert (parameter - plain[name] - 1).detach().abs().max() < 1e-5, name


def test_parts_of_odd_tensors_are_padded():
    import torch

    shapes = {"a": torch.Size([3]), "b": torch.Size([1]), "c": torch.Size([2, 2])}
    first, second = torch.tensor([1.0, 2, 4, 5, 6]), torch.tensor([3.0, 0, 0, 7, 8])
    joined = _joined(shapes, [[first[:2], first[2:]], [second]])
    assert {name: tensor.tolist() for name, tensor in joined.items()} == {
        "a": [1, 2, 3],
        "b": [4],
        "c": [[5, 6], [7, 8]],
    }


def test_models_and_hub_names_stay_as_they_are(tmp_path):
    assert model_folder(TINY, tmp_path) == TINY
    assert model_folder("Qwen/Qwen2.5-3B", tmp_path) == "Qwen/Qwen2.5-3B"


def test_what_cannot_be_a_model_is_one_line(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        model_folder(str(tmp_path / "run"), tmp_path)
    torn = tmp_path / "run" / "checkpoints" / "checkpoint-3"
    torn.mkdir()
    (torn / "engine").write_text("weights")
    checkpoints.seal(torn, {"step": 3})
    (torn / "engine").write_text("weight")
    with pytest.raises(ValueError, match=r"checkpoint-3 is damaged: engine has 6 bytes of 7"):
        model_folder(str(torn), tmp_path)


# ── what is left behind ──────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_it_leaves_nothing_behind(tmp_path, number):
    """While it waits for a server that never answers: no folder, no process, no traceback."""
    options = [
        "server.urls=[http://127.0.0.1:9]",
        "gateway.port=5783",
        "actor.count=1",
        f"eval.output={tmp_path}/e.json",
    ]
    process = subprocess.Popen(
        [sys.executable, "run.py", "--role", "eval", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("rollway-eval-*/logs/actor-0.log")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert list(tmp_path.glob("rollway-eval-*")), process.poll()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)  # once is enough
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in err and out == ""
    assert [path.name for path in tmp_path.iterdir()] == []
    assert tempfile.gettempdir() != str(tmp_path)
