"""The page of a group's dead letters: it never says that none wait if nobody knows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from starlette.requests import Request

from metaq.admin.messages.letter_pages import DeadLetterPage
from metaq.admin.results import BrokerFailure, DeadLetter, DeadLetterCount
from metaq.client.message import Message
from metaq.console.access.roles import Identity, Role
from metaq.console.pages import dead_letters
from tests.support.console_calls import call_of

NONE_WAIT = "No dead letter waits"


class Letters:
    def __init__(self, page: DeadLetterPage, waiting: int | None = 0) -> None:
        self.page = page
        self.waiting = waiting
        self.asked: dict[str, object] = {}

    async def counts(self, groups: list[str]) -> tuple[DeadLetterCount, ...]:
        return (DeadLetterCount(groups[0], self.waiting, self.waiting),)

    async def newest(self, group: str, **options: object) -> DeadLetterPage:
        self.asked = options
        return self.page


def shown(letters: Letters, query: str = "", missing: tuple[str, ...] = ()) -> str:
    """Returns the part of the page that changes."""
    call = call_of(SimpleNamespace(dead_letters=letters), {}, missing={"%DLQ%billing": missing})
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/dead-letters/billing",
        "query_string": query.encode(),
        "headers": [(b"hx-request", b"true"), (b"hx-target", b"div#live")],
        "path_params": {"group": "billing"},
        "state": {"identity": Identity("ann", Role.operator)},
        "app": call.request.app,
    }
    answer = asyncio.run(dead_letters.letters(Request(scope)))
    return bytes(answer.body).decode()


def letter(number: int) -> DeadLetter:
    return DeadLetter(
        Message("%DLQ%billing", b"body", id=f"id-{number}", offset_id=f"{number:032X}"), "orders"
    )


def test_no_letter_waits() -> None:
    assert NONE_WAIT in shown(Letters(DeadLetterPage()))


def test_a_broker_that_does_not_answer_may_hold_letters() -> None:
    failed = DeadLetterPage(failures=(BrokerFailure("broker-b", "away"),))
    for text in (shown(Letters(failed)), shown(Letters(DeadLetterPage()), missing=("broker-b",))):
        assert NONE_WAIT not in text
        assert "broker-b" in text
        assert "No dead letter was found on the brokers that answer." in text
        assert 'class="v partial"' in text


def test_a_page_whose_letters_were_all_sent_again_leads_to_older_ones() -> None:
    text = shown(Letters(DeadLetterPage(before="1-2-broker-a", resent=50)))
    assert NONE_WAIT not in text
    assert "before=1-2-broker-a" in text


def test_pages_have_a_bounded_number_of_letters() -> None:
    letters = Letters(DeadLetterPage((letter(1), letter(2)), before="1-2-broker-a", unchecked=2), waiting=900)
    text = shown(letters, "before=3-4-broker-a&all=1")
    assert letters.asked == {"resent": True, "limit": dead_letters.SHOWN, "before": "3-4-broker-a"}
    assert "id-1" in text and "id-2" in text
    assert "Nobody knows whether 2 letters were sent again" in text
