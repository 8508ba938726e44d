"""A stand-in for vLLM's server: its weight routes and metrics over real HTTP, weights over real gloo."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import torch

from learner.weights.buckets import TensorSpec, plan_buckets, unflatten
from learner.weights.group import GlooGroup, find_store, local_address


class StandIn:
    """The weight routes of a server with one worker, whose model is a dict of tensors; on a free port unless told."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0):
        self.calls: list[str] = []
        self.fail_on: dict[str, int] = {}
        self.slow: dict[str, float] = {}
        self.lose_connection = False
        self.awake = threading.Event()  # cleared: it accepts connections and does nothing, like a stopped process
        self.awake.set()
        self.running, self.tokens = 0, 0
        self.version, self.paused, self.active = "default", False, False
        self.weights: dict[str, torch.Tensor] = {}
        self.group: GlooGroup | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer({})

            def do_POST(self):
                self.answer(json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}"))

            def answer(self, body):
                path = urlsplit(self.path).path
                outer.calls.append(path)
                outer.awake.wait(60)
                if path == "/metrics":
                    return self.send(200, outer.metrics())
                try:
                    time.sleep(outer.slow.get(path, 0))
                    if path in outer.fail_on:
                        status, reply = outer.fail_on[path], {"error": "no such luck"}
                    else:
                        status, reply = 200, outer.handle(path, body)
                except RuntimeError as error:
                    status, reply = 500, {"error": str(error)}
                self.send(status, json.dumps(reply))

            def send(self, status, text):
                with contextlib.suppress(ConnectionError):  # the caller gave up
                    self.send_response(status)
                    self.send_header("content-length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text.encode())

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer((host, port), Handler)
        self.url = f"http://{host}:{self.http.server_port}"
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.awake.set()
        self.http.shutdown()
        self.http.server_close()

    def metrics(self):
        names = ("num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total")
        zeros = "".join(f"vllm:{name} 0\n" for name in names)
        return f"{zeros}vllm:num_requests_running {self.running}\nvllm:generation_tokens_total {self.tokens}\n"

    def handle(self, path, body):
        if path == "/get_world_size":
            return {"world_size": 1}
        if path == "/is_paused":
            return {"is_paused": self.paused}
        if path == "/weight_info":
            return {"weight_version": self.version}
        if path == "/init_weight_transfer_engine":
            info = body["init_info"]
            store = find_store(info["master_address"], info["master_port"], info["timeout_s"])
            address = local_address(info["master_address"])
            self.group = GlooGroup(store, address, info["rank_offset"], info["world_size"], info["timeout_s"])
        elif path == "/pause":
            self.paused = True
        elif path == "/resume":
            self.paused = False
        elif path == "/start_weight_update":
            if self.active:
                raise RuntimeError("already active")
            self.active = True
        elif path == "/update_weights":
            self.receive(body["update_info"])
        elif path == "/finish_weight_update":
            if not self.active:
                raise RuntimeError("no matching start")
            self.active, self.version = False, body.get("weight_version", self.version)
        return {}

    def receive(self, info):
        specs = [
            TensorSpec(n, d, tuple(s))
            for n, d, s in zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
        ]
        for bucket in plan_buckets(specs, info["bucket_bytes"]):
            buffer = torch.empty(bucket.nbytes, dtype=torch.uint8)
            self.group.broadcast(buffer)
            self.weights |= {n: t.clone() for n, t in unflatten(bucket, buffer)}
            if self.lose_connection:
                self.group.close()
                raise RuntimeError("connection lost half way")


def policy(seed: int) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(seed)
    return [("a", torch.randn(300, 1000)), ("b", torch.randn(7)), ("c", torch.randn(500, 500))]


def same(server: StandIn, weights) -> bool:
    return all(torch.equal(server.weights[name], tensor) for name, tensor in weights)
