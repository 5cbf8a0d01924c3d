"""Resets: the plan that a person has seen is applied, or nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from metaq.admin.results import Bounds, QueueReset, Reset
from metaq.client.session.routes import Queue
from metaq.console.actions import group_moves
from metaq.console.actions.action import Call, FormError, Preview
from metaq.console.actions.group_moves import ResetGroup
from tests.support.console_calls import call_of

QUEUE = Queue("orders", "broker-a", 0)


class Cluster:
    """One queue, and a group that has committed an offset in it."""

    def __init__(self, committed: int | None, end: int) -> None:
        self.at: int | None = committed
        self.end = end
        self.applied: list[Reset] = []
        self.action = ResetGroup()

    async def bounds(self, queues: list[Queue]) -> dict[Queue, Bounds]:
        return dict.fromkeys(queues, Bounds(0, self.end))

    async def committed(self, group: str, queues: list[Queue]) -> dict[Queue, int | None]:
        return dict.fromkeys(queues, self.at)

    async def reset(self, group: str, topic: str, to: object, **options: object) -> Reset:
        target = to if isinstance(to, int) else self.end
        return Reset(group, topic, (QueueReset(QUEUE, self.at, target),), is_dry_run=True)

    async def apply(self, plan: Reset) -> Reset:
        self.applied.append(plan)
        return plan

    def call(
        self, form: dict[str, str], selected: tuple[str, ...] = (), missing: tuple[str, ...] = ()
    ) -> Call:
        admin = SimpleNamespace(offsets=self, groups=self)
        fields = {"group": "billing", "topic": "orders", **form}
        return call_of(admin, fields, selected=selected, missing={"orders": missing})

    def preview(self, **form: str) -> Preview:
        return asyncio.run(self.action.preview(self.call(form)))


def test_a_group_that_has_passed_the_planned_offset_is_not_moved_back() -> None:
    cluster = Cluster(committed=100, end=5_000)
    shown = cluster.preview(position="latest")
    assert "Skips 4,900 messages. Redelivers none." in shown.sentence
    assert shown.loses_messages
    cluster.at, cluster.end = 9_000, 9_500
    again = cluster.preview(position="latest", fingerprint=shown.fingerprint)
    assert again.fingerprint != shown.fingerprint
    assert "Skips 500 messages." in again.sentence


def test_a_reset_to_an_offset_is_shown_again_if_its_direction_has_changed() -> None:
    cluster = Cluster(committed=100, end=9_500)
    shown = cluster.preview(position="offset", offset="5000")
    cluster.at = 9_000
    again = cluster.preview(position="offset", offset="5000", fingerprint=shown.fingerprint)
    assert again.fingerprint != shown.fingerprint
    assert "Skips none. Redelivers 4,000 messages." in again.sentence
    assert not again.loses_messages


def test_exactly_the_offsets_that_were_shown_are_applied() -> None:
    cluster = Cluster(committed=100, end=5_000)
    shown = cluster.preview(position="latest")
    cluster.at, cluster.end = 200, 6_000  # the group and the end of the queue move on
    again = cluster.preview(position="latest", fingerprint=shown.fingerprint)
    assert again is shown
    for offset in range(2 * group_moves.PLANS_MAX):  # other people look at resets meanwhile
        cluster.preview(position="offset", offset=str(offset))
    asyncio.run(cluster.action.apply(cluster.call({"position": "latest"}), again))
    assert [change.queue_offset for change in cluster.applied[0].queues] == [5_000]


def test_an_old_plan_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(committed=100, end=5_000)
    shown = cluster.preview(position="latest")
    cluster.end = 6_000
    monkeypatch.setattr(group_moves, "PLAN_AGE_S_MAX", -1.0)
    again = cluster.preview(position="latest", fingerprint=shown.fingerprint)
    assert again.fingerprint != shown.fingerprint


def test_a_silent_broker_and_a_queue_without_an_offset_are_named() -> None:
    cluster = Cluster(committed=None, end=5_000)
    shown = asyncio.run(cluster.action.preview(cluster.call({"position": "latest"}, missing=("broker-b",))))
    assert "In 1 queue the group has committed no offset" in shown.sentence
    assert any("broker-b" in warning for warning in shown.warnings)


@pytest.mark.parametrize(
    ("form", "selected"),
    [({}, ()), ({"position": "sideways"}, ()), ({"position": "latest"}, (f"broker-a:{'9' * 5_000}",))],
)
def test_a_form_that_cannot_be_used_is_refused(form: dict[str, str], selected: tuple[str, ...]) -> None:
    cluster = Cluster(committed=100, end=5_000)
    with pytest.raises(FormError):
        asyncio.run(cluster.action.preview(cluster.call(form, selected)))
