"""A gloo group of one trainer and the workers of one server, outside torch's global state.

Every server has a group of its own, so a server that dies breaks nothing but its own.
Sockets are bound to the address that leads to the peer: loopback stays loopback.
"""

from __future__ import annotations

import socket
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

TRAINER_RANK = 0
#: Broadcasts that are started before the first of them is waited for.
AHEAD = 2


def local_address(peer: str) -> str:
    """This machine's IP address on the way to host ``peer``. Sends nothing. Raises OSError if there is no route."""
    family, kind, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return probe.getsockname()[0]


def serve_store(address: str, timeout_s: float, port: int = 0) -> dist.TCPStore:
    """The meeting point of a new group, on ``port`` of ``address`` alone; 0 takes a free one (see ``store.port``).

    Raises OSError where this process cannot listen there.
    """
    listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listener.getsockname()[1]
    return dist.TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )


def find_store(address: str, port: int, timeout_s: float) -> dist.TCPStore:
    """The meeting point that a trainer serves."""
    return dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))


class GlooGroup:
    """Blocks until all ``size`` ranks have joined; ``timeout_s`` bounds that and each broadcast (RuntimeError)."""

    def __init__(self, store: dist.TCPStore, address: str, rank: int, size: int, timeout_s: float):
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        self._store = store  # the trainer's store must outlive the rendezvous of the others
        prefixed = dist.PrefixStore("rollway-weights", store)
        self._gloo: dist.ProcessGroupGloo | None = dist.ProcessGroupGloo(prefixed, rank, size, options)

    def broadcast(self, tensor: Tensor) -> None:
        """The trainer's ``tensor`` (CPU, contiguous) into everyone's, in place."""
        self.finish(self.start(tensor))

    def start(self, tensor: Tensor) -> dist.Work:
        """Begin a broadcast and do not wait for it. All ranks begin theirs in the same order; ``tensor`` must stay."""
        if self._gloo is None:
            raise RuntimeError("this weight transfer group is closed")
        options = dist.BroadcastOptions()
        options.rootRank = TRAINER_RANK
        return self._gloo.broadcast([tensor], options)

    @staticmethod
    def finish(work: dist.Work) -> None:
        """Wait for a broadcast that was started. Raises RuntimeError where the peer is gone, or silent for ``timeout_s``."""
        work.wait()

    def close(self) -> None:
        """End what is under way here and close the connections: a waiting peer fails at once."""
        if self._gloo is not None:
            self._gloo.abort()
            self._gloo = None  # its destructor closes the sockets
