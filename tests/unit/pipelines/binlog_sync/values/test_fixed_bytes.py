"""UUIDs and addresses have the texts that a MariaDB server prints."""

from __future__ import annotations

import pytest

from metaq.pipelines.binlog_sync.values.fixed_bytes import refined_reader


@pytest.mark.parametrize(
    ("kind", "raw", "text"),
    [
        ("uuid", "123e4567e89b12d3a456426655440000", "123e4567-e89b-12d3-a456-426655440000"),
        ("inet4", "01020300", "1.2.3.0"),
        ("inet6", "0001000000010000acaf00009c6e0000", "1::1:0:acaf:0:9c6e:0"),
        ("inet6", "00010000000200030004000500060000", "1::2:3:4:5:6:0"),
        ("inet6", "20010db8" + "0" * 24, "2001:db8::"),
        ("inet6", "0" * 32, "::"),
        ("inet6", "0" * 24 + "01020304", "::1.2.3.4"),
        ("inet6", "0" * 20 + "ffff01020304", "::ffff:1.2.3.4"),
    ],
)
def test_texts(kind: str, raw: str, text: str) -> None:
    value = bytes.fromhex(raw)
    read = refined_reader(kind, lambda image, at: (image[at:], len(image)))
    assert read(value, 0) == (text, len(value))
