"""Sets of GTIDs: the positions that servers and replicas exchange.

- MariaDB writes the last GTID of each domain, `0-1-100,7-2-13`.
- MySQL writes all GTIDs of each server and each tag as intervals,
  `34d5a371-e1bb-11f1-ae18-02fc00000001:1-5:8:blue:1-2`.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from typing import Final, Protocol

MARIADB: Final = "mariadb"
MYSQL: Final = "mysql"


class Gtids(Protocol):
    """The transactions that were passed. Its text is the form that servers and the state file use."""

    def passed(self, gtid: str) -> None: ...


def gtids_of(flavour: str, text: str) -> Gtids:
    """Parses a set; raises ValueError."""
    return MysqlGtids(text) if flavour == MYSQL else MariadbGtids(text)


class MariadbGtids:
    """The last GTID of each domain."""

    def __init__(self, text: str) -> None:
        self._by_domain = {gtid.partition("-")[0]: gtid for gtid in text.split(",") if gtid}

    def passed(self, gtid: str) -> None:
        self._by_domain[gtid.partition("-")[0]] = gtid

    def __str__(self) -> str:
        return ",".join(self._by_domain.values())


_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL: Final = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_NUMBER_MAX: Final = 2**63 - 2
_COUNT: Final = struct.Struct("<Q")
_PAIR: Final = struct.Struct("<QQ")

_Series = tuple[str, str]
"""A server and a tag, which is empty in most cases."""


class MysqlGtids:
    """All transactions that were passed, as intervals that neither touch nor overlap."""

    def __init__(self, text: str) -> None:
        """Raises ValueError."""
        self._starts: dict[_Series, list[int]] = {}
        self._ends: dict[_Series, list[int]] = {}
        """The last number of each interval."""
        self._texts: dict[_Series, str] = {}
        """Cached texts of the intervals that have not changed."""
        for part in text.lower().split(","):
            if part := part.strip():
                self._take(part)

    def _take(self, text: str) -> None:
        server, *parts = (part.strip() for part in text.split(":"))
        tag = ""
        if not _UUID.fullmatch(server) or not parts:
            raise ValueError(f"{text[:80]!r} is not a valid set of GTIDs")
        for part in parts:
            if found := _INTERVAL.fullmatch(part):
                self._add((server, tag), int(found[1]), int(found[2] or found[1]))
            elif _TAG.fullmatch(part):
                tag = part
            else:
                raise ValueError(f"{text[:80]!r} is not a valid set of GTIDs")

    def passed(self, gtid: str) -> None:
        """Raises ValueError."""
        server, _, rest = gtid.partition(":")
        tag, _, number = rest.rpartition(":")
        self._add((server, tag), int(number), int(number))

    def _add(self, series: _Series, first: int, last: int) -> None:
        if not 1 <= first <= last <= _NUMBER_MAX:
            raise ValueError(f"{first}-{last} is not a valid interval of GTIDs")
        self._texts.pop(series, None)
        starts, ends = self._starts.setdefault(series, []), self._ends.setdefault(series, [])
        # In most cases the last interval grows.
        if ends and first == ends[-1] + 1:
            ends[-1] = last
            return
        # Merge it with all intervals that it overlaps or touches.
        begin = bisect_right(ends, first - 2)
        end = bisect_right(starts, last + 1)
        if begin < end:
            first, last = min(first, starts[begin]), max(last, ends[end - 1])
        starts[begin:end], ends[begin:end] = [first], [last]

    def __str__(self) -> str:
        """Returns the set as MySQL prints it: by server, with the tags after the untagged intervals."""
        texts: list[str] = []
        before = ""
        for series in sorted(self._starts):
            server, tag = series
            intervals = self._texts.get(series)
            if intervals is None:
                intervals = ":".join(
                    str(first) if first == last else f"{first}-{last}"
                    for first, last in zip(self._starts[series], self._ends[series], strict=True)
                )
                self._texts[series] = intervals
            if server != before:
                texts.append(("," if before else "") + server)
                before = server
            texts.append(f":{tag}:{intervals}" if tag else f":{intervals}")
        return "".join(texts)

    def encode(self) -> bytes:
        """Encodes the set as a replica sends it.

            | count: u64 | server: 16 bytes | intervals: u64 | first: u64 | after the last: u64 | … | …

        If any series has a tag, the first and the last byte of the count are 1, and each server is followed
        by twice the length of its tag, and the tag. Servers before 8.3 know no tags and never send one.
        """
        is_tagged = any(tag for _, tag in self._starts)
        count = len(self._starts)
        parts = [_COUNT.pack(count << 8 | 1 | 1 << 56 if is_tagged else count)]
        for series in sorted(self._starts):
            server, tag = series
            parts.append(bytes.fromhex(server.replace("-", "")))
            if is_tagged:
                parts.append(bytes((len(tag) << 1,)) + tag.encode())
            starts, ends = self._starts[series], self._ends[series]
            parts.append(_COUNT.pack(len(starts)))
            parts += [_PAIR.pack(first, last + 1) for first, last in zip(starts, ends, strict=True)]
        return b"".join(parts)
