"""The search for messages, the page of one message, and the files with messages."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import msgspec
import pytest
from playwright.sync_api import Page, expect

import metaq
from metaq.admin import Admin
from metaq.client.producer.results import SendResult
from tests.support.browser import PHONE, Complaints, SignedIn, check_accessible, fits_width
from tests.support.waiting import wait_until

TOPIC = "page-letters"
HOSTILE = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
BODIES = {
    "json": b'{"id": 12345678901234567890, "note": "' + HOSTILE.replace('"', "'").encode() + b'"}',
    "msgpack": msgspec.msgpack.encode({"order": 7, "text": HOSTILE}),
    "gbk": "订单已创建，等待付款。".encode("gbk"),
    "hex": bytes(range(256)),
    "text": HOSTILE.encode(),
    "large": b"x" * 300_000,
}


@pytest.fixture(scope="module")
def sent(client: metaq.Client, admin: Admin) -> dict[str, SendResult]:
    """One message of each form."""
    admin.topics.create(TOPIC, queues=1)
    with client.producer("page-letters") as producer:
        return {
            form: producer.send(
                TOPIC,
                body,
                tag="<b>tag</b>",
                keys=[f"letter-{form}", "=cmd"],
                properties={"<i>name</i>": HOSTILE, "form": form},
            )
            for form, body in BODIES.items()
        }


def address(sent: SendResult, **more: str) -> str:
    query = "&".join(f"{name}={value}" for name, value in {"topic": TOPIC, **more}.items())
    return f"/messages/{sent.id}?{query}"


def test_a_hostile_message_is_only_text(page: Page, sent: dict[str, SendResult]) -> None:
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.goto(address(sent["text"]))
    expect(page.locator("pre.body")).to_have_text(HOSTILE)
    expect(page.locator("main .facts")).to_contain_text("<b>tag</b>")
    expect(page.locator("td.wrap").filter(has_text=HOSTILE).first).to_be_visible()
    for form in ("json", "msgpack"):
        page.goto(address(sent[form]))
        expect(page.locator("json-view .json-string")).to_contain_text(["<script>"])
    assert page.locator("main script, main img").count() == 0
    assert "pwned" not in page.title() and not dialogs


def test_id_keys_and_body_are_copied(page: Page, sent: dict[str, SendResult]) -> None:
    page.goto(address(sent["text"]))
    for what, text in (("Id", sent["text"].id), ("Keys", "letter-text =cmd"), ("Body", HOSTILE)):
        button = page.get_by_role("button", name=f"Copy: {what}")
        expect(button).to_have_attribute("data-copy", text)
    page.goto(address(sent["large"]))
    expect(page.get_by_role("button", name="Copy: Body")).to_have_count(0)


def test_the_body_has_the_form_that_suits_it_and_a_switch(page: Page, sent: dict[str, SendResult]) -> None:
    chosen = page.locator("#message-body .segments [aria-current]")
    for form, word in (
        ("json", "JSON"),
        ("msgpack", "MessagePack"),
        ("gbk", "GBK"),
        ("hex", "Hex"),
        ("text", "Text"),
    ):
        page.goto(address(sent[form]))
        expect(chosen).to_have_text(word)
    page.goto(address(sent["json"]))
    expect(page.locator("json-view")).to_contain_text("12345678901234567890")
    page.locator("#message-body").get_by_role("link", name="Hex").click()
    expect(page.locator("pre.body--hex")).to_contain_text("00000000  7b 22 69 64")
    page.locator("#message-body").get_by_role("link", name="MessagePack").click()
    expect(page.locator("#message-body")).to_contain_text("not valid MessagePack")
    page.goto(address(sent["gbk"], view="text"))
    expect(chosen).to_have_text("Text")


def test_forms_suggest_names_and_usual_times(page: Page, sent: dict[str, SendResult]) -> None:
    page.goto(f"/topics?q={TOPIC}")
    expect(page.get_by_role("link", name=TOPIC, exact=True)).to_be_visible()
    page.goto("/messages?by=time")
    field = page.get_by_label("Topic")
    field.fill("page-let")
    expect(page.locator(f"#topic-names option[value={TOPIC}]")).to_have_count(1)
    field.fill(TOPIC)
    page.get_by_role("button", name="15 min").click()
    expect(page).to_have_url(re.compile(rf"topic={TOPIC}.*from=-15m"))
    expect(page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("tbody tr")).to_have_count(len(BODIES))
    check_accessible(page)


def test_a_long_list_says_how_much_is_shown_and_shows_all(
    page: Page, client: metaq.Client, admin: Admin
) -> None:
    admin.topics.create("page-lists", queues=1)
    with client.producer("page-lists") as producer:
        listed = producer.send("page-lists", json.dumps({"items": list(range(1_203))}).encode())
    page.goto(f"/messages/{listed.id}?topic=page-lists")
    values = page.locator("json-view .json-other")
    expect(values).to_have_count(1_000)
    expect(page.locator("json-view")).to_contain_text("1,000 of 1,203 shown")
    check_accessible(page)
    page.get_by_role("button", name="Show all").click()
    expect(values).to_have_count(1_203)
    expect(page.locator("json-view")).not_to_contain_text("shown")


def test_a_large_body_says_how_much_is_shown_and_is_downloaded_whole(
    page: Page, sent: dict[str, SendResult]
) -> None:
    page.goto(address(sent["large"]))
    expect(page.get_by_text("These are the first 262,144 of 300,000 bytes.")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the whole body").click()
    assert download.value.path().read_bytes() == BODIES["large"]
    raw = page.request.get(f"/messages/{sent['text'].id}/raw?topic={TOPIC}")
    assert raw.body() == BODIES["text"]
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["content-disposition"].startswith("attachment")
    assert raw.headers["x-content-type-options"] == "nosniff"


def test_the_timeline_follows_and_names_its_gaps(page: Page, sent: dict[str, SendResult]) -> None:
    page.goto(address(sent["json"]))
    timeline = page.locator(".timeline")
    expect(timeline).to_contain_text("Sent")
    expect(timeline).to_contain_text("Stored")
    expect(page.get_by_text("Gaps in this timeline")).to_be_visible()
    check_accessible(page)


def test_a_message_opens_beside_the_list_with_an_address_of_its_own(
    page: Page, sent: dict[str, SendResult]
) -> None:
    page.goto(f"/topics/{TOPIC}?key=letter-json")
    page.locator("tbody tr a").first.click()
    drawer = page.locator("#drawer")
    expect(drawer.locator("json-view")).to_be_visible()
    expect(drawer.locator(".timeline")).to_be_visible()
    expect(page).to_have_url(re.compile(f"/messages/{sent['json'].id}"))
    check_accessible(page)
    drawer.get_by_role("button", name="Close").click()
    expect(drawer).to_be_hidden()
    expect(page).to_have_url(re.compile(f"/topics/{TOPIC}"))


def test_messages_are_found_by_id_key_and_time(page: Page, sent: dict[str, SendResult]) -> None:
    page.goto("/messages")
    check_accessible(page)
    page.get_by_label("ID", exact=True).fill(sent["json"].offset_id)
    page.get_by_role("button", name="Show").click()
    expect(page.locator("h1")).to_have_text(sent["json"].id)
    page.goto("/messages?by=key")
    page.get_by_label("Topic").fill(TOPIC)
    page.get_by_label("Key", exact=True).fill("letter-gbk")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"/messages?by=time&topic={TOPIC}&from=-1h&sql=form = 'hex'")
    expect(page.locator("tbody tr")).to_have_count(1)
    check_accessible(page)


def test_a_search_without_result_explains_what_is_missing(
    page: Page, sent: dict[str, SendResult], complaints: Complaints
) -> None:
    similar = page.get_by_role("link", name=TOPIC, exact=True)
    # The console knows a new topic after its next poll.
    wait_until(lambda: page.goto("/messages?by=time&topic=page-lett") and similar.count() == 1, timeout_s=20)
    expect(page.get_by_role("alert")).to_contain_text("topic page-lett does not exist")
    similar.click()
    expect(page.locator("tbody tr").first).to_be_visible()
    complaints.expect("404")
    page.goto("/messages?id=7F000001000000000000000000000001")
    expect(page.get_by_text("Name the topic as well.")).to_be_visible()
    page.get_by_label("Topic").fill(TOPIC)
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text(f"Check the topic {TOPIC}")).to_be_visible()
    check_accessible(page)


def test_a_phone_shows_a_message_in_chinese(
    open_page: Callable[..., Page], sent: dict[str, SendResult]
) -> None:
    page = open_page(viewport=PHONE, locale="zh-CN")
    for path in (address(sent["json"]), address(sent["hex"]), "/messages?by=time"):
        page.goto(path)
        assert fits_width(page), path
        check_accessible(page)


def test_a_message_is_sent_again(page: Page, admin: Admin, sent: dict[str, SendResult]) -> None:
    admin.groups.create("page-receivers")
    page.goto(address(sent["gbk"]))
    page.get_by_role("link", name="Resend").click()
    dialog = page.locator("#dialog")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effect] .command code")).to_contain_text(
        f"metaq message resend {sent['gbk'].offset_id} --yes"
    )
    dialog.locator("[data-apply]").click()
    dialog.get_by_role("link", name="Look at it").click()
    expect(page.get_by_text("2 messages have this id")).to_be_visible()
    expect(page.locator("#message-body .segments [aria-current]")).to_have_text("GBK")
    assert len(admin.messages.by_id(TOPIC, sent["gbk"].id)) == 2
    page.get_by_role("link", name="Resend").click()
    dialog.get_by_role("radio", name="One group").check()
    dialog.get_by_role("combobox", name="Group").fill("page-receivers")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.locator("[data-effect] .command code")).to_contain_text("--group page-receivers")
    dialog.locator("[data-apply]").click()
    expect(dialog.get_by_role("status")).to_contain_text("%RETRY%page-receivers")


def test_messages_are_exported_and_run_no_formula(
    page: Page, operator: SignedIn, sent: dict[str, SendResult]
) -> None:
    page.goto(f"/topics/{TOPIC}?key=letter-text")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == f"{TOPIC}.csv"
    text = download.value.path().read_text("utf-8-sig")
    [row] = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["body"], row["keys"], row["id"]) == (HOSTILE, "letter-text =cmd", sent["text"].id)
    found = page.request.get(f"/topics/{TOPIC}/messages.json?key==cmd")
    document = json.loads(found.body())
    assert {message["properties"]["form"] for message in document["messages"]} >= BODIES.keys()
    assert document["is_partial"] is False
    assert page.request.get(f"/topics/{TOPIC}/messages.xml").status == 404
    assert page.request.get(f"/topics/{TOPIC}/messages.csv?from=never").status == 400
