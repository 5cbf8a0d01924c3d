"""JSON as Java peers write it.

It differs from the standard in two ways: whole numbers as keys have no quotes, `{0:5,1:6}`, and a map keyed
by queues has objects as keys, `{{"brokerName":"b","queueId":3,"topic":"T"}:42}`. We write the second form,
because newer Java clients read no other, and the first only on request. We read both, and accept nulls and
numbers in quotes. We write no spaces: the Go client cannot read a route that has some.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final, TypeVar

import msgspec

from metaq.protocol.errors import ProtocolError
from metaq.protocol.ranges import Int32, Name

DEPTH_MAX: Final = 64
TOLERANT_BYTES_MAX: Final = 256 * 1024
"""The longest body that is read in Java's way, unless the caller says otherwise. It takes about a tenth of a
second. Java writes longer ones only for tables of queues, which are answers."""

_Value = TypeVar("_Value")


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One queue of one broker; the only object that is ever a key."""

    broker_name: Name = ""
    queue_id: Int32 = 0
    topic: Name = ""


def encode(value: Any, *, bare_integer_keys: bool = False) -> bytes:
    """Compact JSON. Queues as keys become objects; integers as keys are quoted unless `bare_integer_keys`."""
    if not bare_integer_keys:
        try:
            return msgspec.json.encode(value, enc_hook=_only_plain)
        except _QueueAsKey:
            pass
    out: list[bytes] = []
    _write(value, out, bare_integer_keys)
    return b"".join(out)


def decode(data: bytes, kind: type[_Value], *, tolerant_bytes_max: int = TOLERANT_BYTES_MAX) -> _Value:
    """Reads a body as `kind`. Raises ProtocolError, which names the place, also for a body in Java's way
    that is longer than `tolerant_bytes_max`."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not _is_java(error, data):
            raise _unreadable(kind, error) from None
    if len(data) > tolerant_bytes_max:
        raise ProtocolError(
            f"the body has {len(data)} bytes and nulls, or keys that are not text; the limit for such a body "
            f"is {tolerant_bytes_max}"
        )
    try:
        return _tolerant(data, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(kind, error) from None


def _tolerant(data: bytes, kind: type[_Value]) -> _Value:
    data = standard(data)
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.ValidationError:
        pass  # It has nulls, or objects as keys.
    value = _relaxed(msgspec.json.decode(data), DEPTH_MAX)
    return msgspec.convert(value, kind, strict=False)


_PLACE = re.compile(r"\(byte (\d+)\)$")


def _is_java(error: Exception, data: bytes) -> bool:
    """Whether Java's way of writing explains the error. All others are final."""
    if not isinstance(error, msgspec.DecodeError):
        return False
    text = str(error)
    if isinstance(error, msgspec.ValidationError):
        return "got `null`" in text
    if "keys must be strings" in text or "expected '\"'" in text:
        return True
    place = _PLACE.search(text) if "invalid character" in text else None
    return place is not None and data[int(place[1]) : int(place[1]) + 1] < b" "


def _unreadable(kind: object, error: Exception) -> ProtocolError:
    reason = "it is nested too deep" if isinstance(error, RecursionError) else error
    return ProtocolError(f"the body is not a valid {getattr(kind, '__name__', 'JSON value')}: {reason}")


# Every repetition is possessive, so no piece is read more than twice.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_OBJECT_KEY: Final = rb"\{(?:[^\"{}\[\]]++|" + _STRING + rb")*+\}(?=\s*+:)"
_BARE: Final = rb"[^\s\"{}\[\]:,]++"
_PIECE: Final = re.compile(
    # Text that needs no change; then an object as key, a bare key, or a string without an end.
    rb"((?:%(string)s|\{(?!%(inside)s)|[}\[\]:,\s]++|%(bare)s(?!\s*+:))*+)"
    rb"(?:(%(object)s)|(%(bare)s)|(\"[\s\S]*+))?+"
    % {
        b"string": _STRING,
        b"inside": rb"(?:[^\"{}\[\]]++|" + _STRING + rb")*+\}\s*+:",
        b"object": _OBJECT_KEY,
        b"bare": _BARE,
    },
    re.DOTALL,
)
# A string without an end is one match, too. Otherwise the search would begin again at each of its quotes.
_STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_RAW_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_OBJECT_KEY_MARK: Final = "\x00"
_PIECES_AT_ONCE: Final = 512


