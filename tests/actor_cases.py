"""What the tests of the actor share: a task, a scripted policy that solves it, a minimal environment."""

from __future__ import annotations

from types import SimpleNamespace

from actors.chat import ChatFormat
from actors.episode import Limits
from actors.sampler import Sampler
from envs.base import StepResult, ToolEnv
from envs.registry import load_env
from protocol.messages import Lease, Task
from tests.canned_server import CannedServer, answer
from tests.chat_templates import CHATML, byte_tokenizer

CHAT = ChatFormat(byte_tokenizer(), CHATML, {}, [], "test")
QA = load_env("envs.multihop:MultiHopQA", {"process_reward": 0.2})
LIMITS = Limits(max_turns=6, max_tokens=2000, turn_tokens=400)
PAYLOAD = next(t for t in QA.tasks("eval", "hotpot", 50) if len(t["gold_titles"]) == 2)
TASK = Task(task_id=PAYLOAD["id"], dataset="hotpot", payload=PAYLOAD)


def search(title: str) -> str:
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{title}"}}}}</tool_call>'


def turns_of(body: dict) -> int:
    """How many turns the policy has written before this request."""
    text = CHAT._tokenizer.decode(body["token_ids"], skip_special_tokens=False)
    return text.count("<|im_start|>assistant") - 1


def policy(*turns: str, version="0"):
    """A script that writes these turns, one after another, in every episode."""

    def script(body):
        ids = [*CHAT._encode(turns[min(turns_of(body), len(turns) - 1)]), CHAT.eot_id]
        limit = body["sampling_params"]["max_tokens"]
        finish = "stop" if len(ids) <= limit else "length"
        return answer(ids[:limit], finish, versions=[(version, 0, len(ids[:limit]))])

    return script


def solver():
    one, two = PAYLOAD["gold_titles"]
    return policy(f"look {search(one)}", search(two), f"<answer> {PAYLOAD['answers'][0]}</answer>")


def sampler_for(server: CannedServer, version: int = 0) -> Sampler:
    return Sampler(SimpleNamespace(servers=[server.url], version=version), request_timeout_s=60)


class OneTurn(ToolEnv):
    """Ends after one turn with the reward and info that it was made with."""

    def __init__(self, reward=0.0, info=None):
        self.reward, self.info = reward, info if info is not None else {"outcome_reward": 1.0}

    @classmethod
    def tasks(cls, split, dataset, limit=None):
        return []

    async def reset(self, task, seed):
        return [{"role": "user", "content": "hi"}]

    async def step(self, text, finish):
        return StepResult(reward=self.reward, done=True, info=self.info)


def lease(lease_id="L1", size=4, **more) -> Lease:
    return Lease(lease_id=lease_id, task=TASK, group_size=size, seed=100, **more)
