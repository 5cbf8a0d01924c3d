"""The pages of consumer groups, and the actions on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

import metaq
from metaq.admin import Admin
from metaq.client.session.routes import Queue
from tests.support.browser import PHONE, Complaints, check_accessible, fits_width
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

TOPIC, BROKER = "groups-orders", "broker-a"
RUNNING, STOPPED, IDLE = "groups-running", "groups-stopped", "groups-idle"
NEXT_POLL_MS = 20_000
"""A console polls less often on a slow machine."""
FIRST, SECOND = Queue(TOPIC, BROKER, 0), Queue(TOPIC, BROKER, 1)


@pytest.fixture(scope="module", autouse=True)
def member(cluster: Metaq, client: metaq.Client, admin: Admin) -> Iterator[str]:
    """Two groups that are behind, one that has committed nothing, and the id of a client that runs."""
    admin.topics.create(TOPIC, queues=2)
    _send(client, 20)
    for group in (STOPPED, IDLE):
        admin.groups.create(group)
    admin.offsets.commit(STOPPED, {FIRST: 4, SECOND: 10})
    with metaq.Client(cluster.nameserver) as running, running.subscribe(TOPIC, group=RUNNING):
        wait_until(lambda: any(member.queues for member in admin.groups.running(RUNNING).members))
        yield running.client_id


def _send(client: metaq.Client, messages: int) -> None:
    with client.producer() as producer:
        for number in range(messages):
            producer.send(TOPIC, str(number).encode())


def _row(page: Page, name: str) -> Locator:
    return page.locator("tbody tr").filter(has=page.get_by_role("link", name=name))


def test_the_list_shows_the_worst_group_first(page: Page) -> None:
    page.goto("/groups?q=groups-")
    stopped = _row(page, STOPPED)
    expect(stopped).to_contain_text(re.compile(r"\d+ (ms|s|min)"), timeout=NEXT_POLL_MS)
    expect(stopped.get_by_role("cell").nth(7)).to_have_text("No members")
    expect(_row(page, IDLE)).to_contain_text("It has committed nothing yet.")
    head = page.get_by_role("columnheader", name="Time lag")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert page.locator("tbody tr").last.inner_text().strip().startswith(IDLE), "unknown values come last"
    page.get_by_role("link", name="Name", exact=True).click()
    expect(page.locator("tbody tr").first).to_contain_text(IDLE)
    page.goto("/groups?q=nothing-like-this")
    expect(page.get_by_text("Nothing matches.")).to_be_visible()
    page.goto("/groups?kind=system")
    expect(page.get_by_role("link", name="TOOLS_CONSUMER")).to_be_visible()


def test_the_lag_of_a_group_over_time(page: Page) -> None:
    page.goto(f"/groups/{STOPPED}")
    expect(page.locator(".tile").nth(1)).to_contain_text("6", timeout=NEXT_POLL_MS)
    expect(page.locator(".tile").nth(1)).to_contain_text(re.compile("Steady|unknown"))
    expect(page.locator("metaq-chart#chart-lag canvas")).to_be_visible()
    expect(page.locator("[data-chart-value=chart-lag]")).to_have_text("6", timeout=NEXT_POLL_MS)
    expect(_row(page, TOPIC)).to_contain_text("6")
    page.get_by_role("link", name="24 hours").click()
    expect(page).to_have_url(re.compile("range=24h"))
    expect(page.locator("metaq-chart#chart-lag-ms canvas")).to_be_visible()
    page.get_by_role("link", name="None").click()
    expect(page).to_have_url(re.compile(f"/dead-letters/{STOPPED}"))


def test_a_group_that_does_not_exist(page: Page, complaints: Complaints) -> None:
    complaints.expect("404")
    page.goto("/groups/groups-nowhere")
    expect(page.get_by_text("group groups-nowhere does not exist")).to_be_visible()


def test_queues_show_their_owner_or_that_nobody_has_them(page: Page, member: str) -> None:
    page.goto(f"/groups/{STOPPED}/queues")
    expect(page.get_by_text("No member is connected")).to_be_visible()
    first = page.locator("tbody tr").filter(has_text=f"{BROKER}:0")
    expect(first.get_by_role("cell")).to_have_text(
        [f"{TOPIC} {BROKER}:0", "no member", "4", "10", "6", re.compile(r"\d+ (ms|s|min)")]
    )
    page.goto(f"/groups/{RUNNING}/queues?q={TOPIC}")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text(member)
    page.get_by_role("link", name=member).first.click()
    expect(page).to_have_url(re.compile(f"/groups/{RUNNING}/members"))


def test_members_with_their_stacks_and_conflicts(page: Page, cluster: Metaq, member: str) -> None:
    page.goto(f"/groups/{RUNNING}/members")
    row = page.locator("tbody tr").filter(has_text=member)
    expect(row).to_contain_text("PYTHON")
    expect(row).to_contain_text(metaq.__version__)
    expect(row).to_contain_text(f"{TOPIC} *")
    row.get_by_role("link", name=f"Stack of {member}").click()
    stack = page.locator("#drawer pre")
    expect(stack).to_contain_text(f"0 busy handlers of {RUNNING}")
    expect(page).to_have_url(re.compile("/stack"))
    check_accessible(page)
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_be_hidden()
    expect(page).to_have_url(re.compile("/members"))
    with metaq.Client(cluster.nameserver) as other, other.subscribe(TOPIC, group=RUNNING, tags="only-this"):
        expect(page.get_by_text("Members contradict each other")).to_be_visible(timeout=2 * NEXT_POLL_MS)
        expect(page.get_by_text("TAG only-this")).to_be_visible()
    page.goto(f"/groups/{RUNNING}/stack?client=nobody")
    expect(page.get_by_text("No member with this client id is connected.")).to_be_visible()


def test_a_reset_applies_exactly_the_plan_that_was_shown(
    page: Page, client: metaq.Client, admin: Admin
) -> None:
    admin.groups.create("groups-reset")
    admin.groups.reset("groups-reset", TOPIC, "earliest")
    before = {queue: bounds.end for queue, bounds in admin.offsets.bounds([FIRST, SECOND]).items()}
    page.goto("/groups/groups-reset")
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Latest: after the last message").check()
    page.get_by_role("button", name="Preview").click()
    rows = page.locator("[data-effect] tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first.get_by_role("cell")).to_have_text(
        [f"{BROKER}:0", "0", str(before[FIRST]), f"+{before[FIRST]}"]
    )
    expect(page.get_by_text(f"metaq group reset groups-reset {TOPIC} --to latest --yes")).to_be_visible()
    check_accessible(page)
    _send(client, 6)  # the end of the queues moves on meanwhile
    page.locator("[data-apply]").click()
    expect(page.get_by_text(f"groups-reset is moved in 2 queues of {TOPIC}.")).to_be_visible()
    assert admin.offsets.committed("groups-reset", [FIRST, SECOND]) == before


def test_a_reset_of_one_queue_and_positions_that_cannot_be(page: Page, admin: Admin) -> None:
    page.goto(f"/actions/reset-group?group={STOPPED}&topic={TOPIC}")
    page.locator("input[name=offset]").fill("999999")
    expect(page.get_by_label("Offset").first).to_be_checked()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("offset 999999 is outside queue 0")).to_be_visible()
    page.get_by_text("Only some queues").click()
    page.get_by_label(f"{BROKER}:1").check()
    page.locator("input[name=offset]").fill("3")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-effect] tbody tr")).to_have_count(1)
    expect(page.get_by_text(f"--to 3 --queue {BROKER}:1 --yes")).to_be_visible()
    page.locator("[data-apply]").click()
    expect(page.get_by_text(f"{STOPPED} is moved in 1 queue of")).to_be_visible()
    assert admin.offsets.committed(STOPPED, [FIRST, SECOND]) == {FIRST: 4, SECOND: 3}
    page.goto(f"/actions/reset-group?group={STOPPED}&topic={TOPIC}")
    page.locator("input[name=time]").fill("2020-01-31T12:00")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("--to 2020-01-31T12:00:00+00:00")).to_be_visible()


def test_a_group_lives_and_dies(page: Page, admin: Admin) -> None:
    group = "groups-made"
    page.goto("/groups")
    page.get_by_role("link", name="Create a group").click()
    page.get_by_role("textbox", name="Group").fill(group)
    _apply(page, f"metaq group create {group} --retries 16", f"The group {group} exists now.")
    page.goto(f"/actions/limit-group?group={group}")
    page.get_by_label("Messages per second").fill("500")
    page.get_by_label("Bytes per second").fill("2MB")
    _apply(page, "--messages-per-second 500", f"The limits of {group} are changed.")
    [limits] = admin.groups.limits(group)
    assert (limits.messages_per_second, limits.bytes_per_second) == (500, 2 * 1024 * 1024)
    page.goto(f"/actions/change-group?group={group}")
    page.get_by_label("Consumption enabled").select_option("no")
    page.get_by_label("Max retries").fill("3")
    _apply(page, f"metaq group update {group} --retries 3 --disabled", f"The group {group} is changed")
    page.goto(f"/groups/{group}/settings")
    for text in ("Disabled", "500", "2.0 MiB"):
        expect(page.locator("tbody")).to_contain_text(text)
    page.goto(f"/actions/clone-group?group={STOPPED}")
    page.get_by_label("Group that gets the offsets").fill(group)
    _apply(page, f"metaq group clone {STOPPED} {group}", f"{group} is where {STOPPED} was in 2 queues.")
    assert admin.offsets.committed(group, [FIRST]) == {FIRST: 4}
    page.goto(f"/actions/delete-group?group={group}")
    expect(page.locator("[data-effect] tbody tr")).to_contain_text([TOPIC])
    page.locator("input[name=typed_name]").fill(group)
    page.locator("[data-apply]").click()
    expect(page.get_by_text(f"The group {group} is deleted on {BROKER}.")).to_be_visible()
    assert all(listed.name != group for listed in admin.groups.list().groups)


def _apply(page: Page, command: str, outcome: str) -> None:
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-effect] .command")).to_contain_text(command)
    page.locator("[data-apply]").click()
    expect(page.locator("[data-outcome]")).to_contain_text(outcome)


def test_deleting_a_group_that_runs_warns(page: Page, member: str) -> None:
    page.goto(f"/actions/delete-group?group={RUNNING}")
    expect(page.get_by_text("1 member is still connected")).to_contain_text(member)
    expect(page.get_by_text("--force --yes")).to_be_visible()


def test_a_change_that_somebody_else_made_shows_the_preview_again(page: Page, admin: Admin) -> None:
    page.goto(f"/actions/change-group?group={IDLE}")
    page.get_by_label("Max retries").fill("7")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-effect] tbody tr")).to_contain_text(["16"])
    admin.groups.change(IDLE, retries_max=9)
    page.locator("[data-apply]").click()
    expect(page.get_by_text("Something has changed since you looked")).to_be_visible()
    assert admin.groups.settings(IDLE)[0].retries_max == 9


def test_a_viewer_cannot_reset(viewer_page: Page, complaints: Complaints) -> None:
    complaints.expect("403")
    viewer_page.goto(f"/groups/{STOPPED}")
    expect(viewer_page.get_by_role("button", name="Reset offsets")).to_be_disabled()
    refused = viewer_page.goto(f"/actions/reset-group?group={STOPPED}")
    assert refused is not None
    assert refused.status == 403


@pytest.mark.parametrize("tab", ["", "/queues", "/members", "/settings"])
def test_every_tab_is_accessible_and_chinese_on_a_phone(open_page: Callable[..., Page], tab: str) -> None:
    page = open_page(viewport=PHONE, locale="zh-CN", color_scheme="dark")
    page.goto(f"/groups/{RUNNING}{tab}")
    expect(page.locator(".tabs [aria-current]")).to_have_text(re.compile("[\u4e00-\u9fff]"))
    assert fits_width(page)
    check_accessible(page)