def standard(data: bytes) -> bytes:
    """Rewrites Java's JSON as standard JSON, in one pass. Bare keys get quotes, and an object as key becomes
    a marked string that holds the object's JSON. Text that is not JSON stays so."""
    if _RAW_CONTROL.search(data) is not None:
        data = _STRINGS.sub(lambda match: _RAW_CONTROL.sub(_escaped, match[0]), data)
    out = bytearray()
    for count, match in enumerate(_PIECE.finditer(data)):
        same, object_key, bare_key, unended = match.groups(b"")
        out += same
        if bare_key:
            out += b'"%b"' % bare_key if bare_key.isalnum() else msgspec.json.encode(bare_key.decode())
        elif object_key:
            out += msgspec.json.encode(_OBJECT_KEY_MARK + object_key.decode())
        else:
            out += unended
        if count % _PIECES_AT_ONCE == 0:
            time.sleep(0)  # On a thread, this lets the event loop run.
    return bytes(out)


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % match[0][0]


def _relaxed(value: Any, depth: int) -> Any:
    """Drops nulls, so that a field's own default applies, and turns marked keys into queues."""
    if depth == 0:
        raise ProtocolError(f"the body is nested more than {DEPTH_MAX} deep")
    if isinstance(value, dict):
        return {_key(key): _relaxed(member, depth - 1) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_relaxed(item, depth - 1) for item in value if item is not None]
    return value


def _key(key: str) -> str | MessageQueue:
    if key.startswith(_OBJECT_KEY_MARK + "{"):
        return msgspec.json.decode(key[1:], type=MessageQueue, strict=False)
    return key


class _QueueAsKey(Exception):
    """Leaves the fast encoder, which cannot write objects as keys."""


def _only_plain(value: Any) -> Any:
    if isinstance(value, MessageQueue):
        raise _QueueAsKey
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _write(value: Any, out: list[bytes], bare_integer_keys: bool) -> None:
    if isinstance(value, msgspec.Struct):
        _write_struct(value, out, bare_integer_keys)
    elif isinstance(value, dict):
        separator = b"{"
        for key, member in value.items():
            out.append(separator)
            out.append(_written_key(key, bare_integer_keys))
            out.append(b":")
            if isinstance(key, MessageQueue) and not bare_integer_keys:
                # Tables of queues are long, and what they hold is plain.
                out.append(encode(member))
            else:
                _write(member, out, bare_integer_keys)
            separator = b","
        out.append(b"}" if value else b"{}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        separator = b"["
        for item in value:
            out.append(separator)
            _write(item, out, bare_integer_keys)
            separator = b","
        out.append(b"]" if value else b"[]")
    else:
        out.append(msgspec.json.encode(value))


def _write_struct(value: msgspec.Struct, out: list[bytes], bare_integer_keys: bool) -> None:
    separator = b"{"
    omit_defaults = value.__struct_config__.omit_defaults
    for name, wire_name in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
        member = getattr(value, name)
        if member is None and omit_defaults:
            continue
        out.append(separator)
        out.append(msgspec.json.encode(wire_name))
        out.append(b":")
        _write(member, out, bare_integer_keys)
        separator = b","
    out.append(b"}" if separator == b"," else b"{}")


def _written_key(key: Any, bare_integer_keys: bool) -> bytes:
    if isinstance(key, msgspec.Struct):
        return msgspec.json.encode(key)
    if isinstance(key, int):
        return b"%d" % key if bare_integer_keys else b'"%d"' % key
    return msgspec.json.encode(str(key))
