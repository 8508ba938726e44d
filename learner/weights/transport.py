"""How the bytes travel to one server. The control path around them is the same for both backends."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torch.distributed import Work

from learner.weights.buckets import TensorSpec, pack, plan_buckets
from learner.weights.control import Deadline, ServerControl
from learner.weights.group import AHEAD, TRAINER_RANK, GlooGroup, local_address, serve_store

R = TypeVar("R")
T = TypeVar("T")
_REASON_S = 1.0


@dataclass(frozen=True)
class Weights:
    """One version of the policy. ``tensors`` must not change any more: late servers get them too."""

    tensors: dict[str, Tensor]
    version: int
    bucket_bytes: int

    @cached_property
    def specs(self) -> list[TensorSpec]:
        return [TensorSpec.of(name, tensor) for name, tensor in self.tensors.items()]

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)

    def describe(self) -> dict[str, Any]:
        """The part of ``update_info`` that vLLM's checkpoint engines share."""
        return {
            "names": [spec.name for spec in self.specs],
            "dtype_names": [spec.dtype for spec in self.specs],
            "shapes": [list(spec.shape) for spec in self.specs],
        }


class Transport(Protocol):
    """A connection to the workers of one server. Not thread-safe; closed after any error."""

    def connect(self, control: ServerControl, deadline: Deadline) -> None:
        """Form a group with the server's workers."""

    def update(self, control: ServerControl, weights: Weights, deadline: Deadline) -> None:
        """Have the server receive ``weights`` while this side sends them."""

    def close(self) -> None:
        """Drop the connection; a send in progress fails. Called more than once."""


class GlooTransport:
    """Flat buckets over gloo; the server runs ``gloo_engine``."""

    def __init__(self) -> None:
        self._group: GlooGroup | None = None

    def connect(self, control: ServerControl, deadline: Deadline) -> None:
        info, join = gloo_meeting(control, deadline)
        _, self._group = side_by_side(lambda: control.connect(info), join, deadline)

    def update(self, control: ServerControl, weights: Weights, deadline: Deadline) -> None:
        info = weights.describe() | {"bucket_bytes": weights.bucket_bytes}
        side_by_side(lambda: control.update(info), lambda: send(self._group, weights), deadline)

    def close(self) -> None:
        # With a broadcast under way this can take until its time-out: nobody waits for it.
        if self._group is not None:
            in_thread(self._group.close)
            self._group = None


def gloo_meeting(control: ServerControl, deadline: Deadline) -> tuple[dict[str, Any], Callable[[], GlooGroup]]:
    """(init info for the workers of ``control``'s server, call that joins them). Both sides block for each other."""
    address, size, timeout_s = address_towards(control.url), 1 + control.world_size(), deadline.left()
    store = serve_store(address, timeout_s)
    info = {
        "master_address": address,
        "master_port": store.port,
        "rank_offset": 1,
        "world_size": size,
        "timeout_s": timeout_s,
    }
    return info, lambda: GlooGroup(store, address, TRAINER_RANK, size, timeout_s)


def send(group: GlooGroup, weights: Weights) -> None:
    """Broadcast all buckets, the next ones packed while the one before is on its way."""
    under_way: deque[tuple[Work, Tensor]] = deque()
    for bucket in plan_buckets(weights.specs, weights.bucket_bytes):
        data = pack(bucket, weights.tensors)
        under_way.append((group.start(data), data))  # gloo reads from the memory until it is done
        if len(under_way) > AHEAD:
            group.finish(under_way.popleft()[0])
    for work, _ in under_way:
        group.finish(work)


class NcclTransport:
    """vLLM's own NCCL engine on both sides, its packed wire format included."""

    _BUFFERS = 2

    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        self._device = torch.cuda.current_device()
        self._group: Any = None

    def connect(self, control: ServerControl, deadline: Deadline) -> None:
        from vllm.distributed.weight_transfer import nccl_common

        address, size = address_towards(control.url), 1 + control.world_size()
        with socket.create_server((address, 0)) as probe:
            port = probe.getsockname()[1]
        info = nccl_common.NCCLWeightTransferInitInfo(
            master_address=address,
            master_port=port,
            rank_offset=1,
            world_size=size,
            packed=True,
            packed_buffer_size_bytes=self._bucket_bytes,
            packed_num_buffers=self._BUFFERS,
        )

        def join() -> Any:
            torch.cuda.set_device(self._device)  # the current device belongs to the thread
            return nccl_common.trainer_init(info, TRAINER_RANK)

        payload = nccl_common.worker_init_payload(info)
        _, self._group = side_by_side(lambda: control.connect(payload), join, deadline)

    def update(self, control: ServerControl, weights: Weights, deadline: Deadline) -> None:
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        def broadcast() -> None:
            torch.cuda.set_device(self._device)
            packed_nccl_broadcast_producer(
                iterator=iter(weights.tensors.items()),
                group=self._group,
                src=TRAINER_RANK,
                post_iter_func=lambda item: item[1].to(self._device, non_blocking=True),
                buffer_size_bytes=self._bucket_bytes,
                num_buffers=self._BUFFERS,
            )
            torch.cuda.synchronize()

        side_by_side(lambda: control.update(weights.describe()), broadcast, deadline)

    def close(self) -> None:
        # Destroying a communicator whose peer is gone can block for ever: nobody waits for it.
        if self._group is not None:
            in_thread(self._group.destroy)
            self._group = None


def address_towards(url: str) -> str:
    """Where the server at ``url`` can reach this process."""
    return local_address(urlsplit(url).hostname or "127.0.0.1")


def side_by_side(remote: Callable[[], R], local: Callable[[], T], deadline: Deadline) -> tuple[R, T]:
    """Both at once, since each needs the other to proceed; answers what they return.

    The first error of either is raised without waiting for the other, which may sit in a
    collective until its own time-out. Raises TimeoutError at the deadline.
    """
    far, near = futures = in_thread(remote), in_thread(local)
    _, waiting = wait(futures, timeout=deadline.left(), return_when=FIRST_EXCEPTION)
    if waiting == {far} and near.exception():
        wait(
            [far], timeout=_REASON_S
        )  # when a server fails, its connection breaks first and it says why a moment later
    for future in futures:
        if future.done():
            future.result()
    if waiting:
        raise TimeoutError("the transfer did not end in time (weights.timeout_s)")
    return far.result(), near.result()


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run ``work`` in a daemon thread: one that hangs cannot keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name="weights").start()
    return future
