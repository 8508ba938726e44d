"""The retriever's index: corpus on disk, BM25, real faiss and MiniLM, fusion; a build that is killed goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import retrieval_recall
from configs.load import ConfigError, dump_config, load_config
from configs.retriever import DenseConfig, RetrieverConfig
from tests.retriever_cases import ROWS, Hashed, numbered, open_corpus, write
from tools.retrieval.build import build
from tools.retrieval.dense import DenseSearcher, faiss_index
from tools.retrieval.encoder import SentenceEncoder, pool
from tools.retrieval.hits import fuse
from tools.retrieval.lexical import LexicalSearcher, build_lexical
from tools.retrieval.vectors import VectorStore

ROOT = Path(__file__).parents[1]

# ── corpus ───────────────────────────────────────────────────────────────────


def test_documents_are_read_where_they_lie(tmp_path):
    corpus = open_corpus(write(tmp_path / "c.jsonl", [*ROWS[:2], "", *ROWS[2:]]))
    assert [document.id for document in corpus] == ["1", "b", "c", "d"]
    assert corpus[0].contents == '"Ada Byron"\nAda Byron was born in London.'
    assert (corpus[1].title, corpus[1].text) == ("London", "London lies on the Thames.")
    assert corpus[2].contents == "The Who\nA rock band of four.", "as the file has it"
    assert corpus[3].text == "A city at a lake, “größer” than Bern."


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{oops", "not valid JSON"),
        ("[1]", "want an object, got list"),
        ('{"title": "a", "text": "b"}', "needs id"),
        ('{"id": 1, "title": "a"}', "needs text: a string"),
        ('{"id": 1, "title": 5, "text": "b"}', "needs title: a string"),
        ('{"id": 1, "contents": " "}', "needs contents: a string that is not empty"),
        ('{"id": 1, "title": "", "text": "\\ud800"}', "lone surrogate"),
        (b"\xff\xfe".decode("latin-1"), "not valid JSON"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_or_skipped(tmp_path, line, says, caplog):
    path = write(tmp_path / "c.jsonl", [*ROWS, line, ROWS[0]])
    with pytest.raises(ValueError, match=rf"c\.jsonl:5: .*{says}.*bad_rows: skip"):
        open_corpus(path)
    corpus = open_corpus(path, "skip")
    assert len(corpus) == 5 and corpus[4].id == "1"
    assert "1 lines skipped, 5 used" in caplog.text
    with pytest.raises(ValueError, match="no line can be used"):
        open_corpus(write(tmp_path / "d.jsonl", [line]), "skip")


# ── lexical ──────────────────────────────────────────────────────────────────


def test_bm25_finds_titles_of_stop_words_and_takes_no_query_language(tmp_path):
    corpus = open_corpus(write(tmp_path / "c.jsonl", ROWS))
    build_lexical(tmp_path / "lexical", corpus)
    searcher = LexicalSearcher(tmp_path / "lexical")
    queries = ["where was the Ada Byron born", "the who", "zurich", "xyzzy", "", 'title:* AND ("London) ^2 [a TO z] ~']
    found = [[corpus[row].id for row, _ in hits] for hits in searcher.search(queries, 2)]
    assert [ids[:1] for ids in found] == [["1"], ["c"], ["d"], [], [], ["b"]]
    [[(_, best), (_, second)]] = searcher.search(["London"], 2)
    assert best > second > 0
    assert len(searcher.search(["word " * 3000], 2)[0]) == 0


def test_a_batch_that_is_searched_by_threads_is_answered_in_order(tmp_path):
    build_lexical(tmp_path / "lexical", open_corpus(numbered(tmp_path / "c.jsonl", 500)))
    searcher = LexicalSearcher(tmp_path / "lexical")
    queries = [f"Thing {n}" for n in range(500)]
    assert [hits[0][0] for hits in searcher.search(queries, 3)] == list(range(500))


# ── vectors and faiss ────────────────────────────────────────────────────────


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("index", [{"type": "flat"}, {"type": "ivf", "lists": 8, "probes": 8}, {"type": "hnsw"}])
def test_faiss_finds_what_a_plain_product_finds(tmp_path, index, precision):
    corpus = open_corpus(numbered(tmp_path / "c.jsonl", 500))
    config = DenseConfig(index=index, precision=precision)
    store = VectorStore(tmp_path, Hashed(), precision, 500, shard_rows=64)
    store.fill(corpus)
    searcher = DenseSearcher(Hashed(), faiss_index(config, store), on_gpu=False)
    queries = [f"question {n}" for n in range(50)]
    expected = Hashed().encode_queries(queries) @ np.concatenate(list(store)).T
    same = 0
    for hits, scores in zip(searcher.search(queries, 5), expected):
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
        assert [score for _, score in hits] == pytest.approx([scores[row] for row, _ in hits], abs=2e-3)
        same += len({row for row, _ in hits} & set(np.argsort(-scores)[:5].tolist()))
    assert same >= 0.98 * 250


def test_the_same_encoder_does_not_encode_twice_and_another_one_does(tmp_path):
    corpus = open_corpus(numbered(tmp_path / "c.jsonl", 100))
    store = VectorStore(tmp_path, Hashed(), "float32", 100, shard_rows=64)
    store.fill(corpus)
    stamps = [path.stat().st_mtime_ns for path in store.shards]
    for index in ({"type": "flat"}, {"type": "hnsw"}):
        again = VectorStore(tmp_path, Hashed(), "float32", 100, shard_rows=64)
        again.fill(corpus)
        assert faiss_index(DenseConfig(index=index), again).ntotal == 100
    assert [path.stat().st_mtime_ns for path in store.shards] == stamps

    class Other(Hashed):
        identity = {"weights": "other"}  # noqa: RUF012

    assert VectorStore(tmp_path, Other(), "float32", 100).folder != store.folder
    with pytest.raises(ValueError, match=r"index\.lists 50: 100 passages can train 2 at most"):
        faiss_index(DenseConfig(index={"type": "ivf", "lists": 50}), store)


def test_a_vector_that_is_not_finite_stops_the_building(tmp_path):
    class Broken(Hashed):
        def encode_passages(self, texts, advance):
            vectors = super().encode_passages(texts, advance)
            vectors[3, 5] = np.nan
            return vectors

    with pytest.raises(ValueError, match="passage '3' is not finite"):
        VectorStore(tmp_path, Broken(), "float32", 9).fill(open_corpus(numbered(tmp_path / "c.jsonl", 9)))


def test_pooling_by_hand():
    states = torch.arange(12.0).reshape(2, 3, 2)  # [[0,1],[2,3],[4,5]], [[6,7],[8,9],[10,11]]
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])  # padded on the right, on the left
    assert pool(states, mask, "mean").tolist() == [[1, 2], [9, 10]]
    assert pool(states, mask, "cls").tolist() == [[0, 1], [8, 9]]
    assert pool(states, mask, "last").tolist() == [[2, 3], [10, 11]]


def test_minilm_is_installed_and_understands_without_shared_words(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = RetrieverConfig(corpus=write(tmp_path / "c.jsonl", ROWS), kind="hybrid", folder=tmp_path / "index")
    corpus, searcher = build(config)
    [[(row, _), *_], [(other, _), *_]] = searcher.search(
        ["musicians playing guitars", "the English capital's river"], 2
    )
    assert (corpus[row].id, corpus[other].id) == ("c", "b")
    assert [corpus[row].id for row, _ in searcher.search(["Ada Byron"], 1)[0]] == ["1"]
    encoder = SentenceEncoder(DenseConfig())
    together = encoder.encode_queries(["a", "a much longer text than the one before", "b"])
    assert together.shape == (3, 384) and np.linalg.norm(together, axis=1) == pytest.approx(1.0)
    assert together[:1] == pytest.approx(encoder.encode_queries(["a"]), abs=1e-5), "padding changes nothing"


def test_an_encoder_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"retriever\.dense\.encoder /nowhere: cannot be loaded"):
        SentenceEncoder(DenseConfig(encoder="/nowhere"))


# ── fusion ───────────────────────────────────────────────────────────────────


def test_reciprocal_rank_fusion_by_hand():
    first, second = [(7, 9.0), (3, 8.0)], [(3, 0.9), (5, 0.8), (7, 0.1)]
    fused = fuse([first, second], 5)
    assert [row for row, _ in fused] == [3, 7, 5]
    assert [score for _, score in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 62])
    assert fuse([[(2, 1.0)], [(1, 1.0)]], 1) == [(1, 1 / 61)], "of equals the earlier row"


# ── building ─────────────────────────────────────────────────────────────────

_KILLED = """
import sys, time
from pathlib import Path
import numpy as np
from tests.retriever_cases import Hashed, open_corpus
from tools.retrieval.lexical import build_lexical
from tools.retrieval.vectors import VectorStore
folder = Path(sys.argv[1])
corpus = open_corpus(folder / "c.jsonl")
read = type(corpus).__getitem__
type(corpus).__getitem__ = lambda self, row: (time.sleep(0.01), read(self, row))[1]
if sys.argv[2] == "lexical":
    build_lexical(folder / "lexical", corpus, commit_rows=50)
