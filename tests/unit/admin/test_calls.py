"""Questions to all brokers: the failure of one of them is only its own."""

from __future__ import annotations

import asyncio

import pytest

from metaq.errors import MetaqError, UsageError
from metaq.protocol.bodies import KVTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import GetBrokerRuntimeInfo
from metaq.protocol.errors import Refused, Unreachable
from metaq.protocol.reply import Reply
from tests.support.scripted_calls import ScriptedCalls

WELL = Reply(0, None, {}, KVTable(table={"a": "1"}).encode())
NONSENSE = Reply(0, None, {}, b"<html>")
FORBIDDEN = Reply(ResponseCode.NO_PERMISSION, "not you", {}, b"")


def calls_of(*, is_partial: bool = True, **answers: Reply | Exception) -> ScriptedCalls:
    def answer(broker: str, command: Command) -> Reply:
        found = answers[broker]
        if isinstance(found, Exception):
            raise found
        return found

    return ScriptedCalls(answer, *answers, is_partial=is_partial)


def ask_each(calls: ScriptedCalls) -> tuple[list[str], list[str]]:
    async def one(broker: str) -> KVTable:
        return KVTable.decode((await calls.ask(broker, GetBrokerRuntimeInfo())).body)

    async def scenario() -> tuple[list[str], list[str]]:
        found, failures = await calls.from_each(await calls.masters(), one)
        return sorted(found), [f"{failure.broker}: {failure.reason}" for failure in failures]

    return asyncio.run(scenario())


def test_a_broker_that_refuses_or_answers_nonsense_fails_alone() -> None:
    answered, failures = ask_each(
        calls_of(a=WELL, away=Unreachable("gone"), bug=RuntimeError("odd"), forbidden=FORBIDDEN, odd=NONSENSE)
    )
    assert answered == ["a"]
    assert [failure.partition(":")[0] for failure in failures] == ["away", "bug", "forbidden", "odd"]
    assert "not you" in failures[2] and "RuntimeError: odd" in failures[1]


def test_an_error_is_raised_if_nobody_answers() -> None:
    with pytest.raises(Refused, match="not you"):
        ask_each(calls_of(away=Unreachable("gone"), forbidden=FORBIDDEN))
    with pytest.raises(Unreachable):
        ask_each(calls_of(away=Unreachable("gone")))


def test_the_mistakes_of_the_caller_and_strict_clients_raise() -> None:
    with pytest.raises(UsageError):
        ask_each(calls_of(a=WELL, b=UsageError("no such filter")))
    with pytest.raises(MetaqError):
        ask_each(calls_of(a=WELL, odd=NONSENSE, is_partial=False))
