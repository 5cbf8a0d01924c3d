"""One cluster, one console and one browser for all tests of this folder.

A test takes `page` (an operator) or `viewer_page`. Every test fails if the browser complains: a script that
fails, content that the security policy refuses, an address that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

import metaq
from metaq.admin import Admin
from tests.support.browser import Complaints, SignedIn, chromium, sign_in
from tests.support.console_links import console_links
from tests.support.metaq import Metaq


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq]:
    """Name server, broker and console, which polls twice a second."""
    started = Metaq.serve(
        tmp_path_factory.mktemp("browser"),
        *("--set", "console=true", "--console-port", "0", "--set", "console_poll_interval_s=0.5"),
        # Producers are asked about their transactions soon and often.
        *("--set", "transaction_timeout_ms=500", "--set", "transaction_check_interval_s=1"),
        *("--set", "transaction_check_max=1000"),
    )
    yield started
    started.stop()


@pytest.fixture(scope="session")
def client(cluster: Metaq) -> Iterator[metaq.Client]:
    with metaq.Client(cluster.nameserver) as connected:
        yield connected


@pytest.fixture(scope="session")
def admin(cluster: Metaq) -> Iterator[Admin]:
    with Admin(cluster.nameserver) as connected:
        yield connected


@pytest.fixture(scope="session")
def operator(browser: Browser, cluster: Metaq) -> SignedIn:
    return sign_in(browser, console_links(cluster.ready).operator)


@pytest.fixture(scope="session")
def viewer(browser: Browser, cluster: Metaq) -> SignedIn:
    return sign_in(browser, console_links(cluster.ready).viewer)


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    seen = Complaints()
    yield seen
    assert not seen.unexpected, "\n".join(seen.unexpected)


@pytest.fixture
def open_page(browser: Browser, operator: SignedIn, complaints: Complaints) -> Iterator[Callable[..., Page]]:
    """Opens a page of an operator with options of Playwright's context, such as `viewport` or `locale`."""
    contexts = []

    def start(who: SignedIn = operator, **options: Any) -> Page:
        context = who.context(browser, **options)
        contexts.append(context)
        page = context.new_page()
        complaints.watch(page)
        return page

    yield start
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    return open_page()


@pytest.fixture
def viewer_page(open_page: Callable[..., Page], viewer: SignedIn) -> Page:
    return open_page(viewer)
