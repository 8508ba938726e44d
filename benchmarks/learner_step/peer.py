"""One update of TRL's ``GRPOTrainer`` an order: run by the Python that has trl, not always by ours.

The trainer and its loop are TRL's own, with their own micro-batch of 8 episodes. Only the generation is
left out: the trainer is handed the batch as its own generation would give it, padded as it pads it.

    python -m benchmarks.learner_step.peer FOLDER THREADS
"""

import sys
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import TrainerCallback
from trl import import_utils

from benchmarks.learner_step.meter import Meter

import_utils.is_vllm_available = lambda *_, **__: False  # else trl loads all of vLLM, which no update needs
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

MICRO, GROUP = 8, 8


def load(path: Path) -> dict[str, torch.Tensor]:
    """Prompts are padded on the left, completions on the right."""
    arrays = np.load(path)
    bounds = np.cumsum(arrays["lengths"])[:-1]
    ids = [torch.from_numpy(x.astype(np.int64)) for x in np.split(arrays["token_ids"], bounds)]
    masks = [torch.from_numpy(x.astype(np.int64)) for x in np.split(arrays["action_mask"], bounds)]
    starts = [int(mask.argmax()) for mask in masks]
    prompts = [x[:start] for x, start in zip(ids, starts, strict=True)]
    answers = [x[start:] for x, start in zip(ids, starts, strict=True)]

    def padded(rows: list[torch.Tensor], side: str) -> torch.Tensor:
        return pad_sequence(rows, batch_first=True, padding_side=side)

    tool_mask = padded([mask[start:] for mask, start in zip(masks, starts, strict=True)], "right")
    return {
        "prompt_ids": padded(prompts, "left"),
        "prompt_mask": padded([torch.ones_like(x) for x in prompts], "left"),
        "completion_ids": padded(answers, "right"),
        "completion_mask": padded([torch.ones_like(x) for x in answers], "right"),
        "tool_mask": tool_mask,
        "advantages": torch.from_numpy(arrays["advantages"].astype(np.float32)),
        "num_items_in_batch": tool_mask.sum(),
    }


class GivenBatch(GRPOTrainer):
    given: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs):
        return dict(self.given)


class OneUpdateAnOrder(TrainerCallback):
    def __init__(self, meter: Meter):
        self.meter = meter

    def on_train_begin(self, args, state, control, **kwargs):
        self.meter.ready()

    def on_step_begin(self, args, state, control, **kwargs):
        if self.meter.await_order() is None:
            sys.exit(0)

    def on_step_end(self, args, state, control, **kwargs):
        self.meter.done()


def main(folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    meter = Meter()
    given = load(folder / "batch.npz")
    options = GRPOConfig(
        output_dir=str(folder / "peer"), use_cpu=True, bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=MICRO, gradient_accumulation_steps=len(given["advantages"]) // MICRO,
        num_generations=GROUP, max_steps=1_000_000, logging_strategy="no", save_strategy="no", report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    trainer = GivenBatch(
        model=str(folder / "model"),
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=options,
        train_dataset=Dataset.from_list([{"prompt": "x"}] * len(given["advantages"])),
        callbacks=[OneUpdateAnOrder(meter)],
    )
    trainer.given = given
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
