"""Sets of GTIDs: the same transactions give the same set and the same text, in any order."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from metaq.pipelines.binlog_sync.reading.gtids import MariadbGtids, MysqlGtids, gtids_of

SERVERS = ["34d5a371-e1bb-11f1-ae18-02fc00000001", "3e11fa47-71ca-11e1-9e33-c80aa9429562"]
Transaction = tuple[str, str, int]
transactions = st.tuples(
    st.sampled_from(SERVERS), st.sampled_from(["", "", "blue", "a_1"]), st.integers(1, 40)
)


def text_of(transaction: Transaction) -> str:
    server, tag, number = transaction
    return f"{server}:{tag}:{number}" if tag else f"{server}:{number}"


def members(text: str) -> set[Transaction]:
    """Parses a text independently of the code under test."""
    found = set()
    for part in text.split(","):
        if part:
            server, tag = part[:36], ""
            for tagged, first, last in re.findall(r":(?:([a-z_]\w*)|(\d+)(?:-(\d+))?)", part[36:]):
                tag = tagged or tag
                if first:
                    found |= {(server, tag, number) for number in range(int(first), int(last or first) + 1)}
    return found


def members_of_encoded(data: bytes) -> set[Transaction]:
    """Decodes a set as a server does."""
    found = set()
    count, at = int.from_bytes(data[:8], "little"), 8
    is_tagged = data[7] == 1
    if is_tagged:
        assert data[0] == 1
        count = int.from_bytes(data[1:7], "little")
    for _ in range(count):
        raw, at = data[at : at + 16].hex(), at + 16
        server = f"{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"
        tag = ""
        if is_tagged:
            length, at = data[at] >> 1, at + 1
            tag, at = data[at : at + length].decode(), at + length
        intervals, at = int.from_bytes(data[at : at + 8], "little"), at + 8
        for _ in range(intervals):
            first = int.from_bytes(data[at : at + 8], "little")
            behind = int.from_bytes(data[at + 8 : at + 16], "little")
            found |= {(server, tag, number) for number in range(first, behind)}
            at += 16
    assert at == len(data)
    return found


@given(st.lists(transactions), st.lists(transactions))
def test_a_set_does_not_depend_on_the_order(before: list[Transaction], after: list[Transaction]) -> None:
    gtids = MysqlGtids(",".join(map(text_of, before)))
    for transaction in after:
        gtids.passed(text_of(transaction))
        str(gtids)
    assert members(str(gtids)) == {*before, *after}
    assert members_of_encoded(gtids.encode()) == {*before, *after}
    # Every set has exactly one text.
    other = MysqlGtids(",\n".join(text_of(transaction).upper() for transaction in [*after, *before]))
    assert str(other) == str(gtids) == str(MysqlGtids(str(gtids)))


def test_the_text_is_that_of_the_server() -> None:
    text = f"{SERVERS[0]}:1-5:7:9-10:a_1:3:blue:1-2,{SERVERS[1]}:red:4"
    assert str(MysqlGtids(text)) == text
    gtids = MysqlGtids(text)
    for number in (8, 6):
        gtids.passed(f"{SERVERS[0]}:{number}")
    gtids.passed(f"{SERVERS[0]}:blue:3")
    assert str(gtids) == f"{SERVERS[0]}:1-10:a_1:3:blue:1-3,{SERVERS[1]}:red:4"
    assert str(MysqlGtids("")) == ""
    assert MysqlGtids("").encode() == bytes(8)


@pytest.mark.parametrize(
    "text",
    ["0-1-5", "x", SERVERS[0], f"{SERVERS[0]}:", f"{SERVERS[0]}:0", f"{SERVERS[0]}:5-4", f"{SERVERS[0]}:1;2",
     f"{SERVERS[0]}:{2**63}", f"{SERVERS[0]}:{'t' * 33}:1", f"{SERVERS[0]}:1-"],
)  # fmt: skip
def test_invalid_sets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="GTIDs"):
        gtids_of("mysql", text)


def test_gtids_of_domains() -> None:
    gtids = gtids_of("mariadb", "0-1-5,3-2-7")
    gtids.passed("3-9-8")
    gtids.passed("4-1-1")
    assert str(gtids) == "0-1-5,3-9-8,4-1-1"
    assert str(MariadbGtids("")) == ""
