"""JSON as Java peers write it.

It differs from the standard in two ways: whole numbers as keys have no quotes, `{0:5,1:6}`, and a map keyed
by queues has objects as keys, `{{"brokerName":"b","queueId":3,"topic":"T"}:42}`. We write the second form,
because newer Java clients read no other, and the first only on request. We read both, and accept nulls and
numbers in quotes. We write no spaces: the Go client cannot read a route that has some.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from metaq.protocol.errors import ProtocolError
from metaq.protocol.ranges import Int32, Name

DEPTH_MAX: Final = 64

_Value = TypeVar("_Value")


class MessageQueue(msgspec.Struct, rename="camel", frozen=True):
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


def decode(data: bytes, kind: type[_Value]) -> _Value:
    """Reads a body as `kind`. Raises ProtocolError, which names the place."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # Malformed, or only written in Java's way: the tolerant reader finds out.
    try:
        value = _relaxed(msgspec.json.decode(standard(data)))
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(
            f"the body is not a valid {getattr(kind, '__name__', 'JSON value')}: {error}"
        ) from None


# Strings first, so that their content is never taken for structure; the possessive forms keep it linear.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^{}\[\]:,"\s]++|\s++|.', re.DOTALL)
_RAW_CONTROL = re.compile(rb"[\x00-\x1f]")
_OBJECT_KEY_MARK: Final = "\x00"
_MARKED: Final = b'"\\u0000'


def standard(data: bytes) -> bytes:
    """Rewrites Java's JSON as standard JSON, in one pass. Bare keys get quotes, and an object as key becomes
    a marked string that holds the object's JSON. A string that looks marked gets a second mark."""
    out: list[bytes] = []
    containers: list[bytes] = []
    key_due = False
    object_key_from = -1
    object_key_depth = 0
    for match in _TOKEN.finditer(data):
        token = match.group()
        first = token[:1]
        if first.isspace():
            continue
        if first == b'"' and (len(token) == 1 or token[-1:] != b'"'):
            raise ProtocolError(f"the body is not valid JSON: a string at byte {match.start()} does not end")
        if first in b"{[":
            if key_due and first == b"{":
                if object_key_from >= 0:
                    raise ProtocolError("the body is not valid JSON: an object as key inside another one")
                object_key_from, object_key_depth = len(out), len(containers)
            containers.append(first)
            if len(containers) > DEPTH_MAX:
                raise ProtocolError(f"the body is nested more than {DEPTH_MAX} deep")
            key_due = first == b"{"
        elif first in b"}]":
            if containers:
                containers.pop()
            key_due = False
            if object_key_from >= 0 and len(containers) == object_key_depth:
                out.append(token)
                text = _OBJECT_KEY_MARK + b"".join(out[object_key_from:]).decode()
                del out[object_key_from:]
                token = msgspec.json.encode(text)
                object_key_from = -1
        elif first == b",":
            key_due = bool(containers) and containers[-1] == b"{"
        elif first == b":":
            key_due = False
        elif first == b'"':
            token = _RAW_CONTROL.sub(_escaped, token)
            if key_due and token.startswith(_MARKED):
                token = _MARKED + token[1:]
        elif key_due:
            token = msgspec.json.encode(token.decode())
        out.append(token)
    return b"".join(out)


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % match.group()[0]


def _relaxed(value: Any) -> Any:
    """Drops nulls, so that a field's own default applies, and turns marked keys into queues."""
    if isinstance(value, dict):
        return {_key(key): _relaxed(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_relaxed(item) for item in value if item is not None]
    return value


def _key(key: str) -> str | MessageQueue:
    if key.startswith(_OBJECT_KEY_MARK * 2):
        return key[1:]
    if key.startswith(_OBJECT_KEY_MARK):
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
