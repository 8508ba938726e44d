"""Watches the servers in a thread that nothing waits for: their rows on the dashboard, and their return.

A server that died, hangs, or that a push excluded is off the list of the actors until it
answers again and has been given the current weights. One that is only slow stays.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

import requests

from learner.gateway.router import Gateway
from learner.servers.health import Health
from learner.servers.probe import LOOK_S, server_metrics
from learner.weights.push import WeightPusher
from learner.weights.transport import in_thread

log = logging.getLogger("rollway.servers")

INTERVAL_S = 2.0


class ServerMonitor:
    """Publishes one row a server: state, version, load, throughput (tokens/s since the last look), ``silent_s``.

    silent_s: how long a server may hang, in seconds, before it is taken off the list.
    """

    def __init__(self, gateway: Gateway, pusher: WeightPusher, urls: list[str], silent_s: float):
        self._gateway, self._pusher, self._urls = gateway, pusher, urls
        self._health = {url: Health.unseen(silent_s, time.monotonic()) for url in urls}
        self._seen: dict[str, tuple[float, float]] = {}
        self._silent: dict[str, str] = {}
        self._due = False  # something is to be mended
        self._mending: Future[None] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * INTERVAL_S)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                self.look()
            except Exception:  # the next look may do better, and without any nobody would come back
                log.exception("a look at the servers failed")

    def look(self) -> None:
        """Ask all servers at once how they are; publish it, and have mended what is wrong."""
        looks = [in_thread(lambda url=url: self._row(url)) for url in self._urls]
        wait(looks, timeout=3 * LOOK_S)
        rows = [look.result(timeout=0) for look in looks]
        now = time.monotonic()
        silent = {url: why for url, health in self._health.items() if (why := health.problem(now))}
        for url in silent.keys() - self._silent.keys():
            log.error("server %s gets no requests: %s", url, silent[url])
        self._due |= silent.keys() != self._silent.keys() or any(h.restarted for h in self._health.values())
        self._silent = silent
        self._gateway.publish("servers", rows)
        self._pusher.note_silent(silent)
        if not self._pusher.has_weights:
            return
        self._due |= any(row["state"] in ("excluded", "waiting") for row in rows if row["url"] not in silent)
        if self._due and (self._mending is None or self._mending.done()):
            self._due, self._mending = False, in_thread(self._mend)  # it may have to wait for a push

    def _mend(self) -> None:
        """Take lost servers off the list, and returned ones back on it."""
        try:
            report = self._pusher.rejoin()
        except TimeoutError:
            log.exception("the servers were not mended; the next look tries again")
            self._due = True
            return
        self._gateway.set_servers(self._pusher.current_servers())
        for server in report.servers:
            if not server.error:
                log.info("server %s is back with version %d", server.url, report.version)

    def _row(self, url: str) -> dict[str, Any]:
        health, row = self._health[url], {"url": url, **self._pusher.state(url)}
        try:
            metrics = server_metrics(url)
        except (requests.RequestException, ValueError) as error:
            health.no_answer(refused=_refused(error))
            now = time.monotonic()
            why = health.problem(now) or type(error).__name__
            return row | {"state": "unreachable", "error": why, "silent_s": health.silence(now)}
        now, tokens = time.monotonic(), metrics["generated_tokens"]
        health.answer(now, tokens, metrics["running"], generating=row["state"] == "current")
        before, then = self._seen.get(url, (tokens, now - INTERVAL_S))
        self._seen[url] = (tokens, now)
        speed = max(0.0, tokens - before) / max(now - then, 1e-3)
        why = health.problem(now) or row["error"]
        return row | metrics | {"error": why, "tokens_per_s": speed, "silent_s": max(0.0, now - health.moved)}


def _refused(error: Exception) -> bool:
    """Nobody listens: a time-out is no such sign, since a server that is busy or stopped still has its socket."""
    return isinstance(error, requests.ConnectionError) and not isinstance(error, requests.Timeout)
