"""Bodies that grow when they are read."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

import pytest
from starlette.exceptions import HTTPException

from metaq.admin.messages.newest_messages import EndOfSearch
from metaq.client.compression import COMPRESSED, INFLATED_BYTES_MAX, decompress, limit_inflation
from metaq.client.message import Message
from metaq.console.pages import body_reading
from metaq.console.pages.body_reading import BODY_BYTES_MAX, BodyReader, export_turn, limit_bodies
from metaq.console.pages.message_export import NOT_READ, _content
from metaq.console.pages.message_search import FoundMessages
from metaq.errors import UnreadableBody


@pytest.fixture
def limited() -> Iterator[None]:
    limit_bodies()
    yield
    limit_inflation(INFLATED_BYTES_MAX)


def message(number: int, body: bytes) -> Message:
    return Message("orders", body, id=f"id-{number}", offset_id=f"{number:032X}", queue_offset=number)


def test_the_console_reads_smaller_bodies_than_a_client(limited: None) -> None:
    small, large = (zlib.compress(bytes(size)) for size in (BODY_BYTES_MAX, BODY_BYTES_MAX + 1))
    assert len(decompress(small, COMPRESSED)) == BODY_BYTES_MAX
    with pytest.raises(UnreadableBody):
        decompress(large, COMPRESSED)
    limit_inflation(INFLATED_BYTES_MAX)
    assert len(decompress(large, COMPRESSED)) == BODY_BYTES_MAX + 1


def test_a_list_reads_a_bounded_number_of_bytes() -> None:
    reader = BodyReader(bytes_max=10)
    rows = [reader.row(message(number, b"12345678")) for number in range(4)]
    assert [row.is_read for row in rows] == [True, True, False, False]
    assert [row.start for row in rows] == ["12345678", "12345678", None, None]
    assert FoundMessages(tuple(rows)).unread == 2


def test_a_body_that_a_search_has_read_is_not_counted_again() -> None:
    reader = BodyReader(bytes_max=10)
    found = message(1, b"12345678")
    assert reader.has_text(found, "345")
    assert not reader.has_text(message(2, b"12345678"), "9")
    with pytest.raises(EndOfSearch):
        reader.has_text(message(3, b"12345678"), "345")
    assert reader.row(found).start == "12345678"


def test_an_unreadable_body_costs_as_much_as_the_largest_one() -> None:
    class Bomb:
        offset_id = "A"

        @property
        def body(self) -> bytes:
            raise UnreadableBody("too large")

    reader = BodyReader(bytes_max=BODY_BYTES_MAX)
    row = reader.row(Bomb())  # type: ignore[arg-type]
    assert (row.is_read, row.size_bytes) == (True, None)
    assert not reader.row(message(1, b"x")).is_read


def test_an_export_says_which_bodies_it_lacks() -> None:
    reader = BodyReader(bytes_max=1)
    found = FoundMessages(tuple(reader.row(message(number, b"text")) for number in range(2)))
    for kind in ("csv", "json"):
        text = _content("orders", kind, found).decode()
        assert text.count("id-") == 2 and NOT_READ in text
    assert '"is_partial":true' in text


def test_a_third_export_waits_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        monkeypatch.setattr(body_reading, "_exports", asyncio.Semaphore(2))
        monkeypatch.setattr(body_reading, "EXPORT_WAIT_S", 0.0)
        async with export_turn(), export_turn():
            with pytest.raises(HTTPException) as refused:
                async with export_turn():
                    pass
            assert refused.value.status_code == 503
        async with export_turn():
            pass

    asyncio.run(check())
