"""Large tables in pages, as replicas and tools from 5.4 on ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaq.protocol.bodies import DataVersion
from metaq.protocol.errors import ProtocolError

PAGE_MAX = 1_000


def attributes_bytes(attributes: Mapping[str, str] | None) -> int:
    """About the size of attributes in an answer."""
    return sum(len(key) + len(value) + 8 for key, value in (attributes or {}).items())


def page_of(
    table: Mapping[str, Any],
    *,
    first: int | None,
    count: int | None,
    version: DataVersion,
    version_seen: str | None,
) -> list[str]:
    """The keys of one page, in order. If the table has changed meanwhile, the caller starts over."""
    try:
        is_same = bool(version_seen) and DataVersion.decode((version_seen or "").encode()) == version
    except ProtocolError:
        is_same = False
    begin = max(first or 0, 0) if is_same else 0
    size = min(count, PAGE_MAX) if count is not None and count > 0 else PAGE_MAX
    return sorted(table)[begin : begin + size]
