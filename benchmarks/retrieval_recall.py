"""Recall of one search with the question itself: ``python -m benchmarks.retrieval_recall CORPUS QUESTIONS``.

The share of a question's supporting titles among the ``--k`` best passages, averaged over the questions, and the
share of the questions of which all came up. QUESTIONS is any file of ``docs/data.md`` that names titles; the index
is built beside CORPUS, as the service does. The last line is the result as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from configs.retriever import RetrieverConfig
from envs.data.questions import QuestionSource, load_questions
from tools.retrieval.build import build

KINDS = ("lexical", "dense", "hybrid")
_BATCH = 64


def measure(config: RetrieverConfig, questions: Sequence, k: int) -> dict[str, float]:
    """recall, all_found: shares in [0, 1]. build_s, search_s: seconds of building (what was not there) and searching."""
    started = time.perf_counter()
    corpus, searcher = build(config)
    built = time.perf_counter()
    shares = []
    for start in range(0, len(questions), _BATCH):
        batch = questions[start : start + _BATCH]
        for question, hits in zip(batch, searcher.search([question.question for question in batch], k)):
            titles = {corpus[row].title for row, _ in hits}
            shares.append(len(titles.intersection(question.titles)) / len(set(question.titles)))
    return {
        "recall": round(sum(shares) / len(shares), 4),
        "all_found": round(sum(share == 1 for share in shares) / len(shares), 4),
        "build_s": round(built - started, 1),
        "search_s": round(time.perf_counter() - built, 2),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.retrieval_recall", description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="passages, as retriever.corpus")
    parser.add_argument("questions", type=Path, help="questions with supporting titles")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--k", type=int, default=5, help="passages of a search (5)")
    parser.add_argument("--folder", type=Path, help="where the index is kept, as retriever.folder")
    args = parser.parse_args(argv)
    try:
        questions = [q for q in load_questions(QuestionSource(path=str(args.questions)), "fatal") if q.titles]
        if not questions:
            raise ValueError(f"{args.questions}: no question names its supporting titles")
        result = {}
        for kind in args.kinds:
            result[kind] = measure(
                RetrieverConfig(corpus=args.corpus, folder=args.folder, kind=kind), questions, args.k
            )
            print(f"{kind:<8} recall@{args.k} {result[kind]['recall']:.3f}  all found {result[kind]['all_found']:.3f}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps({"corpus": str(args.corpus), "questions": len(questions), "k": args.k, **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
