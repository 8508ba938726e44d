"""Parameters ⇄ flat byte buckets. Pure: both ends derive the same plan from the same specs.

One broadcast of 64 MB costs far less than hundreds of small ones. A bucket is raw bytes,
so parameters of different dtypes share it; each starts at a multiple of ``ALIGN`` bytes,
which every dtype's view accepts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGN = 16


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
    """Cut ``specs``, in their order, into buckets of at most ``bucket_bytes``.

    A parameter larger than that gets a bucket of its own. Raises ValueError on a
    repeated name, which would silently drop one of the two.
    """
    buckets: list[Bucket] = []
    entries: list[tuple[TensorSpec, int]] = []
    seen: set[str] = set()
    end = 0
    for spec in specs:
        if spec.name in seen:
            raise ValueError(f"parameter {spec.name} is listed twice")
        seen.add(spec.name)
        start = -(-end // ALIGN) * ALIGN
        if entries and start + spec.nbytes > bucket_bytes:
            buckets.append(Bucket(tuple(entries), end))
            entries, start = [], 0
        entries.append((spec, start))
        end = start + spec.nbytes
    if entries:
        buckets.append(Bucket(tuple(entries), end))
    return buckets


def flatten(bucket: Bucket, tensors: Mapping[str, Tensor], out: Tensor) -> Tensor:
    """Copy the bucket's parameters into ``out`` (uint8, CPU, at least ``nbytes``); returns its used part.

    ``tensors`` may lie on any device. Raises ValueError where one does not match its spec.
    """
    buffer = out[: bucket.nbytes]
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
