"""How a process logs: one line an event on its standard output, as text or as JSON (``log.format``).

What a library tells goes the same way, so that a log has one form: its warnings always, more of it with
``log.level=debug``. A process that cannot go on says why by ``fail``, in its last line.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from configs.schema import LogConfig

#: Libraries that bring a handler of their own, whose lines would have another form.
_SELF_WILLED = ("DeepSpeed", "transformers", "huggingface_hub")
_ERROR = "error: "


class TextFormatter(logging.Formatter):
    """``2026-11-30 16:40:01,123 INFO rollway.learner: …``; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = " ".join(record.message.split("\n"))
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """An object a line: time (UTC, ISO 8601), level, logger, message, and traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, ensure_ascii=False)


def setup_logging(config: LogConfig, handler: logging.Handler | None = None) -> None:
    """Log from now on as ``config`` says, to ``handler``: standard output where none is given.

    Call it before libraries are imported, and ``adopt_libraries`` after.
    """
    handler = handler or logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter() if config.format == "json" else TextFormatter())
    logging.basicConfig(
        handlers=[handler], level=logging.INFO if config.level == "debug" else logging.WARNING, force=True
    )
    logging.getLogger("rollway").setLevel(config.level.upper())
    logging.captureWarnings(True)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a bar in a file is one endless line
    adopt_libraries()


def adopt_libraries() -> None:
    """Have libraries that log by themselves log as we do. Those that are imported later bring their handler then."""
    for name in _SELF_WILLED:
        library = logging.getLogger(name)
        library.handlers.clear()
        library.setLevel(logging.NOTSET)
        library.propagate = True


def fail(message: object, code: int) -> int:
    """Say in one line why this process ends, and what to do about it. Returns ``code``, for the caller to end with."""
    handlers = logging.getLogger().handlers
    if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers):
        logging.getLogger("rollway").critical("%s", message)
    else:
        print(f"{_ERROR}{message}", file=sys.stderr)
    return code


def failure(line: str) -> str | None:
    """The message where ``line`` is one that ``fail`` wrote, else None."""
    if line.startswith(_ERROR):
        return line.removeprefix(_ERROR)
    if line.startswith("{") and '"level": "critical"' in line:
        try:
            return json.loads(line)["message"]
        except (ValueError, KeyError):  # a line that a kill tore, or another's
            return None
    return None
