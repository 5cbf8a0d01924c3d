"""The ranges of everything that a peer sends: numbers as wide as the other side holds them, texts and lists
with a length.

Java knows `int` and `long`, Rust `i32`, `i64` and `u8`. A wider number is refused where it is decoded, before
anything is kept of it: an integer that Python accepts and Rust does not would fail only after it is stored.
Every field of a header or a body has one of these types; a test finds those that have not.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

NAME_CHARACTERS_MAX: Final = 255
"""A record has one byte for the length of a topic. Groups, brokers and clusters have no longer names."""
SHORT_CHARACTERS_MAX: Final = 4 * 1024
TEXT_CHARACTERS_MAX: Final = 256 * 1024
FRAME_CHARACTERS_MAX: Final = 16 * 1024 * 1024
"""No frame holds a longer text."""
ROWS_MAX: Final = 4 * 1024 * 1024
"""No frame holds a longer list: an entry and its comma take four bytes or more in all but senseless lists."""
FEW_ROWS_MAX: Final = 64 * 1024
OBJECTS_MAX: Final = 32 * 1024
"""Objects in the body of a request with lists. A list has at most 10,000 entries, and each of them an object
or two inside."""

_T = TypeVar("_T")
_Key = TypeVar("_Key")

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Bits = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
"""The permission of a topic: one byte in Rust, of which three bits have a meaning."""

Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)]
ShortText = Annotated[str, msgspec.Meta(max_length=SHORT_CHARACTERS_MAX)]
"""An id, an address, a word."""
Text = Annotated[str, msgspec.Meta(max_length=TEXT_CHARACTERS_MAX)]
"""A filter, or a list with separators."""
LongText = Annotated[str, msgspec.Meta(max_length=FRAME_CHARACTERS_MAX)]

FewRows = Annotated[list[_T], msgspec.Meta(max_length=FEW_ROWS_MAX)]
"""A list in a request."""
FewEntries = Annotated[dict[_Key, _T], msgspec.Meta(max_length=FEW_ROWS_MAX)]
Rows = Annotated[list[_T], msgspec.Meta(max_length=ROWS_MAX)]
FixedRows = Annotated[tuple[_T, ...], msgspec.Meta(max_length=ROWS_MAX)]
Entries = Annotated[dict[_Key, _T], msgspec.Meta(max_length=ROWS_MAX)]
