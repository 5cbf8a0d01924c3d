"""Output templates."""

from __future__ import annotations

import pytest

from metaq.cli.printing.templates import Template
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.errors import CommandError

MESSAGE = Message(
    "orders",
    b"\xffbody",
    "new",
    ("k1", "k2"),
    {"a": "1", "b": "2"},
    id="ID",
    offset_id="OFFSET",
    queue=Queue("orders", "broker-a", 3),
    queue_offset=7,
    stored_at=1_700_000_000_123,
)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("%t/%T/%k", b"orders/new/k1 k2"),
        (r"%b\n", b"\xffbody\n"),
        ("%i %I %B:%q:%o %n", b"ID OFFSET broker-a:3:7 5"),
        ("%s %S", b"1700000000123 2023-11-14T22:13:20.123+00:00"),
        (r"%h%%\t\\", b"a=1,b=2%\t\\"),
        (r"C:\data é", r"C:\data é".encode()),
        ("", b""),
    ],
)
def test_templates(text: str, rendered: bytes) -> None:
    assert Template(text).render(MESSAGE) == rendered


@pytest.mark.parametrize("text", ["%z", "100%"])
def test_an_unknown_escape_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="is not an escape"):
        Template(text)
