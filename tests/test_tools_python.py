"""The ``python`` tool against real processes: state, limits, and what hostile code cannot do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tools import landlock, python_process
from tools.base import ToolCall
from tools.confine import MEASURES, REQUIRED
from tools.python import Python
from tools.python_process import Limits, PythonProcess
from tools.runner import run_calls

LIMITS = Limits(memory_mb=256, cpu_s=60, file_mb=4, folder_mb=8)


async def measures() -> set[str]:
    process = await PythonProcess.start(LIMITS)
    await process.kill()
    return process.in_force


IN_FORCE = asyncio.run(measures())
#: By what the kernel has, not by what we made of it: a measure that we broke must not skip its own tests.
confined = pytest.mark.skipif(
    landlock.version() < 3 or os.uname().machine != "x86_64", reason="needs Landlock and x86-64"
)


@asynccontextmanager
async def episode(**options):
    """``await run(code, …)``: the results of one turn with these calls."""
    tool = Python(
        **{"memory_mb": 256, "file_mb": 4, "folder_mb": 8, "require_confinement": False} | options
    ).for_episode()

    async def run(*codes):
        return await run_calls([tool], [ToolCall("python", {"code": code}) for code in codes])

    try:
        yield run
    finally:
        await tool.close()


async def one(code, **options):
    async with episode(**options) as run:
        [result] = await run(code)
        return result


# ── what it is for ───────────────────────────────────────────────────────────


async def test_variables_live_as_long_as_the_episode_and_no_longer():
    async with episode() as run, episode() as other:
        first, second = await run("x = 20\nprint('set')\nx + 1", "x *= 2\nx")
        assert (first.text, second.text) == ("set\n21\n", "40\n"), "calls of one turn run in order, in one process"
        [mine], [theirs] = await run("x + 2"), await other("x")
        assert mine.text == "42\n" and "NameError: name 'x' is not defined" in theirs.text
        assert mine.fault is theirs.fault is None, "an exception in the code is an answer, not a fault of the tool"
        [silent], [text] = await run("y = 1"), await run("import sys; print('to stderr', file=sys.stderr)")
        assert silent.text == "[no output]" and text.text == "to stderr\n"


async def test_mistakes_are_shown_as_a_traceback_of_the_code_alone():
    async with episode() as run:
        [error] = await run("def f(n):\n    return 1 / n\n\nprint('before')\nf(0)")
        assert error.text.startswith("before\nTraceback") and error.text.endswith("ZeroDivisionError: division by zero")
        assert "    return 1 / n" in error.text and "python_child" not in error.text
        [syntax] = await run("x = (")
        assert "SyntaxError" in syntax.text and syntax.text.startswith('  File "<code>", line 1')
        [left] = await run("exit(3)")
        assert left.text.endswith("SystemExit: 3")
        [closed], [after] = await run("import sys; sys.stdout.close()"), await run("print('still here', sys.argv)")
        assert "closed file" in closed.text and after.text == "still here ['']\n"


async def test_packages_of_the_environment_can_be_imported():
    result = await one("import numpy as np; int(np.arange(4).sum())", memory_mb=512)
    assert result.text == "6\n"


# ── limits ───────────────────────────────────────────────────────────────────


async def test_an_endless_loop_is_stopped_and_the_episode_goes_on():
    async with episode(time_s=0.7) as run:
        await run("x = 1")
        started = time.perf_counter()
        [stopped] = await run("print('begun', flush=True)\nwhile True: pass")
        assert stopped.fault == "timeout" and "stopped after 0.7 s" in stopped.text and "begun" in stopped.text
        assert time.perf_counter() - started < 15
        [again] = await run("'x' in globals()")
        assert again.text == "False\n", "the model was told that its variables are gone"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(4)", "ended with code 4"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        (
            "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{}' * 1000)\n    except OSError: pass",
            "not its own",
        ),
        ("import os\nos.closerange(0, 64)\nwhile True: pass", "closed its streams"),
    ],
)
async def test_a_process_that_ends_or_breaks_its_streams_is_replaced(code, words, monkeypatch):
    monkeypatch.setattr(python_process, "_KILL_TIMEOUT_S", 0.5)
    async with episode() as run:
        [ended] = await run(code)
        assert ended.fault == "error" and words in ended.text
        assert (await run("1 + 1"))[0].text == "2\n"


async def test_cpu_time_is_limited_over_calls():
    async with episode(cpu_s=1, time_s=60) as run:
        [result] = await run("while True: pass")
        assert result.fault == "error" and "used up its CPU time" in result.text


async def test_memory_is_limited_and_the_process_survives():
    async with episode() as run:
        [hog] = await run("kept = 1\nx = [bytearray(10**7) for _ in range(1000)]")
        assert hog.text.endswith("MemoryError")
        assert (await run("kept"))[0].text == "1\n"


async def test_output_is_bounded():
    async with episode(file_mb=1) as run:
        [endless] = await run("while True: print('y' * 1000)")
        assert len(endless.text) < 4200 and "[cut:" in endless.text and endless.text.endswith("File too large")
        [long] = await run("print('y' * 10_000)")
        assert long.fault == "too_long" and len(long.text) < 4100
        [binary] = await run("import os; _ = os.write(1, bytes([255, 254, 65]))")
        assert binary.text == "\ufffd\ufffdA"


# ── confinement ──────────────────────────────────────────────────────────────


#: One process is enough for all of them: each must leave it alive.
FORBIDDEN = [
    "import os; os.fork()",
    "import subprocess; subprocess.run(['true'])",
    "import os; os.execv('/bin/true', ['true'])",
    "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
    "import socket; socket.create_connection(('127.0.0.1', 80), 1)",
    "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "import socket; socket.socket(socket.AF_UNIX)",
    "import socket; socket.socketpair()",
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:80', timeout=1)",
    "open('/etc/passwd')",
    "open('/proc/self/environ')",
    "import os; os.listdir('/')",
    "import os; os.listdir('/tmp')",
    "import os; os.open('/', os.O_RDONLY | os.O_DIRECTORY)",
    f"open({str(Path(__file__))!r})",
    "open('/tmp/rollway-outside', 'w')",
    "open('../rollway-outside', 'w')",
    "import os; os.mkdir('/var/tmp/rollway-outside')",
    "import os; os.symlink('/etc/passwd', 'link'); open('link')",
    "import os; os.chmod('/tmp', 0o777)",
    "import os; os.truncate('/etc/passwd', 0)",
    "import os; os.kill(os.getppid(), 0)",
    "import os, signal; os.killpg(0, signal.SIGTERM)",
    "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "import os; os.setuid(0)",
    "import resource; resource.prlimit(1, resource.RLIMIT_CPU)",
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "import fcntl; fcntl.fcntl(1, 8, 1)",
    "import ctypes; c = ctypes.CDLL(None, use_errno=True)\nif c.unshare(0x10000000): raise OSError(ctypes.get_errno())",
    "import ctypes; c = ctypes.CDLL(None, use_errno=True)\nif c.ptrace(16, 1, 0, 0): raise OSError(ctypes.get_errno())",
    "import ctypes; c = ctypes.CDLL(None, use_errno=True)\nif c.syscall(425, 8, 0) < 0: raise OSError('io_uring')",
]


@confined
async def test_what_reaches_outside_is_refused():
    async with episode() as run:
        for code in FORBIDDEN:
            [result] = await run(code + "\nprint('WAS ALLOWED')")
            assert result.fault is None and "Error" in result.text and "WAS ALLOWED" not in result.text, code
    assert not Path("/tmp/rollway-outside").exists() and not Path("/var/tmp/rollway-outside").exists()


@confined
async def test_all_that_is_required_is_in_force():
    assert set(REQUIRED) <= IN_FORCE
    await Python().prepare()


@confined
async def test_a_fork_bomb_starts_nothing():
    async with episode() as run:
        [bomb] = await run("import os\nn = 0\nfor _ in range(1000):\n    try: os.fork()\n    except OSError: n += 1\nn")
        assert bomb.text == "1000\n"
        [threads] = await run(
            "import threading, time\n"
            "for _ in range(10_000): threading.Thread(target=time.sleep, args=(5,), daemon=True).start()"
        )
        assert "can't start new thread" in threads.text, "bounded by the address space"


@confined
async def test_nothing_of_the_actor_can_be_seen(monkeypatch):
    monkeypatch.setenv("ROLLWAY_TEST_TOKEN", "secret")
    result = await one("import os, sys\nsorted(os.environ), [p for p in sys.path if 'site-packages' not in p][:1]")
    assert "ROLLWAY" not in result.text and "HOME" in result.text
    fds = await one(
        "import os\nopen_ = []\nfor fd in range(64):\n    try: os.fstat(fd); open_.append(fd)\n    except OSError: pass\nlen(open_)"
    )
    assert int(fds.text) <= 6, "standard streams, requests, answers"


@pytest.mark.skipif("quota" not in IN_FORCE, reason="no user namespaces here")
async def test_its_folder_is_writable_limited_and_gone_with_it():
    async with episode() as run:
        [file] = await run("import os\nopen('a.txt', 'w').write('mine')\nopen('a.txt').read(), os.getcwd()")
        assert file.text.startswith("('mine', ")
        folder = Path(file.text.split("'")[3])
        assert list(folder.iterdir()) == [], "mounted for this process alone"
        [big] = await run("open('big', 'wb').write(bytes(5 * 10**6))")
        assert "File too large" in big.text
        [many] = await run("for n in range(20): open(str(n), 'wb').write(bytes(10**6))")
        assert "No space left" in many.text
    assert not folder.exists()


async def test_without_confinement_nothing_is_run(monkeypatch):
    monkeypatch.setattr(
        python_process,
        "_BOOT",
        python_process._BOOT.replace(
            "main(", "import tools.seccomp as s; s.apply = lambda: (_ for _ in ()).throw(OSError('none here')); main("
        ),
    )
    tool = Python()
    with pytest.raises(ValueError, match=r"cannot confine it \(processes.* require_confinement"):
        await tool.prepare()
    [result] = await run_calls([tool], [ToolCall("python", {"code": "1"})])
    assert result.fault == "error" and "cannot confine" in result.text
    await Python(require_confinement=False).prepare()


def test_what_is_in_force_can_be_asked_for():
    shown = subprocess.run([sys.executable, "-m", "tools.python"], capture_output=True, text=True, timeout=60)
    for measure, words in MEASURES.items():
        assert f"{'yes' if measure in IN_FORCE else 'NO '}  {words}" in shown.stdout
    assert shown.returncode == (not set(REQUIRED) <= IN_FORCE)


# ── many at a time ───────────────────────────────────────────────────────────


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


async def test_many_episodes_share_a_bounded_number_of_processes():
    tool, before, most = Python(max_processes=4, require_confinement=False), children(), 0

    async def play(n):
        nonlocal most
        mine = tool.for_episode()
        [result] = await run_calls([mine], [ToolCall("python", {"code": f"{n} * 2"})])
        most = max(most, len(children() - before))
        await mine.close()
        return result.text

    assert await asyncio.gather(*(play(n) for n in range(24))) == [f"{2 * n}\n" for n in range(24)]
    assert 1 < most <= 4 and children() <= before


async def test_a_call_that_finds_no_place_is_told_and_a_close_frees_one():
    tool = Python(max_processes=1, wait_s=0.3, require_confinement=False)
    one, two = tool.for_episode(), tool.for_episode()
    assert await one.execute("1") == "1\n"
    [full] = await run_calls([two], [ToolCall("python", {"code": "2"})])
    assert full.fault == "timeout" and "no process was free within 0.3 s" in full.text
    await one.close()
    await one.close()
    assert await two.execute("2") == "2\n"
    await two.close()


async def test_a_cancelled_call_leaves_nothing_behind():
    tool, before = Python(max_processes=1, require_confinement=False), children()
    mine = tool.for_episode()
    call = asyncio.create_task(mine.execute("while True: pass"))
    while not (children() - before):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert children() <= before
    assert await mine.execute("3") == "3\n", "its place is free again"
    await mine.close()
