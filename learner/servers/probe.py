"""Running servers as they look from outside: can they serve, and what do they do. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable

import requests
from prometheus_client.parser import text_string_to_metric_families

from learner.servers.serving import ServerError

_POLL_S = 0.25
#: Longest wait for the answer to a look at a server, seconds.
LOOK_S = 5.0


def wait_healthy(url: str, timeout_s: float, alive: Callable[[], bool] | None, say: Callable[[str], None]) -> None:
    """Return when the server at ``url`` can serve and take weights.

    alive: tells whether its process still runs, None if it is not ours. A server that loads
    or compiles for long is not a dead one: only its end or ``timeout_s`` raises ServerError.
    say: called at every look, four times a second, with what is waited for; what it raises ends the wait.
    """
    began = time.monotonic()
    while True:
        dead = alive is not None and not alive()  # asked first: its last answer may come before its end
        if _is_ready(url):
            return
        now = time.monotonic()
        if dead:
            raise ServerError(f"the server for {url} ended while it started")
        if now - began > timeout_s:
            raise ServerError(_absent(url, timeout_s))
        say(_awaited([url], now - began, timeout_s))
        time.sleep(_POLL_S)


def wait_for_most(urls: list[str], timeout_s: float, patience_s: float, say: Callable[[str], None]) -> list[str]:
    """The servers that can serve and take weights: all, or those that can ``patience_s`` after the first could.

    One that is down or hangs thus does not keep a run from going on with the others; it
    may come later. Raises ServerError where none can within ``timeout_s``. say: as above.
    """
    began = time.monotonic()
    ready: dict[str, float] = {}
    while missing := [url for url in urls if url not in ready]:
        for url in missing:
            if _is_ready(url):
                ready[url] = time.monotonic()
        now = time.monotonic()
        if ready and now - min(ready.values()) > patience_s:
            break
        if not ready and now - began > timeout_s:
            raise ServerError(_absent(urls[0], timeout_s))
        if missing := [url for url in urls if url not in ready]:
            # Once one serves, the others have less time.
            say(_awaited(missing, now - began, min(ready.values()) - began + patience_s if ready else timeout_s))
            time.sleep(_POLL_S)
    return list(ready)


def _is_ready(url: str) -> bool:
    """Raises ServerError for one that serves but cannot take weights."""
    if _status(url, "/health") != 200:
        return False
    if _status(url, "/weight_info") == 404:
        raise ServerError(
            f"the server at {url} has no weight routes: start it with --role server, or with VLLM_SERVER_DEV_MODE=1"
        )
    return True


def _absent(url: str, timeout_s: float) -> str:
    return (
        f"no vLLM server answers at {url} after {timeout_s:.0f} s: start it with --role server, correct "
        "server.urls, or allow it more time with server.start_timeout_s"
    )


def _awaited(urls: list[str], seconds: float, limit_s: float) -> str:
    return f"waiting for the server at {', '.join(urls)}: {seconds:.0f} s of {limit_s:.0f} s"


def _status(url: str, path: str) -> int | None:
    try:
        return _get(url + path).status_code
    except requests.RequestException:
        return None


def _get(url: str) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False  # servers are private: no proxy from the environment
        return session.get(url, timeout=LOOK_S)


def server_metrics(url: str) -> dict[str, float]:
    """running and waiting requests, kv_usage and prefix_hit_rate (0 to 1, the latter since the start), generated_tokens.

    Raises requests.RequestException where the server does not answer, ValueError where the answer is not vLLM's.
    """
    answer = _get(url + "/metrics")
    answer.raise_for_status()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    try:
        queries, hits = totals["vllm:prefix_cache_queries_total"], totals["vllm:prefix_cache_hits_total"]
        return {
            "running": totals["vllm:num_requests_running"],
            "waiting": totals["vllm:num_requests_waiting"],
            "kv_usage": totals["vllm:kv_cache_usage_perc"],
            "prefix_hit_rate": hits / queries if queries else 0.0,
            "generated_tokens": totals["vllm:generation_tokens_total"],
        }
    except KeyError as missing:
        raise ValueError(f"{url}/metrics has no {missing}: not a vLLM server, or one of another version") from None
