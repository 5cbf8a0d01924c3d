"""Debian's Chromium, driven by Playwright, and a console that it looks at."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Response,
    expect,
    sync_playwright,
)

from tests.support.processes import ToolMissing

ARGUMENTS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PROGRAMS = ("chromium-headless-shell", "chromium")
"""The first draws the same pages without the frame of a browser, which takes half of the CPU time."""
TIMEOUT_MS = 30_000
PAGES = (
    "/",
    "/topics",
    "/groups",
    "/messages",
    "/dead-letters",
    "/delayed",
    "/transactions",
    "/cluster",
    "/pipelines",
    "/audit",
    "/settings",
)
"""The pages that the menu leads to."""
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
# Without `resultTypes`, axe-core also describes every element that is fine.
AXE_OPTIONS = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "resultTypes": ["violations"],
}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}, "resultTypes": ["violations"]}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts the browser."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        raise ToolMissing(f"{' or '.join(PROGRAMS)}: run scripts/require.sh browser")
    # A busy machine is slow, and the console then asks its cluster less often.
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Complaints:
    """Everything that the browser complains about: scripts that fail, refused content, broken addresses."""

    expected: list[re.Pattern[str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.seen.append(f"script failed: {error}"))
        page.on("response", self._response)

    def expect(self, pattern: str) -> None:
        """Leaves out complaints that a test provokes."""
        self.expected.append(re.compile(pattern))

    @property
    def unexpected(self) -> list[str]:
        return [text for text in self.seen if not any(pattern.search(text) for pattern in self.expected)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.seen.append(f"{message.text} at {message.location.get('url', '')}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.seen.append(f"{response.status} {response.request.method} {response.url}")


@dataclass(frozen=True)
class SignedIn:
    """A console and the cookies of somebody who is signed in."""

    address: str
    state: Any

    def context(self, browser: Browser, **options: Any) -> BrowserContext:
        context = browser.new_context(
            **{
                "storage_state": self.state,
                "viewport": WIDE,
                "base_url": self.address,
                "locale": "en-GB",
                "timezone_id": "UTC",
                "color_scheme": "light",
                "reduced_motion": "reduce",
                **options,
            }
        )
        context.set_default_timeout(TIMEOUT_MS)
        return context


def sign_in(browser: Browser, link: str) -> SignedIn:
    """Uses a one-time link, as a person who clicks on it."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(link)
    page.wait_for_selector("main")
    state = context.storage_state()
    context.close()
    return SignedIn(urljoin(link, "./"), state)


def violations(page: Page, options: dict[str, Any] = AXE_OPTIONS) -> list[str]:
    """Returns what axe-core finds on a page: the rule, and the elements that break it."""
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{violation['id']}: {violation['help']}: {node['html'][:160]} {node.get('failureSummary', '')[:200]}"
        for violation in found
        for node in violation["nodes"]
    ]


def check_accessible(page: Page) -> None:
    """Fails if somebody with a screen reader, or with weak eyes, cannot use the page."""
    found = violations(page)
    assert not found, "\n".join(found)


def check_dark_colours(page: Page) -> None:
    """Fails if some text is hard to read in dark colours. No other rule depends on colours."""
    page.emulate_media(color_scheme="dark")
    found = violations(page, CONTRAST)
    assert not found, "\n".join(found)


def fits_width(page: Page) -> bool:
    """Whether a page does not scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
