"""Does a server compute with exactly the learner's parameters? Bit for bit, both sides.

vLLM's own ``/weight_checker`` hashes its parameters as they lie in memory: fused (q, k and
v in one), sharded, and on CPUs *empty* for linear layers, whose weights live packed inside
the matrix kernels. So the trainer sends its parameters a second time with a digest of each,
vLLM's loaders put them into a shadow of the model, and the shadow is compared with the live
model, kernels included. Any fusion, sharding and architecture is covered by vLLM's loaders.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from learner.weights.control import Deadline, ServerControl
from learner.weights.group import GlooGroup
from learner.weights.transport import Weights, gloo_meeting, send, side_by_side

_PROBE_ROWS = 512


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes in row-major order."""
    return hashlib.sha256(_bits(tensor).cpu().numpy()).hexdigest()


def compare(control: ServerControl, weights: Weights, digests: dict[str, str], deadline: Deadline) -> list[str]:
    """The trainer's side: what any worker of the (paused) server has otherwise than ``weights``, a line each.

    digests: of the parameters as the learner gave them. Always over gloo, on a group of its own.
    Raises ControlError, RuntimeError or TimeoutError where the comparison itself fails.
    """
    info, join = gloo_meeting(control, deadline)
    update = weights.describe() | {"bucket_bytes": weights.bucket_bytes}

    def ask() -> list[list[str]]:
        method = WeightVerifier.rollway_compare_weights.__name__
        return control.call_workers(method, init_info=info, update_info=update, digests=digests)

    def stream() -> GlooGroup:
        group = join()
        send(group, weights)
        return group  # still open: closing it now could cut off the last bucket

    answers, group = side_by_side(ask, stream, deadline)
    group.close()
    return [line for worker in answers for line in worker]


class WeightVerifier:
    """vLLM mixes this into its worker class (``--worker-extension-cls``); ``self`` is a worker."""

    def rollway_compare_weights(self, init_info: str, update_info: str, digests: str) -> list[str]:
        """Receive the trainer's parameters again and compare; nothing is changed.

        Arguments are JSON: GlooInitInfo, GlooUpdateInfo, {name: digest}. Answers what
        differs, one line a parameter; empty if the server is exactly the learner.
        """
        from vllm.config import set_current_vllm_config

        from learner.weights.gloo_engine import GlooInitInfo, GlooUpdateInfo, join, receive

        expected = json.loads(digests)
        group = join(GlooInitInfo(**json.loads(init_info)), self.parallel_config)
        try:
            weights = [pair for bucket in receive(group, GlooUpdateInfo(**json.loads(update_info))) for pair in bucket]
        finally:
            group.close()
        damaged = [f"{name}: damaged on the way" for name, tensor in weights if digest(tensor) != expected.get(name)]
        if damaged:
            return damaged
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            return differences(self.model_runner.get_model(), weights)


def differences(model: nn.Module, weights: Iterable[tuple[str, Tensor]]) -> list[str]:
    """What ``model`` (a loaded vLLM model) has otherwise than a fresh load of ``weights`` would give it."""
    live = {layer: dict(layer._parameters) for layer in model.modules()}
    try:
        for layer, parameters in live.items():
            layer._parameters.update(_shadows(layer, parameters))
        model.load_weights(weights)
        shadow = {layer: dict(layer._parameters) for layer in live}
    finally:
        for layer, parameters in live.items():
            layer._parameters.update(parameters)
    # A tied parameter is loaded under one name only; under the others it shares the memory,
    # but a layer's matrix kernel can hold a packed copy of its own.
    wanted = {
        parameter.data_ptr(): shadow[layer][name]
        for layer, parameters in live.items()
        for name, parameter in parameters.items()
        if parameter is not None and not shadow[layer][name].isnan().all()
    }
    found = []
    for prefix, layer in model.named_modules():
        for name, parameter in live[layer].items():
            if parameter is None:
                continue
            want, where = shadow[layer][name], f"{prefix}.{name}".removeprefix(".")
            if want.isnan().all():
                want = wanted.get(parameter.data_ptr())
            if want is None:
                found.append(f"{where}: not among the learner's")
            elif not _same(layer, name, parameter, want):
                found.append(f"{where}: differs from the learner's")
    return found


def _shadows(layer: nn.Module, parameters: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """Parameters to load into, NaN so far, in the shape they had before vLLM packed them."""
    from vllm.model_executor.model_loader.reload.layerwise import _get_original_loader, get_layerwise_info
    from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

    original = get_layerwise_info(layer).restore_metadata[0]
    shadows = {}
    for name, parameter in parameters.items():
        if parameter is None:
            continue
        template = restore_layer_refs(original[name], layer) if name in original else parameter
        shadow = torch.full(template.shape, torch.nan, dtype=template.dtype, device=parameter.device)
        # As vLLM's reload does: class and attributes steer the loading. An earlier reload may
        # have left its own deferring loader on the template.
        shadow.__class__, shadow.__dict__ = template.__class__, template.__dict__.copy()
        shadow.weight_loader = _get_original_loader(template)
        shadows[name] = shadow
    return shadows


def _same(layer: nn.Module, name: str, live: Tensor, want: Tensor) -> bool:
    packed = name == "weight" and want.ndim == 2 and hasattr(layer, "cpu_linear")
    if packed and not torch.equal(_effective_weight(layer, want), want):
        return False
    if packed and not live.numel():
        return True
    return torch.equal(_bits(live), _bits(want))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _effective_weight(layer: nn.Module, like: Tensor) -> Tensor:
    """The matrix inside a CPU kernel, read out by multiplying it with the identity.

    Exact: every product is w·1 or w·0, so sums carry no rounding (only −0 reads as +0).
    """
    rows = torch.eye(like.shape[1], dtype=like.dtype).split(_PROBE_ROWS)
    return torch.cat([layer.cpu_linear(part, layer.weight, None) for part in rows]).T
