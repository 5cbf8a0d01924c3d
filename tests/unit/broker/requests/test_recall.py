"""The form of a recall handle."""

from __future__ import annotations

import base64
import dataclasses

import pytest

from metaq.broker.requests.recall import HANDLE_CHARACTERS_MAX, Handle


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_a_handle_is_read_with_and_without_padding() -> None:
    text = "v1 orders broker-a 1750000000000 K?~"
    wanted = Handle("orders", "broker-a", 1_750_000_000_000, "K?~", signed=text)
    handle = encoded(text)
    assert Handle.decode(handle) == Handle.decode(handle.rstrip("=")) == wanted
    signed = Handle.decode(encoded(f"{text} signature and more"))
    assert signed == dataclasses.replace(wanted, signature="signature")


def test_a_time_that_is_none_is_always_over() -> None:
    assert Handle.decode(encoded("v1 orders broker-a soon K")).due_ms == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "é",
        "A",
        encoded("v2 orders broker-a 1 K"),
        encoded("v1 orders broker-a 1"),
        encoded("v1 orders broker-a 1 "),
        encoded("v1  broker-a 1 K"),
        base64.urlsafe_b64encode(b"v1 orders broker-a 1 \xff").decode(),
        encoded("v1 orders broker-a 1 " + "K" * HANDLE_CHARACTERS_MAX),
    ],
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="recall handle"):
        Handle.decode(text)
