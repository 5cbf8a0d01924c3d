"""Refuses clients that use the broker's own topics and groups.

The data plane applies the same rule to pulls and commits, from the policy. This module is for the requests
that Python answers.
"""

from __future__ import annotations

from collections.abc import Callable

from metaq._core import Store, decode_records
from metaq.protocol import names
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused


def check_group(group: str) -> None:
    """Raises Refused for a group whose offsets the broker itself relies on."""
    if not names.is_client_usable(group):
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"group {group} is the broker's own: no client may use it; choose another group",
        )


def check_topic(topic: str) -> None:
    """Raises Refused for a topic that only the broker itself reads."""
    if not names.is_client_readable(topic):
        raise _closed(topic)


def check_viewable_topic(topic: str) -> None:
    """The same for somebody who looks for one message by its id: a message that waits for its time may be
    seen."""
    if not names.is_client_viewable(topic):
        raise _closed(topic)


def readable_record(store: Store, physical_offset: int) -> bytes | None:
    """Returns the record that begins there, or None if there is none. Raises Refused for a record that only
    the broker itself reads. Call it in a thread."""
    return _record(store, physical_offset, names.is_client_readable)


def viewable_record(store: Store, physical_offset: int) -> bytes | None:
    """The same for somebody who looks at one message by its id: a message that waits for its time may be
    seen."""
    return _record(store, physical_offset, names.is_client_viewable)


def _record(store: Store, physical_offset: int, is_open: Callable[[str], bool]) -> bytes | None:
    stored = store.record_at(physical_offset) if physical_offset >= 0 else None
    if stored is None:
        return None
    (record,) = decode_records(stored)
    if not is_open(record.topic):
        raise _closed(record.topic)
    return stored


def _closed(topic: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, f"topic {topic} is the broker's own: no client may read it")
