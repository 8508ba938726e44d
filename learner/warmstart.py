"""Supervised warm start of the built-in policies on scripted traces.

Two policies of one architecture: ``agent`` learns to search, read and rewrite from impatient traces
(``envs.world.traces``), ``rag`` to answer from one retrieval. Traces come from many generated worlds
of the training split, so that facts are read, not remembered.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from configs.schema import Config
from envs.world import Question, World, oracle
from envs.world.drills import Segments, lookup_drill, repeating_drill
from envs.world.names import POOLS
from envs.world.traces import Patience, episode, opening, rag_example, reading_drill, rewriting_drill, wording_drill
from learner.tiny import build_tokenizer, look_one_back, save_tokenizer, tiny_config
from tools.progress import progress
from tools.search_index import format_passages

TRAIN_SETS = ("hotpot", "wiki2")
#: Seeds of the worlds that traces are drawn from; reinforcement learning uses others.
FIRST_WORLD = 1000
#: Half an hour on a core that multiplies bfloat16.
AGENT_STEPS = 6_000
#: Of the Naive-RAG policy, on top of the agent's own: it reads as well as the agent does.
RAG_STEPS = 3_000
#: Steps between two writes of the policy, so that an interrupted run leaves one.
SAVE_EVERY = 500


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
    steps: int = AGENT_STEPS,
    start: Path | None = None,
    batch_tokens: int = 4096,
    muon_lr: float = 0.006,
    adam_lr: float = 1.5e-3,
    seed: int = 0,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Trains a policy and writes it as a Hugging Face folder.

    Args:
        out_dir: gets weights (float32 safetensors), configuration and tokenizer.
        kind: ``agent`` or ``rag``.
        steps: optimizer steps.
        start: folder of a policy to go on from; random weights without it.
        batch_tokens: tokens of one step, padding included.
        muon_lr, adam_lr: peak rates of Muon (hidden matrices) and AdamW (all else).
        seed: of the weights and the traces.
        progress: called with (step, loss) after every step.
    """
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(vocabulary_texts())
    if start:
        model = Qwen2ForCausalLM.from_pretrained(start)
    else:
        model = Qwen2ForCausalLM(tiny_config(tokenizer))
        look_one_back(model.model.layers[0].self_attn, head=0)
    # Compiled as plain matrix products, attention of this size is faster than torch's own kernel for CPUs.
    model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.generation_config.pad_token_id = model.config.pad_token_id
    model.train()
    optimizers = make_optimizers(model, muon_lr, adam_lr)
    # Compiling takes half a minute and then halves the time of a step.
    forward = torch.compile(model.model, dynamic=True)
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu.get_capabilities().get("amx_tile", False))
    batches = iter(
        DataLoader(Traces(tokenizer, kind, batch_tokens, seed), batch_size=None, num_workers=1, prefetch_factor=64)
    )
    for step in range(steps):
        rate = schedule(step, steps)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak_lr"] * rate
        with mixed:
            loss = supervised_loss(forward, model.lm_head, *next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        progress(step + 1, loss.item())
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            model.save_pretrained(out_dir)
            save_tokenizer(tokenizer, Path(out_dir))


def main(config: Config) -> int:
    """``--role warmstart``: both built-in policies anew, in ``run.dir``/tiny-agent and ``run.dir``/tiny-rag."""
    agent, rag = (Path(config.run.dir) / name for name in ("tiny-agent", "tiny-rag"))
    for out, kind, steps, start in ((agent, "agent", AGENT_STEPS, None), (rag, "rag", RAG_STEPS, agent)):
        with progress(f"{kind} → {out}", steps) as advance:
            show = partial(_show, advance)
            warmstart(out, kind, steps, start, seed=config.run.seed, progress=show)
    print(f"use them with model.path={agent}")
    return 0


def _show(advance: Callable[..., None], step: int, loss: float) -> None:
    advance(1, f"loss {loss:.3f}")


def supervised_loss(forward: Callable, head: nn.Linear, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over labelled positions. ids, labels: [B, T], padded on the right.

    Right padding needs no attention mask under causal attention; logits are computed where a label is.
    """
    hidden = forward(ids).last_hidden_state
    wanted = labels != -100
    return nn.functional.cross_entropy(head(hidden[wanted]), labels[wanted])


def schedule(step: int, steps: int, warmup: int = 50, decay: float = 0.8) -> float:
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
    yield format_passages(world.passages[:3])
    for dataset in TRAIN_SETS:
        for question in world.questions(dataset)[:1000]:
            for message in oracle(question, world):
                yield f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"


def stream_batches(
    tokenizer: PreTrainedTokenizerFast, kind: str, batch_tokens: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (ids, labels), each [B, T]: a new world a lesson, neighbours in length batched together."""
    for number, lesson in enumerate(lessons(kind)):
        rng = random.Random(f"{kind}/{seed}/{number}")
        world = World(FIRST_WORLD + number, "train")
        examples = [
            example for make, count in lesson for _ in range(count) for example in [make(world, rng, tokenizer)]
        ]
        examples.sort(key=len)
        batches: list[list[Example]] = [[]]
        for example in examples:
            if (len(batches[-1]) + 1) * len(example) > batch_tokens:
                batches.append([])
            batches[-1].append(example)
        rng.shuffle(batches)
        yield from map(collate, batches)


class Traces(IterableDataset):
    """``stream_batches`` as a data set, so that a worker process makes the next batches meanwhile."""

    def __init__(self, *args):
        self.args = args

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return stream_batches(*self.args)


Maker = Callable[[World, random.Random, PreTrainedTokenizerFast], "Example"]


def lessons(kind: str) -> Iterator[list[tuple[Maker, int]]]:
    """The curriculum: each lesson is (maker of examples, how many) pairs; the last one goes on for ever.

    Copying first: after some 600 steps of it alone the loss falls, within a hundred or two, from .5 to
    what chance leaves. Everything later builds on that and is learned badly without. Then look-ups, then episodes.
    """
    if kind == "rag":
        yield from itertools.repeat([(rag_trace, 3000)])
    for _ in range(6):
        yield [(repeats, 4000)]
    yield [(repeats, 1500), (opening_trace, 4000), (partial(drill, passages=(1,)), 2500)]
    for _ in range(3):
        yield [(repeats, 600), (opening_trace, 1000), (partial(drill, passages=(1, 1, 2)), 4000)]
    yield from itertools.repeat([(repeats, 500), (agent_trace, 3000), (partial(drill, passages=(1, 2, 2, 3)), 1200)])


def collate(batch: list[Example]) -> tuple[Tensor, Tensor]:
    """Pads on the right to the longest: ids with 0, labels with -100. Both [B, T]."""
    width = max(len(e.ids) for e in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    labels = torch.full((len(batch), width), -100)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        labels[row, : len(example.labels)] = torch.tensor(example.labels)
    return ids, labels


def opening_trace(world: World, rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Example:
    """First turns only: a question or a program, the program in the thought, the first search."""
    kind = rng.random()
    if kind < 0.25:
        return encode(rewriting_drill(world, rng)[:2], True, tokenizer)
    if kind < 0.55:
        return encode(wording_drill(world, rng), True, tokenizer)
    return encode(opening(draw(world, rng)), True, tokenizer)


def agent_trace(world: World, rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Example:
    """Drills, impatient episodes, and perfect paths whose decisions carry no loss."""
    kind = rng.random()
    if kind < 0.08:
        return encode(reading_drill(world, rng), True, tokenizer)
    if kind < 0.20:
        return encode(rewriting_drill(world, rng), False, tokenizer)
    if kind < 0.32:
        return encode(wording_drill(world, rng), True, tokenizer)
    if kind < 0.64:
        return encode(episode(draw(world, rng), world, Patience(), rng), True, tokenizer)
    return encode(oracle(draw(world, rng), world), False, tokenizer)


def rag_trace(world: World, rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Example:
    """A question of either set with one retrieval."""
    return encode(rag_example(draw(world, rng), world), True, tokenizer)


def drill(world: World, rng: random.Random, tokenizer: PreTrainedTokenizerFast, passages: tuple[int, ...]) -> Example:
    """A look-up drill of about a dozen programs over one of the numbers of ``passages``."""
    return encode_segments(lookup_drill(world, rng, rng.choice(passages), programs=12), tokenizer)


def repeats(world: World, rng: random.Random, tokenizer: PreTrainedTokenizerFast) -> Example:
    """A repeating drill of up to fifteen phrases."""
    return encode_segments(repeating_drill(world, rng, rng.randint(2, 15), times=2), tokenizer)


def encode_segments(segments: Segments, tokenizer: PreTrainedTokenizerFast) -> Example:
    """Tokenises (text, whether it carries loss) pairs."""
    # Tokenised as a whole, as the policy will write it: a token may reach over the end of a segment.
    encoding = tokenizer.backend_tokenizer.encode("".join(text for text, _ in segments), add_special_tokens=False)
    ends = list(itertools.accumulate(len(text) for text, _ in segments))
    taught = [segments[bisect.bisect_right(ends, start)][1] for start, _ in encoding.offsets]
    labels = [token if teach else -100 for token, teach in zip(encoding.ids, taught)]
    return Example(encoding.ids, labels[1:] + [-100])


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
