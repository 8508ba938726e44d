"""Where the learner's ranks meet, on one host or on several: at rank 0's address, over the network that leads there.

By itself torch listens on every address of the machine, and gloo takes the one that the host's name stands for:
open to strangers the one, and the other, on a host with several networks, often nothing that its peers can reach.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import psutil
import torch.distributed as dist

from learner.launch import LaunchError, RanksMissing
from learner.weights.group import find_store, local_address, serve_store

#: Seconds between two tries to resolve a name.
_RETRY_S = 1.0


def meet(backend: str, timeout_s: float) -> None:
    """Make torch's process group of the ranks that a launcher describes: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Raises ``LaunchError`` where rank 0 cannot listen at that address, ``RanksMissing`` after ``timeout_s``.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + timeout_s
    if interface := interface_towards(host, timeout_s):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    left = deadline - time.monotonic()
    try:
        store = _serve(host, port, left) if rank == 0 else find_store(host, port, left)
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), store=store, rank=rank, world_size=size)
    except RuntimeError as error:  # of torch's store or of gloo
        raise RanksMissing(
            f"learner rank {rank} of {size} did not meet the others at {host}:{port} within {timeout_s:.0f} s: see whether "
            f"the learner runs on each of its hosts, and the log of rank 0 ({' '.join(str(error).split())[:200]})"
        ) from error


def interface_towards(host: str, timeout_s: float) -> str | None:
    """Name of the network interface on the way to ``host``; None where its address is on none (a translated one).

    A name may be unknown while hosts start together. Raises ``RanksMissing`` where it still is after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            address = local_address(host)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RanksMissing(f"no way to the learner's first host {host}: {error}") from error
        time.sleep(_RETRY_S)
    return next(
        (name for name, found in psutil.net_if_addrs().items() if address in [entry.address for entry in found]), None
    )


def _serve(host: str, port: int, timeout_s: float) -> dist.TCPStore:
    try:
        return serve_store(host, timeout_s, port)
    except OSError as error:
        raise LaunchError(
            f"rank 0 cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}; is this the first host of "
            "learner.hostfile, and learner.master_port free?"
        ) from error
