"""What a receiver takes from a stranger: the shape of a header is measured before anything is built of it.

A MessagePack header of half a megabyte can announce gigabytes: lists are allocated when they
are announced, a thousand of them inside each other. So a header is walked once without making
an object, and refused where it announces more than it carries, nests too deep or has too many
values. What is left after that costs memory in proportion to its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Deepest nesting: message → list → episode → tool calls → call is 5.
MAX_DEPTH = 16
#: Bytes of a header beyond those of its episodes: a heartbeat that names thousands of leases fits.
HEADER_BYTES = 256 << 10
#: An episode's facts are at most a record of about 60 bytes for each tool call of ten tokens, and its name.
FACT_BYTES_PER_TOKEN = 32
HEADER_VALUES = 16384
#: The five arrays of a token and, at worst, a turn for each.
ARRAY_BYTES_PER_TOKEN = 17 + 8


class TooMuch(ValueError):
    """A header that is cut off, lies about its sizes, or is larger, deeper or fuller than a peer may send."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one message of an actor. ``tokens``: of all episodes of a group together."""

    tokens: int

    @property
    def header_bytes(self) -> int:
        return HEADER_BYTES + FACT_BYTES_PER_TOKEN * self.tokens

    @property
    def header_values(self) -> int:
        """Keys, scalars and containers."""
        return HEADER_VALUES + self.tokens

    @property
    def frame_bytes(self) -> int:
        """The largest single frame: the header, or a turn [2] of int32 for every token."""
        return max(self.header_bytes, 8 * self.tokens)

    @property
    def message_bytes(self) -> int:
        """All frames of the largest message."""
        return self.header_bytes + ARRAY_BYTES_PER_TOKEN * self.tokens


#: First byte → (bytes of the length that follows, what it is the length of), or a scalar's size.
_SCALARS = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_SCALARS |= {0xCC + n: 1 << n for n in range(4)} | {0xD0 + n: 1 << n for n in range(4)}
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def check_shape(frame: bytes | memoryview, limits: Limits) -> None:
    """Raise ``TooMuch`` unless ``frame`` is one whole MessagePack value of plain types within ``limits``.

    Plain: numbers, text, true, false, nothing, lists, maps. Binary strings and extension
    types are refused: nothing that actors say needs them, and JSON cannot hold them.
    """
    data = bytes(frame) if len(frame) <= limits.header_bytes else b""
    if len(frame) > len(data):
        raise TooMuch(f"header of {len(frame)} bytes, at most {limits.header_bytes}")
    size, at, values, most = len(data), 0, 0, limits.header_values
    open_ = [1]  # values still to come in each container, the outermost first
    while open_:
        if not open_[-1]:
            open_.pop()
            continue
        open_[-1] -= 1
        values += 1
        if at >= size:
            raise TooMuch("header is not MessagePack: cut off")
        if values > most:
            raise TooMuch(f"header of more than {most} values")
        first = data[at]
        at += 1
        if first < 0x80 or first >= 0xE0:
            continue
        if 0xA0 <= first < 0xC0:
            at += first & 0x1F
        elif first < 0xA0:
            inside = first & 0x0F if first >= 0x90 else 2 * (first & 0x0F)
            _enter(open_, inside, size - at)
        elif first in _SCALARS:
            at += _SCALARS[first]
        elif first in _STRINGS:
            width = _STRINGS[first]
            at += width + int.from_bytes(data[at : at + width])
        elif first in _ARRAYS or first in _MAPS:
            width = _ARRAYS.get(first) or _MAPS[first]
            inside = int.from_bytes(data[at : at + width]) * (1 if first in _ARRAYS else 2)
            at += width
            _enter(open_, inside, size - at)
        else:
            raise TooMuch("header is not MessagePack of plain values: binary or extension type")
    if at != size:
        raise TooMuch(f"header is not MessagePack: {'cut off' if at > size else 'trailing bytes'}")


def _enter(open_: list[int], inside: int, left: int) -> None:
    if inside > left:  # every value takes a byte at least
        raise TooMuch(f"header is not MessagePack: announces {inside} values in {left} bytes")
    if len(open_) > MAX_DEPTH:
        raise TooMuch(f"header is nested deeper than {MAX_DEPTH}")
    open_.append(inside)
