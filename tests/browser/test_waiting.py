"""Messages that wait: delayed ones and half messages; and the reports of pipelines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
from playwright.sync_api import Locator, Page, expect

import metaq
from metaq.admin import Admin, PipelineReport
from tests.support.browser import PHONE, Complaints, check_accessible, fits_width
from tests.support.waiting import wait_until

DELAYED, DECIDED = "waiting-reminders", "waiting-payments"
HOUR_S = 3600


@pytest.fixture(scope="module")
def topics(admin: Admin) -> None:
    for topic in (DELAYED, DECIDED):
        admin.topics.create(topic, queues=1)


@pytest.fixture(scope="module")
def received(client: metaq.Client, topics: None) -> Iterator[list[bytes]]:
    """The bodies that a consumer of both topics gets."""
    bodies: list[bytes] = []

    def note(message: metaq.Message) -> None:
        bodies.append(message.body)

    consumer = client.consumer((DELAYED, DECIDED), group="waiting-readers", start="earliest")(note)
    yield bodies
    consumer.close()


@pytest.fixture(scope="module")
def producer(client: metaq.Client, topics: None) -> Iterator[metaq.Producer]:
    """Asked about its transactions, it never knows."""
    with client.producer("waiting-producers") as made:
        made.check(lambda message: None)
        yield made


def row(page: Page, text: str) -> Locator:
    """The row that has this text; of an id, tables show only the end."""
    shown = text[-12:] if re.fullmatch("[0-9A-F]{32}", text) else text
    return page.locator("tbody tr").filter(has_text=shown)


def apply(page: Page, command: str) -> Locator:
    """Applies the action in the dialog. Returns its outcome."""
    dialog = page.locator("#dialog")
    expect(dialog.locator("[data-effect] .command code")).to_contain_text(command)
    check_accessible(page)
    dialog.locator("[data-apply]").click()
    return dialog.locator("[data-outcome]")


# Delayed messages


@pytest.fixture(scope="module")
def delayed(producer: metaq.Producer, admin: Admin) -> list[str]:
    """Two messages that are due in about an hour, one that is due much later."""
    ids = [
        producer.send(DELAYED, b"later", keys=[f"due-{hours}"], delay=hours * HOUR_S).id
        for hours in (1, 1.2, 48)
    ]
    wait_until(lambda: {one.id for one in admin.delayed.list(topic=DELAYED).messages} >= set(ids))
    return ids


@pytest.fixture(scope="module")
def soon(producer: metaq.Producer, admin: Admin) -> tuple[str, str]:
    """Two messages that are due at the same time, in a moment. The first test recalls the first of them, and
    the last test sees that only the other one arrives."""
    ids = (producer.send(DELAYED, b"recalled", delay=20).id, producer.send(DELAYED, b"kept", delay=20).id)
    wait_until(lambda: {one.id for one in admin.delayed.list(topic=DELAYED).messages} >= set(ids))
    return ids


def test_a_message_is_recalled(page: Page, soon: tuple[str, str]) -> None:
    recalled, _ = soon
    page.goto(f"/delayed?topic={DELAYED}")
    row(page, recalled).get_by_role("link", name="Recall").click()
    expect(apply(page, "metaq delayed recall")).to_contain_text(f"The message {recalled} is recalled.")
    page.get_by_role("button", name="Close").click()
    expect(row(page, recalled).get_by_text("recalled", exact=True)).to_be_visible()
    expect(row(page, recalled).get_by_role("link", name="Recall")).to_have_count(0)
    page.goto("/audit?q=recall")
    expect(row(page, "metaq delayed recall").first).to_be_visible()


def test_delayed_messages_by_their_time(page: Page, delayed: list[str]) -> None:
    page.goto(f"/delayed?topic={DELAYED}&from={time.time_ns() // 1_000_000 + 600_000}")
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator(".tile").first).to_contain_text(re.compile(r"Waiting\s*\d"))
    for id, key in zip(delayed, ("due-1", "due-1.2", "due-48"), strict=True):
        expect(row(page, id)).to_contain_text(key)
    check_accessible(page)
    bars = page.locator(".histogram a")
    # Viewers share the figures for a few seconds; then the bars are those of these messages.
    expect(bars.nth(1)).to_be_attached()
    heights = [float(bar.get_attribute("height") or 0) for bar in page.locator(".histogram__bar").all()]
    assert sum(height > 0 for height in heights) >= 2
    assert heights[-1] > 0
    bars.last.focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("from="))
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(row(page, delayed[2])).to_be_visible()
    page.get_by_role("link", name="All times").click()
    for id in delayed:
        expect(row(page, id)).to_be_visible()


def test_a_message_that_is_no_longer_delayed_is_explained(page: Page, complaints: Complaints) -> None:
    complaints.expect("404")
    page.goto("/actions/recall-message?id=7F0000010000271000000000DEADBEEF")
    expect(page.get_by_role("alert")).to_contain_text("7F0000010000271000000000DEADBEEF")


# Transactions


def begin(producer: metaq.Producer, body: bytes) -> str:
    with producer.transaction(DECIDED, body, keys=["payment"]) as transaction:
        transaction.leave()
        return transaction.id


def test_open_transactions_are_decided_by_hand(
    page: Page, producer: metaq.Producer, received: list[bytes]
) -> None:
    committed, rolled_back = begin(producer, b"committed"), begin(producer, b"rolled back")
    page.goto("/transactions?group=waiting-producers")
    for id in (committed, rolled_back):
        expect(row(page, id)).to_contain_text("payment")
        expect(row(page, id)).to_contain_text(re.compile(r"[1-9]\d* of 1000"))
    check_accessible(page)
    assert not {b"committed", b"rolled back"} & set(received)
    row(page, rolled_back).get_by_role("link", name="Roll back").click()
    expect(page.get_by_text("The producer group waiting-producers is not asked.")).to_be_visible()
    for text in (DECIDED, "payment", rolled_back):
        expect(page.locator("[data-effect] tbody")).to_contain_text(text)
    expect(page.locator(f"[data-effect] [data-copy='{rolled_back}']")).to_be_visible()
    expect(apply(page, "metaq transaction rollback")).to_contain_text(f"{rolled_back} for {DECIDED}")
    page.get_by_role("button", name="Close").click()
    expect(row(page, rolled_back)).to_have_count(0)
    row(page, committed).get_by_role("link", name="Commit").click()
    expect(apply(page, "metaq transaction commit")).to_contain_text(f"{committed} is committed")
    page.get_by_role("button", name="Close").click()
    wait_until(lambda: b"committed" in received, what="the committed message arrives")
    assert b"rolled back" not in received
    expect(row(page, committed)).to_have_count(0)


def test_a_viewer_neither_recalls_nor_decides(
    viewer_page: Page, complaints: Complaints, delayed: list[str], producer: metaq.Producer
) -> None:
    begin(producer, b"open")
    viewer_page.goto(f"/delayed?topic={DELAYED}")
    expect(row(viewer_page, delayed[0]).get_by_role("button", name="Recall")).to_be_disabled()
    viewer_page.goto("/transactions")
    expect(viewer_page.get_by_role("button", name="Commit").first).to_be_disabled()
    complaints.expect("403")
    for action in ("recall-message", "commit-transaction", "roll-back-transaction"):
        refused = viewer_page.goto(f"/actions/{action}?id={delayed[0]}")
        assert refused is not None
        assert refused.status == 403


# Pipelines


@pytest.fixture(scope="module")
def reports(admin: Admin, topics: None) -> dict[str, PipelineReport]:
    """One run of each state. The silent one promised a report each second, and sends no other."""
    first = PipelineReport(
        name="waiting-lake",
        kind="log-lake",
        run=uuid4().hex,
        host="here",
        pid=1,
        started_ms=time.time_ns() // 1_000_000,
        state="running",
        interval_s=600,
        phase="following",
        rows_in_per_second=1234.0,
        lag_messages=17,
        topics=(DELAYED, "/waiting-.*/"),
    )
    made = {
        "running": first,
        "failing": replace(
            first,
            name="waiting-sync",
            run=uuid4().hex,
            state="failing",
            last_error="<b>the table has no key</b>",
            last_error_ms=first.started_ms,
        ),
        "silent": replace(first, name="waiting-gone", run=uuid4().hex, interval_s=1),
        "ended": replace(first, name="waiting-over", run=uuid4().hex, state="ended"),
    }
    for report in made.values():
        admin.pipelines.send(report)
    return made


def test_pipelines_show_their_state_rate_lag_and_error(
    page: Page, reports: dict[str, PipelineReport]
) -> None:
    page.goto("/pipelines?q=waiting")
    for state, report in reports.items():
        expect(row(page, report.name).locator(".state")).to_have_text(state)
    expect(row(page, "waiting-lake")).to_contain_text("following")
    expect(row(page, "waiting-lake").get_by_role("cell").nth(3)).to_have_text("1,234 /s")
    expect(row(page, "waiting-lake").get_by_role("cell").nth(4)).to_have_text("unknown")
    expect(row(page, "waiting-lake").get_by_role("cell").nth(5)).to_have_text("17 messages")
    expect(row(page, "<b>the table has no key</b>")).to_have_count(1)
    expect(row(page, "waiting-gone")).to_have_class(re.compile("is-stale"))
    check_accessible(page)
    row(page, "waiting-lake").get_by_role("link", name=DELAYED).click()
    expect(page).to_have_url(re.compile(f"/topics/{DELAYED}"))


def test_many_pipelines_have_pages(page: Page, admin: Admin, reports: dict[str, PipelineReport]) -> None:
    for number in range(51):
        admin.pipelines.send(
            replace(reports["running"], name=f"paged-{number:02}", run=uuid4().hex, topics=())
        )
    page.goto("/pipelines?q=paged-")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(row(page, "paged-50")).to_be_visible()


@pytest.mark.parametrize("path", ["/delayed", "/transactions", "/pipelines"])
def test_waiting_messages_on_a_phone_in_chinese(
    open_page: Callable[..., Page],
    path: str,
    delayed: list[str],
    producer: metaq.Producer,
    reports: dict[str, PipelineReport],
) -> None:
    begin(producer, b"open")
    page = open_page(viewport=PHONE, locale="zh-CN", color_scheme="dark")
    page.goto(path)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert fits_width(page)
    check_accessible(page)


def test_the_recalled_message_has_not_arrived(received: list[bytes], soon: tuple[str, str]) -> None:
    wait_until(lambda: b"kept" in received, what="the message arrives that was due at the same time")
    assert b"recalled" not in received
