"""Other clusters, clients and ways to the console: Apache's brokers, Apache's Java client, a proxy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import metaq
from tests.interop.clients import Clients
from tests.interop.driver import Driver
from tests.interop.programs import start_java
from tests.support.browser import Complaints, SignedIn, check_accessible, sign_in
from tests.support.console_links import console_links
from tests.support.metaq import Metaq, run
from tests.support.reverse_proxy import reverse_proxy
from tests.support.servers import Cluster, Shared, start_apache

SENT, CONSUMED = 8, 5


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Apache's Java client, in one process for both clusters."""
    driver = start_java("5.5.0", "json", tmp_path_factory.mktemp("java"))
    yield driver
    driver.close()


def row(page: Page, text: str) -> Locator:
    return page.locator("tbody tr").filter(has_text=text)


# Apache's brokers


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    servers = start_apache(tmp_path_factory.mktemp("apache"), 1, ("broker-a",), "async", {})
    yield servers
    # Apache's broker takes long to stop, and nobody needs its store again.
    for server in (*servers.brokers.values(), *servers.nameservers):
        server.kill()


@pytest.fixture(scope="module")
def apache_user(
    apache: Cluster, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SignedIn]:
    console = Metaq.console(tmp_path_factory.mktemp("console"), apache.namesrv)
    yield sign_in(browser, console_links(console.ready).operator)
    console.stop()


@pytest.fixture(scope="module")
def topic(apache: Cluster, java: Driver) -> Iterator[str]:
    """A topic with messages of a Java producer; the Java consumer group `apache-billing` is behind."""
    clients = Clients(java, apache)
    made = clients.topic(queues=1)
    producer = clients.producer()
    producer.send(made, [{"body": f"order {n}", "keys": f"apache-{n}"} for n in range(CONSUMED)])
    consumer = clients.push_consumer(made, group="apache-billing", heartbeat_interval_ms=2_000)
    consumer.driver.wait_for(lambda _: len(consumer.messages) == CONSUMED, 90, "messages consumed")
    clients.wait_for_committed("apache-billing", made, [CONSUMED])
    consumer.stop()
    producer.send(made, [{"body": f"order {n}", "keys": f"apache-{n}"} for n in range(CONSUMED, SENT)])
    yield made
    clients.close()


def test_topics_groups_and_messages_of_apache_brokers(
    open_page: Callable[..., Page], apache_user: SignedIn, topic: str
) -> None:
    page = open_page(apache_user)
    page.goto(f"/topics?q={topic}")
    # The console asks a slow cluster less often.
    expect(page.get_by_role("link", name=topic)).to_be_visible(timeout=120_000)
    expect(row(page, topic).get_by_role("cell").nth(5)).to_have_text(str(SENT))
    expect(row(page, topic).get_by_text("unknown").first).to_be_visible()
    page.goto(f"/topics/{topic}?key=apache-3")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody tr a").first.click()
    expect(page.locator("#drawer pre.body")).to_have_text("order 3")
    message = page.locator("#drawer h2, #drawer h1").first.inner_text()
    page.goto(f"/messages/{message.split()[0]}?topic={topic}")
    expect(page.locator("pre.body")).to_have_text("order 3")
    check_accessible(page)
    page.goto("/groups?q=apache-billing")
    expect(row(page, "apache-billing")).to_contain_text(str(SENT - CONSUMED))
    check_accessible(page)


def test_a_group_of_apache_brokers_is_reset(
    open_page: Callable[..., Page], apache_user: SignedIn, topic: str
) -> None:
    page = open_page(apache_user)
    page.goto(f"/actions/reset-group?group=apache-billing&topic={topic}")
    page.get_by_label("Earliest message that is still stored").check()
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-effect] tbody tr").get_by_role("cell")).to_have_text(
        ["broker-a:0", str(CONSUMED), "0", f"-{CONSUMED}"]
    )
    page.locator("[data-apply]").click()
    expect(page.locator("[data-outcome]")).to_contain_text(f"apache-billing is moved in 1 queue of {topic}.")
    page.goto("/groups/apache-billing/queues")
    expect(row(page, f"{topic} broker-a:0").get_by_role("cell").nth(4)).to_have_text(str(SENT))


def test_pages_say_what_apache_brokers_do_not_report(
    open_page: Callable[..., Page], apache_user: SignedIn, topic: str
) -> None:
    page = open_page(apache_user)
    page.goto("/cluster")
    expect(row(page, "broker-a").first).to_contain_text("5.5.0")
    expect(page.get_by_text("broker-a is a broker of Apache RocketMQ.")).to_be_visible()
    check_accessible(page)
    for path in (
        "/",
        "/topics",
        "/groups",
        "/dead-letters",
        "/messages",
        "/pipelines",
        "/audit",
        "/settings",
    ):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        expect(page.locator("h1")).to_be_visible()
    for path in ("/delayed", "/transactions"):
        page.goto(path)
        expect(page.locator(".empty, .notice").first).to_contain_text(re.compile("Apache|report"))
    for tab in ("", "/queues", "/groups", "/producers", "/settings"):
        answer = page.goto(f"/topics/{topic}{tab}")
        assert answer is not None
        assert answer.status == 200, tab


