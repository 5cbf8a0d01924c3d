"""The audit log and the settings: who did what, links for others, language, colours, signing out."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.support.browser import sign_in
from tests.support.metaq import Metaq

REFUSED_MANY = """async (count) => {
  const headers = JSON.parse(document.body.getAttribute("hx-headers:inherited"));
  for (let number = 0; number < count; number += 1) {
    const body = new URLSearchParams({group: `audit-missing-${number}`});
    await fetch("/actions/delete-group/apply", {method: "POST", headers, body});
  }
}"""


def test_an_action_is_in_the_log_with_its_command(page: Page) -> None:
    page.goto("/actions/create-group")
    page.get_by_role("textbox", name="Group").fill("audit-made")
    page.get_by_role("button", name="Preview").click()
    page.locator("[data-apply]").click()
    expect(page.get_by_text("The group audit-made exists now.")).to_be_visible()
    page.goto("/audit?q=AUDIT-MADE")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    for text in ("operator", "127.0.0.1", "metaq group create audit-made", "Done", "exists now"):
        expect(rows.first).to_contain_text(text)
    expect(rows.last).to_contain_text("Started")
    page.goto("/audit?q=nothing-like-this")
    expect(page.get_by_text("Nothing found")).to_be_visible()


def test_the_log_has_pages_and_an_export_without_formulas(page: Page) -> None:
    page.goto("/actions/create-group?group==1%2B2")
    page.evaluate(REFUSED_MANY, 51)
    page.goto("/audit?q=audit-missing")
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.locator("tbody tr").first).to_contain_text("Refused")
    page.get_by_role("link", name="Older").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("audit-missing-0")
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.evaluate(REFUSED_MANY.replace("audit-missing-${number}", "=audit(${number})"), 1)
    page.goto("/audit?q=audit(0)")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as CSV").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text("utf-8-sig").splitlines()))
    assert [(row["target"], row["result"], row["name"]) for row in rows] == [
        ("'=audit(0)", "refused", "operator")
    ]


def test_a_link_is_shown_once_and_signs_a_viewer_in(page: Page, browser: Browser, cluster: Metaq) -> None:
    page.goto("/settings")
    page.get_by_role("link", name="Make a link").click()
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-effect] .command")).to_contain_text("metaq console link --viewer --state")
    page.locator("[data-apply]").click()
    link = page.locator("[data-outcome] .command code").inner_text()
    assert link.startswith(cluster.ready["console"] + "?token=")
    viewer = sign_in(browser, link)
    context = viewer.context(browser)
    theirs = context.new_page()
    theirs.goto("/settings")
    expect(theirs.locator("header .state")).to_have_text("Viewer")
    expect(theirs.get_by_role("button", name="Make a link")).to_be_disabled()
    refused = theirs.goto(link)
    assert refused is not None and "token" not in theirs.url
    theirs.goto("/settings")
    theirs.get_by_role("button", name="Sign out").click()
    theirs.goto("/topics")
    expect(theirs).to_have_url(re.compile("/login"))
    context.close()
    page.goto("/audit?q=console link")
    expect(page.locator("tbody tr").first).to_contain_text("Done")
    assert link.rpartition("token=")[2] not in page.content()


def test_language_colours_and_facts(page: Page, cluster: Metaq) -> None:
    page.goto("/settings")
    expect(page.get_by_text(cluster.nameserver).first).to_be_visible()
    expect(page.get_by_text("73.2 MiB of memory")).to_be_visible()
    page.get_by_role("button", name="Dark", exact=True).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.locator("main").get_by_role("button", name="中文").click()
    expect(page.locator("h1")).to_have_text("设置")
    expect(page).to_have_url(re.compile("/settings$"))
