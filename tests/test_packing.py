"""Packing: nothing lost, nothing twice, budgets kept, ranks in step."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.policy.batch import ROW_FIELDS, Row, decode, encode, mini_batches, pack_message, unpack_message
from learner.policy.packing import pack
from learner.policy.sharing import common_prefix, share
from protocol.trajectory import Group
from tests.two_ranks import trajectory


def row(length: int, start: int = 0) -> Row:
    ids = np.arange(start, start + length, dtype=np.int32)
    mask = np.ones(length, np.uint8)
    mask[0] = 0
    return Row(ids, mask, -ids.astype(np.float32), ids.astype(np.float32) / 2, mask, np.arange(length, dtype=np.int32))


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 300), max_size=60),
    budget=st.integers(1, 400),
    ranks=st.integers(1, 5),
)
def test_every_row_once_within_budget_and_in_step(lengths, budget, ranks):
    rows = [row(n, 1000 * i) for i, n in enumerate(lengths)]
    shares = pack(rows, budget, ranks)
    assert len(shares) == ranks and len({len(share) for share in shares}) == 1 and len(shares[0]) >= 1
    batches = [micro for share in shares for micro in share]
    assert sorted(i for micro in batches for i in micro.rows) == list(range(len(lengths)))
    for micro in batches:
        assert micro.tokens <= budget or len(micro.rows) <= 1
        assert micro.cu_seqlens[0] == 0 and micro.cu_seqlens[-1] == micro.tokens
        if not len(micro.rows):
            assert micro.tokens == 1 and not micro.action_mask.any()
            continue
        for index, ids, positions, mask, mu, a in zip(
            micro.rows, *map(micro.split, (micro.token_ids, micro.position_ids, micro.action_mask,
                                           micro.behaviour_logprobs, micro.advantages)), strict=True
        ):  # fmt: skip
            expected = rows[index]
            np.testing.assert_array_equal(ids, expected.token_ids)
            np.testing.assert_array_equal(positions, np.arange(len(expected)))
            np.testing.assert_array_equal(mask, expected.action_mask.astype(bool))
            np.testing.assert_array_equal(mu, expected.behaviour_logprobs)
            np.testing.assert_array_equal(a, expected.advantages)


@pytest.mark.parametrize("alike", [False, True])
def test_ranks_get_balanced_tokens_at_each_step(alike):
    lengths = np.random.default_rng(0).integers(50, 400, 256)
    shares = pack([row(n, 0 if alike else 1000 * i) for i, n in enumerate(lengths)], 4096, 4)
    for step in zip(*shares, strict=True):
        tokens = [micro.tokens for micro in step]
        assert max(tokens) <= (1.15 if alike else 1.05) * min(tokens)
    used = sum(len(share) for share in shares)
    assert used <= -(-int(lengths.sum()) // 4096) + 4, "hardly more micro-batches than the tokens need"


@pytest.mark.parametrize("bad", [Row(**{name: np.zeros(0, dtype) for name, dtype in ROW_FIELDS.items()}), row(3)])
def test_a_token_without_predecessor_cannot_be_an_action(bad):
    bad.loss_mask = bad.action_mask = np.ones_like(bad.action_mask)
    with pytest.raises(ValueError, match="must begin with a prompt token"):
        pack([bad], 100)


def test_rows_survive_the_wire_and_mini_batches_keep_groups_whole():
    rng = np.random.default_rng(0)
    groups = [Group("l", "t", [trajectory(rng, 5 + i + j) for j in range(3)]) for i in range(4)]
    advantages = [[np.full(len(t), i + 1.0) for t in g.trajectories] for i, g in enumerate(groups)]
    batches = mini_batches(groups, advantages, 2)
    assert [[len(r) for r in rows] for rows in batches] == [[5, 6, 7, 6, 7, 8], [7, 8, 9, 8, 9, 10]]
    assert not batches[0][0].advantages[batches[0][0].action_mask == 0].any(), "advantages off action tokens are 0"
    back = decode(unpack_message(pack_message({"batches": encode(batches)}))["batches"])
    for before, after in zip(chain(*batches), chain(*back), strict=True):
        for name in ROW_FIELDS:
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


def test_fewer_groups_than_mini_batches_and_wrong_advantages():
    groups = [Group("l", "t", [trajectory(np.random.default_rng(0), 6)])]
    assert sorted(map(len, mini_batches(groups, [[np.ones(6)]], 3))) == [0, 0, 1]
    for wrong in (np.ones(5), np.full(6, np.nan)):
        with pytest.raises(ValueError, match=r"algorithm\.advantage\.type"):
            mini_batches(groups, [[wrong]], 1)


# ── what sequences begin with alike ──────────────────────────────────────────

_SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(_SEQUENCES)
def test_a_token_shares_its_state_with_equal_tokens_after_equal_ones_and_with_no_other(sequences):
    sharing = share([np.array(s) for s in sequences])
    contexts = [tuple(s[: t + 1]) for s in sequences for t in range(len(s))]
    assert len(sharing.expand) == len(contexts) and (np.diff(sharing.keep) > 0).all()
    for place, context in enumerate(contexts):
        assert contexts[sharing.keep[sharing.expand[place]]] == context
    shared = sum(common_prefix(np.array(a), np.array(b)) for a, b in pairwise(sequences))
    assert len(sharing.keep) == len(contexts) - shared


def test_rows_of_a_group_stay_together():
    groups = [[row(40 + k, 1000 * g) for k in range(4)] for g in range(6)]
    rows = [r for group in groups for r in group]
    for micro in pack(rows, 400)[0]:
        assert micro.computed == sum(43 for _ in {i // 4 for i in micro.rows}), "each prompt once"
    alone = pack([row(50, 1000 * i) for i in range(6)], 200, 2)
    assert all(micro.computed == micro.tokens for part in alone for micro in part)


def test_one_large_family_is_spread_over_the_ranks():
    shares = pack([row(50) for _ in range(8)], 10_000, 2)
    assert [len(micro.rows) for share_ in shares for micro in share_] == [4, 4]