else:
    VectorStore(folder, Hashed(), "float32", len(corpus), shard_rows=50).fill(corpus)
"""


@pytest.mark.parametrize("step", ["lexical", "vectors"])
def test_a_build_that_is_killed_goes_on_where_it_was(tmp_path, step):
    corpus = open_corpus(numbered(tmp_path / "c.jsonl", 400))
    process = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path), step], cwd=ROOT)

    def done() -> int:
        if step == "vectors":
            return 50 * len(list(tmp_path.glob("vectors-*/*.npy")))
        try:
            return LexicalSearcher(tmp_path / "lexical").passages if (tmp_path / "lexical/meta.json").exists() else 0
        except ValueError:  # caught between two of its files
            return 0

    deadline = time.monotonic() + 60
    while done() < 100 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.kill()
    process.wait()
    before = done()
    assert 100 <= before < 400
    if step == "lexical":
        build_lexical(tmp_path / "lexical", corpus)
        searcher = LexicalSearcher(tmp_path / "lexical")
        assert searcher.passages == 400
        assert [hits[0][0] for hits in searcher.search(["Thing 3", "Thing 397"], 1)] == [3, 397]
        build_lexical(tmp_path / "whole", corpus)
        queries = [f"Thing {n} word{n % 7}" for n in range(0, 400, 50)]
        whole = LexicalSearcher(tmp_path / "whole").search(queries, 5)
        for hits, expected in zip(searcher.search(queries, 5), whole):
            assert [score for _, score in hits] == pytest.approx([score for _, score in expected])
    else:
        store = VectorStore(tmp_path, Hashed(), "float32", 400, shard_rows=50)
        kept = {path: path.stat().st_mtime_ns for path in store.shards if path.exists()}
        store.fill(corpus)
        assert all(path.stat().st_mtime_ns == stamp for path, stamp in kept.items()), "what was done is done"
        texts = [f"{document.title}\n{document.text}" for document in corpus]
        assert np.concatenate(list(store)) == pytest.approx(Hashed().encode_queries(texts))


def test_another_corpus_in_the_same_folder_is_refused(tmp_path):
    config = RetrieverConfig(corpus=write(tmp_path / "c.jsonl", ROWS))
    assert len(build(config)[0]) == 4 and (tmp_path / "c.jsonl.index" / "corpus.json").exists()
    write(tmp_path / "c.jsonl", [*ROWS[:3], {**ROWS[3], "title": "Bern"}])
    with pytest.raises(ValueError, match="was built for another content"):
        build(config)


def test_two_builders_do_not_meet(tmp_path):
    config = RetrieverConfig(corpus=write(tmp_path / "c.jsonl", ROWS), folder=tmp_path / "index")
    build(config)
    code = f"import fcntl, time; f = open({str(tmp_path / 'index' / 'lock')!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(ValueError, match="another process is building"):
            build(config)
        holder.kill()


@pytest.mark.parametrize("kind", ["lexical", "dense", "hybrid"])
def test_a_resolved_configuration_can_be_read_again(tmp_path, kind):
    config = load_config(overrides=[f"retriever.kind={kind}"])
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml") == config


def test_the_benchmark_of_recall_tells_shares_on_its_last_line(tmp_path, capsys):
    questions = [
        {"id": 1, "question": "Where was Ada Byron born?", "answer": "London", "titles": ["Ada Byron", "The Who"]},
        {"id": 2, "question": "What lies on the Thames?", "answer": "London", "titles": ["London"]},
    ]
    arguments = [write(tmp_path / "c.jsonl", ROWS), write(tmp_path / "q.jsonl", questions)]
    assert retrieval_recall.main([*map(str, arguments), "--kinds", "lexical", "--k", "1"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["questions"], result["lexical"]["recall"], result["lexical"]["all_found"]) == (2, 0.75, 0.5)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["kind=lexical", "dense.encoder=x"], r"dense has no use with kind lexical"),
        (["kind=dense", "dense.index.type=hnsw", "dense.index.probes=3"], "it belongs to another one"),
        (["kind=dense", "dense.index.type=annoy"], r"retriever\.dense\.index\.type: must be one of"),
        (["top_k=200"], r"top_k \(200\) must not be above max_top_k \(100\)"),
        (["kind=sparse"], r"retriever\.kind"),
    ],
)
def test_options_that_do_not_fit_are_refused(overrides, says):
    with pytest.raises(ConfigError, match=says):
        load_config(overrides=[f"retriever.{override}" for override in overrides])
