"""The learner's ranks: how they find each other, and how rank 0 tells the rest what to do.

Rank 0 alone has a gateway. All others wait for its commands, which travel over a gloo
group of their own: bytes need no GPU, and between two commands may lie a whole batch of
episodes, far longer than a collective of the training step may take.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from configs.logs import adopt_libraries
from learner.policy.batch import pack_message, unpack_message
from learner.policy.meeting import meet

#: Longest wait inside a training step for the other ranks, seconds.
COLLECTIVE_TIMEOUT_S = 600.0


def init_distributed(device: torch.device) -> None:
    """Join the process group of the launcher, or make one of a single process.

    Every later collective fails after ``COLLECTIVE_TIMEOUT_S``. Raises ``RanksMissing`` where ranks
    do not come, ``LaunchError`` where rank 0 cannot listen.
    """
    if dist.is_initialized():
        return
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed

    adopt_libraries()
    # Its shared-memory collectives for CPU ranks would be compiled here, for a minute and with ninja; gloo serves.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    if "RANK" not in os.environ:
        # No launcher: a group of one, without a port and without variables that child processes inherit.
        os.environ.setdefault("LOCAL_RANK", "0")
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)
    elif "TORCHELASTIC_RUN_ID" not in os.environ:  # torchrun has a meeting point of its own
        meet(backend, COLLECTIVE_TIMEOUT_S)
    deepspeed.init_distributed(backend, timeout=timeout, verbose=False)


class Follower(Protocol):
    """An engine on a rank other than 0."""

    def obey(self, message: dict[str, Any]) -> None:
        """Do this rank's part of what rank 0 told: ``command`` and its arguments."""


class Ranks:
    """Commands from rank 0 to all others, and sums over all of them, on CPU tensors."""

    def __init__(self, command_timeout_s: float):
        """command_timeout_s: the longest that ranks may sit idle between two commands."""
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._timeout_s = command_timeout_s
        self._commands = dist.new_group(backend="gloo", timeout=timedelta(seconds=command_timeout_s))
        self._values = dist.new_group(backend="gloo", timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S))

    def tell(self, command: str, to: str = "policy", **arguments: Any) -> None:
        """On rank 0: give the others a command for the engine named ``to``; its arguments are msgpack values."""
        if self.size > 1:
            message = {"to": to, "command": command, **arguments}
            data = torch.frombuffer(bytearray(pack_message(message)), dtype=torch.uint8)
            dist.broadcast(torch.tensor([len(data)]), 0, self._commands)
            dist.broadcast(data, 0, self._commands)

    def follow(self, engines: dict[str, Follower | None]) -> None:
        """On the others: hand each command to the engine that it names, until rank 0 says stop."""
        while (message := self.hear())["command"] != "stop":
            engines[message["to"]].obey(message)

    def hear(self) -> dict[str, Any]:
        """On the others: wait for the next command. ``TimeoutError`` if rank 0 stays silent."""
        size = torch.zeros(1, dtype=torch.int64)
        try:
            dist.broadcast(size, 0, self._commands)
        except RuntimeError as error:
            raise TimeoutError(
                f"learner rank {self.rank}: no command from rank 0 (gone, or silent for {self._timeout_s:.0f} s)"
            ) from error
        data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0, self._commands)
        return unpack_message(data.numpy().tobytes())

    def total(self, values: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """Elementwise reduction of a CPU tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, op, self._values)
        return values

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(self._values)
