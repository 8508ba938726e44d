"""What a log names as the cause of an end, in one line: of the many lines that a traceback takes, the one that tells."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

#: What vLLM puts before a line: the process, then level, time and place in the source.
_PREFIX = re.compile(r"^\([\w ]+ pid=\d+\) ?(?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]+\] ?)?")
#: The last line of a traceback: a class of exception, and what it says.
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)(?:: .*)?$")
#: As much of a line as is read at a glance, characters.
_LONGEST = 100
#: Exceptions that only tell of another one.
_SECOND_HAND = ("Engine core initialization failed", "Worker failed with error", "WorkerProc initialization failed")
#: What is said where memory does not suffice → what helps.
_ADVICE = {
    r"larger than the available KV cache|to serve even a single token": (
        "lower model.max_tokens, or give the cache more room: server.kv_cache_gib on CPUs, "
        "server.gpu_memory_utilization on GPUs"
    ),
    r"(?i)out of memory|less than requested memory|OutOfMemoryError|No available memory|Not enough.* memory|Free memory on device|can't allocate memory|Cannot allocate memory": (
        "lower server.kv_cache_gib or server.max_num_seqs on CPUs; on GPUs end what else uses them, or change "
        "server.gpu_memory_utilization or server.tensor_parallel"
    ),
    r"No space left on device": "free space on the disk",
}


def bare(line: str) -> str:
    """A line of vLLM's log without what stands before its words."""
    return _PREFIX.sub("", line).strip()


def newest(lines: Sequence[str]) -> str:
    """The words of the last line that vLLM itself logged, cut where they get long: it logs its whole configuration so.

    Empty where there is none yet: warnings of others say nothing.
    """
    words = next((text for line in reversed(lines) if _PREFIX.match(line) and (text := bare(line))), "")
    return textwrap.shorten(words, _LONGEST, placeholder=" …")


def cause(lines: Sequence[str]) -> str:
    """The last exception in ``lines`` that tells the cause, with what helps where that is known; without any, the last line."""
    told = [text for text in map(bare, lines) if text]
    raised = [text for text in told if _EXCEPTION.match(text) and not any(word in text for word in _SECOND_HAND)]
    found = (raised or told or [""])[-1]
    helps = next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, found)), "")
    return f"{found}: {helps}" if helps else found
