"""Watches the servers in a thread that nothing waits for: their rows on the dashboard, and their return.

A server that was restarted, or that a push excluded, is given the current weights as soon as it
answers again, and only then listed for the actors.
"""

from __future__ import annotations

import logging
import threading
import time

import requests

from learner.gateway.router import Gateway
from learner.servers.serving import server_metrics
from learner.weights.push import WeightPusher

log = logging.getLogger("rollway.servers")

INTERVAL_S = 2.0


class ServerMonitor:
    """Publishes one row a server: state, version, load, throughput (tokens/s since the last look)."""

    def __init__(self, gateway: Gateway, pusher: WeightPusher, urls: list[str]):
        self._gateway, self._pusher, self._urls = gateway, pusher, urls
        self._seen: dict[str, tuple[float, float]] = {}
        self._missed: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * INTERVAL_S)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            rows = [self._row(url) for url in self._urls]
            self._gateway.publish("servers", rows)
            self._mend(rows)

    def _mend(self, rows: list[dict]) -> None:
        """Take a silent server off the list, and a returned or excluded one back on it."""
        silent = {row["url"] for row in rows if row["state"] == "unreachable"}
        excluded = {row["url"] for row in rows if row["state"] == "excluded"}
        if (silent != self._missed or excluded) and self._pusher.has_weights:
            report = self._pusher.rejoin()
            self._gateway.set_servers(self._pusher.current_servers())
            for server in report.servers:
                if not server.error:
                    log.info("server %s is back with version %d", server.url, report.version)
        self._missed = silent

    def _row(self, url: str) -> dict:
        row = {"url": url, **self._pusher.state(url)}
        try:
            metrics = server_metrics(url)
        except (requests.RequestException, ValueError) as error:
            return row | {"state": "unreachable", "error": type(error).__name__}
        now, tokens = time.monotonic(), metrics["generated_tokens"]
        before, then = self._seen.get(url, (tokens, now - INTERVAL_S))
        self._seen[url] = (tokens, now)
        return row | metrics | {"tokens_per_s": max(0.0, tokens - before) / max(now - then, 1e-3)}
