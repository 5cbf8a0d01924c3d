"""Which messages a reader selects, and which part of it a broker does."""

from __future__ import annotations

import pytest

from metaq.admin.messages.selection import Selection
from metaq.client.message import Message
from metaq.errors import UsageError
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

MESSAGE = Message("T", b"", "red", ("k1", "k2"), {"price": "7"})


@pytest.mark.parametrize(
    ("selection", "expression", "matches"),
    [
        (Selection(), ("*", "TAG"), True),
        (Selection(tags="blue || red"), ("blue || red", "TAG"), True),
        (Selection(tags=["blue"]), ("blue", "TAG"), False),
        (Selection(tags="*"), ("*", "TAG"), True),
        (Selection(key="k2"), ("*", "TAG"), True),
        (Selection(key="k"), ("*", "TAG"), False),
        (Selection(sql="price > 5"), ("price > 5", "SQL92"), True),
        (Selection(sql="price > 7", key="k1"), ("price > 7", "SQL92"), False),
    ],
)
def test_selections(selection: Selection, expression: tuple[str, str], matches: bool) -> None:
    assert selection.subscription("broker-a") == expression
    assert selection.matches(MESSAGE) is matches


def test_a_broker_that_selects_by_tags_alone_is_asked_for_all() -> None:
    selection = Selection(sql="price > 5")
    refusal = Refused(
        ResponseCode.SYSTEM_ERROR, "the broker does not support consumer to filter message by SQL92"
    )
    assert selection.evaluates_instead_of("broker-a", refusal)
    assert selection.subscription("broker-a") == ("*", "TAG")
    assert selection.subscription("broker-b") == ("price > 5", "SQL92")
    assert not selection.evaluates_instead_of("broker-a", refusal), "a second refusal has another reason"
    assert not Selection().evaluates_instead_of("broker-a", refusal)
    assert not selection.evaluates_instead_of("broker-b", Refused(ResponseCode.SYSTEM_ERROR, "disk full"))


def test_wrong_selections() -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        Selection(tags="a", sql="b > 1")
    with pytest.raises(UsageError, match="no tag is given"):
        Selection(tags=" || ")
    with pytest.raises(UsageError, match="ends too early"):
        Selection(sql="a >")
