"""The terminal of ``--role chat``: a person's lines in, the agent's turns, tool calls and their results out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import signal
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from actors.chat import ChatFormat, ChatFormatError
from actors.conversation import Conversation, ConversationFull
from actors.episode import Limits, Sampling
from actors.sampler import Sampler, SamplingFailed
from configs.load import ConfigError, load_config
from configs.schema import Config
from envs.base import StepResult, ToolEnv
from envs.configured import prepare_tools, shutdown_tools
from envs.registry import load_env

HELP = """\
/task [DATA SET] [NUMBER]  have the agent do a task of the environment; without a number, any
/reset                     begin anew
/help                      this
/quit                      leave (also Ctrl-D; Ctrl-C stops the agent, or leaves where it is your turn)"""

#: How parts of a turn are shown: pattern → style.
_STYLES = {r"(?s)<tool_call>.*?(</tool_call>|$)": "cyan", r"(?s)<think>.*?(</think>|$)": "dim",
           r"(?s)<answer>.*?(</answer>|$)": "bold green"}  # fmt: skip
#: Most lines of one tool's result that are shown.
_LINES = 12


@dataclass(frozen=True, slots=True)
class FixedServers:
    """The servers of a chat, with whatever weights they have. A ``actors.sampler.Servers``."""

    servers: Sequence[str]
    version: int = 0


class Talk:
    """What the commands do. One conversation at a time."""

    def __init__(self, config: Config, env: type[ToolEnv], chat: ChatFormat, sampler: Sampler, console: Console):
        """Raises ``ValueError`` where the environment has no eval task, from which the agent would have its tools."""
        self._config, self._env, self._chat, self._sampler, self._console = config, env, chat, sampler, console
        self._random = random.Random(config.run.seed)
        self._conversation: Conversation | None = None
        self._first = next(iter(self._tasks(config.env.eval[0], 1)), None)
        if self._first is None:
            raise ValueError(f"env.eval: the data set {config.env.eval[0]!r} of {config.env.path} has no tasks")

    async def line(self, line: str) -> bool:
        """Do what a line says. False: leave."""
        command, *words = line.split() or [""]
        match command:
            case "":
                pass
            case "/quit" | "/exit":
                return False
            case "/help":
                self._note(HELP)
            case "/reset":
                await self.reset()
                self._note("a new conversation")
            case "/task":
                await self._task(words)
            case _ if command.startswith("/") and len(command) > 1:
                self._note(f"there is no command {command}; /help lists them")
            case _:
                await self._say(line)
        return True

    async def reset(self) -> None:
        """Forget the conversation and close its tools."""
        conversation, self._conversation = self._conversation, None
        if conversation:
            await conversation.close()

    async def _say(self, line: str) -> None:
        conversation = self._conversation
        if conversation is None:
            conversation = self._conversation = self._new()
            await conversation.open(self._first)
        with self._thinking():
            await conversation.say(line)

    async def _task(self, words: list[str]) -> None:
        numbers = [word for word in words if word.isdecimal()]
        names = [word for word in words if not word.isdecimal()] or [self._random.choice(self._config.env.eval)]
        if names[0] not in self._config.env.eval or len(names) > 1 or len(numbers) > 1:
            self._note(f"write /task [DATA SET] [NUMBER]; data sets: {', '.join(self._config.env.eval)}")
            return
        tasks = self._tasks(names[0])
        number = int(numbers[0]) if numbers else self._random.randrange(len(tasks))
        if number >= len(tasks):
            self._note(f"{names[0]} has the tasks 0 to {len(tasks) - 1}")
            return
        await self.reset()
        conversation = self._conversation = self._new()
        messages = await conversation.open(tasks[number])
        self._note(f"task {number} of {names[0]}")
        for message in messages:
            self._show(message["role"], "bold", Text(_visible(str(message["content"]))))
        with self._thinking():
            result = await conversation.play(messages)
        self._outcome(tasks[number], result)

    def _new(self) -> Conversation:
        config, seed = self._config, self._random.getrandbits(31)
        limits = Limits(config.env.max_turns, config.model.max_tokens, config.sampling.turn_tokens)
        sampling = Sampling(config.eval.temperature, 1.0)
        return Conversation(self._env(), self._chat, self._sampler, limits, sampling, seed, self._turn)

    def _tasks(self, dataset: str, limit: int | None = None) -> list[dict[str, Any]]:
        return self._env.tasks("eval", dataset, limit)

    # ── what a person sees ───────────────────────────────────────────────────

    def _turn(self, text: str, result: StepResult) -> None:
        shown = Text(_visible(text.strip()) or "(nothing)")
        for pattern, style in _STYLES.items():
            for found in re.finditer(pattern, shown.plain):
                shown.stylize(style, *found.span())
        self._show("agent", "bold magenta", shown)
        for tool in result.tool_results:
            head = Text.assemble(
                (_visible(tool.name) or "?", "bold cyan"), (f" · {1000 * tool.latency_s:.0f} ms", "dim")
            )
            if tool.fault:
                head.append(f" · {tool.fault}", "red")
            lines = _visible(tool.text.strip()).splitlines()
            rest = [f"… {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
            self._console.print(Padding(head, (0, 0, 0, 7), expand=False))
            self._console.print(Padding(Text("\n".join([*lines[:_LINES], *rest]), "dim"), (0, 0, 0, 9), expand=False))

    def _outcome(self, task: dict[str, Any], result: StepResult) -> None:
        metrics = [f"{name} {value:g}" for name, value in result.info.get("metrics", {}).items()]
        reward = f"reward {result.info.get('outcome_reward', 0.0):g}"
        expected = f" · expected: {' | '.join(map(str, task['answers']))}" if task.get("answers") else ""
        self._note(f"{' · '.join([reward, *metrics])}{expected}")

    def _show(self, who: str, style: str, text: Text) -> None:
        self._console.print(Text(f"{who:<6} ", style), end="")
        self._console.print(text, soft_wrap=True)

    def _note(self, text: str) -> None:
        self._console.print(Text(_visible(text), "dim"), soft_wrap=True)

    def _thinking(self) -> contextlib.AbstractContextManager[Any]:
        terminal = self._console.is_terminal
        return self._console.status("…", spinner="dots") if terminal else contextlib.nullcontext()


def talk(config: Config, console: Console) -> int:
    """Read lines until ``/quit``, the end of the input or Ctrl-C at the prompt. The exit code."""
    env = load_env(config.env.path, config.env.args)
    chat = ChatFormat.load(config.model.path, config.model.tool_format)
    prompt = "you    " if sys.stdin.isatty() else ""
    if prompt:
        import readline  # noqa: F401 (gives ``input`` its history and keys)
    with asyncio.Runner() as runner:
        sampler = Sampler(FixedServers(config.server.urls), config.actor.request_timeout_s)
        room = Talk(config, env, chat, sampler, console)
        try:
            runner.run(prepare_tools([env]))
            runner.run(sampler.__aenter__())
            console.print(Text("/help lists what you can do besides asking", "dim"))
            while (line := _read(prompt)) is not None:
                try:
                    if not runner.run(room.line(line)):
                        break
                except KeyboardInterrupt:
                    console.print(Text("stopped; what you said last is taken back", "dim"))
                except ConversationFull:
                    console.print(Text("no tokens are left in this conversation (model.max_tokens): /reset", "red"))
                except Exception as error:  # an environment of the user's may raise anything; the talk goes on
                    what = str(error) if isinstance(error, SamplingFailed) else f"{type(error).__name__}: {error}"
                    console.print(Text(f"error: {_visible(what)}", "red"), soft_wrap=True)
        finally:
            for end in (room.reset, lambda: sampler.__aexit__(None, None, None), lambda: shutdown_tools([env])):
                with contextlib.suppress(Exception):
                    runner.run(_within(end(), seconds=5.0))
    return 0


async def _within(work: Any, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await work


def _read(prompt: str) -> str | None:
    """The next line; None at the end of the input, and for Ctrl-C."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def _visible(text: str) -> str:
    """What a model writes must not steer the terminal: control characters become visible."""
    return "".join(
        c if c in "\n\t" or unicodedata.category(c)[0] != "C" else c.encode("unicode_escape").decode() for c in text
    )


def main(path: str) -> int:
    """``python -m actors.talk CONFIG``: talk to the servers of ``server.urls``."""
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return talk(load_config(path), Console(highlight=False))
    except (ConfigError, ChatFormatError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
