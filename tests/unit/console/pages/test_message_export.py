"""Messages in files."""

from __future__ import annotations

from metaq.cli.printing.message_views import KEYS, document
from metaq.client.message import Message
from metaq.client.session.routes import Queue
from metaq.console.pages.message_export import file_name, record


def test_a_record_is_the_one_that_the_command_line_prints() -> None:
    queue = Queue("orders", "broker-a", 1)
    for body in (b"text", b"\xff\x00"):
        message = Message("orders", body, "tag", ("k1", "k2"), {"p": "v"}, "ID", "OFFSET", queue, 7)
        assert record(message) == document(message)
        assert tuple(record(message)) == KEYS


def test_a_file_has_a_harmless_name() -> None:
    assert file_name("%RETRY%group") == "_RETRY_group"
    assert file_name("../../etc/passwd") == "_.._etc_passwd"
    assert file_name('a"\r\nX: y') == "a___X__y"
    assert file_name("..") == "messages"
