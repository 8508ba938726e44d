"""A stand-in for a vLLM server on a host of its own: ``python -m tests.scale_out_server HOST PORT``."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tests.lockstep import WeighingServer


class Counting(WeighingServer):
    """``GET /seen`` tells what it has come to: requests answered, weight version, digest of the weights."""

    def handle(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path != "/seen":
            return super().handle(path, body)
        requests = self.calls.count("/inference/v1/generate")
        return {"requests": requests, "version": self.version, "digest": self.digest.hex()}


if __name__ == "__main__":
    server = Counting(sys.argv[1], int(sys.argv[2]))
    print(f"listening on {server.url}", flush=True)
    threading.Event().wait(600)
