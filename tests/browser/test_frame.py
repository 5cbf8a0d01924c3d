"""The frame of all pages: links, roles, languages, colours, palette, keys, favourites, narrow screens."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, Route, expect

import metaq
from metaq.admin import Admin
from tests.support.browser import (
    PAGES,
    PHONE,
    Complaints,
    SignedIn,
    check_accessible,
    check_dark_colours,
    fits_width,
)
from tests.support.console_links import console_links
from tests.support.metaq import Metaq


@pytest.fixture(scope="module", autouse=True)
def traffic(client: metaq.Client, admin: Admin) -> Iterator[None]:
    """A topic with messages and a group that has consumed some of them."""
    with client.producer() as producer:
        for number in range(20):
            producer.send("frame-orders", f"order {number}".encode(), keys=[f"frame-{number}"])
    admin.groups.create("frame-billing")
    admin.topics.create("%RETRY%frame-billing", queues=1)
    yield


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_accessible_in_both_colours(open_page: Callable[..., Page], path: str) -> None:
    page = open_page()
    page.goto(path)
    expect(page.locator("h1")).to_be_visible()
    check_accessible(page)
    check_dark_colours(page)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_chinese_on_a_phone(open_page: Callable[..., Page], path: str) -> None:
    page = open_page(viewport=PHONE, locale="zh-CN")
    page.goto(path)
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    assert re.search(r"[\u4e00-\u9fff]", page.inner_text("h1"))
    assert fits_width(page)
    check_accessible(page)


def test_nothing_is_shown_without_the_link(browser: Browser, cluster: Metaq) -> None:
    context = browser.new_context(base_url=cluster.ready["console"])
    page = context.new_page()
    page.goto("/topics")
    expect(page).to_have_url(re.compile("/login"))
    assert "frame-orders" not in page.content()
    response = page.goto(console_links(cluster.ready).operator)
    assert response is not None
    assert response.status == 403  # the fixture has used it already
    expect(page.get_by_text("metaq console link").first).to_be_visible()
    context.close()


def test_a_viewer_sees_everything_and_changes_nothing(
    viewer_page: Page, complaints: Complaints, viewer: SignedIn
) -> None:
    viewer_page.goto("/topics?q=frame-orders")
    expect(viewer_page.get_by_role("link", name="frame-orders")).to_be_visible()
    expect(viewer_page.get_by_role("button", name="Create a topic")).to_be_disabled()
    complaints.expect("403")
    refused = viewer_page.goto("/actions/create-topic")
    assert refused is not None
    assert refused.status == 403


def test_the_palette_finds_pages_topics_groups_and_actions(page: Page) -> None:
    page.goto("/topics?q=frame-orders")
    expect(page.get_by_role("link", name="frame-orders")).to_be_visible()
    page.goto("/")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox")
    expect(field).to_be_focused()
    field.fill("frame-ord")
    expect(page.get_by_role("option", name="frame-orders")).to_be_visible()
    check_accessible(page)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/topics/frame-orders"))
    page.wait_for_load_state()
    page.keyboard.press("Control+k")
    field.fill("create a topic")
    expect(page.get_by_role("option")).to_have_count(1)
    page.get_by_role("option", name="Create a topic").click()
    expect(page.get_by_role("dialog", name="Action")).to_be_visible()
    expect(page.locator("#dialog input[name=topic]")).to_be_focused()


def test_the_palette_acts_on_groups(page: Page, viewer_page: Page) -> None:
    page.goto("/")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("frame-bill")
    expect(page.get_by_role("option", name="Dead letters of frame-billing")).to_be_visible()
    page.get_by_role("combobox").fill("r")
    page.get_by_role("option", name="%RETRY%").first.wait_for()
    names = page.get_by_role("option").all_inner_texts()
    first_internal = min(index for index, name in enumerate(names) if name.startswith("%"))
    own = [index for index, name in enumerate(names) if "frame-" in name and name[0] != "%"]
    assert own and max(own) < first_internal, names
    page.get_by_role("combobox").fill("frame-bill")
    page.get_by_role("option", name="Reset offsets of frame-billing").click()
    expect(page.locator("#dialog h2")).to_have_text("Reset offsets")
    viewer_page.goto("/")
    viewer_page.keyboard.press("Control+k")
    viewer_page.get_by_role("combobox").fill("frame-bill")
    viewer_page.get_by_role("option", name="Dead letters of frame-billing").wait_for()
    expect(viewer_page.get_by_role("option", name="Reset offsets")).to_have_count(0)
    viewer_page.get_by_role("option", name="Dead letters of frame-billing").click()
    expect(viewer_page).to_have_url(re.compile("/dead-letters/frame-billing"))


def test_keys_move_through_the_console(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page).to_have_url(re.compile("/topics$"))
    page.wait_for_load_state()
    page.keyboard.press("/")
    page.keyboard.type("frame-orders")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("q=frame-orders"))
    page.wait_for_load_state()
    page.locator("h1").click()
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="frame-orders")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/topics/frame-orders"))
    page.wait_for_load_state()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()


def test_keys_are_those_of_the_reader_s_keyboard(open_page: Callable[..., Page]) -> None:
    mac = "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 Chrome/130.0 Safari/537.36"
    linux = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/130.0 Safari/537.36"
    for agent, key in ((mac, "⌘K"), (linux, "Ctrl K")):
        page = open_page(user_agent=agent)
        page.goto("/settings")
        expect(page.locator(".search-button kbd")).to_have_text(key)
        page.keyboard.press("?")
        shown = page.get_by_role("dialog", name="Keyboard shortcuts")
        expect(shown).to_contain_text(key)
        expect(shown).to_contain_text("Go to delayed, transactions, cluster")
        assert shown.locator("dl").inner_html() == page.locator("section dl:has(kbd)").inner_html()


def test_the_theme_button_shows_the_theme(page: Page) -> None:
    page.goto("/")
    button = page.locator("[data-theme-button]")
    for theme, word in (("auto", "System"), ("dark", "Dark"), ("light", "Light"), ("auto", "System")):
        expect(button.locator("use")).to_have_attribute("href", re.compile(f"#theme-{theme}$"))
        expect(button).to_have_attribute("aria-label", re.compile(word))
        button.click()
        page.wait_for_load_state()


def test_a_phone_shows_one_action_and_the_others_on_demand(
    open_page: Callable[..., Page], admin: Admin
) -> None:
    page = open_page(viewport=PHONE)
    page.goto("/topics/frame-orders")
    main = page.get_by_role("link", name="Send a message")
    edit = page.get_by_role("link", name="Edit")
    expect(main).to_be_visible()
    expect(edit).to_be_hidden()
    page.get_by_role("button", name="More").click()
    expect(edit).to_be_visible()
    check_accessible(page)
    edit.click()
    expect(page.locator("#dialog")).to_be_visible()
    expect(edit).to_be_hidden()
    wide = open_page()
    wide.goto("/topics/frame-orders")
    expect(wide.get_by_role("link", name="Edit")).to_be_visible()
    expect(wide.get_by_role("button", name="More")).to_be_hidden()


def test_favourites_stay_in_the_sidebar(page: Page) -> None:
    page.goto("/topics?q=frame-orders")
    star = page.get_by_role("button", name="Keep frame-orders among the favourites")
    star.click()
    expect(star).to_have_attribute("aria-pressed", "true")
    page.goto("/")
    page.locator("#favourites").get_by_text("frame-orders").click()
    expect(page).to_have_url(re.compile("/topics/frame-orders"))


def test_language_and_colours_are_remembered(page: Page) -> None:
    page.goto("/topics")
    page.get_by_role("button", name="中文").click()
    expect(page.locator("h1")).to_have_text("主题")
    page.goto("/groups")
    expect(page.locator("h1")).to_have_text("消费者组")
    page.get_by_role("button", name="English").click()
    page.locator("[data-theme-button]").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_first_page_already_has_the_times_of_the_reader(open_page: Callable[..., Page]) -> None:
    page = open_page(timezone_id="Asia/Shanghai")
    page.goto("/topics/frame-orders")
    shown = page.locator("tbody time").first
    stored = datetime.fromisoformat(shown.get_attribute("datetime") or "")
    in_shanghai = (stored + timedelta(hours=8)).strftime("%Y-%m-%d %H:%M")
    expect(shown).to_have_attribute("title", re.compile(in_shanghai))


def test_a_page_shows_new_messages_without_a_reload(page: Page, client: metaq.Client) -> None:
    page.goto("/topics?q=frame-live")
    expect(page.get_by_text("No topic matches.")).to_be_visible()
    with client.producer() as producer:
        producer.send("frame-live", b"now")
    expect(page.get_by_role("link", name="frame-live")).to_be_visible()
    expect(page.locator("#live-dot")).to_have_class(re.compile("dot--live"))


def test_a_page_is_live_even_if_its_scripts_come_late(page: Page) -> None:
    late = threading.Event()

    def hold(route: Route) -> None:
        late.wait(0.5)
        route.continue_()

    page.route("**/hx-sse.min.js", hold)
    page.goto("/")
    expect(page.locator("#live-dot")).to_have_class(re.compile("dot--live"))


def test_the_menu_opens_on_a_phone(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport=PHONE)
    page.goto("/")
    menu = page.get_by_role("button", name="Menu")
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.get_by_role("link", name="Topics").first.click()
    expect(page).to_have_url(re.compile("/topics$"))


def test_a_topic_is_created_previewed_and_deleted(page: Page) -> None:
    page.goto("/topics")
    page.get_by_role("link", name="Create a topic").click()
    page.locator("input[name=topic]").fill("frame-made")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("metaq topic create frame-made --queues 8")).to_be_visible()
    check_accessible(page)
    page.locator("[data-apply]").click()
    expect(page.get_by_text("The topic frame-made exists now.")).to_be_visible()
    page.goto("/actions/delete-topic?topic=frame-made")
    expect(page.get_by_text("metaq topic delete frame-made --yes")).to_be_visible()
    page.locator("input[name=typed_name]").fill("frame-mad")
    page.locator("[data-apply]").click()
    expect(page.locator(".notice").filter(has_text="Type frame-made to confirm")).to_be_visible()
    page.locator("input[name=typed_name]").fill("frame-made")
    page.locator("[data-apply]").click()
    expect(page.get_by_text("The topic frame-made is deleted")).to_be_visible()


def test_a_preview_that_is_no_longer_true_is_shown_again(page: Page, admin: Admin) -> None:
    admin.topics.create("frame-changing", queues=1)
    page.goto("/actions/delete-topic?topic=frame-changing")
    page.locator("input[name=typed_name]").fill("frame-changing")
    admin.groups.create("frame-late")
    admin.groups.reset("frame-late", "frame-changing", "earliest")
    page.locator("[data-apply]").click()
    expect(page.get_by_text("Something has changed since you looked")).to_be_visible()
    assert any(topic.name == "frame-changing" for topic in admin.topics.list())


def test_an_address_that_does_not_exist_says_so(page: Page, complaints: Complaints) -> None:
    complaints.expect("404")
    page.goto("/nowhere")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
