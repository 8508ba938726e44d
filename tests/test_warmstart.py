"""The warm start: the head that looks one token back, the drills' labels, a few steps that learn."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import Qwen2ForCausalLM

from envs.world import World
from envs.world.drills import repeating_drill
from learner.tiny import build_tokenizer, look_one_back, tiny_config
from learner.warmstart import make_optimizers, repeats, schedule, vocabulary_texts, warmstart


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(vocabulary_texts())


def test_a_head_that_looks_one_back_does_so_whatever_the_tokens(tokenizer):
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(tiny_config(tokenizer)).eval()
    model.set_attn_implementation("eager")
    look_one_back(model.model.layers[0].self_attn, head=1)
    ids = torch.randint(len(tokenizer), (2, 400))
    with torch.no_grad():
        first, second = model(ids, output_attentions=True).attentions[0].transpose(0, 1)
    before = torch.arange(399)
    assert second[:, before + 1, before].min() > 0.9
    assert first[:, before + 1, before].mean() < 0.1  # the other head is as it was


def test_what_a_repeating_drill_teaches_stood_there_before():
    """Every labelled segment follows, for the second or third time, the word that it followed at first."""
    world = World(1000, "train")
    for seed in range(20):
        _, *segments = repeating_drill(world, random.Random(seed), phrases=6, times=2)
        pairs = [(a[0], b) for a, b in zip(segments[::2], segments[1::2], strict=True)]
        assert len(pairs) == 18 and not any(taught for _, taught in segments[::2])
        known = {(word, rest) for word, (rest, taught) in pairs[:6] if not taught}
        assert len(known) == 6
        assert all(taught and (word, rest) in known for word, (rest, taught) in pairs[6:])


def test_labels_of_a_repeating_drill_are_the_next_tokens(tokenizer):
    example = repeats(World(1000, "train"), random.Random(0), tokenizer)
    taught = [(i, label) for i, label in enumerate(example.labels) if label != -100]
    assert taught and all(example.ids[i + 1] == label for i, label in taught)


def test_a_possessive_and_its_relation_are_one_token(tokenizer):
    text = " Amber Falcon's director's birthplace"
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert pieces == [" Amber", " Falcon", "'s director", "'s birthplace"]


def test_the_rate_rises_stays_and_falls_to_zero():
    rates = [schedule(step, 1000) for step in range(1000)]
    assert rates[0] == 1 / 50 and rates[49] == rates[200] == 1.0 and 0 < rates[-1] < 0.01
    assert rates[200:] == sorted(rates[200:], reverse=True)


def test_matrices_of_the_layers_go_to_muon_and_all_else_to_adamw(tokenizer):
    model = Qwen2ForCausalLM(tiny_config(tokenizer))
    muon, adamw = make_optimizers(model, 0.1, 0.2)
    sizes = [sum(p.numel() for group in o.param_groups for p in group["params"]) for o in (muon, adamw)]
    assert sum(sizes) == sum(p.numel() for p in model.parameters())
    assert all(p.ndim == 2 for group in muon.param_groups for p in group["params"])


@pytest.mark.timeout(300)
def test_some_steps_learn_and_leave_a_policy_that_can_be_gone_on_with(tokenizer, tmp_path):
    losses = []
    options = {"batch_tokens": 512, "progress": lambda step, loss: losses.append(loss)}
    warmstart(tmp_path / "agent", steps=40, **options)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    warmstart(tmp_path / "rag", "rag", steps=2, start=tmp_path / "agent", **options)
    model = Qwen2ForCausalLM.from_pretrained(tmp_path / "rag")
    assert model.config.vocab_size >= len(tokenizer) and model.generation_config.eos_token_id is not None
