"""The rollout loop of `verifiers` (0.1) on the same turns: run by the Python that has it, not by ours.

Its chat client is the cheapest that it has: the server renders and tokenises, the client reads
token ids and log-probabilities from the answer. 0.4 runs every rollout in a process of its own.
"""

import asyncio
import logging
import os
import sys

import uvloop
import verifiers as vf
from datasets import Dataset
from verifiers.clients import resolve_client

QUESTION = "When was Blind Castle's star born? " * 34
FOUND = "Blind Castle is a film of 1952 with Ada Moss, who was born in Port Arden in 1921. {}"
TURNS = 4


class Lookups(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [vf.UserMessage(content=FOUND.format(id(state) + len(messages)))]


async def em(completion, **kwargs) -> float:
    return 1.0


async def main(url: str, in_flight: int) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"q{i} {QUESTION}"}], "answer": "", "example_id": i} for i in range(8)
    ]
    env = Lookups(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[em]), max_turns=TURNS)
    os.environ["LOAD_KEY"] = "none"
    client = vf.ClientConfig(api_base_url=f"{url}/v1", api_key_var="LOAD_KEY")
    resolved = resolve_client(client)
    inputs = env.get_dataset().to_list()
    sampling = {"temperature": 1.0, "max_tokens": 128, "logprobs": True}

    async def episodes(number: int) -> None:
        while True:
            output = await env.run_rollout(inputs[number % len(inputs)], resolved, "policy", dict(sampling))
            if output.get("error"):
                sys.exit(f"the peer failed: {output['error']}")

    await asyncio.gather(*(episodes(n) for n in range(in_flight)))


if __name__ == "__main__":
    logging.getLogger("httpx").setLevel(logging.WARNING)
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
