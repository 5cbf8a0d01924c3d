"""A cluster or a console that is new, away or slow: every page says so, and old values are never shown as
zero or as new.

The tests share servers and run in this order: no broker, an empty broker, traffic, a killed broker, a broker
that hangs, a killed console.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

import metaq
from metaq.admin import Admin
from metaq.client.session.routes import Queue
from tests.support.browser import PAGES, Complaints, SignedIn, check_accessible, sign_in
from tests.support.console_links import console_links
from tests.support.metaq import Metaq
from tests.support.processes import free_port, freeze
from tests.support.servers import MetaqServer

TOPIC, GROUP, SENT = "broken-orders", "broken-billing", 12


@dataclass
class Setup:
    """A name server, a broker that starts later, and a console, each a process that a test kills."""

    home: Path
    nameserver: MetaqServer
    console: Metaq
    user: SignedIn
    broker: MetaqServer | None = None

    def start_broker(self) -> MetaqServer:
        identity = ("--name", "broker-a", "--namesrv", self.nameserver.address)
        data = ("--data", str(self.home / "data"))
        self.broker = MetaqServer("broker-a", self.home, "broker", *identity, *data)
        return self.broker

    @property
    def broker_pid(self) -> int:
        assert self.broker is not None
        return self.broker.running.pid


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Setup]:
    home = tmp_path_factory.mktemp("broken")
    nameserver = MetaqServer("nameserver", home, "nameserver")
    listen = f"127.0.0.1:{free_port()}"
    console = Metaq.console(home / "console", nameserver.address, listen=listen)
    running = Setup(home, nameserver, console, sign_in(browser, console_links(console.ready).operator))
    yield running
    running.console.stop()
    if running.broker is not None:
        running.broker.stop()
    nameserver.stop()


@pytest.fixture
def opened(setup: Setup, browser: Browser, complaints: Complaints) -> Iterator[Callable[[str], Page]]:
    """Opens a page in a browser of its own. Only tabs that somebody sees hold a connection, and Playwright
    sees all of them: a single browser would run out of its six connections."""
    contexts: list[BrowserContext] = []

    def start(path: str) -> Page:
        contexts.append(setup.user.context(browser))
        page = contexts[-1].new_page()
        complaints.watch(page)
        page.goto(path)
        return page

    yield start
    for context in contexts:
        context.close()


def visit_all(page: Page) -> dict[str, str]:
    """Opens every page, and returns its text. None of them may fail as such."""
    texts = {}
    for path in PAGES:
        answer = page.goto(path)
        assert answer is not None
        # 502 has a page of its own that says what to do.
        assert answer.status in (200, 502), path
        expect(page.locator("h1")).to_be_visible()
        text = page.inner_text("main")
        assert "Traceback" not in text and "This page failed" not in text, path
        if answer.status == 502:
            assert "metaq doctor" in text, path
        texts[path] = text
    return texts


def row(page: Page, name: str) -> Locator:
    return page.locator("tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


# No cluster


def test_no_name_server(tmp_path: Path, browser: Browser, complaints: Complaints) -> None:
    """Every page says which server does not answer, and what to do."""
    nowhere = f"127.0.0.1:{free_port()}"
    console = Metaq.console(tmp_path, nowhere)
    try:
        user = sign_in(browser, console_links(console.ready).operator)
        page = user.context(browser).new_page()
        complaints.watch(page)
        complaints.expect("502")
        texts = visit_all(page)
        page.goto("/")
        expect(page.locator("main")).to_contain_text(nowhere)
        expect(page.locator("main h2").first).to_have_text(
            "No name server answers, so nothing is known about the brokers."
        )
        expect(page.locator(".finding code")).to_have_text(f"metaq nameserver --listen {nowhere}")
        for tile in page.locator(".tile__value").all():
            expect(tile).to_have_text("unknown")
        for legend in page.locator("[data-chart-value]").all():
            expect(legend).not_to_have_text(re.compile(r"\d"))
        check_accessible(page)
        for path in ("/topics", "/groups", "/delayed", "/transactions", "/cluster", "/pipelines"):
            assert nowhere in texts[path], path
        page.context.close()
    finally:
        console.stop()
    assert "Traceback" not in console.child.log.read_text()


def test_a_name_server_without_brokers(
    setup: Setup, opened: Callable[[str], Page], complaints: Complaints
) -> None:
    complaints.expect("502")
    page = opened("/cluster")
    expect(page.locator(".empty code")).to_contain_text(
        f"metaq broker --namesrv '{setup.nameserver.address}'"
    )
    check_accessible(page)
    page.goto("/")
    expect(page.locator(".empty code, .finding code").first).to_contain_text("metaq broker")
    expect(page.locator("main h2").first).to_have_text("No broker is registered.")
    visit_all(page)


def test_a_fresh_broker_says_what_to_paste(setup: Setup, opened: Callable[[str], Page]) -> None:
    page = opened("/")
    setup.start_broker()
    expect(page.get_by_text("The cluster is empty. Send the first message:")).to_be_visible()
    expect(page.locator(".empty .command code")).to_contain_text("metaq send Hello 'first message'")
    expect(page.locator(".empty .command code")).to_contain_text(setup.nameserver.address)
    expect(page.locator(".empty pre")).to_contain_text(f'metaq.Client("{setup.nameserver.address}")')
    check_accessible(page)
    where = f" --namesrv {setup.nameserver.address}"
    commands = {
        "/topics": "metaq send Hello 'first message'" + where,
        "/groups": "metaq consume Hello --group first-group" + where,
        "/delayed": "--delay 10m" + where,
        "/pipelines": "metaq pipeline run",
    }
    for path, command in commands.items():
        page.goto(path)
        expect(page.locator(".empty .command code")).to_contain_text(command)
        check_accessible(page)
    for path, sentence in {
        "/dead-letters": "No group has dead letters.",
        "/transactions": "No transaction is open.",
    }.items():
        page.goto(path)
        expect(page.get_by_text(sentence)).to_be_visible()
    assert "502" not in "".join(visit_all(page).values())


# A broker that goes away


@pytest.fixture(scope="module")
def traffic(setup: Setup) -> None:
    with metaq.Client(setup.nameserver.address) as client, Admin(setup.nameserver.address) as admin:
        admin.topics.create(TOPIC, queues=1)
        with client.producer() as producer:
            for number in range(SENT):
                producer.send(TOPIC, str(number).encode())
        admin.groups.create(GROUP)
        admin.offsets.commit(GROUP, {Queue(TOPIC, "broker-a", 0): 5})


def test_a_killed_broker_leaves_its_last_values_grey(
    setup: Setup, traffic: None, opened: Callable[[str], Page], complaints: Complaints
) -> None:
    pages = {path: opened(path) for path in ("/topics", "/groups", "/cluster", "/", f"/groups/{GROUP}")}
    topics, groups, cluster, overview, group = pages.values()
    expect(row(topics, TOPIC).get_by_role("cell").nth(5)).to_have_text(str(SENT))
    expect(row(groups, GROUP).get_by_role("cell").nth(3)).to_have_text(str(SENT - 5))
    expect(row(cluster, "broker-a")).not_to_have_class(re.compile("is-stale"))
    broker = setup.broker
    assert broker is not None
    broker.kill()
    for page, name in ((topics, TOPIC), (groups, GROUP), (cluster, "broker-a")):
        expect(row(page, name)).to_have_class("is-stale")
        expect(row(page, name)).to_have_attribute("title", re.compile(r"\d+ (ms|s|min) ago"))
    for page in (topics, groups, overview):
        expect(page.get_by_text("broker-a has not answered since")).to_be_visible()
        check_accessible(page)
    expect(group.get_by_role("status").filter(has_text="has not answered since")).to_be_visible()
    expect(row(topics, TOPIC).get_by_role("cell").nth(5)).to_have_text(str(SENT))
    expect(row(groups, GROUP).get_by_role("cell").nth(3)).to_have_text(str(SENT - 5))
    expect(group.locator(".is-stale .tile__value").nth(1)).to_contain_text(str(SENT - 5))
    # A page that is opened now is as honest as one that was open before.
    complaints.expect("502")
    fresh = opened(f"/topics/{TOPIC}")
    expect(fresh.locator("main")).to_contain_text(str(SENT))
    visit_all(fresh)
    broker.restart()
    for page, name in ((topics, TOPIC), (groups, GROUP), (cluster, "broker-a")):
        expect(row(page, name)).not_to_have_class(re.compile("is-stale"), timeout=60_000)
    expect(topics.get_by_text("broker-a has not answered since")).to_be_hidden()
    expect(row(topics, TOPIC).get_by_role("cell").nth(5)).to_have_text(str(SENT))


def test_a_broker_that_hangs_is_named_and_pages_still_answer(
    setup: Setup, traffic: None, opened: Callable[[str], Page], complaints: Complaints
) -> None:
    complaints.expect("502")
    page = opened("/topics")
    expect(row(page, TOPIC)).not_to_have_class(re.compile("is-stale"), timeout=60_000)
    assert setup.broker is not None
    address = setup.broker.address
    freeze(setup.broker_pid)
    try:
        expect(page.get_by_text("broker-a has not answered since")).to_be_visible(timeout=60_000)
        expect(row(page, TOPIC).get_by_role("cell").nth(5)).to_have_text(str(SENT))
        texts = visit_all(page)
        for path in ("/delayed", "/transactions", "/cluster"):
            assert "broker-a" in texts[path] or address in texts[path], path
    finally:
        os.kill(setup.broker_pid, signal.SIGCONT)
    page.goto("/topics")
    expect(row(page, TOPIC)).not_to_have_class(re.compile("is-stale"), timeout=60_000)


# A console that goes away


def test_a_page_says_that_its_console_is_away_and_recovers(
    setup: Setup, traffic: None, opened: Callable[[str], Page], complaints: Complaints
) -> None:
    complaints.expect("ERR_|Failed to fetch|network error|connect")
    page = opened("/topics")
    expect(page.locator("#live-dot")).to_have_class(re.compile("dot--live"))
    setup.console.kill()
    expect(page.locator("#live-text")).to_have_text("connection lost")
    expect(page.locator("#live")).to_have_class(re.compile("is-stale"))
    check_accessible(page)
    expect(row(page, TOPIC).get_by_role("cell").nth(5)).to_have_text(str(SENT))
    address = setup.console.ready["console"]
    setup.console = Metaq.console(
        setup.home / "console", setup.nameserver.address, listen=address.split("/")[2]
    )
    # The browser tries again by itself, and the session has survived.
    expect(page.locator("#live-dot")).to_have_class(re.compile("dot--live"), timeout=90_000)
    expect(page.locator("#live")).not_to_have_class(re.compile("is-stale"))
    with metaq.Client(setup.nameserver.address) as client, client.producer() as producer:
        producer.send(TOPIC, b"one more")
    expect(row(page, TOPIC).get_by_role("cell").nth(5)).to_have_text(str(SENT + 1), timeout=60_000)
    assert "Traceback" not in setup.console.child.log.read_text()
