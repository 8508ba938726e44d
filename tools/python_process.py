"""One confined Python process, seen from the actor: start it, run code in it, kill it."""

from __future__ import annotations

import asyncio
import fcntl
import marshal
import os
import signal
import sys
import sysconfig
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.python_child import ERROR, OK

_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from tools.python_child import main; main(sys.argv[2])"
_ROOT = str(Path(__file__).resolve().parents[1])
#: An answer is short; whoever writes more is not our child any longer.
_MAX_ANSWER = 64 * 1024
#: Read of what a call printed; the file may be larger.
_MAX_OUTPUT = 1_000_000
START_TIMEOUT_S, _KILL_TIMEOUT_S = 20.0, 5.0


class ProcessEnded(Exception):
    """The process is gone, and its variables with it. output: what the call had printed. timed_out: by our limit."""

    def __init__(self, reason: str, output: str = "", timed_out: bool = False):
        super().__init__(reason)
        self.output, self.timed_out = output, timed_out


@dataclass(frozen=True, slots=True)
class Limits:
    """memory_mb: address space. cpu_s: CPU time of the whole life. file_mb: one file. folder_mb: all files."""

    memory_mb: int
    cpu_s: int
    file_mb: int
    folder_mb: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """output: what was printed, a megabyte at most. error: the traceback, or None."""

    output: str
    error: str | None


def libraries() -> tuple[list[str], list[str]]:
    """(site-packages, folders that Python and compiled packages read) of this interpreter."""
    paths = sysconfig.get_paths()
    packages = list(dict.fromkeys([paths["purelib"], paths["platlib"]]))
    base = [f"{sys.base_prefix}/lib", f"{sys.base_exec_prefix}/lib", paths["stdlib"], paths["platstdlib"]]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime"]
    return packages, list(dict.fromkeys([*packages, *base, *system]))


class PythonProcess:
    """``in_force``: those of ``tools.confine.MEASURES`` that are. ``note``: why others are not."""

    def __init__(self, process: asyncio.subprocess.Process, output: int, folder: tempfile.TemporaryDirectory):
        self._process, self._output, self._folder = process, output, folder
        self.in_force: set[str] = set()
        self.note = ""

    @classmethod
    async def start(cls, limits: Limits) -> PythonProcess:
        """Raises ``ProcessEnded``; whatever happens, nothing is left behind."""
        folder = tempfile.TemporaryDirectory(prefix="rollway-python-", ignore_cleanup_errors=True)
        output = os.memfd_create("output")
        fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)  # two streams, one file, which is emptied between calls
        packages, readable = libraries()
        settings = {"folder": folder.name, "readable": readable, "packages": packages, "limits": asdict(limits)}
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-X", "utf8", "-c", _BOOT, _ROOT, marshal.dumps(settings).hex()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                limit=_MAX_ANSWER,
                start_new_session=True,
                # Nothing of ours: an actor's environment holds keys and addresses.
                env={"HOME": folder.name, "TMPDIR": folder.name, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            )
        except BaseException:
            os.close(output)
            folder.cleanup()
            raise
        self = cls(process, output, folder)
        try:
            _, measures = await self._answer(START_TIMEOUT_S)
            self.in_force, self.note = set(measures.split(",")), self._read_output()
        except BaseException:
            await self.kill()
            raise
        return self

    async def run(self, code: str, timeout_s: float) -> Outcome:
        """Raises ``ProcessEnded``, having killed the process, when it dies, misbehaves or takes too long."""
        data = code.encode("utf-8", "replace")
        os.ftruncate(self._output, 0)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(len(data).to_bytes(4) + data)
            kind, text = await self._answer(timeout_s)
        except BaseException:
            await self.kill()
            raise
        return Outcome(self._read_output(), text if kind == ERROR else None)

    async def kill(self) -> None:
        """End it, with whatever it may have started. May be called again."""
        if self._output < 0:
            return
        output, self._output = self._output, -1
        try:
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await self._process.wait()
        finally:
            os.close(output)
            self._folder.cleanup()

    async def _answer(self, timeout_s: float) -> tuple[bytes, str]:
        """(kind, text). Raises ``ProcessEnded``."""
        stream = self._process.stdout
        assert stream is not None
        try:
            async with asyncio.timeout(timeout_s):
                head = await stream.readexactly(5)
                kind, size = head[:1], int.from_bytes(head[1:])
                if kind in (OK, ERROR) and size <= _MAX_ANSWER:
                    return kind, (await stream.readexactly(size)).decode("utf-8", "replace")
        except TimeoutError:
            raise ProcessEnded(f"stopped after {timeout_s:g} s", self._read_output(), timed_out=True) from None
        except asyncio.IncompleteReadError:
            raise ProcessEnded(await self._cause(), self._read_output()) from None
        raise ProcessEnded("the code wrote to a stream that is not its own", self._read_output())

    async def _cause(self) -> str:
        try:
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                code = await self._process.wait()
        except TimeoutError:
            return "it closed its streams"
        if code == -signal.SIGXCPU:
            return "it used up its CPU time"
        return f"it was killed by {signal.Signals(-code).name}" if code < 0 else f"it ended with code {code}"

    def _read_output(self) -> str:
        return os.pread(self._output, _MAX_OUTPUT, 0).decode("utf-8", "replace")
