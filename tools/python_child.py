"""What runs in the confined process: reads code, executes it, keeps the variables for the next.

Standard input carries requests (4 bytes of length, UTF-8 code), standard output answers (``ok``
or ``error`` as one byte, 4 bytes of length, UTF-8 text; the first one lists the measures that are
in force), standard error is the file that everything printed goes to. What runs here may write
anything to all of them: the other side takes it for text, and no more.

Every episode pays for what is imported here, so little is.
"""

from __future__ import annotations

import _ast  # the part of ast that is compiled in
import builtins
import marshal
import os
import sys

OK, ERROR = b"0", b"1"
_MAX_TRACEBACK = 3000


def main(settings: str) -> None:
    """settings: hexadecimal ``marshal`` of a dict with folder, readable, packages, limits."""
    from tools.confine import confine

    options = marshal.loads(bytes.fromhex(settings))  # from the command line that our own actor wrote
    os.nice(10)  # the model's code comes after the actors, learner and servers of this machine
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path[:] = [*sys.path[1:], *options["packages"]]  # without the folder of this package
    sys.argv[:] = [""]
    builtins.exit = builtins.quit = sys.exit  # people write them, and so do models
    _answer(answers, OK, ",".join(confine(options["folder"], options["readable"], options["limits"])))
    namespace = {"__name__": "__main__", "__builtins__": builtins}
    while len(head := requests.read(4)) == 4:
        code = requests.read(int.from_bytes(head)).decode()
        # New streams each time: the code may have closed or replaced them.
        sys.stdout, sys.stderr = _console(1), _console(2)
        error = _run(code, namespace)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception as failure:  # the output file is full, or the code closed the stream
                error = error or f"{type(failure).__name__}: {failure}"
        _answer(answers, OK if error is None else ERROR, error or "")


def _run(code: str, namespace: dict) -> str | None:
    """Execute; the value of a last expression is printed, as in a console. The traceback, or None."""
    try:
        tree = compile(code, "<code>", "exec", _ast.PyCF_ONLY_AST)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), namespace)
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), "<code>", "eval"), namespace)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # also exit(): the process goes on
        return _traceback(error, code)
    return None


def _traceback(error: BaseException, code: str) -> str:
    try:
        import linecache
        import traceback

        linecache.cache["<code>"] = (len(code), None, code.splitlines(keepends=True), "<code>")
        own_frames = error.__traceback__.tb_next if error.__traceback__ else None
        while own_frames and own_frames.tb_frame.f_code.co_filename != "<code>":
            own_frames = own_frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, own_frames)).rstrip()
    except BaseException:  # no memory is left, or the exception itself misbehaves
        text = type(error).__name__
    return text if len(text) <= _MAX_TRACEBACK else f"{text[: _MAX_TRACEBACK // 2]}\n…\n{text[-_MAX_TRACEBACK // 2 :]}"


def _console(fd: int):
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _answer(answers, kind: bytes, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    answers.write(kind + len(data).to_bytes(4) + data)
