"""Ids and properties as clients write them. Relays to clients are tested with a running broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.requests.relays import STATUS_BYTES_MAX, _Told, physical_offset_of
from metaq.protocol.errors import ProtocolError
from metaq.settings import MIB


def test_a_message_id_ends_with_the_physical_offset() -> None:
    assert physical_offset_of("7F0000010000A9750000000000000306") == 0x306
    assert physical_offset_of("0" * 40 + "00000000000000FF") == 0xFF


@pytest.mark.parametrize(
    "message_id",
    ["", "7F", "Z" * 32, "7F0000010000A975FFFFFFFFFFFFFFFF", "7F0000010000A975-000000000000306", "_" * 32],
)
def test_what_is_no_message_id_is_told(message_id: str) -> None:
    with pytest.raises(ProtocolError, match="not an offset message id"):
        physical_offset_of(message_id)


@given(text=st.text(max_size=60))
def test_no_text_does_harm(text: str) -> None:
    for attempt in (text, text[:32].ljust(32, "0")):
        try:
            assert physical_offset_of(attempt) >= 0
        except ProtocolError:
            continue


def test_answers_that_are_too_long_together_are_not_kept() -> None:
    told = _Told()
    for connection in range(100):
        told.add(connection, bytes(MIB))
        assert sum(map(len, told.bodies.values())) <= STATUS_BYTES_MAX
    assert told.size_bytes == 100 * MIB, "the refusal says how long they are"
    assert not told.bodies
