"""Attributes, as flags give them."""

from __future__ import annotations

import pytest

from metaq.cli.reading.attributes import changed_attributes, given_attributes
from metaq.errors import CommandError


def test_attributes_are_read() -> None:
    assert given_attributes(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    assert given_attributes(None) == {}
    assert changed_attributes(["a=1", "b="]) == {"a": "1", "b": None}


@pytest.mark.parametrize("text", ["", "=x", "name"])
def test_a_text_that_is_no_attribute(text: str) -> None:
    with pytest.raises(CommandError, match="is not an attribute"):
        changed_attributes([text])


def test_a_new_attribute_needs_a_value() -> None:
    with pytest.raises(CommandError, match="--attribute a= has no value"):
        given_attributes(["a="])
