"""The retrieval service over real HTTP, the search tool against it, and an agent's episode through both."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from actors.episode import Limits, Sampling, run_episode
from configs.retriever import RetrieverConfig
from envs.configured import prepare_tools, shutdown_tools
from envs.registry import load_env
from protocol.messages import Task
from tests.actor_cases import CHAT, policy, sampler_for
from tests.canned_server import CannedServer
from tests.retriever_cases import ROWS, free_port, open_corpus, running, write
from tools.base import ToolCall
from tools.registry import Toolbox
from tools.retrieval.breaker import CircuitBreaker
from tools.retrieval.build import build
from tools.retrieval.server import MAX_BODY
from tools.runner import run_calls
from tools.search_remote import RemoteSearch

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"


@pytest.fixture
def corpus(tmp_path):
    return open_corpus(write(tmp_path / "c.jsonl", ROWS))


class Scripted:
    """Finds row 0 for everything; notes every batch; can be told to wait or to fail."""

    def __init__(self):
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def search(self, queries, k):
        self.batches.append(list(queries))
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        return [[(0, 1.5), (1, 1.0)][:k] for _ in queries]


async def post(url, value, **options):
    body = {"data": value} if isinstance(value, bytes) else {"json": value}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/retrieve", **body, **options) as response:
        return response.status, await response.json()


async def metrics(url):
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


# ── the form of Search-R1 ────────────────────────────────────────────────────


async def test_it_answers_as_search_r1s_server_does(tmp_path):
    built = build(RetrieverConfig(corpus=write(tmp_path / "c.jsonl", ROWS)))
    async with running(*built, top_k=1) as url:
        status, value = await post(url, {"queries": ["Ada", "the who", ""], "topk": 3, "return_scores": True})
        assert status == 200 and [len(hits) for hits in value["result"]] == [1, 1, 0]
        [hit] = value["result"][0]
        assert hit["document"] == {"id": "1", "contents": '"Ada Byron"\nAda Byron was born in London.'}
        assert hit["score"] > 0
        _, plain = await post(url, {"queries": ["London"]})
        assert plain == {"result": [[{"id": "b", "contents": ROWS[1]["contents"]}]]}, (
            "without scores; topk: retriever.top_k"
        )
        assert await post(url, {"queries": []}) == (200, {"result": []})
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as health:
            assert await health.json() == {"status": "ok", "passages": 4, "kind": "lexical"}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "Invalid JSON"),
        (b'{"queries": ["a"', 400, "Invalid JSON"),
        (b'{"queries": ["\\ud800"]}', 400, "Invalid JSON"),
        (b"\xff\xfe\x00", 400, "Invalid JSON"),
        (b"[" * 100_000, 400, "Invalid JSON"),
        ([], 400, "object"),
        ({}, 400, "queries: Field required"),
        ({"queries": "a"}, 400, "queries: Input should be a valid"),
        ({"queries": [1]}, 400, "queries.0: Input should be a valid string"),
        ({"queries": ["x" * 10_001]}, 400, "queries.0: String should have at most 10000"),
        ({"queries": ["a"], "topk": 0}, 400, "topk: Input should be greater"),
        ({"queries": ["a"], "topk": 10**30}, 400, "topk"),
        ({"queries": ["a"], "topk": 101}, 400, "topk 101: at most 100"),
        ({"queries": ["a"] * 4097}, 400, "4097 queries: at most 4096"),
        (b" " * (MAX_BODY + 1), 413, "larger than"),
    ],
)
async def test_a_request_that_cannot_be_answered_says_why(corpus, body, status, says):
    async with running(corpus, Scripted()) as url:
        got, value = await post(url, body)
        assert (got, says in value["error"]) == (status, True), value
        assert (await post(url, {"queries": ["a"]}))[0] == 200, "and the next one is answered"


async def test_mangled_requests_are_answered_or_refused_and_hurt_nobody(tmp_path):
    """Bytes of a valid request flipped, cut, doubled and replaced; then what is no HTTP at all."""
    built = build(RetrieverConfig(corpus=write(tmp_path / "c.jsonl", ROWS)))
    valid = json.dumps({"queries": ["Ada \u202e\u0000", "🜁 größer", ""], "topk": 2, "return_scores": True}).encode()
    draw = random.Random(0)
    statuses: Counter[int] = Counter()
    async with running(*built) as url:
        for _ in range(400):
            body = bytearray(valid)
            for _ in range(draw.choice([0, 1, 2, 8])):
                at = draw.randrange(len(body))
                piece = draw.choice([b"", b"\xff", b"9" * 40, b"[" * 50, b"null", b'"', body[at : at + 20] * 2])
                body[at : at + draw.randrange(4)] = piece
            status, value = await post(url, bytes(body))
            assert (status, set(value)) in ((200, {"result"}), (400, {"error"})), (bytes(body), value)
            statuses[status] += 1
        assert min(statuses[200], statuses[400]) > 50
        port = int(url.rpartition(":")[2])
        for _ in range(50):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                draw.choice([b"POST /retrieve HTTP/1.1\r\nContent-Length: 99\r\n\r\n", b""]) + draw.randbytes(60)
            )
            writer.close()
        assert (await post(url, valid))[0] == 200
        assert "500" not in {
            labels[0] for name, *labels in await metrics(url) if name == "rollway_retriever_requests_total"
        }


async def test_a_client_that_sends_too_slowly_is_told_so(corpus):
    async with running(corpus, Scripted(), timeout_s=0.3) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(4096), 10)
        assert b"408" in answer.split(b"\r\n")[0] and b"did not arrive within 0.3 s" in answer
        writer.close()
        assert (await metrics(url))["rollway_retriever_requests_total", "408"] == 1


# ── batches, cache, limits ───────────────────────────────────────────────────


async def test_what_arrives_during_a_search_is_the_next_batch_and_nothing_is_searched_twice(corpus):
    searcher = Scripted()
    searcher.go.clear()
    async with running(corpus, searcher, max_batch=8) as url:
        first = asyncio.create_task(post(url, {"queries": ["first"]}))
        while not searcher.batches:
            await asyncio.sleep(0.01)
        rest = [asyncio.create_task(post(url, {"queries": [f"q{n % 10}"]})) for n in range(30)]
        while (await metrics(url))["rollway_retriever_queries_total", "shared"] < 20:
            await asyncio.sleep(0.01)
        searcher.go.set()
        answers = [await task for task in [first, *rest]]
        assert {status for status, _ in answers} == {200}
        assert [len(batch) for batch in searcher.batches] == [1, 8, 2]
        assert sorted(searcher.batches[1] + searcher.batches[2]) == [f"q{n}" for n in range(10)]
        assert (await post(url, {"queries": ["q3", "first", "q3"]}))[0] == 200 and len(searcher.batches) == 3
        assert (await post(url, {"queries": ["q3"], "topk": 1}))[1] != (await post(url, {"queries": ["q3"]}))[1]
        assert [len(batch) for batch in searcher.batches] == [1, 8, 2, 1], "another topk is another question"
        figures = await metrics(url)
        assert figures["rollway_retriever_queries_total", "cache"] == 4
        assert figures["rollway_retriever_queries_total", "search"] == 12
        assert figures["rollway_retriever_requests_total", "200"] == 34
        assert figures["rollway_retriever_batch_queries_sum",] == 12


async def test_different_topk_are_searched_apart_and_in_order(corpus):
    searcher = Scripted()
    async with running(corpus, searcher) as url:
        tasks = [post(url, {"queries": [f"q{n}"], "topk": 1 + n % 2}) for n in range(10)]
        answers = await asyncio.gather(*tasks)
        assert [len(value["result"][0]) for _, value in answers] == [1, 2] * 5


async def test_a_full_queue_says_so_and_empties_again(corpus):
    searcher = Scripted()
    searcher.go.clear()
    async with running(corpus, searcher, max_waiting=2) as url:
        first = asyncio.create_task(post(url, {"queries": ["a"]}))
        while not searcher.batches:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(post(url, {"queries": ["b", "c"]}))
        while (await metrics(url))["rollway_retriever_waiting",] < 2:
            await asyncio.sleep(0.01)
        status, value = await post(url, {"queries": ["d"]})
        assert status == 503 and "2 queries are waiting, 2 may" in value["error"]
        searcher.go.set()
        assert (await first)[0] == (await waiting)[0] == 200 == (await post(url, {"queries": ["d"]}))[0]


async def test_a_search_that_hangs_or_fails_is_told_and_the_next_one_works(corpus):
    searcher = Scripted()
    searcher.go.clear()
    async with running(corpus, searcher, timeout_s=0.3, cache_entries=0) as url:
        status, value = await post(url, {"queries": ["a"]})
        assert status == 504 and "within 0.3 s" in value["error"]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as health:
            assert health.status == 503 and "has been running for" in (await health.json())["status"]
        searcher.error = RuntimeError("disk")
        searcher.go.set()
        assert (await post(url, {"queries": ["b"]})) == (500, {"error": "the search failed: RuntimeError"})
        searcher.error = None
        for _ in range(2):  # nothing is kept without a cache
            assert (await post(url, {"queries": ["a"]}))[0] == 200
        assert searcher.batches == [["a"], ["b"], ["a"], ["a"]]


async def test_a_client_that_goes_away_takes_nobodys_answer_along(corpus):
    searcher = Scripted()
    searcher.go.clear()
    async with running(corpus, searcher) as url:
        gone = asyncio.create_task(post(url, {"queries": ["a"]}))
        while not searcher.batches:
            await asyncio.sleep(0.01)
        stays = asyncio.create_task(post(url, {"queries": ["a"]}))
        while (await metrics(url))["rollway_retriever_queries_total", "shared"] < 1:
            await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.05)
        searcher.go.set()
        assert (await stays)[0] == 200 and len(searcher.batches) == 1


# ── the search tool ──────────────────────────────────────────────────────────


async def call(tool, query="Ada"):
    [result] = await run_calls([tool], [ToolCall("search", {"query": query})])
    return result


async def test_the_tool_answers_as_the_one_in_process_does(corpus):
    async with running(corpus, Scripted()) as url:
        for address in (url, url + "/", url + "/retrieve"):
            tool = RemoteSearch(address, top_k=2)
            await tool.prepare()
            result = await call(tool)
            assert result.text == "- Ada Byron: Ada Byron was born in London.\n- London: London lies on the Thames."
            assert result.data == ["Ada Byron", "London"] and result.fault is None
            await tool.shutdown()


async def test_long_passages_are_cut_but_every_title_is_shown_and_counted(tmp_path):
    rows = [{"id": n, "title": f"T{n}", "text": "long " * 3000} for n in range(2)]
    long = open_corpus(write(tmp_path / "c.jsonl", rows))
    async with running(long, Scripted()) as url:
        tool = RemoteSearch(url, passage_chars=100)
        result = await call(tool)
        first, second = result.text.splitlines()
        assert first.startswith("- T0: long") and second.startswith("- T1: ") and first.endswith(" …")
        assert len(first) <= 106 and result.fault is None and result.data == ["T0", "T1"]
        await tool.shutdown()


async def test_in_the_configuration_it_is_called_search(corpus):
    async with running(corpus, Scripted()) as url:
        box = Toolbox([{"path": "search", "args": {"url": url, "top_k": 1}}])
        assert (await call((await box.open())[0])).data == ["Ada Byron"]
        await box.shutdown()
    with pytest.raises(ValueError, match=r"url 'localhost:8000': want http://host:port"):
        Toolbox([{"path": "search", "args": {"url": "localhost:8000"}}])


class Unsteady:
    """Answers ``/retrieve`` with what it is told: a status, a body, None to drop the connection, "hang"."""

    def __init__(self, *script):
        self.script, self.seen = list(script), 0

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/retrieve", self.retrieve)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()

    async def retrieve(self, request):
        how = self.script[min(self.seen, len(self.script) - 1)]
        self.seen += 1
        if how == "hang":
            await asyncio.sleep(30)
        if how is None:
            request.transport.close()
        return web.json_response(how) if isinstance(how, dict) else web.Response(status=how or 200, text="no")


GOOD = {"result": [[{"document": {"id": "1", "contents": '"Ada Byron"\nBorn in London.', "more": 1}, "score": 1}]]}


@pytest.mark.parametrize("passing", [None, 503, 429])
async def test_what_passes_is_tried_again(passing):
    async with Unsteady(passing, GOOD) as server:
        tool = RemoteSearch(server.url, retries=1)
        assert (await call(tool)).data == ["Ada Byron"] and server.seen == 2
        await tool.shutdown()


@pytest.mark.parametrize(
    ("answer", "fault", "says", "tries"),
    [
        ("hang", "timeout", "no answer within 0.2 s", 2),
        (503, "error", "status 503", 2),
        (500, "error", "status 500", 1),
        ({"error": "x"}, "error", "something else than Search-R1's form", 1),
        ({"result": []}, "error", "answered 0 of 1 queries", 1),
    ],
)
async def test_what_does_not_is_a_short_message_to_the_model(answer, fault, says, tries):
    async with Unsteady(answer) as server:
        tool = RemoteSearch(server.url, retries=1, timeout_s=0.2)
        result = await call(tool)
        assert result.fault == fault and says in result.text and len(result.text) < 400
        assert server.seen == tries
        await tool.shutdown()


async def test_a_service_that_is_down_costs_no_time_and_is_found_again(corpus, monkeypatch):
    monkeypatch.setattr("tools.retrieval.client._PAUSE_S", 0.2)
    port = free_port()
    tool = RemoteSearch(f"http://127.0.0.1:{port}", retries=0)
    for _ in range(5):
        assert "cannot be reached" in (await call(tool)).text
    started = time.perf_counter()
    assert "the search service is down" in (await call(tool)).text
    assert time.perf_counter() - started < 0.05
    async with running(corpus, Scripted(), port=port):
        await asyncio.sleep(0.25)
        assert (await call(tool)).fault is None and (await call(tool)).fault is None
    await tool.shutdown()


def test_the_breaker_lets_one_probe_through():
    now = 0.0
    breaker = CircuitBreaker(2, 5.0, clock=lambda: now)
    breaker.record(answered=False)
    breaker.record(answered=True)
    breaker.record(answered=False)
    assert breaker.allow(), "two in a row, not two in all"
    breaker.record(answered=False)
    assert not breaker.allow()
    now = 5.0
    assert breaker.allow() and not breaker.allow(), "one probe"
    breaker.record(answered=False)
    now = 9.9
    assert not breaker.allow()
    now = 10.0
    assert breaker.allow()
    now = 15.0  # the probe was cancelled and never reported
    assert breaker.allow()
    breaker.record(answered=True)
    assert breaker.allow() and breaker.allow()


# ── environments ─────────────────────────────────────────────────────────────


async def test_actors_wait_for_the_service_and_say_how_to_start_it(tmp_path):
    question = [{"id": "q", "question": "Where?", "answers": ["London"]}]
    args = {"files": {"train": {"mine": str(write(tmp_path / "q.jsonl", question))}}}
    remote = {"url": f"http://127.0.0.1:{free_port()}", "wait_s": 0.6}
    env = load_env("envs.corpus_qa:CorpusQA", args | {"retriever": remote})
    assert env.tasks("train", "mine")[0]["id"] == "q", "the learner needs no service"
    started = time.perf_counter()
    with pytest.raises(ValueError, match=r"no retriever at .* within 0\.6 s .*--role retriever"):
        await prepare_tools([env])
    assert 0.5 < time.perf_counter() - started < 5
    await shutdown_tools([env])
    with pytest.raises(ValueError, match="exclude each other"):
        load_env("envs.corpus_qa:CorpusQA", args | {"retriever": "http://x", "corpus": "c.jsonl"})
    with pytest.raises(ValueError, match="arguments of tool search"):
        load_env("envs.corpus_qa:CorpusQA", args | {"retriever": {"address": "http://x"}})


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no samples of published data sets in {DATA}")
@pytest.mark.parametrize(
    ("dataset", "questions", "recall", "oracle"),
    [("hotpotqa", "hotpot_train_100.json", 0.76, 1.0), ("musique", "musique_train_100.jsonl", 0.53, 0.9)],
)
async def test_on_real_questions_one_search_finds_what_bm25_should_and_the_oracle_is_right(
    dataset, questions, recall, oracle, tmp_path
):
    built = build(RetrieverConfig(corpus=DATA / dataset / "corpus.jsonl", folder=tmp_path / "index"))
    async with running(*built) as url:
        args = {"files": {"eval": {dataset: str(DATA / dataset / questions)}}, "retriever": url, "top_k": 5}
        env_class = load_env("envs.corpus_qa:CorpusQA", args)
        await prepare_tools([env_class])
        tasks = env_class.tasks("eval", dataset)
        searches = [ToolCall("search", {"query": task["question"]}) for task in tasks]
        results = await run_calls(env_class.shared, searches)
        shares = [len(set(r.data) & set(t["gold_titles"])) / len(t["gold_titles"]) for r, t in zip(results, tasks)]
        assert sum(shares) / len(shares) >= recall
        found = 0.0
        for task in tasks[:25]:
            turns = [
                f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'query': title}})}</tool_call>"
                for title in task["gold_titles"]
            ]
            async with (
                CannedServer(policy(*turns, f"<answer>{task['answers'][0]}</answer>")) as server,
                sampler_for(server) as sampler,
            ):
                episode = await run_episode(
                    env_class(), CHAT, sampler, Task(task_id=task["id"], dataset=dataset, payload=task), 0,
                    Limits(max_turns=10, max_tokens=200_000, turn_tokens=4000), Sampling(1.0, 1.0), key="k",
                )  # fmt: skip
            assert episode.facts["metrics"]["em"] == episode.facts["outcome_reward"] == 1.0
            assert episode.rewards.sum() == pytest.approx(1.0 + 0.1 * episode.facts["metrics"]["found"])
            found += episode.facts["metrics"]["found"] / 25
        assert found >= oracle
        await shutdown_tools([env_class])


# ── the role ─────────────────────────────────────────────────────────────────


def test_the_role_builds_serves_and_ends_on_a_signal(tmp_path):
    port = free_port()
    command = [sys.executable, "run.py", "--role", "retriever", f"retriever.corpus={write(tmp_path / 'c.jsonl', ROWS)}"]
    built = subprocess.run([*command, "retriever.serve=false"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert built.returncode == 0 and (tmp_path / "c.jsonl.index" / "lexical" / "meta.json").exists(), built.stderr
    with subprocess.Popen([*command, f"retriever.port={port}"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "4 passages at http://" in line:
                break
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text(), "a lexical service needs none"
        busy = subprocess.run(
            [*command, f"retriever.port={port}"], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert busy.returncode == 2 and f"port {port}: " in busy.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_the_benchmark_of_load_tells_rates_and_memory_on_its_last_line():
    command = [
        sys.executable,
        "-m",
        "benchmarks.retrieval_load",
        "--passages",
        "200",
        "--seconds",
        "0.2",
        "--batches",
        "8",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["batches"]["8"]["queries_per_s"] > 0 and result["build_mb"] > 10


def test_actors_load_no_torch_for_it():
    code = "import sys, tools.search_remote, envs.corpus_qa; print('torch' in sys.modules, 'tantivy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"], done.stderr
