"""The commands that actions on messages show: they exist, and mean the same."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from metaq.cli import app
from metaq.console.actions.messages import NewMessage


def parsed(words: tuple[str, ...]) -> dict[str, object]:
    """Returns the values that the command line reads from these words."""
    root: Any = typer.main.get_command(app)
    command = root.get_command(root.make_context("metaq", [], resilient_parsing=True), words[0])
    params: dict[str, object] = command.make_context(words[0], list(words[1:])).params
    return params


@pytest.mark.parametrize("body", ["plain", "two\nlines", "-", "-5", "--tag", "'quoted' \"text\""])
def test_a_message_is_sent_by_the_command_that_is_shown(body: str) -> None:
    message = NewMessage("orders", body, "paid", ("k1", "-k2"), "10s", None, {"a": "b=c"})
    found = parsed((*message.words, "--namesrv", "127.0.0.1:1"))
    assert found["topic"] == "orders"
    assert found["body"] == ("-" if message.is_in_file else body)
    assert (found["tag"], found["key"], found["delay"]) == ("paid", ("k1", "-k2"), "10s")
    assert found["property"] == ("a=b=c",)


def test_a_body_that_the_shell_cannot_pass_is_in_a_file() -> None:
    def is_in_file(body: str) -> bool:
        return NewMessage("orders", body, "", (), "", None, {}).is_in_file

    assert [is_in_file(body) for body in ("-5", "x" * 1001, "a\x00b")] == [True] * 3
    assert not is_in_file("x" * 1000)
