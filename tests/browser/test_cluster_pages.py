"""The pages of the cluster and of one broker, and the change of a setting."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

import metaq
from metaq.admin import Admin
from tests.support.browser import PHONE, Complaints, check_accessible, fits_width
from tests.support.metaq import Metaq

BROKER = "broker-a"
SETTING = "autoCreateSubscriptionGroup"
NEXT_POLL_MS = 20_000


def test_the_servers_of_the_cluster(page: Page, cluster: Metaq) -> None:
    page.goto("/cluster")
    names, brokers = page.locator("main section").nth(0), page.locator("main section").nth(1)
    expect(names.locator("tbody tr")).to_contain_text(cluster.nameserver, timeout=NEXT_POLL_MS)
    expect(names.locator("tbody tr")).to_contain_text("Answers")
    row = brokers.locator("tbody tr")
    for text in (BROKER, "Answers", "Master", cluster.broker, f"MetaQ {metaq.__version__}", "%"):
        expect(row).to_contain_text(text)
    expect(page.get_by_text(f"{BROKER} has no replicas.")).to_be_visible()
    page.get_by_role("link", name=BROKER).click()
    expect(page).to_have_url(re.compile(f"/cluster/{BROKER}$"))


def test_the_traffic_and_the_measurements_of_a_broker(page: Page) -> None:
    page.goto(f"/cluster/{BROKER}")
    expect(page.locator("main .facts")).to_contain_text(metaq.__version__)
    for chart in ("chart-traffic", "chart-disk"):
        expect(page.locator(f"metaq-chart#{chart} canvas")).to_be_visible()
    expect(page.locator("[data-chart-value=chart-disk]")).to_have_text(
        re.compile(r"\d+ %"), timeout=NEXT_POLL_MS
    )
    page.get_by_role("link", name="24 hours").click()
    expect(page.get_by_role("link", name="24 hours")).to_have_attribute("aria-current", "true")
    page.get_by_role("link", name="Metrics").click()
    page.get_by_role("searchbox").fill("bootTimestamp")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text(re.compile(r"bootTimestamp\s*\d{13}"))


def test_the_clients_of_a_broker(page: Page, client: metaq.Client) -> None:
    with client.subscribe("cluster-orders", group="cluster-readers"):
        page.goto(f"/cluster/{BROKER}/connections?q=cluster-readers")
        row = page.locator("tbody tr").filter(has_text=client.client_id)
        expect(row).to_contain_text("Consumer", timeout=NEXT_POLL_MS)
        row.get_by_role("link", name="cluster-readers").click()
        expect(page).to_have_url(re.compile("/groups/cluster-readers"))


def test_a_setting_is_changed_within_the_allow_list(page: Page, admin: Admin) -> None:
    page.goto(f"/cluster/{BROKER}/configuration?q=brokerName")
    expect(page.locator("tbody tr")).to_contain_text(BROKER)
    expect(page.locator("tbody").get_by_role("link", name="Change")).to_have_count(0)
    page.goto(f"/cluster/{BROKER}/configuration")
    page.get_by_role("link", name="Changeable").click()
    page.locator("tbody tr").filter(has_text=SETTING).get_by_role("link", name="Change").click()
    page.locator("select[name=value]").select_option("false")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-effect] tbody tr").get_by_role("cell")).to_have_text(
        [SETTING, "true", "false"]
    )
    expect(page.locator("[data-effect] .command")).to_contain_text(
        f"metaq cluster config set {BROKER} {SETTING}=false"
    )
    page.locator("[data-apply]").click()
    expect(page.get_by_text(f"{SETTING} of {BROKER} is false now.")).to_be_visible()
    assert admin.brokers.configuration(BROKER).values[SETTING] == "false"
    admin.brokers.configure(BROKER, {SETTING: "true"})


def test_other_settings_and_unknown_brokers_are_refused(page: Page, complaints: Complaints) -> None:
    page.goto(f"/actions/change-setting?broker={BROKER}&setting=brokerName")
    page.locator("input[name=value]").fill("other")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("brokerName cannot be changed while the broker runs.")).to_be_visible()
    page.goto("/actions/switch-master?broker_group=broker-a")
    expect(page.get_by_text(f"{BROKER} has no other node that could become master.")).to_be_visible()
    complaints.expect("404")
    page.goto("/cluster/nowhere")
    expect(page.get_by_text("There is no broker nowhere.")).to_be_visible()


@pytest.mark.parametrize("tab", ["", "/figures", "/connections", "/configuration"])
def test_every_tab_is_accessible_and_chinese_on_a_phone(open_page: Callable[..., Page], tab: str) -> None:
    page = open_page(viewport=PHONE, locale="zh-CN", color_scheme="dark")
    page.goto(f"/cluster/{BROKER}{tab}")
    expect(page.locator(".tabs [aria-current]")).to_have_text(re.compile("[\u4e00-\u9fff]"))
    assert fits_width(page)
    check_accessible(page)
