"""Parameters ⇄ flat byte buckets. Pure: both ends derive the same plan from the same specs.

One broadcast of a bucket costs far less than hundreds of small ones. A bucket is raw bytes,
so parameters of different dtypes share it; each starts at a multiple of ``ALIGN`` bytes,
which every dtype's view accepts. A large parameter travels alone, from the memory where it
lies: copying it into a bucket would take about as long as sending it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 16
#: Parameters from this size on, bytes, have a bucket of their own.
ALONE = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype (torch's name for it, e.g. ``bfloat16``) and shape of one parameter."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> TensorSpec:
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * getattr(torch, self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Bucket:
    """``entries``: (spec, byte offset) in order; ``nbytes``: size of the flat buffer."""

    entries: tuple[tuple[TensorSpec, int], ...]
    nbytes: int


def plan_buckets(specs: Iterable[TensorSpec], bucket_bytes: int) -> list[Bucket]:
    """Cut ``specs`` into buckets: first of small parameters, at most ``bucket_bytes`` together, then each large one.

    Both keep their order. Large is what has ``ALONE`` bytes, or does not fit into a bucket. Raises ValueError on a
    repeated name, which would silently drop one of the two.
    """
    shared: list[Bucket] = []
    alone: list[Bucket] = []
    entries: list[tuple[TensorSpec, int]] = []
    seen: set[str] = set()
    end = 0
    for spec in specs:
        if spec.name in seen:
            raise ValueError(f"parameter {spec.name} is listed twice")
        seen.add(spec.name)
        if spec.nbytes >= ALONE or spec.nbytes > bucket_bytes:
            alone.append(Bucket(((spec, 0),), spec.nbytes))
            continue
        start = -(-end // ALIGN) * ALIGN
        if entries and start + spec.nbytes > bucket_bytes:
            shared.append(Bucket(tuple(entries), end))
            entries, start = [], 0
        entries.append((spec, start))
        end = start + spec.nbytes
    if entries:
        shared.append(Bucket(tuple(entries), end))
    return shared + alone


def pack(bucket: Bucket, tensors: Mapping[str, Tensor]) -> Tensor:
    """The bucket's bytes (uint8, CPU): a lone parameter's own memory where it can be sent as it is, else a copy."""
    if len(bucket.entries) == 1:
        spec = bucket.entries[0][0]
        tensor = tensors[spec.name]
        if tensor.device.type == "cpu" and tensor.is_contiguous() and TensorSpec.of(spec.name, tensor) == spec:
            return tensor.detach().view(-1).view(torch.uint8)
    return flatten(bucket, tensors)


def flatten(bucket: Bucket, tensors: Mapping[str, Tensor]) -> Tensor:
    """A copy of the bucket's parameters in one buffer (uint8, CPU, ``nbytes``).

    ``tensors`` may lie on any device. Raises ValueError where one does not match its spec.
    """
    buffer = torch.empty(bucket.nbytes, dtype=torch.uint8)
    for (name, target), (spec, _) in zip(unflatten(bucket, buffer), bucket.entries, strict=True):
        source = tensors[name]
        if TensorSpec.of(name, source) != spec:
            raise ValueError(
                f"parameter {name}: planned {spec.dtype} {spec.shape}, got {source.dtype} {tuple(source.shape)}"
            )
        target.copy_(source)
    return buffer


def unflatten(bucket: Bucket, buffer: Tensor) -> list[tuple[str, Tensor]]:
    """The parameters as views of ``buffer`` (uint8, contiguous): they live and change with it."""
    return [
        (spec.name, buffer[start : start + spec.nbytes].view(getattr(torch, spec.dtype)).view(spec.shape))
        for spec, start in bucket.entries
    ]
