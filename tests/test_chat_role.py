"""``--role chat``: what a person types and sees, over a real socket to a stand-in for vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors.chat import ChatFormat
from configs.load import load_config
from envs.registry import load_env
from tests.canned_server import CannedServer, answer
from tests.terminal import Terminal

ROOT = Path(__file__).parents[1]
CHAT = ChatFormat.load("configs/models/tiny-agent")
CALL = '<tool_call>{"name": "search", "arguments": {"query": "Blind Castle"}}</tool_call>'


def turns_of(body) -> int:
    """How many turns the policy has written before this request."""
    return CHAT._tokenizer.decode(body["token_ids"], skip_special_tokens=False).count("<|im_start|>assistant") - 1


def script(*turns: str):
    """A server that writes these turns: by how many turns of the policy a prompt has, the last one for ever."""

    def reply(body):
        text = turns[min(turns_of(body), len(turns) - 1)]
        return answer([*CHAT._encode(text), CHAT.eot_id])

    return reply


async def chat(lines: list[str], server: CannedServer, *options: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the role with ``lines`` piped in."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "run.py", "--role", "chat", f"server.urls=[{server.url}]", *options),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "300"},
    )
    try:
        async with asyncio.timeout(60):
            out, err = await process.communicate("".join(f"{line}\n" for line in lines).encode())
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode(), err.decode()


def prompts(server: CannedServer) -> list[str]:
    return [CHAT._tokenizer.decode(body["token_ids"], skip_special_tokens=False) for body in server.requests]


async def test_a_question_its_calls_and_its_answer_and_the_talk_goes_on():
    turns = [CALL, "<answer>1944</answer>", "Because \x1b[2J it says so."]
    async with CannedServer(script(*turns)) as server:
        code, out, err = await chat(["Who is it?", "", "Why?", "/nonsense", "/quit", "never read"], server)
    assert (code, err) == (0, "")
    agent = re.findall(r"^agent +(.*)$", out, re.MULTILINE)
    assert agent[:2] == turns[:2] and "\x1b[2J" not in out
    assert re.search(r"^ +search · [\d.]+ m?s *$", out, re.MULTILINE) and "there is no command /nonsense" in out
    asked = prompts(server)
    assert len(asked) == 3 and "<tool_response>" in asked[1] and asked[2].startswith(asked[1])
    assert asked[2].count("Who is it?") == 1 and "Why?" in asked[2] and "never read" not in asked[2]
    assert {body["sampling_params"]["temperature"] for body in server.requests} == {0.0}


async def test_the_tokens_sampled_are_the_tokens_sent_back():
    async with CannedServer(script(CALL, "fine")) as server:
        await chat(["one", "two"], server)
    first, second, third = (body["token_ids"] for body in server.requests)
    call, fine = ([*CHAT._encode(text), CHAT.eot_id] for text in (CALL, "fine"))
    assert second[: len(first) + len(call)] == first + call
    assert third[: len(second) + len(fine)] == second + fine


async def test_a_task_is_played_to_its_end_and_judged():
    config = load_config()
    task = load_env(config.env.path, config.env.args).tasks("eval", "wiki2", 4)[3]
    right = f"<answer>{task['answers'][0]}</answer>"
    async with CannedServer(script("Let me see.", right, "You are welcome.")) as server:
        code, out, _ = await chat(
            ["/task wiki2 3", "/task nowhere", "/task wiki2 99999", "Thanks!", "/reset", "x"], server
        )
    assert code == 0 and f"user   {task['question']}" in out
    assert "reward 1 · em 1 · f1 1" in out and f"expected: {task['answers'][0]}" in out
    assert "data sets: hotpot, wiki2, musique" in out and "wiki2 has the tasks 0 to 599" in out
    asked = prompts(server)
    assert "Call a tool" in asked[1]  # the environment's nudge: a task is no talk
    assert "Thanks!" in asked[2] and asked[2].startswith(asked[1])
    assert "Thanks!" not in asked[3] and task["question"] not in asked[3]


async def test_a_task_that_is_cut_has_an_outcome_too():
    async with CannedServer(script("Hm.")) as server:
        code, out, _ = await chat(["/task hotpot 0"], server, "env.max_turns=2")
    assert code == 0 and len(server.requests) == 2 and "reward -0.5 · em 0" in out


async def test_what_fails_is_one_line_and_taken_back():
    """A server that refuses, then a conversation without room: the next lines go on from where it stood."""
    replies = iter([400])

    def reply(body):
        return next(replies, None) or script("word " * 20)(body)

    async with CannedServer(reply) as server:
        lines = ["lost", "kept", "and more", "again"]
        _, out, _ = await chat(lines, server, "model.max_tokens=130", "sampling.turn_tokens=64")
    assert "refused the request: HTTP 400" in out and "no tokens are left" in out
    asked = prompts(server)
    assert "lost" not in asked[1] and "kept" in asked[1]


@pytest.mark.parametrize("end", [[], ["/exit"]])
async def test_the_end_of_the_input_ends_it(end):
    async with CannedServer(script("x")) as server:
        assert (await chat(end, server))[0] == 0


def _await_prompt(terminal: Terminal) -> None:
    """Until it is the person's turn: the cursor is behind the prompt."""
    deadline = time.monotonic() + 20
    while terminal.screen.display[terminal.screen.cursor.y].strip() != "you" and time.monotonic() < deadline:
        terminal._read(0.1)


def test_ctrl_c_stops_the_agent_then_leaves(tmp_path):
    """On a terminal, the role's own process group as a shell has it; nothing is left of its scratch folder."""

    async def serve():
        slow = CannedServer(script("first answer"))
        async with slow:
            terminal = await asyncio.to_thread(
                Terminal, "run.py", "--role", "chat", f"server.urls=[{slow.url}]", TMPDIR=str(tmp_path), width=100
            )
            try:
                await asyncio.to_thread(terminal.wait_for, "/help lists")
                slow.delay_s = 30.0
                terminal.send(b"are you there\n")
                deadline = time.monotonic() + 20
                while not slow.requests and time.monotonic() < deadline:
                    await asyncio.sleep(0.05)
                os.killpg(terminal.process.pid, signal.SIGINT)
                await asyncio.to_thread(terminal.wait_for, "stopped; what you said last is taken back")
                slow.delay_s = 0.0
                terminal.send(b"and now\n")
                await asyncio.to_thread(terminal.wait_for, "first answer")
                await asyncio.to_thread(_await_prompt, terminal)
                os.killpg(terminal.process.pid, signal.SIGINT)
                assert await asyncio.to_thread(terminal.end) == 0
            finally:
                terminal.process.kill()
            return prompts(slow)

    asked = asyncio.run(serve())
    assert "are you there" in asked[0] and "are you there" not in asked[-1] and "and now" in asked[-1]
    assert list(tmp_path.glob("rollway-chat-*")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_while_the_server_starts_it_leaves_nothing(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "run.py", "--role", "chat", "server.urls=[http://127.0.0.1:9]"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("rollway-chat-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130 and "Traceback" not in err and list(tmp_path.iterdir()) == []


def test_the_terminal_loads_no_torch_and_nothing_of_the_learner():
    code = "import sys, json, actors.talk; print(json.dumps([m for m in sys.modules if m.split('.')[0] in ('torch', 'learner')]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == [], done.stderr
