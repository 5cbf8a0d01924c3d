"""Dead letters: a consumer gives messages up, and somebody sends them again, changes them or exports them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from playwright.sync_api import Locator, Page, expect

import metaq
from metaq.admin import Admin
from metaq.admin.calls import Calls
from metaq.client.compression import COMPRESSED
from metaq.protocol.commands.messages import SendMessageV2
from tests.support.browser import PHONE, Complaints, check_accessible, fits_width
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

TOPIC, GROUP, LETTERS = "letters-orders", "letters-billing", 4
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"
MISSING = "7F0000010000271000000000DEADBEEF"


class Billing:
    """A consumer that fails at every message until it is mended."""

    def __init__(self) -> None:
        self.is_mended = threading.Event()
        self.received: list[bytes] = []

    def __call__(self, message: metaq.Message) -> None:
        if not self.is_mended.is_set():
            raise LookupError(f"no customer {message.body.decode()}")
        self.received.append(message.body)


@pytest.fixture(scope="module", autouse=True)
def billing(client: metaq.Client, admin: Admin) -> Iterator[Billing]:
    """The consumer has given up all messages, and is mended since then."""
    admin.topics.create(TOPIC, queues=1)
    handler = Billing()
    consumer = client.consumer(TOPIC, group=GROUP, start="earliest", retries_max=0)(handler)
    with client.producer() as producer:
        for number in range(LETTERS):
            producer.send(TOPIC, f"{HOSTILE} {number}".encode(), keys=[f"letter-{number}"])
    wait_until(lambda: admin.dead_letters.counts([GROUP])[0].waiting == LETTERS, what="given up")
    handler.is_mended.set()
    yield handler
    consumer.close()


def letter(page: Page, number: int) -> Locator:
    return page.locator("#letters tbody tr").filter(has_text=f"{HOSTILE} {number}")


def ended_job(page: Page) -> Locator:
    job = page.locator("#dialog [data-job]")
    expect(job).to_have_attribute("data-job", "ended")
    return job


def test_groups_with_dead_letters_lead_to_the_reasons(page: Page) -> None:
    page.goto(f"/dead-letters?q={GROUP}")
    row = page.locator("tbody tr").filter(has=page.get_by_role("link", name=GROUP))
    expect(row.get_by_role("cell").nth(1)).to_have_text(str(LETTERS))
    check_accessible(page)
    row.get_by_role("link", name=GROUP).click()
    expect(page.locator("#letters tbody tr")).to_have_count(LETTERS)
    expect(letter(page, 2)).to_contain_text(f"LookupError: no customer {HOSTILE} 2")
    expect(letter(page, 2).get_by_role("link", name=TOPIC)).to_be_visible()
    assert page.locator("main img").count() == 0 and "pwned" not in page.title()
    check_accessible(page)


def test_selected_letters_are_sent_again_with_the_result_of_each(
    page: Page, admin: Admin, billing: Billing
) -> None:
    page.goto(f"/dead-letters/{GROUP}")
    expect(page.get_by_role("button", name="Resend the selected ones")).to_be_disabled()
    # Offset ids fall in the order of the list. The consumer gives messages up in any order.
    ids = sorted(
        (letter(page, number).get_by_role("checkbox").get_attribute("value") or "" for number in (0, 1)),
        reverse=True,
    )
    for number in (0, 1):
        letter(page, number).get_by_role("checkbox").check()
    dialog = page.locator("#dialog")
    page.get_by_role("button", name="Resend 2 selected").click()
    dialog.get_by_label("Messages per second").fill("50")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effect] .command code")).to_contain_text(
        f"metaq dlq resend {GROUP} --id {ids[0]} --id {ids[1]} --rate 50"
    )
    check_accessible(page)
    dialog.locator("[data-apply]").click()
    job = ended_job(page)
    expect(job.get_by_role("status")).to_contain_text("2 sent, 0 failed")
    for id in ids:
        expect(job.locator("tbody tr").filter(has_text=id)).to_contain_text("sent")
    check_accessible(page)
    # The list behind the dialog shows what the job has done, and leads to it.
    expect(page.locator("#letters tbody tr")).to_have_count(LETTERS - 2)
    page.keyboard.press("Escape")
    page.get_by_text("Recent resends").click()
    page.locator("details a").first.click()
    expect(page.locator("h1")).to_have_text(f"Resend dead letters: {GROUP}")
    expect(page.get_by_role("status").filter(has_text="2 sent, 0 failed")).to_be_visible()
    check_accessible(page)
    wanted = {f"{HOSTILE} {number}".encode() for number in (0, 1)}
    wait_until(lambda: wanted <= set(billing.received), what="consumed again")
    page.goto("/audit")
    expect(page.locator("tbody tr").filter(has_text=f"dlq resend {GROUP}").first).to_contain_text("2 sent")


def test_a_letter_that_cannot_be_sent_again_is_named(page: Page, admin: Admin, billing: Billing) -> None:
    [found] = [one for one in admin.dead_letters.list(GROUP, resent=True) if one.message.body[-1:] == b"2"]
    query = f"group={GROUP}&selected={MISSING}&selected={found.message.offset_id}"
    page.goto(f"/actions/resend-letters?{query}")
    page.get_by_role("button", name="Preview").click()
    page.locator("[data-apply]").click()
    job = page.locator("[data-job=ended]")
    expect(job.get_by_role("status")).to_contain_text("1 sent, 1 failed")
    expect(job.locator("tbody tr").filter(has_text=MISSING)).to_contain_text("failed")
    expect(job.locator("tbody tr").filter(has_text=found.message.offset_id)).to_contain_text("sent")
    wait_until(lambda: f"{HOSTILE} 2".encode() in billing.received, what="the other letter consumed")


def test_a_letter_is_edited_and_the_consumer_gets_the_new_body(page: Page, billing: Billing) -> None:
    page.goto(f"/dead-letters/{GROUP}?all=1")
    letter(page, 3).get_by_role("link", name="Edit and resend").click()
    dialog = page.locator("#dialog")
    body = dialog.get_by_label("Body")
    expect(body).to_have_value(f"{HOSTILE} 3")
    body.fill("mended\nby hand 中文")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effect] tbody tr")).to_have_count(2)
    expect(dialog.get_by_role("region", name="Stored body")).to_have_text(f"{HOSTILE} 3")
    expect(dialog.get_by_role("region", name="New body")).to_have_text("mended\nby hand 中文")
    check_accessible(page)
    dialog.locator("[data-apply]").click()
    expect(dialog.locator("[data-outcome]")).to_contain_text(f"{GROUP} gets the letter with the new body.")
    wait_until(lambda: "mended\nby hand 中文".encode() in billing.received, what="the new body consumed")
    page.goto(f"/dead-letters/{GROUP}?all=1")
    expect(letter(page, 3)).to_be_visible()


def test_letters_are_exported_with_their_reasons(page: Page) -> None:
    page.goto(f"/dead-letters/{GROUP}?all=1")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert download.value.suggested_filename == f"dead-letters-{GROUP}.jsonl"
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert {line["body"] for line in lines} == {f"{HOSTILE} {number}" for number in range(LETTERS)}
    assert {line["origin_topic"] for line in lines} == {TOPIC}
    assert {line["error_type"] for line in lines} == {"LookupError"}


def test_a_letter_whose_body_cannot_be_read_is_listed(
    page: Page, cluster: Metaq, client: metaq.Client, admin: Admin
) -> None:
    topic, group = "letters-unreadable", "letters-readers"
    admin.topics.create(topic, queues=1)
    [broker] = {queue.broker for queue in admin.topics.route(topic).readable}

    async def send() -> None:
        calls = Calls(cluster.nameserver, timeout_s=5, retry_s=5, is_partial=False)
        await calls.route(topic)
        command = SendMessageV2(producer_group="p", topic=topic, queue_id=0, sys_flag=COMPRESSED)
        await calls.change(broker, command, b"not compressed")
        await calls.close()

    with ThreadPoolExecutor(1) as thread:  # the browser has the loop of this one
        thread.submit(lambda: asyncio.run(send())).result()
    consumer = client.consumer(topic, group=group, start="earliest", retries_max=0)(lambda message: None)
    with closing(consumer):
        wait_until(lambda: admin.dead_letters.counts([group])[0].waiting == 1, what="given up")
        page.goto(f"/dead-letters/{group}")
        expect(page.locator("#letters tbody tr")).to_contain_text(["The body cannot be decompressed"])


def test_a_group_with_a_name_in_chinese_has_an_export(page: Page) -> None:
    answer = page.request.get("/dead-letters/中文/export")
    assert answer.status == 200
    assert answer.headers["content-disposition"] == 'attachment; filename="dead-letters-__.jsonl"'


def test_a_letter_is_found_by_its_id_and_a_wrong_id_is_explained(page: Page, admin: Admin) -> None:
    [found] = [one for one in admin.dead_letters.list(GROUP, resent=True) if one.message.body[-1:] == b"1"]
    page.goto(f"/dead-letters/{GROUP}?id={found.message.id}")
    expect(page.locator("#letters tbody tr")).to_have_count(1)
    page.goto(f"/dead-letters/{GROUP}?id={MISSING}")
    expect(page.get_by_role("status").filter(has_text=MISSING)).to_be_visible()


def test_a_viewer_reads_letters_and_sends_none(viewer_page: Page, complaints: Complaints) -> None:
    viewer_page.goto(f"/dead-letters/{GROUP}?all=1")
    for name in ("Resend all", "Resend the selected ones"):
        expect(viewer_page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    expect(viewer_page.get_by_role("button", name="Edit and resend").first).to_be_disabled()
    complaints.expect("403")
    for action in ("resend-letters", "resend-all-letters", "edit-letter"):
        refused = viewer_page.goto(f"/actions/{action}?group={GROUP}")
        assert refused is not None
        assert refused.status == 403


def test_a_group_that_does_not_exist_has_no_letters(page: Page, complaints: Complaints) -> None:
    complaints.expect("404")
    page.goto("/dead-letters/letters-nobody")
    expect(page.locator("h1")).to_have_text("Not found")
    expect(page.get_by_role("alert")).to_contain_text("letters-nobody")


def test_letters_on_a_phone_in_chinese(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport=PHONE, locale="zh-CN", color_scheme="dark")
    for path in ("/dead-letters", f"/dead-letters/{GROUP}?all=1"):
        page.goto(path)
        assert fits_width(page), path
        check_accessible(page)
