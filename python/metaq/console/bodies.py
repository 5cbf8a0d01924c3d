"""The forms in which people read the body of a message.

A body is hostile: it may hold anything. Nothing here makes HTML of it. Every form is a text, which the
template escapes, or JSON, which the browser's element shows node by node as text.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal

import msgspec

Form = Literal["text", "json", "msgpack", "gbk", "hex"]
Fault = Literal["not_json", "not_msgpack", "too_large"]
FORMS: Final[tuple[Form, ...]] = ("text", "json", "msgpack", "gbk", "hex")

TEXT_BYTES_MAX: Final = 256 * 1024
"""How much of a body is shown as text or as a tree."""
HEX_BYTES_MAX: Final = 32 * 1024
PREVIEW_CHARACTERS: Final = 120
_PREVIEW_BYTES: Final = 4 * PREVIEW_CHARACTERS
_DEPTH_MAX: Final = 100
_NODES_MAX: Final = 50_000
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)
"""Signs that a reader cannot see, or that change how the rest of a line is shown."""
_CHINESE_TEXT: Final = re.compile(r"[\t\n\r\x20-\x7e\u3000-\u303f\u4e00-\u9fff\uff00-\uffef“”‘’—…·]*")


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body in one of its forms."""

    form: Form
    size_bytes: int
    shown_bytes: int
    text: str
    """For every form but the trees."""
    tree: str | None = None
    """JSON for the tree; of a body in JSON it is the body itself, so that no number loses a digit."""
    fault: Fault | None = None
    """Why the wanted form is not shown; `text` has the body in another."""

    @property
    def is_cut(self) -> bool:
        return self.shown_bytes < self.size_bytes


def view_of(body: bytes, wanted: str | None = None) -> BodyView:
    """Returns the body in the wanted form, or in the one that suits it best."""
    form = wanted if wanted in FORMS else best_form(body)
    if form == "json":
        return _json_view(body)
    if form == "msgpack":
        return _msgpack_view(body)
    if form == "hex":
        return _hex_view(body)
    return _text_view(body, "gbk" if form == "gbk" else "text")


def best_form(body: bytes) -> Form:
    """Returns the form that suits a body: a tree if it is one, then text, then bytes."""
    part = body[:TEXT_BYTES_MAX]
    text = _decoded(part, "utf-8")
    if text is not None:
        if len(body) <= TEXT_BYTES_MAX and text.lstrip()[:1] in ("{", "[") and _is_json(body):
            return "json"
        if "\x00" not in text and len(_INVISIBLE.findall(text)) * 10 <= len(text):
            return "text"
    if len(body) <= TEXT_BYTES_MAX and isinstance(_msgpack_value(body), dict | list):
        return "msgpack"
    chinese = _decoded(part, "gbk")
    if chinese is not None and _CHINESE_TEXT.fullmatch(chinese):
        return "gbk"
    return "hex"


def preview(body: bytes) -> str | None:
    """Returns the beginning of a body on one line, or None if it is binary."""
    form = best_form(body[:_PREVIEW_BYTES]) if body else "text"
    if form in ("hex", "msgpack"):
        return None
    text = _decoded(body[:_PREVIEW_BYTES], "gbk" if form == "gbk" else "utf-8") or ""
    line = visible(" ".join(text.split()))
    return line if len(line) <= PREVIEW_CHARACTERS else line[: PREVIEW_CHARACTERS - 1] + "…"


def visible(text: str) -> str:
    """Returns a text in which signs that cannot be seen are written as escapes."""
    lines = text.replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), lines)


# Inside


def _decoded(part: bytes, encoding: str) -> str | None:
    """Returns the text, without a character that the end cuts; None if the encoding is another."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(part)
    except UnicodeDecodeError:
        return None


def _text_view(body: bytes, form: Form, fault: Fault | None = None) -> BodyView:
    part = body[:TEXT_BYTES_MAX]
    encoding = "gb18030" if form == "gbk" else "utf-8"
    errors = "replace" if form == "gbk" else "backslashreplace"
    text = codecs.getincrementaldecoder(encoding)(errors).decode(part, len(part) == len(body))
    return BodyView(form, len(body), len(part), visible(text), fault=fault)


def _hex_view(body: bytes) -> BodyView:
    part = body[:HEX_BYTES_MAX]
    return BodyView("hex", len(body), len(part), "\n".join(hex_lines(part)))


def hex_lines(part: bytes) -> list[str]:
    """Returns bytes as editors show them: the offset, 16 bytes, and those of them that are ASCII."""
    lines = []
    for begin in range(0, len(part), 16):
        row = part[begin : begin + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{begin:08x}  {row.hex(' '):<47}  {signs}")
    return lines


def _json_view(body: bytes) -> BodyView:
    if len(body) > TEXT_BYTES_MAX:
        return _text_view(body, "json", "too_large")
    if not _is_json(body):
        return _text_view(body, "json", "not_json")
    return BodyView("json", len(body), len(body), "", body.decode())


def _msgpack_view(body: bytes) -> BodyView:
    is_small = len(body) <= TEXT_BYTES_MAX
    value = _msgpack_value(body) if is_small else _NOTHING
    if value is not _NOTHING:
        tree = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return BodyView("msgpack", len(body), len(body), "", tree)
    fault: Fault = "not_msgpack" if is_small else "too_large"
    return replace(_hex_view(body), form="msgpack", fault=fault)


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


_NOTHING: Final = object()


def _msgpack_value(body: bytes) -> object:
    """Returns a value that JSON can hold, or `_NOTHING` if the body is not msgpack."""
    try:
        return _Nodes().plain(msgspec.msgpack.decode(body), 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError):
        return _NOTHING


class _Nodes:
    """Turns decoded msgpack into values of JSON, within bounds."""

    def __init__(self) -> None:
        self._count = 0

    def plain(self, value: object, depth: int) -> object:
        self._count += 1
        if self._count > _NODES_MAX or depth > _DEPTH_MAX:
            raise ValueError("the tree is too large")
        if isinstance(value, dict):
            return {self._key(key): self.plain(one, depth + 1) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(one, depth + 1) for one in value]
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        return self._text(value)

    def _key(self, key: object) -> str:
        return key if isinstance(key, str) else self._text(key)

    def _text(self, value: object) -> str:
        if isinstance(value, bytes | bytearray):
            return f"bytes {bytes(value).hex()}"
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, msgspec.msgpack.Ext):
            return f"extension {value.code} {bytes(value.data).hex()}"
        return str(value)
