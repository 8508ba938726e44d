"""The server's side on CPUs: vLLM's weight transfer over gloo.

vLLM finds ``register`` by the entry point ``rollway_gloo`` (group ``vllm.general_plugins``)
in its API server, engine core and workers, and makes one engine in every worker. The
lifecycle around it (pause, start, update, finish, resume) is vLLM's own and the same as
for its built-in ``nccl`` engine.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed import Work
from vllm.config import ParallelConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from learner.weights.buckets import Bucket, TensorSpec, plan_buckets, unflatten
from learner.weights.group import AHEAD, GlooGroup, find_store, local_address

BACKEND = "gloo"


@dataclass(kw_only=True)
class GlooInitInfo(WeightTransferInitInfo):
    """Where the trainer waits. This worker's rank is ``rank_offset`` + its rank in the server."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    timeout_s: float


@dataclass(kw_only=True)
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """What comes: parallel lists in the order of the wire, and the bucket size of the plan."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    bucket_bytes: int

    def specs(self) -> list[TensorSpec]:
        parts = zip(self.names, self.dtype_names, self.shapes, strict=True)
        return [TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in parts]


def join(info: GlooInitInfo, parallel: ParallelConfig) -> GlooGroup:
    """Join the trainer's group as a worker. Raises RuntimeError after ``timeout_s`` without the trainer."""
    worker_rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
    store = find_store(info.master_address, info.master_port, info.timeout_s)
    address = local_address(info.master_address)
    return GlooGroup(store, address, info.rank_offset + worker_rank, info.world_size, info.timeout_s)


def receive(group: GlooGroup, info: GlooUpdateInfo) -> Iterator[list[tuple[str, Tensor]]]:
    """The update, bucket by bucket: (name, tensor on CPU). The next ones arrive while one is being loaded.

    Every bucket has memory of its own: vLLM's layer-wise reload keeps what it was given
    until a layer is complete, so a layer that spans two buckets would find the first
    part overwritten if one buffer were reused.
    """
    under_way: deque[tuple[Bucket, Tensor, Work]] = deque()
    for bucket in [*plan_buckets(info.specs(), info.bucket_bytes), *[None] * AHEAD]:
        if bucket is not None:
            buffer = torch.empty(bucket.nbytes, dtype=torch.uint8)
            under_way.append((bucket, buffer, group.start(buffer)))
        if under_way and (bucket is None or len(under_way) > AHEAD):
            arrived, buffer, work = under_way.popleft()
            group.finish(work)
            yield unflatten(arrived, buffer)


class GlooWeightTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """Receives whole checkpoints by broadcast. A failed update leaves the model unfit to
    generate until the next complete one; the trainer keeps the server paused meanwhile."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    _group: GlooGroup | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join a trainer's group; the connection to a former trainer is closed."""
        self.shutdown()
        self._group = join(init_info, self.parallel_config)

    def start_weight_update(self) -> None:
        # Linear layers may hold their weights packed for the CPU's matrix kernels, with the
        # plain parameter gone; vLLM's layer-wise reload loads and packs them anew.
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Raises RuntimeError when the trainer is gone or silent for ``timeout_s``."""
        if self._group is None:
            raise RuntimeError("no trainer has connected: POST /init_weight_transfer_engine comes first")
        try:
            for weights in receive(self._group, update_info):
                self.model.load_weights(weights)
        except Exception:
            self.shutdown()
            raise

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_heads(self.model)

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def repack_tied_heads(model: nn.Module) -> None:
    """Pack anew what shares its weight with another layer.

    On CPUs a tied output head multiplies with a packed copy of the embedding. The reload
    updates the embedding in place, but, as no weight is loaded under the head's own name,
    vLLM 0.32 leaves the head's copy as it was: logits would come from old weights.
    """
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer.weight.numel():
            layer.quant_method.process_weights_after_loading(layer)


def register() -> None:
    """vLLM's plugin hook, called in each of its processes; may run more than once in one."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, GlooWeightTransferEngine)
        end_with_parent()


def end_with_parent() -> None:
    """End this process when the vLLM process that started it is gone.

    An engine core outlives an API server that was killed (kill -9, out of memory), and
    keeps its memory, on GPUs all of it, so that no server could be started in its place.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
