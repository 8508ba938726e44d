"""GSM8K: word problems with one number as the answer, to be worked out with whatever tools are configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from envs.answer_env import AnswerEnv
from envs.base import Message
from envs.data.problems import load_problems
from envs.data.source import Catalogue, Source
from envs.scoring import number_match
from tools.base import ToolResult


class GSM8K(AnswerEnv):
    """Has no tool of its own: ``env.args.tools`` gives it ``calculator``, ``python`` or both.

    Metrics: em (the answer is the right number), format, calls (those answered without a fault).
    """

    catalogue: ClassVar[Catalogue[Source]]
    instructions: ClassVar[str] = ""

    @classmethod
    def setup(
        cls, files: dict[str, Any], bad_rows: str = "fatal", format_weight: float = 1.0, instructions: str = ""
    ) -> None:
        """
        files, bad_rows: see ``envs.data.source``. format_weight: see ``AnswerEnv``. instructions:
        system message. Raises ``ValueError``.
        """
        cls.catalogue = Catalogue(files, Source, bad_rows)
        cls.format_weight, cls.instructions = format_weight, instructions

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        problems = load_problems(cls.catalogue.source(split, dataset), cls.catalogue.bad_rows)
        return [
            {"id": f"{dataset}-{p.id}", "split": split, "question": p.question, "answer": p.answer}
            for p in problems[:limit]
        ]

    def start(self, task: dict[str, Any], seed: int) -> list[Message]:
        self._answer, self._calls = task["answer"], 0
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return [*system, {"role": "user", "content": task["question"]}]

    def process_reward(self, results: Sequence[ToolResult]) -> float:
        self._calls += sum(result.fault is None for result in results)
        return 0.0

    def judge_answer(self, answer: str) -> dict[str, float]:
        return {"em": number_match(answer, self._answer), "calls": float(self._calls)}
