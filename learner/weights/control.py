"""HTTP control of one vLLM server: pause, update, resume. Statuses are read, nothing waits for ever."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import requests

_CONNECT_S = 10.0


class ControlError(RuntimeError):
    """A server that refused, or did not answer; the message names the server, the call and the reason."""


class NoAnswer(ControlError):
    """The server did not answer in time; it may be busy."""


class Deadline:
    """One time limit, in seconds, for a sequence of steps."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left. Raises TimeoutError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not done within {self._seconds:g} s (weights.timeout_s)")
        return left

    def expire(self) -> None:
        """Leave no time: every further step raises."""
        self._end = float("-inf")


class ServerControl:
    """The weight routes of the server at ``url``. Every method raises ControlError or TimeoutError."""

    def __init__(self, url: str, deadline: Deadline):
        self.url = url
        self._deadline = deadline

    def world_size(self) -> int:
        """Workers of the server: tensor × pipeline × data parallel."""
        return int(self._call("GET", "/get_world_size")["world_size"])

    def is_paused(self) -> bool:
        return bool(self._call("GET", "/is_paused")["is_paused"])

    def weight_version(self) -> str:
        """As last given to ``finish``; "default" for weights read from the model folder."""
        return str(self._call("GET", "/weight_info")["weight_version"])

    def pause(self) -> None:
        """Freeze generation. Requests in flight stay and go on after ``resume``, their KV cache computed anew."""
        self._call("POST", "/pause?mode=keep")

    def resume(self) -> None:
        self._call("POST", "/resume")

    def connect(self, init_info: dict[str, Any]) -> None:
        """Blocks until every worker has joined the trainer's group."""
        self._call("POST", "/init_weight_transfer_engine", {"init_info": init_info})

    def disconnect(self) -> None:
        self._call("POST", "/shutdown_weight_transfer_engine")

    def start(self) -> None:
        self._call("POST", "/start_weight_update")

    def update(self, update_info: dict[str, Any]) -> None:
        """Blocks until everything announced has been received and loaded."""
        self._call("POST", "/update_weights", {"update_info": update_info})

    def finish(self, version: int) -> None:
        self._call("POST", "/finish_weight_update", {"weight_version": str(version)})

    def discard_update(self) -> None:
        """Clear what an update that failed half way left behind, so that the next one starts afresh.

        vLLM keeps the parameters that such an update had buffered and would count them
        towards the next; an empty update drops them. The weights are unusable until then
        anyhow: only for a paused server that gets a complete update next.
        """
        with contextlib.suppress(ControlError):  # refused where that update is still open
            self.start()
        self._call("POST", "/finish_weight_update", {})

    def call_workers(self, method: str, **arguments: Any) -> list[Any]:
        """Run ``method`` of the worker extension in every worker; ``arguments`` travel as JSON."""
        body = {"method": method, "kwargs": {name: json.dumps(value) for name, value in arguments.items()}}
        return self._call("POST", "/collective_rpc", body)["results"]

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        what, left = f"{method} {self.url}{path}", self._deadline.left()
        try:
            # Servers are private: a proxy from the environment must not come between.
            with requests.Session() as session:
                session.trust_env = False
                answer = session.request(method, self.url + path, json=body, timeout=(min(_CONNECT_S, left), left))
        except requests.Timeout:
            raise NoAnswer(f"{what}: no answer within {left:.1f} s") from None
        except requests.RequestException as error:
            raise ControlError(f"{what}: {type(error).__name__}, is the server running?") from error
        if answer.status_code == 404:
            raise ControlError(f"{what}: 404; start the server with --role server (it needs VLLM_SERVER_DEV_MODE=1)")
        if not answer.ok:
            raise ControlError(f"{what}: status {answer.status_code}: {' '.join(answer.text.split())[:500]}")
        return answer.json() if answer.content else {}
