"""Messages to send: their rules and their layout."""

from __future__ import annotations

import struct
import time
from datetime import datetime

import pytest

import metaq
from metaq.client.message import Outgoing, encode_batch, outgoing
from metaq.client.producer.unique_ids import month_start_ms, unique_ids
from metaq.errors import InvalidMessage
from metaq.protocol.properties import SYSTEM_NAMES, decode_properties, encode_properties


def test_properties_there_and_back() -> None:
    given = {"a": "1", "b": "zwei", "TAGS": "t"}
    assert decode_properties(encode_properties(given)) == given
    assert decode_properties("a\x01\x02\x01b\x02c\x011") == {"c": "1"}


def test_a_message_of_a_user_is_frozen_and_hashable() -> None:
    message = metaq.Message("t", b"x", tag="g", keys=("k",), properties={"a": "b"})
    assert message == metaq.Message("t", b"x", tag="g", keys=("k",), properties={"a": "b"})
    assert len({message, message}) == 1
    with pytest.raises(AttributeError):
        message.topic = "u"  # type: ignore[misc]


def test_a_sent_message_carries_tag_keys_and_id() -> None:
    message = outgoing("t", b"x", "ID", tag="g", keys=["a", "b"], properties={"p": "v"})
    assert message.properties == {"p": "v", "TAGS": "g", "KEYS": "a b", "UNIQ_KEY": "ID", "WAIT": "true"}
    assert outgoing("t", b"x", "ID", keys="one").properties["KEYS"] == "one"


@pytest.mark.parametrize("name", sorted(SYSTEM_NAMES))
def test_no_user_sets_a_property_of_the_system(name: str) -> None:
    with pytest.raises(InvalidMessage, match="is reserved"):
        outgoing("t", b"x", "ID", properties={name: "v"})


def test_a_batch_is_laid_out_record_after_record() -> None:
    data = encode_batch([Outgoing("t", b"one", {"a": "b"}, flag=7), Outgoing("t", b"", {})])
    wide = Outgoing("t", b"x", {"ä": "日本"})
    assert wide.size_bytes() == len(encode_batch([wide]))
    size, magic, checksum, flag, body_size = struct.unpack_from(">5i", data)
    assert (magic, checksum, flag, body_size) == (0, 0, 7, 3)
    assert data[20:23] == b"one"
    assert struct.unpack_from(">h", data, 23) == (4,)
    assert data[25:29] == b"a\x01b\x02"
    assert size == 29
    assert data[29:] == struct.pack(">5ih", 22, 0, 0, 0, 0, 0)


def test_ids_differ_and_have_the_form_of_javas() -> None:
    ids = unique_ids("10.1.2.3")
    many = [ids.next() for _ in range(10_000)]
    assert len(set(many)) == len(many)
    assert all(len(each) == 32 and each.startswith("0A010203") for each in many)
    assert len(unique_ids("fe80::1%eth0").next()) == 56
    now_ms = time.time_ns() // 1_000_000
    assert abs(int(many[0][20:28], 16) - (now_ms - month_start_ms())) < 60_000
    ids.begin_month(now_ms - 7_200_000)
    assert abs(int(ids.next()[20:28], 16) - 7_200_000) < 60_000  # The native clock is coarse.
    assert datetime.fromtimestamp(month_start_ms(1_700_000_000) / 1000) == datetime(2023, 11, 1)
