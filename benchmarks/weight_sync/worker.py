"""What runs inside the server: vLLM's own loading of weights that lie in its memory already, timed."""

from __future__ import annotations

import json
import time

from learner.weights.gloo_engine import repack_tied_heads
from learner.weights.verify import WeightVerifier


class LoadTimer(WeightVerifier):
    """Worker extension (``--worker-extension-cls``); ``self`` is a worker of a paused or idle server."""

    def rollway_time_loading(self, folder: str) -> float:
        """Seconds to load the checkpoint of ``folder`` (JSON string) by the steps of an update, its reading not counted."""
        import torch
        from safetensors.torch import load_file
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        weights = load_file(f"{json.loads(folder)}/model.safetensors")
        weights = [(name, tensor.clone()) for name, tensor in weights.items()]  # not pages of a file
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            began = time.monotonic()
            initialize_layerwise_reload(model)
            model.load_weights(weights)
            finalize_layerwise_reload(model, self.model_config)
            repack_tied_heads(model)
            return time.monotonic() - began
