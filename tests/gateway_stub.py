"""Answers dashboards on a real ROUTER socket, as a learner's gateway would."""

from __future__ import annotations

import threading

import zmq

from protocol.codec import decode, encode
from protocol.messages import Status, StatusRequest
from tests.synthetic_snapshot import synthetic_snapshot


class GatewayStub:
    """answer: a request → the message to send, or None to stay silent. ``sent``: bytes of each answer."""

    def __init__(self, answer):
        self.answer, self.requests, self.sent = answer, [], []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(timeout=5)
        self._context.destroy(linger=0)

    def _run(self):
        while not self._over.is_set():
            if self._socket.poll(50):
                identity, *frames = self._socket.recv_multipart()
                request, _ = decode(frames)
                assert isinstance(request, StatusRequest)
                self.requests.append(request)
                if (answer := self.answer(request)) is not None:
                    frames = encode(answer)
                    self.sent.append(sum(map(len, frames)))
                    self._socket.send_multipart([identity, *frames])


def status_at(step):
    """The synthetic run at ``step``."""

    def answer(request):
        snapshot = synthetic_snapshot(step)
        snapshot["history"] = [r for r in snapshot["history"] if r["step"] >= request.since_step]
        return Status(snapshot=snapshot)

    return answer
