"""The forms of a body: chosen well, cut honestly, and harmless whatever they hold."""

from __future__ import annotations

import json

import msgspec
import pytest

from metaq.console.bodies import HEX_BYTES_MAX, TEXT_BYTES_MAX, best_form, preview, view_of, visible

CHINESE = "订单已创建，等待付款。"


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b"", "text"),
        (b"plain", "text"),
        (CHINESE.encode(), "text"),
        (b'{"a": 1}', "json"),
        (b" [1, 2]", "json"),
        (b"12", "text"),
        (b'{"a": ', "text"),
        (msgspec.msgpack.encode({"a": 1, "b": [True, None]}), "msgpack"),
        (CHINESE.encode("gbk"), "gbk"),
        (bytes(range(256)), "hex"),
        (b"\x00\x00\x00\x01", "hex"),
        (b"[" * 100_000, "text"),
        (b"\x91" * 100_000, "gbk"),
        (b"\xdd\xff\xff\xff\xff", "hex"),
    ],
)
def test_the_form_that_suits_a_body_is_chosen(body: bytes, form: str) -> None:
    assert best_form(body) == form
    view = view_of(body)
    assert (view.form, view.size_bytes) == (form, len(body))


def test_json_is_shown_as_it_was_written() -> None:
    body = b'{"id": 12345678901234567890, "price": 1.10}'
    assert view_of(body).tree == body.decode()


def test_msgpack_becomes_json_without_losing_a_value() -> None:
    value = {"n": 2**63, "f": 1.5, "nan": float("nan"), 7: b"\x00\xff", "t": None, "list": [1, "中"]}
    tree = view_of(msgspec.msgpack.encode(value)).tree
    assert tree is not None
    assert json.loads(tree) == {
        "n": 2**63,
        "f": 1.5,
        "nan": "nan",
        "7": "bytes 00ff",
        "t": None,
        "list": [1, "中"],
    }


def test_a_wanted_form_that_does_not_fit_says_why() -> None:
    assert (view_of(b"{", "json").fault, view_of(b"{", "json").text) == ("not_json", "{")
    assert view_of(b"\xc1", "msgpack").fault == "not_msgpack"
    assert view_of(b"[" + b"1," * TEXT_BYTES_MAX + b"1]", "json").fault == "too_large"
    assert view_of(CHINESE.encode("gbk"), "gbk").text == CHINESE
    assert view_of(b"x", "unknown").form == "text"


def test_a_large_body_is_cut_between_two_signs() -> None:
    view = view_of("中".encode() * TEXT_BYTES_MAX)
    assert view.is_cut and (view.shown_bytes, view.size_bytes) == (TEXT_BYTES_MAX, 3 * TEXT_BYTES_MAX)
    assert set(view.text) == {"中"}
    shown = view_of(bytes(HEX_BYTES_MAX + 1), "hex")
    assert shown.is_cut and shown.text.count("\n") == HEX_BYTES_MAX // 16 - 1
    assert not view_of(b"whole").is_cut


def test_bytes_are_shown_with_their_offsets() -> None:
    assert view_of(b"0123456789abcdef!\x00", "hex").text.splitlines() == [
        "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef",
        "00000010  21 00                                            !.",
    ]


def test_signs_that_nobody_can_see_are_written_out() -> None:
    assert visible("a\x00b\u202ec\r\nd\te\u3000") == "a\\x00b\\u202ec\nd\te\u3000"


def test_a_preview_is_one_short_line() -> None:
    assert preview(b"a\n  b\tc") == "a b c"
    assert preview(b"") == ""
    assert preview(CHINESE.encode("gbk")) == CHINESE
    assert preview(bytes(range(256))) is None
    long = preview("中".encode() * 1000)
    assert long is not None and len(long) == 120 and long.endswith("…")
    assert preview(b'{"cut": "' + b"x" * 5000) is not None
