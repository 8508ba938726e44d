"""Sums in words, to be worked out with a calculator: a first tool task for small pretrained models.

"Tom has 214 boxes with 37 pens each. How many pens is that?" The policy finds the expression, calls
the calculator and answers with the result. Questions are made up here; no data is needed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from envs.answer_env import AnswerEnv
from envs.base import Message
from envs.scoring import number_match
from tools.base import ToolCall, ToolResult
from tools.calculator import Calculator, evaluate

#: Data set → (question, expression) of two numbers.
KINDS = {
    "add": ("{name} has {a} {things} and gets {b} more. How many {things} is that?", "{a} + {b}"),
    "subtract": ("{name} has {a} {things} and gives away {b}. How many {things} are left?", "{a} - {b}"),
    "multiply": ("{name} has {a} boxes with {b} {things} each. How many {things} is that?", "{a} * {b}"),
}
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Tom")
THINGS = ("apples", "books", "coins", "pens", "shells", "stamps")
#: Questions of a data set: the first are held out, the rest are for training.
EVAL, ALL = 300, 2300


class Arithmetic(AnswerEnv):
    """Each episode begins with an example, in the model's own format of calls: small models copy before they understand.

    Reward: ``call_reward`` for the first call that the calculator can work out, as much again for the first
    right result, 1 for the right answer in the right format. Nothing is below 0, so that trying costs nothing.
    Metrics: em (the answer is the right number), calls (those answered without a fault), format.
    """

    format_weight = 0.0
    call_reward: ClassVar[float] = 0.1

    @classmethod
    def setup(cls, call_reward: float = 0.1) -> None:
        """Options of ``env.args``."""
        cls.call_reward = call_reward

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Raises ``ValueError`` for a data set that there is not."""
        if dataset not in KINDS:
            raise ValueError(f"no data set {dataset!r}; there are {', '.join(KINDS)}")
        question, expression = KINDS[dataset]
        rng = random.Random(dataset)
        numbers = rng.sample([(a, b) for a in range(101, 1000) for b in range(11, 100)], ALL)
        tasks = []
        for index, (a, b) in enumerate(numbers):
            words = question.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
            answer = str(evaluate(expression.format(a=a, b=b)))
            tasks.append({"id": f"{dataset}-{index}", "question": words, "answer": answer})
        return (tasks[:EVAL] if split == "eval" else tasks[EVAL:])[:limit]

    def start(self, task: dict[str, Any], seed: int) -> list[Message]:
        self.tools = [Calculator()]
        self._result, self._calls, self._found = int(task["answer"]), 0, False
        call = self.tool_format.render([ToolCall(Calculator.name, {"expression": "12 * 34"})])
        return [
            {"role": "system", "content": "Solve with the calculator."},
            {"role": "user", "content": "Sam has 12 boxes with 34 cards each. How many cards is that?"},
            {"role": "assistant", "content": call},
            {"role": "tool", "name": Calculator.name, "content": "408"},
            {"role": "assistant", "content": "<answer>408</answer>"},
            {"role": "user", "content": task["question"]},
        ]

    def process_reward(self, results: Sequence[ToolResult]) -> float:
        values = [result.data for result in results if result.fault is None]
        first_call = bool(values) and not self._calls
        first_found = self._result in values and not self._found
        self._calls += len(values)
        self._found |= first_found
        return self.call_reward * (first_call + first_found)

    def judge_answer(self, answer: str) -> dict[str, float]:
        return {"em": number_match(answer, str(self._result)), "calls": float(self._calls)}
