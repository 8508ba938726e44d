"""Command line, checks and health of servers, without starting one."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from configs.schema import Config
from learner.servers.probe import server_metrics, wait_for_most, wait_healthy
from learner.servers.serving import (
    ServerError,
    check_model,
    check_port,
    cpu_cores,
    server_command,
    server_urls,
)


def make(**sections) -> Config:
    return Config.model_validate(sections)


@pytest.mark.parametrize(
    ("server", "allowed", "expected"),
    [
        ({}, [0, 1], [None]),  # one free compute thread
        ({}, [5], [None]),
        ({}, list(range(8)), ["4,5,6,7"]),
        ({"count": 2}, list(range(8)), ["4,5", "6,7"]),
        ({"count": 4}, list(range(8)), [None] * 4),
        ({"tensor_parallel": 2}, list(range(8)), ["4,5|6,7"]),
        ({"tensor_parallel": 2}, [0, 1], ["0|1"]),
        ({"count": 2, "tensor_parallel": 2}, [0, 1], ["0|1", "0|1"]),
        ({"cpu_threads": "0-3"}, list(range(8)), ["0-3"]),
        ({"urls": ["http://a:1"]}, list(range(8)), ["auto"]),  # a machine that only serves
    ],
)
def test_cores_of_cpu_servers(server, allowed, expected):
    config = make(server=server)
    assert [cpu_cores(config, index, allowed) for index in range(config.server.count)] == expected


def test_cpu_command():
    argv, env = server_command(make(server={"port": 9000, "extra_args": ["--foo"]}, weights={"backend": "gloo"}), 1)
    line = " ".join(argv)
    assert "--port 9001" in line and "--enforce-eager" in line and line.endswith("--foo")
    assert '--weight-transfer-config {"backend": "gloo"}' in line
    assert "--logprobs-mode processed_logprobs" in line and "--generation-config vllm" in line
    assert env["VLLM_SERVER_DEV_MODE"] == "1" and "CUDA_VISIBLE_DEVICES" not in env


def test_gpu_command():
    config = make(
        server={"count": 2, "devices": [[2, 3], [4, 5]], "tensor_parallel": 2}, learner={"devices": [0, 1], "ranks": 2}
    )
    argv, env = server_command(config, 1)
    line = " ".join(argv)
    assert env["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "--tensor-parallel-size 2" in line and '{"backend": "nccl"}' in line and "--enforce-eager" not in line


def test_urls():
    assert server_urls(make(server={"urls": ["http://a:1/"]})) == ["http://a:1"]
    assert server_urls(make(server={"host": "0.0.0.0", "port": 7, "count": 2})) == [
        "http://127.0.0.1:7",
        "http://127.0.0.1:8",
    ]


def test_model_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for missing in ("/nowhere", "models/gone", "a/b/c", "./gone"):
        with pytest.raises(ServerError, match="no such model folder"):
            check_model(make(model={"path": missing}))
    check_model(make(model={"path": "Qwen/Qwen2.5-3B-Instruct"}))  # on the hub
    (tmp_path / "models/config.json").write_text("{broken")
    with pytest.raises(ServerError, match="no tokenizer in this folder"):
        check_model(make(model={"path": "models"}))
    (tmp_path / "models/tokenizer.json").touch()
    with pytest.raises(ServerError, match="not valid JSON"):
        check_model(make(model={"path": "models"}))
    (tmp_path / "models/config.json").write_text('{"max_position_embeddings": 512}')
    check_model(make(model={"path": "models", "max_tokens": 512}))
    with pytest.raises(ServerError, match="beyond the 512 positions"):
        check_model(make(model={"path": "models", "max_tokens": 513}))


def test_a_baseline_must_fit_into_the_policys_place(tmp_path):
    for name, width in (("own", 64), ("same", 64), ("wider", 128)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").touch()
        (tmp_path / name / "config.json").write_text(f'{{"hidden_size": {width}}}')

    def with_baseline(name):
        baseline = {"name": "b", "model": str(tmp_path / name), "env": "envs.naive_rag:NaiveRag"}
        return make(model={"path": str(tmp_path / "own")}, baselines=[baseline])

    check_model(with_baseline("same"))
    with pytest.raises(ServerError, match=r"baselines\.0\.model .*wider has another hidden_size"):
        check_model(with_baseline("wider"))
    with pytest.raises(ServerError, match=r"baselines\.0\.model .*: no such model folder"):
        check_model(with_baseline("gone"))


def test_port():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ServerError, match="is in use"):
        check_port("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ServerError, match=r"check server\.host"):
        check_port("192.0.2.1", 0)


@pytest.fixture
def web():
    """(url, answers): a web server that gives ``answers[path]``, (status, text), or 404."""
    answers: dict[str, tuple[int, str]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, text = answers.get(self.path, (404, ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", answers
    http.shutdown()
    http.server_close()


def test_slow_is_not_dead_and_dead_is_told_at_once(web):
    url, answers = web
    answers |= {"/health": (503, ""), "/weight_info": (200, "{}")}
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            answers["/health"] = (200, "")

    wait_healthy(url, 30, lambda: True, say)
    assert len(said) == 3 and url in said[0]
    answers["/health"] = (503, "")
    with pytest.raises(ServerError, match="ended while it started"):
        wait_healthy(url, 30, lambda: False, say)
    with pytest.raises(ServerError, match=r"no vLLM server answers at .* after 0 s: start it with --role server"):
        wait_healthy(url, 0.3, None, say)


def test_one_server_that_hangs_does_not_keep_the_others_from_starting(web):
    url, answers = web
    answers |= {"/health": (200, ""), "/weight_info": (200, "{}")}
    gone = "http://127.0.0.1:9"
    assert wait_for_most([gone, url], 30, 0.3, print) == [url]
    assert wait_for_most([url], 30, 30, print) == [url]
    with pytest.raises(ServerError, match=r"no vLLM server answers at http://127\.0\.0\.1:9 after 0 s"):
        wait_for_most([gone], 0.2, 30, print)


def test_server_without_weight_routes_is_told_what_it_lacks(web):
    url, answers = web
    answers["/health"] = (200, "")
    with pytest.raises(ServerError, match="VLLM_SERVER_DEV_MODE"):
        wait_healthy(url, 5, None, print)


def test_metrics(web):
    url, answers = web
    answers["/metrics"] = (
        200,
        'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 4.0\n'
        "vllm:num_requests_waiting 2.0\nvllm:kv_cache_usage_perc 0.25\n"
        "vllm:prefix_cache_queries_total 200.0\nvllm:prefix_cache_hits_total 50.0\nvllm:generation_tokens_total 99.0\n",
    )
    assert server_metrics(url) == {
        "running": 7.0,
        "waiting": 2.0,
        "kv_usage": 0.25,
        "prefix_hit_rate": 0.25,
        "generated_tokens": 99.0,
    }
    answers["/metrics"] = (200, "other_total 1.0\n")
    with pytest.raises(ValueError, match="not a vLLM server"):
        server_metrics(url)
