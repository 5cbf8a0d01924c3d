"""Slow answers: the reader sees that they are under way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, Route, expect

import metaq
from tests.support.browser import Complaints, check_accessible

TOPIC = "slow-letters"


@pytest.fixture(scope="module", autouse=True)
def letters(client: metaq.Client) -> None:
    with client.producer("slow-letters") as producer:
        producer.send(TOPIC, b"slow")


@contextmanager
def held(page: Page, pattern: str) -> Iterator[Callable[[], None]]:
    """Holds requests back until the test lets them go."""
    routes: list[Route] = []
    is_open = False
    page.route(re.compile(pattern), lambda route: route.continue_() if is_open else routes.append(route))

    def let_go() -> None:
        nonlocal is_open
        is_open = True
        for route in routes:
            route.continue_()

    yield let_go


def test_a_slow_drawer_shows_a_skeleton(page: Page) -> None:
    page.goto(f"/topics/{TOPIC}")
    link = page.locator("tbody a.mono").first
    with held(page, r"/messages/[0-9A-F]+\?") as let_go:
        link.click()
        expect(page.locator("#progress")).to_be_visible()
        expect(page.locator("#drawer .skeleton")).to_be_visible()
        expect(link).to_have_attribute("aria-busy", "true")
        check_accessible(page)
        let_go()
    expect(page.locator("#drawer h2").first).to_be_visible()
    expect(page.locator("#drawer .skeleton")).to_have_count(0)
    expect(page.locator("#progress")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(f"/topics/{TOPIC}$"))


def test_a_slow_action_cannot_be_started_twice(page: Page) -> None:
    page.goto(f"/topics/{TOPIC}")
    with held(page, "/actions/update-topic") as let_go:
        page.get_by_role("link", name="Edit").click()
        expect(page.locator("#dialog .skeleton")).to_be_visible()
        let_go()
    preview = page.get_by_role("button", name="Preview")
    page.locator("#dialog input[name=queues]").fill("9")
    with held(page, "/actions/update-topic/preview") as let_go:
        preview.click()
        expect(preview).to_be_disabled()
        expect(page.locator("#progress")).to_be_visible()
        let_go()
    expect(page.locator("[data-effect]")).to_be_visible()
    expect(preview).to_be_enabled()


def test_an_answer_that_never_comes_closes_the_drawer(page: Page, complaints: Complaints) -> None:
    complaints.expect("ERR_FAILED|Failed to fetch|Failed to load")
    page.goto(f"/topics/{TOPIC}")
    routes: list[Route] = []
    page.route(re.compile(r"/messages/[0-9A-F]+\?"), lambda route: routes.append(route))
    page.locator("tbody a.mono").first.click()
    expect(page.locator("#drawer .skeleton")).to_be_visible()
    routes[0].abort()
    expect(page.locator("#drawer")).to_be_hidden()
    expect(page.locator("#toast")).to_be_visible()
    expect(page.locator("#progress")).to_be_hidden()


def test_a_slow_page_shows_progress_but_a_download_does_not(page: Page) -> None:
    page.goto(f"/topics/{TOPIC}")
    page.evaluate("window.addEventListener('beforeunload', () => { window.leaves = true; })")
    with page.expect_download():
        page.get_by_role("link", name="CSV").click()
    assert page.evaluate("window.leaves") is None
    # Playwright asks a page nothing while another one loads.
    page.evaluate("window.dispatchEvent(new Event('beforeunload'))")
    expect(page.locator("#progress")).to_be_visible()
    page.evaluate("window.dispatchEvent(new Event('pageshow'))")
    expect(page.locator("#progress")).to_be_hidden()
