"""From the learner's parameters to running vLLM servers.

``buckets`` cuts the parameters into flat buffers, ``group`` and ``transport`` move them,
``control`` speaks HTTP to one server, ``push`` keeps all servers at the current version.
``gloo_engine`` and ``verify`` run inside vLLM. Nothing is imported here: ``serving`` needs
only ``weight_backend`` and must not load torch.
"""

from __future__ import annotations

from typing import Literal

from configs.schema import Config


def weight_backend(config: Config) -> Literal["gloo", "nccl"]:
    """The backend that learner and servers use; ``auto`` means nccl where the learner has GPUs."""
    if config.weights.backend != "auto":
        return config.weights.backend
    return "nccl" if config.learner.devices else "gloo"
