"""Dead letters that are sent again by a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest

from metaq.admin.results import DeadLetterCount, ResendOutcome
from metaq.client.message import Message
from metaq.console.access.roles import Identity, Role
from metaq.console.actions.action import Action, Call, FormError, Outcome
from metaq.console.actions.dead_letters import COMPARED_BYTES_MAX, EditLetter, ResendAllLetters, ResendLetters
from metaq.console.actions.jobs import AlreadyRunning, Job, JobLine, Jobs
from tests.support.console_calls import call_of

BOB = Identity("bob", Role.operator)


class Audit:
    def __init__(self) -> None:
        self.entries: list[tuple[str, str, str, str]] = []

    async def record(
        self, identity: Identity, address: str, command: str, target: str, result: str, detail: str = ""
    ) -> None:
        self.entries.append((identity.name, address, result, detail))


class Letters:
    """Dead letters of a group; sending them again waits until the test allows it."""

    def __init__(self, waiting: int = 3) -> None:
        self.waiting = waiting
        self.go = asyncio.Event()
        self.jobs = Jobs()
        self.audit = Audit()

    async def counts(self, groups: list[str]) -> tuple[DeadLetterCount, ...]:
        return (DeadLetterCount(groups[0], self.waiting, self.waiting),)

    async def resend_each(
        self, group: str, ids: object, *, rate: float
    ) -> AsyncGenerator[ResendOutcome, None]:
        yield ResendOutcome("A", None)
        await self.go.wait()
        yield ResendOutcome("B", None)

    async def find(self, group: str, id: str) -> object:
        return SimpleNamespace(message=Message("%DLQ%billing", b"old body", offset_id=id))

    def call(self, *, missing: tuple[str, ...] = (), **form: str) -> Call:
        return call_of(
            SimpleNamespace(dead_letters=self),
            {"group": "billing", **form},
            selected=("A", "B"),
            missing={"%DLQ%billing": missing},
            jobs=self.jobs,
            audit=self.audit,
        )

    async def use(self, action: Action) -> Outcome:
        call = self.call()
        return await action.apply(call, await action.preview(call))

    def job(self) -> Job:
        return self.jobs.of("billing")[0]


@pytest.mark.parametrize("second", [ResendLetters(), ResendAllLetters()])
def test_a_second_job_of_the_same_group_is_refused(second: Action) -> None:
    async def check() -> None:
        letters = Letters()
        preview = await second.preview(letters.call())
        first = await letters.use(ResendAllLetters())
        with pytest.raises(FormError) as refused:
            await second.preview(letters.call())
        assert refused.value.path == f"/jobs/{first.job}"
        # Both people had seen their previews before the first job began.
        with pytest.raises(FormError):
            await second.apply(letters.call(), preview)
        letters.go.set()
        job = letters.job()
        assert job.task is not None
        await job.task
        assert (await letters.use(second)).job != first.job

    asyncio.run(check())


def test_only_one_job_works_on_a_thing() -> None:
    async def steps() -> AsyncGenerator[JobLine, None]:
        await asyncio.Event().wait()
        yield JobLine("never")

    async def ended(job: Job) -> None:
        pass

    async def check() -> None:
        jobs = Jobs()
        first = jobs.start("a", "a", None, steps(), ended, subject="billing")
        with pytest.raises(AlreadyRunning, match=first.id):
            jobs.start("b", "b", None, steps(), ended, subject="billing")
        jobs.start("c", "c", None, steps(), ended, subject="shipping")
        assert [job.title for job in jobs.of("billing")] == ["a"]
        await jobs.close()

    asyncio.run(check())


def test_the_preview_is_shown_again_if_more_letters_wait() -> None:
    async def fingerprint(waiting: int, shown: str) -> str:
        return (await ResendAllLetters().preview(Letters(waiting).call(shown_count=shown))).fingerprint

    async def check() -> None:
        first = await ResendAllLetters().preview(Letters(5).call())
        assert first.shown_count == 5
        assert await fingerprint(5, "5") == first.fingerprint
        assert await fingerprint(4, "5") == first.fingerprint
        assert await fingerprint(6, "5") != first.fingerprint

    asyncio.run(check())


def test_letters_on_a_silent_broker_are_not_counted_as_none() -> None:
    async def check() -> None:
        shown = await ResendAllLetters().preview(Letters(5).call(missing=("broker-b",)))
        assert "≥ 5 dead letters" in shown.sentence
        assert any("broker-b" in warning for warning in shown.warnings)

    asyncio.run(check())


def test_the_number_of_letters_is_the_length_of_the_progress_bar() -> None:
    async def check() -> None:
        letters = Letters(3)
        await letters.use(ResendAllLetters())
        assert letters.job().total == 3
        await letters.jobs.close()

    asyncio.run(check())


def test_the_audit_log_has_who_stopped_a_job() -> None:
    async def check() -> None:
        letters = Letters()
        await letters.use(ResendAllLetters())
        await letters.jobs.stop(letters.job(), BOB, "10.0.0.7")
        await letters.use(ResendAllLetters())
        await letters.jobs.close()
        stopped, closed = letters.audit.entries
        assert stopped[:3] == ("bob", "10.0.0.7", "job stopped")
        assert "begun by ann" in stopped[3]
        assert closed[0] == "ann" and "the console has stopped" in closed[3]

    asyncio.run(check())


def test_an_edit_shows_the_beginning_of_both_bodies() -> None:
    async def check() -> None:
        call = Letters().call(id="A", body="x" * (COMPARED_BYTES_MAX + 1))
        compared = (await EditLetter().preview(call)).compared
        assert compared == ("old body", "x" * COMPARED_BYTES_MAX + "…")

    asyncio.run(check())
