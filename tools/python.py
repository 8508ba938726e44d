"""``python``: code of the model's in a confined process, which keeps its variables for the episode."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated, ClassVar, Self

from pydantic import Field, validate_call

from tools.base import CallTimeout, Tool
from tools.confine import MEASURES, REQUIRED
from tools.python_process import START_TIMEOUT_S, Limits, Outcome, ProcessEnded, PythonProcess

log = logging.getLogger("rollway.tools")

_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: Processes that start at the same time: 200 episodes begin together, and their event loop wants some of the CPU.
_STARTS = 4


class Python(Tool):
    """Executes code; answers with what it printed, the value of a last expression, the traceback.

    time_s: one call. cpu_s: CPU time of an episode's process. memory_mb: its address space.
    file_mb: one file, printed text included. folder_mb: all its files. max_processes: at a time
    in this actor, over all episodes; further ones wait, wait_s at most. require_confinement:
    refuse to run anything where a measure of ``tools.confine.REQUIRED`` is not in force.
    """

    name: ClassVar[str] = "python"
    description: ClassVar[str] = (
        "Run Python code. Variables are kept between calls. Print what you want to see; "
        "the value of a last expression is shown. There is no network."
    )
    parameters: ClassVar[dict] = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the code"}},
        "required": ["code"],
        "additionalProperties": False,
    }

    @validate_call
    def __init__(
        self,
        time_s: _Seconds = 10.0,
        cpu_s: _Count = 60,
        memory_mb: Annotated[int, Field(ge=64)] = 512,
        file_mb: _Count = 16,
        folder_mb: _Count = 64,
        max_processes: _Count = 64,
        wait_s: _Seconds = 60.0,
        require_confinement: bool = True,
    ):
        self.time_s, self.wait_s, self.require_confinement = time_s, wait_s, require_confinement
        self.limits = Limits(memory_mb, cpu_s, file_mb, folder_mb)
        # Each part has a limit of its own; this one is for the rest.
        self.timeout_s = wait_s + START_TIMEOUT_S + time_s + 10.0
        self._places = asyncio.Semaphore(max_processes)
        self._starts = asyncio.Semaphore(_STARTS)
        self._max_processes = max_processes
        self._begin()

    def _begin(self) -> None:
        self._process: PythonProcess | None = None
        self._turn = asyncio.Lock()

    async def prepare(self) -> None:
        """Starts a process to see which measures are in force here, and says so in the log."""
        try:
            process = await self._start()
        except (ProcessEnded, OSError) as error:
            raise ValueError(f"tool python: {error}") from None
        await process.kill()
        for measure, words in MEASURES.items():
            held = measure in process.in_force
            log.log(logging.INFO if held else logging.WARNING, "python: %s: %s", "yes" if held else "NO", words)

    def for_episode(self) -> Self:
        """A namespace of its own; the places for processes are shared."""
        mine = object.__new__(type(self))
        mine.__dict__.update(self.__dict__)
        mine._begin()
        return mine

    async def execute(self, code: str) -> str:
        try:
            async with asyncio.timeout(self.wait_s):
                await self._turn.acquire()  # calls of one turn see each other's variables: one by one, in order
        except TimeoutError:
            raise CallTimeout(f"earlier calls of this turn took more than {self.wait_s:g} s") from None
        try:
            if self._process is None:
                self._process = await self._start_in_a_place()
            try:
                return self._text(await self._process.run(code, self.time_s))
            except BaseException:
                self._leave()  # ``run`` has killed it
                raise
        except ProcessEnded as end:
            note = f"{end}. The process is gone, and its variables with it; the next call starts a new one."
            kind = CallTimeout if end.timed_out else RuntimeError
            raise kind("\n".join(filter(None, [note, end.output]))) from None
        finally:
            self._turn.release()

    async def close(self) -> None:
        """The place is free once the process is gone. The tool may be used again, without the old variables."""
        if (process := self._process) is not None:
            self._process = None
            try:
                await process.kill()
            finally:
                self._places.release()

    async def _start_in_a_place(self) -> PythonProcess:
        if self._places.locked():
            log.info("python: all %d processes are in use; a call waits for one", self._max_processes)
        try:
            async with asyncio.timeout(self.wait_s):
                await self._places.acquire()
        except TimeoutError:
            raise CallTimeout(
                f"no process was free within {self.wait_s:g} s ({self._max_processes} are in use); try again"
            ) from None
        try:
            async with self._starts:
                return await self._start()
        except BaseException:
            self._places.release()
            raise

    async def _start(self) -> PythonProcess:
        process = await PythonProcess.start(self.limits)
        missing = [measure for measure in REQUIRED if measure not in process.in_force]
        if missing and self.require_confinement:
            await process.kill()
            raise ProcessEnded(
                f"this machine cannot confine it ({', '.join(missing)} not in force; see `python -m tools.python`). "
                "Use a Linux kernel with seccomp and Landlock, or set require_confinement: false"
            )
        return process

    def _leave(self) -> None:
        if self._process is not None:
            self._process = None
            self._places.release()

    def _text(self, outcome: Outcome) -> str:
        if outcome.error is None:
            return outcome.output or "[no output]"
        room = max(0, self.max_output_chars - len(outcome.error) - 100)  # the traceback is what helps most
        output = outcome.output
        if len(output) > room:
            output = f"{output[:room]}\n[cut: {room} of {len(output)} characters shown]\n"
        return output + outcome.error


async def _report() -> int:
    """For ``python -m tools.python``: what is in force on this machine; 1 where code would be refused."""
    process = await PythonProcess.start(Limits(512, 60, 16, 64))
    await process.kill()
    for measure, words in MEASURES.items():
        print(f"{'yes' if measure in process.in_force else 'NO '}  {words}")
    print(process.note, end="")
    return int(not process.in_force.issuperset(REQUIRED))


if __name__ == "__main__":
    sys.exit(asyncio.run(_report()))
