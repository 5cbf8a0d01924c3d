"""The page of one topic: its tabs, its filters, the messages that arrive, and its actions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

import metaq
from metaq.admin import Admin
from tests.support.browser import PHONE, Complaints, check_accessible, check_dark_colours, fits_width
from tests.support.invoking import CommandLine
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

TOPIC = "page-orders"
HOSTILE = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
TABS = ("", "/live", "/queues", "/groups", "/producers", "/traffic", "/settings")


@pytest.fixture(scope="module", autouse=True)
def orders(client: metaq.Client, admin: Admin) -> None:
    """A topic of 70 messages, of which the last one is hostile in every field."""
    admin.topics.create(TOPIC, queues=2)
    with client.producer("page-producers") as producer:
        for number in range(69):
            producer.send(
                TOPIC,
                f"order {number}".encode(),
                tag="even" if number % 2 == 0 else "odd",
                keys=[f"page-{number}"],
                properties={"number": str(number)},
            )
        producer.send(
            TOPIC, HOSTILE.encode(), tag="<b>tag</b>", keys=["<i>key</i>"], properties={"p": HOSTILE}
        )
    admin.topics.create("page-empty", queues=1)
    admin.groups.create("page-readers")
    wait_until(lambda: admin.topics.show(TOPIC).messages == 70, timeout_s=20)


def rows(page: Page) -> list[str]:
    """Returns the bodies in the list."""
    return page.locator("tbody tr td.grow").all_inner_texts()


def test_every_tab_has_an_address_and_is_accessible(page: Page) -> None:
    for tab in TABS:
        page.goto(f"/topics/{TOPIC}{tab}")
        expect(page.locator("h1")).to_have_text(TOPIC)
        expect(page.locator(".tabs [aria-current]")).to_be_visible()
        if tab in ("", "/live", "/queues"):
            check_accessible(page)
    check_dark_colours(page)


def test_a_phone_shows_every_tab_in_chinese(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport=PHONE, locale="zh-CN")
    for tab in TABS:
        page.goto(f"/topics/{TOPIC}{tab}")
        assert re.search(r"[\u4e00-\u9fff]", page.locator(".tabs [aria-current]").inner_text())
        assert fits_width(page), tab


def test_the_newest_messages_come_first_and_the_older_by_a_link(page: Page) -> None:
    page.goto(f"/topics/{TOPIC}")
    first = rows(page)
    assert first[1:] == [f"order {number}" for number in range(68, 19, -1)]
    assert first[0].startswith("<script>") and page.title().startswith(TOPIC)
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(20)
    assert rows(page) == [f"order {number}" for number in range(19, -1, -1)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("tag=even&text=ORDER 6", ["order 68", "order 66", "order 64", "order 62", "order 60", "order 6"]),
        ("sql=number between 3 and 4", ["order 4", "order 3"]),
        ("key=page-7", ["order 7"]),
        ("from=-1h&text=order 33", ["order 33"]),
        ("to=-1h", []),
    ],
)
def test_filters_select_messages(page: Page, filters: str, expected: list[str]) -> None:
    page.goto(f"/topics/{TOPIC}?{filters}")
    expect(page.locator(".pager")).to_be_visible()
    assert rows(page) == expected
    if not expected:
        expect(page.get_by_text("No message matches.")).to_be_visible()


def test_the_filter_bar_writes_the_address(page: Page) -> None:
    page.goto(f"/topics/{TOPIC}")
    page.get_by_label("Text in the body").fill("order 12")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("text=order"))
    assert rows(page) == ["order 12"]
    page.get_by_text("More filters").click()
    page.get_by_label("SQL92").fill("number number")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("SQL92, line 1")


def test_queues_groups_producers_and_settings_are_shown(page: Page, client: metaq.Client) -> None:
    page.goto(f"/topics/{TOPIC}/queues")
    assert page.locator("tbody tr").count() == 2
    assert sum(int(cell) for cell in page.locator("tbody tr td:nth-child(5)").all_inner_texts()) == 70
    page.get_by_role("link", name="Messages").last.click()
    expect(page).to_have_url(re.compile("queue=broker-a"))
    with client.producer("page-connected") as producer:
        producer.send(TOPIC, b"connected", tag="connected")
        found = page.locator("tbody tr")
        address = f"/topics/{TOPIC}/producers?q=page-connected"
        wait_until(lambda: page.goto(address) and found.count() == 1, timeout_s=20)
        expect(page.get_by_text("Brokers do not report to which topics")).to_be_visible()
    page.goto(f"/topics/{TOPIC}/settings")
    expect(page.locator("tbody tr")).to_contain_text(["Read and write"])


def test_an_empty_topic_and_a_missing_one_say_what_to_do(page: Page, complaints: Complaints) -> None:
    page.goto("/topics/page-empty")
    expect(page.locator(".empty code")).to_contain_text("metaq send page-empty")
    page.goto("/topics/page-empty/groups")
    expect(page.locator(".empty code")).to_contain_text("metaq consume page-empty")
    complaints.expect("404")
    page.goto("/topics/page-missing")
    expect(page.get_by_text("topic page-missing does not exist")).to_be_visible()


def test_messages_appear_as_they_arrive_and_pause(page: Page, client: metaq.Client) -> None:
    page.goto(f"/topics/{TOPIC}/live?tag=arriving")
    expect(page.locator("[data-tail-state]")).to_have_text("New messages appear here")
    with client.producer() as producer:

        def send(body: str) -> None:
            producer.send(TOPIC, body.encode(), tag="arriving")
            producer.send(TOPIC, b"not wanted", tag="other")

        # The stream begins at the end of the topic, which it finds a moment after it opened.
        wait_until(lambda: send("first") or rows(page) != [], timeout_s=20)
        send(HOSTILE)
        expect(page.locator("tbody tr td.grow").first).to_contain_text("<script>")
        assert "pwned" not in page.title() and "not wanted" not in rows(page)
        page.locator("tbody tr a").first.click()
        expect(page.locator("#drawer h2").first).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("[data-tail-state]")).to_have_text("Paused")


def test_a_busy_topic_is_thinned_out_and_says_so(page: Page, client: metaq.Client) -> None:
    page.goto(f"/topics/{TOPIC}/live")
    expect(page.locator("[data-tail-state]")).to_have_text("New messages appear here")
    with client.producer() as producer:

        def burst() -> None:
            for future in [producer.send_soon(TOPIC, b"burst") for _ in range(200)]:
                future.result(10)

        left_out = page.locator("[data-tail-left-out]")
        wait_until(lambda: burst() or "Left out" in left_out.inner_text(), timeout_s=20)
    assert 0 < page.locator("tbody tr").count() <= 500


# Changes


def applied(page: Page) -> str:
    """Applies the action in the dialog. Returns the command that it showed."""
    dialog = page.locator("#dialog")
    dialog.get_by_role("button", name="Preview").click()
    command = dialog.locator("[data-effect] .command code").inner_text()
    dialog.locator("[data-apply]").click()
    expect(dialog.locator("[data-outcome]")).to_be_visible()
    return command


def test_a_message_is_sent_from_a_form_and_by_its_command(page: Page, admin: Admin, cluster: Metaq) -> None:
    page.goto("/topics/page-empty")
    page.get_by_role("link", name="Send a message").click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("Body").fill("two\nlines")
    dialog.get_by_label("Tag").fill("sent")
    dialog.get_by_label("Keys").fill("sent-1 sent-2")
    dialog.get_by_label("Properties").fill("region=eu\n")
    command = applied(page)
    dialog.get_by_role("link", name="Look at it").click()
    expect(page.locator("pre.body")).to_have_text("two\nlines")
    words = shlex.split(command)
    assert words[:3] == ["metaq", "send", "page-empty"]
    CommandLine(cluster.nameserver).printed(*words[1:])
    found = admin.messages.by_key("page-empty", "sent-2")
    assert [(one.body, one.tag, one.properties["region"]) for one in found] == [
        (b"two\nlines", "sent", "eu")
    ] * 2


def test_a_topic_is_changed_and_limited(page: Page, admin: Admin, cluster: Metaq) -> None:
    admin.topics.create("page-changed", queues=2)
    page.goto("/topics/page-changed/settings")
    page.get_by_role("link", name="Edit").click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("Queues per broker", exact=False).first.fill("4")
    dialog.get_by_label("Permission").select_option(label="Read only")
    words = shlex.split(applied(page))
    [settings] = admin.topics.show("page-changed").settings
    assert (settings.read_queues, settings.write_queues, settings.permission) == (4, 4, 4)
    CommandLine(cluster.nameserver).printed(*words[1:])
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Rate limit").click()
    dialog.get_by_label("Messages per second").fill("1000")
    dialog.get_by_label("Bytes per second").fill("2MB")
    words = shlex.split(applied(page))
    [limits] = admin.topics.limits("page-changed")
    assert (limits.messages_per_second, limits.bytes_per_second) == (1000, 2 * 1024 * 1024)
    CommandLine(cluster.nameserver).printed(*words[1:])


def test_fewer_queues_need_the_name_of_the_topic(page: Page, admin: Admin) -> None:
    admin.topics.create("page-shrunk", queues=3)
    page.goto("/topics/page-shrunk")
    page.get_by_role("link", name="Edit").click()
    dialog = page.locator("#dialog")
    dialog.get_by_label("Queues per broker", exact=False).first.fill("1")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_text("Consumers no longer get the messages of removed queues.")).to_be_visible()
    dialog.get_by_label("Type page-shrunk to confirm").fill("page-shrunk")
    dialog.locator("[data-apply]").click()
    expect(dialog.locator("[data-outcome]")).to_be_visible()
    assert admin.topics.show("page-shrunk").settings[0].read_queues == 1


def test_a_viewer_can_only_look(viewer_page: Page) -> None:
    viewer_page.goto(f"/topics/{TOPIC}")
    for name in ("Send a message", "Edit", "Rate limit", "Delete"):
        expect(viewer_page.get_by_role("button", name=name, exact=True)).to_be_disabled()
