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
    size, at, values = len(data), 0, 1
    left, around = 1, []  # values still to come: in the innermost container, in those around it
    try:
        while left or around:
            if not left:
                left = around.pop()
                continue
            left -= 1
            first = data[at]
            at += 1
            if first < 0x80 or first >= 0xE0:
                continue
            if 0xA0 <= first < 0xC0:
                at += first & 0x1F
                continue
            if first < 0xA0:
                inside = first & 0x0F if first >= 0x90 else 2 * (first & 0x0F)
            elif first in _SCALARS:
                at += _SCALARS[first]
                continue
            elif first in _STRINGS:
                width = _STRINGS[first]
                at += width + int.from_bytes(data[at : at + width])
                continue
            elif first in _ARRAYS or first in _MAPS:
                width = _ARRAYS.get(first) or _MAPS[first]
                inside = int.from_bytes(data[at : at + width]) * (1 if first in _ARRAYS else 2)
                at += width
            else:
                raise TooMuch("header is not MessagePack of plain values: binary or extension type")
            values += inside
            if inside > size - at:  # every value takes a byte at least
                raise TooMuch(f"header is not MessagePack: announces {inside} values in {size - at} bytes")
            if values > limits.header_values:
                raise TooMuch(f"header of more than {limits.header_values} values")
            around.append(left)
            left = inside
            if len(around) > MAX_DEPTH:
                raise TooMuch(f"header is nested deeper than {MAX_DEPTH}")
    except IndexError:
        raise TooMuch("header is not MessagePack: cut off") from None
    if at != size:
        raise TooMuch(f"header is not MessagePack: {'cut off' if at > size else 'trailing bytes'}")