# Java clients of our broker


def test_java_clients_show_their_language_version_and_stack(page: Page, cluster: Metaq, java: Driver) -> None:
    ours = Cluster([Shared(cluster.nameserver, cluster)], {"broker-a": Shared(cluster.broker, cluster)}, {})
    clients = Clients(java, ours)
    made = clients.topic(queues=2)
    producer = clients.producer(group="java-orders")
    producer.send(made, [{"body": "from Java", "keys": "java-1"}])
    consumer = clients.push_consumer(made, group="java-billing")
    consumer.driver.wait_for(lambda _: len(consumer.messages) == 1, 90, "message consumed")
    try:
        page.goto("/groups/java-billing/members")
        member = page.locator("tbody tr").first
        expect(member).to_contain_text("JAVA")
        expect(member).to_contain_text("5.5.0")
        expect(member).to_contain_text(str(consumer.client_id))
        member.get_by_role("link", name=re.compile("Stack of")).click()
        expect(page.locator("#drawer pre").first).to_contain_text("org.apache.rocketmq")
        page.goto(f"/topics/{made}/producers?q=java-orders")
        expect(row(page, "java-orders")).to_contain_text("JAVA")
        expect(row(page, "java-orders")).to_contain_text("5.5.0")
        page.goto(f"/messages?by=key&topic={made}&key=java-1")
        expect(page.locator("tbody tr")).to_have_count(1)
    finally:
        clients.close()


# Behind a proxy


@pytest.fixture(scope="module")
def below_path(cluster: Metaq, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Metaq, Path]]:
    """A console that serves below /metaq."""
    home = tmp_path_factory.mktemp("below")
    console = Metaq.console(home, cluster.nameserver, "--base-path", "/metaq")
    yield console, home / "state"
    console.stop()


@pytest.mark.parametrize("strips", [False, True], ids=["keeps the path", "strips the path"])
def test_everything_stays_below_the_path_of_a_proxy(
    strips: bool,
    below_path: tuple[Metaq, Path],
    browser: Browser,
    client: metaq.Client,
    complaints: Complaints,
) -> None:
    console, state = below_path
    with client.producer() as producer:
        producer.send("proxied-orders", b"proxied")
    with ExitStack() as stack:
        target = urlsplit(console.ready["console"]).netloc
        proxy = stack.enter_context(reverse_proxy(target, "/metaq", strips=strips))
        link = urlsplit(run("console", "link", "--state", str(state)).stdout.strip())
        user = sign_in(browser, f"{proxy.address}{link.path}?{link.query}")
        context = user.context(browser)
        stack.callback(context.close)
        page = context.new_page()
        complaints.watch(page)
        page.goto(f"{proxy.address}/metaq/")
        expect(page.locator("h1")).to_have_text("Overview")
        page.get_by_role("link", name="Topics").first.click()
        expect(page).to_have_url(f"{proxy.address}/metaq/topics")
        expect(page.locator("#live-dot")).to_have_class(re.compile("dot--live"))
        page.get_by_role("link", name="proxied-orders").click()
        expect(page).to_have_url(f"{proxy.address}/metaq/topics/proxied-orders")
        page.locator("tbody tr a").first.click()
        expect(page.locator("#drawer pre.body")).to_have_text("proxied")
        expect(page).to_have_url(re.compile("/metaq/messages/"))
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Send a message").click()
        page.locator("#dialog").get_by_label("Body").fill("through the proxy")
        page.locator("#dialog").get_by_role("button", name="Preview").click()
        page.locator("#dialog [data-apply]").click()
        expect(page.locator("#dialog [data-outcome]")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="中文").click()
        expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
        page.wait_for_load_state()
        page.keyboard.press("Control+k")
        page.get_by_role("combobox").fill("proxied-ord")
        expect(page.get_by_role("option", name="proxied-orders").first).to_be_visible()
        links = page.eval_on_selector_all("a[href]", "found => found.map(one => one.pathname)")
        assert all(path.startswith("/metaq") for path in links), links
        assert {cookie["path"].rstrip("/") for cookie in context.cookies()} == {"/metaq"}
        seen = "\n".join(proxy.passed)
        for part in ("/metaq/static/", "/metaq/events", "/metaq/palette", "/metaq/actions/send-message"):
            assert part in seen
        assert not proxy.strays
