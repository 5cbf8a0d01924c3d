"""The search that an address describes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from starlette.requests import Request

from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.console.pages.body_reading import BodyReader
from metaq.console.pages.message_search import MessageQuery, message_query
from metaq.errors import UsageError


def request_of(query: str, cookie: str = "") -> Request:
    headers = [(b"cookie", cookie.encode())] if cookie else []
    return Request({"type": "http", "query_string": query.encode(), "headers": headers})


def test_an_address_is_read() -> None:
    query = message_query(
        request_of("from=-1h&queue=broker-a:3&tag=a&key=k&sql=x%3D1&text=T&before=b"), "orders"
    )
    assert query.parameters == {
        "from": "-1h",
        "to": "",
        "queue": "broker-a:3",
        "tag": "a",
        "key": "k",
        "sql": "x=1",
        "text": "T",
    }
    assert (query.before, query.is_filtered) == ("b", True)
    assert query.queues == (Queue("orders", "broker-a", 3),)
    assert not message_query(request_of("before=b"), "orders").is_filtered


def test_times_are_in_the_zone_of_the_reader() -> None:
    query = message_query(request_of("from=2026-01-31T12:00&to=-10m", "metaq-utc-offset=480"), "orders")
    assert query.begin == datetime(2026, 1, 31, 4, tzinfo=UTC)
    assert query.end is not None
    assert timedelta(minutes=9) < datetime.now(UTC) - query.end < timedelta(minutes=11)
    assert MessageQuery("orders").begin is None


@pytest.mark.parametrize("text", ["yesterday", "5", "latest", "2026-99-99"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        _ = MessageQuery("orders", begin_text=text).begin


@pytest.mark.parametrize("text", ["3", "broker-a:", ":3", "broker-a:x", "broker-a:-1"])
def test_what_is_no_queue_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a queue"):
        _ = MessageQuery("orders", queue=text).queues


def test_text_is_found_in_both_encodings() -> None:
    query = MessageQuery("orders", text="Paid 付款")
    for encoding in ("utf-8", "gbk"):
        assert query.matches(Message("orders", "order PAID 付款 done".encode(encoding)), BodyReader())
    assert not query.matches(Message("orders", b"paid"), BodyReader())


def test_a_row_says_whether_its_body_is_text() -> None:
    row = BodyReader().row(Message("t", b"text"))
    assert (row.start, row.size_bytes) == ("text", 4)
    assert BodyReader().row(Message("t", bytes(10))).start is None
