"""Supervised warm start of the built-in policies on scripted traces.

Two policies of one architecture: ``agent`` learns to search, read and rewrite from impatient traces
(``envs.world.traces``), ``rag`` to answer from one retrieval. Traces come from many generated worlds
of the training split, so that facts are read, not remembered.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from envs.world import Question, World, oracle
from envs.world.names import POOLS
from envs.world.traces import Patience, episode, opening, rag_example, reading_drill, rewriting_drill
from learner.tiny import build_tokenizer, save_tokenizer, tiny_config

TRAIN_SETS = ("hotpot", "wiki2")
#: Seeds of the worlds that traces are drawn from; reinforcement learning uses others.
FIRST_WORLD = 1000


@dataclass(frozen=True)
class Example:
    """One tokenised trace. ``labels[i]`` is the target at position i (already shifted), or -100."""

    ids: list[int]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.ids)


def warmstart(
    out_dir: Path,
    kind: str = "agent",
    steps: int = 3000,
    batch_tokens: int = 4096,
    muon_lr: float = 0.02,
    adam_lr: float = 5e-3,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Trains a policy from scratch and writes it as a Hugging Face folder.

    Args:
        out_dir: gets weights (float32 safetensors), configuration and tokenizer.
        kind: ``agent`` or ``rag``.
        steps: optimizer steps.
        batch_tokens: tokens of one step, padding included.
        muon_lr, adam_lr: peak rates of Muon (hidden matrices) and AdamW (all else).
        seed: of the weights and the traces. One thread count and one seed give one result.
        progress: called with (step, loss) after every step.
    """
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(vocabulary_texts())
    model = Qwen2ForCausalLM(tiny_config(tokenizer))
    optimizers = make_optimizers(model, muon_lr, adam_lr)
    batches = stream_batches(tokenizer, kind, batch_tokens, seed)
    for step in range(steps):
        rate = schedule(step, steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * rate
        loss = supervised_loss(model, *next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        progress(step + 1, loss.item())
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.generation_config.pad_token_id = model.config.pad_token_id
    model.save_pretrained(out_dir)
    save_tokenizer(tokenizer, Path(out_dir))


def supervised_loss(model: Qwen2ForCausalLM, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over labelled positions. ids, labels: [B, T], padded on the right.

    Right padding needs no attention mask under causal attention; logits are computed where a label is.
    """
    hidden = model.model(ids).last_hidden_state
    wanted = labels != -100
    return nn.functional.cross_entropy(model.lm_head(hidden[wanted]), labels[wanted])


def schedule(step: int, steps: int, warmup: int = 50, decay: float = 0.5) -> float:
    """Share of the peak rate: linear warm-up, flat, linear decay to zero over the last ``decay`` of the run."""
    return min(1.0, (step + 1) / warmup, (steps - step) / (decay * steps))


def make_optimizers(model: nn.Module, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings, head, norms and biases."""
    hidden, rest = [], []
    for name, parameter in model.named_parameters():
        (hidden if parameter.ndim == 2 and ".layers." in name else rest).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(hidden, lr=muon_lr, weight_decay=0.0, momentum=0.95),
        torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] = group["lr"]
    return optimizers


def vocabulary_texts() -> Iterator[str]:
    """Text that holds every word the tokenizer must know: all names, and traces of one world."""
    yield from (f" {word}" for pool in POOLS.values() for words in pool for word in words)
    yield "system"
    world = World(0, "train")
    yield from (passage.text for passage in world.passages)
    for dataset in TRAIN_SETS:
        for question in world.questions(dataset)[:1000]:
            for message in oracle(question, world):
                yield f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"


def stream_batches(
    tokenizer: PreTrainedTokenizerFast, kind: str, batch_tokens: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (ids, labels), each [B, T]: a new world a lesson, neighbours in length batched together."""
    for number, (traces, n) in enumerate(lessons(kind)):
        rng = random.Random(f"{kind}/{seed}/{number}")
        world = World(FIRST_WORLD + number, "train")
        examples = sorted((encode(*next_trace, tokenizer) for next_trace in traces(world, n, rng)), key=len)
        batches: list[list[Example]] = [[]]
        for example in examples:
            if (len(batches[-1]) + 1) * len(example) > batch_tokens:
                batches.append([])
            batches[-1].append(example)
        rng.shuffle(batches)
        yield from map(collate, batches)


def lessons(kind: str) -> Iterator[tuple[Callable, int]]:
    """The curriculum: (source of traces, number of them), the last lesson for ever.

    Short lessons first: copying a name across 20 tokens is learned in a minute, across 200 hardly at
    all from scratch, and everything later builds on it.
    """
    yield openings, 12_000
    yield partial(readings, top_k=1), 6_000
    yield partial(readings, top_k=2), 3_000
    yield from itertools.repeat(({"agent": agent_traces, "rag": rag_traces}[kind], 8_000))


def collate(batch: list[Example]) -> tuple[Tensor, Tensor]:
    """Pads on the right to the longest: ids with 0, labels with -100. Both [B, T]."""
    width = max(len(e.ids) for e in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    labels = torch.full((len(batch), width), -100)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        labels[row, : len(example.labels)] = torch.tensor(example.labels)
    return ids, labels


Trace = tuple[list[dict], bool]


def openings(world: World, n: int, rng: random.Random) -> Iterator[Trace]:
    """First turns only: a question or a program, the program in the thought, the first search."""
    for _ in range(n):
        yield (rewriting_drill(world, rng)[:2] if rng.random() < 0.3 else opening(draw(world, rng))), True


def readings(world: World, n: int, rng: random.Random, top_k: int) -> Iterator[Trace]:
    """One relation of one entity, searched and read."""
    for _ in range(n):
        yield reading_drill(world, rng, top_k), True


def agent_traces(world: World, n: int, rng: random.Random) -> Iterator[Trace]:
    """Drills, impatient episodes, and perfect paths whose decisions carry no loss."""
    patience = Patience()
    for _ in range(n):
        kind = rng.random()
        if kind < 0.12:
            yield reading_drill(world, rng), True
        elif kind < 0.24:
            yield rewriting_drill(world, rng), False
        elif kind < 0.60:
            yield episode(draw(world, rng), world, patience, rng), True
        else:
            yield oracle(draw(world, rng), world), False


def rag_traces(world: World, n: int, rng: random.Random) -> Iterator[Trace]:
    """Questions of both sets with one retrieval each."""
    for _ in range(n):
        yield rag_example(draw(world, rng), world), True


def draw(world: World, rng: random.Random) -> Question:
    """A training question, the sets in equal shares."""
    return rng.choice(world.questions(rng.choice(TRAIN_SETS)))


def encode(messages: list[dict], decisions: bool, tokenizer: PreTrainedTokenizerFast) -> Example:
    """Tokenises a conversation; the labels are the assistant's tokens, its end of turn included.

    With ``decisions`` off, the tokens that choose between a search and an answer carry no loss: the
    trace then teaches how to do either, not which.
    """
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    start, end, assistant, call, answer = tokenizer.convert_tokens_to_ids(
        ["<|im_start|>", "<|im_end|>", "assistant", "<tool_call>", "<answer>"]
    )
    free = () if decisions else (call, answer)
    labels, speaking = [], False
    for position, token in enumerate(ids[1:]):
        # ids[position - 2 : position + 1] == <|im_start|> assistant \n opens the assistant's turn.
        if position >= 2 and ids[position - 2] == start and ids[position - 1] == assistant:
            speaking = True
        labels.append(token if speaking and token not in free else -100)
        if token == end:
            speaking = False
    return Example(ids, labels + [-100])
