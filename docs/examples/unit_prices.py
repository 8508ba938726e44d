"""A tool and an environment of one's own, in one file outside the packages.

PYTHONPATH=docs/examples python run.py env.path=unit_prices:UnitPrices env.train=[shop] env.eval=[shop]
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from envs.answer_env import AnswerEnv
from envs.base import Message
from tools.base import Tool, ToolResult

GOODS = ("apples", "bread", "cheese", "dates", "eggs", "flour")


class PriceList(Tool):
    """Says what one unit of something costs; whatever else happens becomes a message to the model."""

    name: ClassVar[str] = "price"
    description: ClassVar[str] = "Price of one unit, in cents."
    parameters: ClassVar[dict] = {
        "type": "object",
        "properties": {"item": {"type": "string", "enum": list(GOODS)}},
        "required": ["item"],
    }
    timeout_s = 1.0

    def __init__(self, prices: dict[str, int]):
        self.prices = prices

    def execute(self, item: str) -> tuple[str, int]:
        return f"{item}: {self.prices[item]}", self.prices[item]


class UnitPrices(AnswerEnv):
    """ "What do 3 apples and 2 eggs cost?" Looking a needed price up earns a little, the right sum earns 1."""

    lookup_reward: ClassVar[float] = 0.1

    @classmethod
    def setup(cls, lookup_reward: float = 0.1) -> None:
        """Options of ``env.args``; called once a process."""
        cls.lookup_reward = lookup_reward

    @classmethod
    def tasks(cls, split: str, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        rng = random.Random(f"{split}/{dataset}")
        tasks = []
        for number in range(200):
            amounts = {item: rng.randint(1, 9) for item in rng.sample(GOODS, 2)}
            prices = {item: rng.randint(10, 99) for item in GOODS}
            tasks.append({"id": f"{dataset}-{split}-{number}", "amounts": amounts, "prices": prices})
        return tasks[:limit]

    def start(self, task: dict[str, Any], seed: int) -> list[Message]:
        self.tools = [PriceList(task["prices"])]
        self._needed = {task["prices"][item] for item in task["amounts"]}
        self._total = sum(n * task["prices"][item] for item, n in task["amounts"].items())
        basket = " and ".join(f"{n} {item}" for item, n in task["amounts"].items())
        return [{"role": "user", "content": f"What do {basket} cost, in cents? Answer as <answer>number</answer>."}]

    def process_reward(self, results: Sequence[ToolResult]) -> float:
        found = self._needed & {result.data for result in results}
        self._needed -= found
        return self.lookup_reward * len(found)

    def judge_answer(self, answer: str) -> dict[str, float]:
        return {"em": float(answer.strip() == str(self._total))}
