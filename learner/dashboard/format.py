"""Figures as a person reads them: short, with units, one dash for what is not known."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

DASH = "–"


def finite(value: Any) -> float | None:
    """``value`` as a finite float; None for anything else (a missing key, NaN, text)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def compact(value: Any) -> str:
    """1234 → ``1.23k``; three significant digits."""
    number = finite(value)
    if number is None:
        return DASH
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit * 0.9995:
            return f"{_three(number / limit)}{unit}"
    return str(int(number)) if number == int(number) else _three(number)


def count(value: Any) -> str:
    """1234 → ``1,234``."""
    number = finite(value)
    return DASH if number is None else f"{int(number):,}"


def score(value: Any, digits: int = 2) -> str:
    """A reward or a score in [0, 1]."""
    number = finite(value)
    if number is None:
        return DASH
    text = f"{number:.{digits}f}"
    return text.replace("-", "−") if float(text) else f"{0:.{digits}f}"


def small(value: Any) -> str:
    """Plain from 0.001 to 1000, scientific outside: losses, norms, rates."""
    number = finite(value)
    if number is None:
        return DASH
    if number == 0 or 1e-3 <= abs(number) < 1e3:
        return f"{number:.3g}".replace("-", "−")
    mantissa, exponent = f"{number:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


def share(value: Any) -> str:
    """0.314 → ``31 %``; a share that is not zero never reads as zero."""
    number = finite(value)
    if number is None:
        return DASH
    if 0 < number < 0.005:
        return "<1 %"
    return f"{round(100 * number) or 0:d} %".replace("-", "−")  # −0.001 is no "−0"


def seconds(value: Any) -> str:
    """0.0042 → ``4 ms``, 3.21 → ``3.2 s``, 372 → ``6:12``, 4000 → ``1:06:40``."""
    number = finite(value)
    if number is None or number < 0:
        return DASH
    if number == 0:
        return "0 s"
    if number < 0.9995:
        return f"{number * 1e3:.0f} ms" if number >= 0.00095 else "<1 ms"
    if number < 9.95:
        return f"{number:.1f} s"
    if number < 99.5:
        return f"{number:.0f} s"
    return clock(number)


def clock(value: Any) -> str:
    """372 → ``6:12``, 4000 → ``1:06:40``."""
    number = finite(value)
    if number is None or number < 0:
        return DASH
    minutes, secs = divmod(int(number), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def bar(fraction: Any, width: int) -> str:
    """``▰▰▰▱▱``; empty where the fraction is not known."""
    number = finite(fraction)
    full = 0 if number is None else round(max(0.0, min(1.0, number)) * width)
    return "▰" * full + "▱" * (width - full)


def clean(value: Any) -> str:
    """Text from a model, a tool or the wire, safe to put on a terminal line.

    Control and format characters (escape sequences, bidi marks) go, white space
    becomes single spaces.
    """
    text = " ".join(str(value).split())
    return (
        text if text.isascii() and text.isprintable() else "".join(c for c in text if unicodedata.category(c)[0] != "C")
    )


def _three(number: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:.{min(digits, 2)}f}"
