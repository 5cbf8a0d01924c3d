"""10,000 topics and 2,000 groups in Chromium: each page asks the cluster a bounded number of questions, and
ten viewers ask no more than one.

The console runs in this process, so that its requests can be counted. It polls only when the test says so.
The tests print times (`-s` shows them) and judge counts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from metaq.console.access.access import Access
from metaq.console.app import create_app
from metaq.console.console import Console
from metaq.console.listener import address_of_socket, bind
from metaq.console.place import Place
from metaq.console.settings import ConsoleSettings
from metaq.console.web_server import WebServer
from metaq.protocol.commands.figures import PAGE_MAX
from tests.support.browser import Complaints, SignedIn, sign_in
from tests.support.counted_requests import count_requests
from tests.support.many_topics import GROUPS, TOPICS, group, topic, write_files
from tests.support.metaq import Metaq
from tests.support.waiting import eventually

VIEWERS = 10
WATCHED = ("/", "/topics", "/groups", "/dead-letters", "/cluster")
POLL_TIMEOUT_S = 90
POLLS_MAX = 5
REQUESTS_MAX = 8
"""Requests of one page to the cluster."""
PATHS = (
    "/",
    "/topics",
    f"/topics?offset={TOPICS - 50}",
    "/topics?q=99&sort=messages&order=desc",
    "/groups",
    f"/groups?offset={GROUPS - 50}&sort=name&order=asc",
    "/messages",
    f"/messages?by=time&topic={topic(7)}",
    "/dead-letters",
    "/delayed",
    "/transactions",
    "/cluster",
    "/pipelines",
    "/audit",
    "/settings",
    *(f"/topics/{topic(7)}{tab}" for tab in ("", "/queues", "/groups", "/producers", "/settings")),
    *(f"/groups/{group(7)}{tab}" for tab in ("", "/queues", "/members", "/settings")),
)


@dataclass
class CountedConsole:
    """A console in a thread of this process, and the requests that it makes."""

    console: Console
    loop: asyncio.AbstractEventLoop
    asked: Counter[str]
    link: str

    def poll(self) -> None:
        """Looks at the cluster now, and sends a tick to all open pages. On a busy machine an answer can come
        too late; then it looks again."""
        for _ in range(POLLS_MAX):
            self.asked.clear()
            fresh = self.console.live.fresh(POLL_TIMEOUT_S)
            assert asyncio.run_coroutine_threadsafe(fresh, self.loop).result(POLL_TIMEOUT_S)
            if self.console.live._was_whole:
                return
        raise AssertionError(f"none of {POLLS_MAX} polls had all answers in time")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq]:
    home = tmp_path_factory.mktemp("scale")
    write_files(home / "data" / "config")
    started = Metaq.serve(home)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def counted(broker: Metaq, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedConsole]:
    folder = tmp_path_factory.mktemp("state")
    started: list[CountedConsole] = []
    stop = threading.Event()
    with pytest.MonkeyPatch.context() as monkeypatch:
        asked = count_requests(monkeypatch)

        async def serve() -> None:
            settings = ConsoleSettings(broker.nameserver, folder, poll_interval_s=3600)
            place = Place.claim(folder)
            listener = bind("127.0.0.1", 0, may_move=False)
            link = place.announce(address_of_socket(listener, host="127.0.0.1", is_tls=False)).links.operator
            async with Console.open(settings, Access.open(settings, None)) as console:
                server = WebServer(create_app(console))
                serving = asyncio.create_task(server.serve([listener]))
                started.append(CountedConsole(console, asyncio.get_running_loop(), asked, link))
                await asyncio.to_thread(stop.wait)
                server.stop()
                await serving
            place.leave()

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        try:
            [console] = eventually(lambda: started, bool, 60, "started")
            console.poll()
            yield console
        finally:
            stop.set()
            thread.join()


@pytest.fixture(scope="module")
def user(browser: Browser, counted: CountedConsole) -> SignedIn:
    return sign_in(browser, counted.link)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def new_page(user: SignedIn, browser: Browser, stack: ExitStack, complaints: Complaints) -> Page:
    context = user.context(browser)
    stack.callback(context.close)
    page = context.new_page()
    complaints.watch(page)
    return page


def viewers(user: SignedIn, browser: Browser, stack: ExitStack, complaints: Complaints) -> Iterator[Page]:
    """Opens the pages of ten viewers, one after the other. Five share the six connections of one browser."""
    for _ in range(VIEWERS // len(WATCHED)):
        context = user.context(browser)
        stack.callback(context.close)
        for path in WATCHED:
            page = context.new_page()
            complaints.watch(page)
            page.goto(path)
            expect(page.locator("#live-text")).not_to_have_text("connecting")
            yield page


def test_every_page_asks_a_bounded_number_of_questions(
    browser: Browser, counted: CountedConsole, user: SignedIn, stack: ExitStack, complaints: Complaints
) -> None:
    page = new_page(user, browser, stack, complaints)
    page.goto("/topics")
    expect(page.locator(".pager")).to_contain_text(f"of {TOPICS:,}")
    for path in PATHS:
        counted.asked.clear()
        began_s = time.perf_counter()
        answer = page.goto(path)
        took_s = time.perf_counter() - began_s
        assert answer is not None
        assert answer.status == 200, path
        expect(page.locator("h1")).to_be_visible()
        print(f"{path:60} {took_s * 1000:6.0f} ms {counted.asked.total():3} requests {dict(counted.asked)}")
        assert counted.asked.total() <= REQUESTS_MAX, f"{path}: {counted.asked}"
        assert page.locator("tbody tr").count() <= 200, path
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("09999")
    expect(page.get_by_role("option", name=topic(9_999))).to_be_visible()


def test_ten_viewers_ask_no_more_than_one(
    browser: Browser, counted: CountedConsole, user: SignedIn, stack: ExitStack, complaints: Complaints
) -> None:
    def requests_of_a_poll(pages: list[Page]) -> Counter[str]:
        """Polls once, and waits until each page has shown the new figures."""
        with ExitStack() as waiting:
            for page in pages:
                path = page.url
                waiting.enter_context(
                    page.expect_response(
                        lambda response, path=path: response.url == path,  # type: ignore[misc]
                        timeout=POLL_TIMEOUT_S * 1_000,
                    )
                )
            counted.poll()
        return Counter(counted.asked)

    opening = viewers(user, browser, stack, complaints)
    first = next(opening)
    alone = requests_of_a_poll([first])
    together = requests_of_a_poll([first, *opening])
    print(f"one viewer: {alone.total()} requests of a poll; {VIEWERS} viewers: {together.total()}")
    assert together == alone
    assert together["GetTopicFigures"] <= TOPICS // PAGE_MAX + 2
    assert together["GetGroupFigures"] <= GROUPS // PAGE_MAX + 2
