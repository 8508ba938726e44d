"""Low-rank adapters: ``peft`` puts them into the policy; here they are added, and merged for everyone else.

Servers, exports and references know the model without adapters. ``whole_weights`` shows a
model with adapters in that form: W + alpha / rank · B·A under the name of W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from configs.lora import LoraConfig

#: peft's name of the one set of adapters that there is.
ADAPTER = "default"
#: What peft calls the layer under an adapter, and how it names the adapter's matrices.
_BASE, _MATRICES = ".base_layer.", (".lora_A.", ".lora_B.")


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter as servers know it. name: its name there. parts: what it is made of; under ZeRO-3 they
    have to be gathered before ``whole`` is called. whole: the tensor, live where it is a parameter itself."""

    name: str
    parts: list[nn.Parameter]
    whole: Callable[[], Tensor]


def add_adapters(lm: PreTrainedModel, options: LoraConfig) -> None:
    """Freeze ``lm`` and give its target layers adapters, which are all that trains. At first they change nothing.

    No dropout: a sampled probability can only be reproduced without. Raises ``ValueError``
    where a target is no linear layer of the model, or ``peft`` is missing.
    """
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise ValueError(
            f"model.lora needs the package peft ({error}): run make again to install what is new"
        ) from None
    if options.targets != "all-linear":
        _check_targets(lm, options.targets)
    chosen = PeftConfig(r=options.rank, lora_alpha=options.alpha, target_modules=options.targets, lora_dropout=0.0)
    inject_adapter_in_model(chosen, lm, ADAPTER)  # in place: the model stays of its own class


def whole_weights(lm: nn.Module) -> Iterator[Weight]:
    """Every parameter of the model without adapters, once each (a tied head is not repeated)."""
    for name, parameter in lm.named_parameters():
        if any(part in name for part in _MATRICES):
            continue
        layer_name, adapted, rest = name.partition(_BASE)
        if adapted and rest == "weight":
            layer = lm.get_submodule(layer_name)
            parts = [parameter, layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight]
            yield Weight(f"{layer_name}.weight", parts, lambda layer=layer: merged(layer))
        else:
            yield Weight(f"{layer_name}.{rest}" if adapted else name, [parameter], parameter.detach)


@torch.no_grad()
def merged(layer: nn.Module) -> Tensor:
    """W + scaling · B·A of one of peft's linear layers, [out, in] in W's dtype, summed in float32."""
    weight = layer.base_layer.weight
    a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    return (weight.float() + layer.scaling[ADAPTER] * (b.float() @ a.float())).to(weight.dtype)


def _check_targets(lm: PreTrainedModel, targets: list[str]) -> None:
    """peft takes a list of which one name fits, and layers that our head reads directly: neither is meant."""
    head = lm.get_output_embeddings()
    linear = {name for name, layer in lm.named_modules() if isinstance(layer, nn.Linear) and layer is not head}
    known = sorted({name.rpartition(".")[2] for name in linear})
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            raise ValueError(f"model.lora.targets: no linear layer is called {target}; there are {', '.join(known)}")
