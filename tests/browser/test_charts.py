"""Charts and their legends."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from metaq.console import figures
from tests.support.waiting import wait_until

NEXT_POLL_MS = 20_000

FORMAT = """async ([name, values]) => {
  const script = document.querySelector('script[type=module]').src.replace('console.js', 'units.js');
  const units = await import(script);
  return values.map((value) => units[name](value));
}"""
WATCH = """() => {
  window.cleared = 0;
  window.refreshes = 0;
  new MutationObserver(() => {
    const keys = [...document.querySelectorAll('[data-chart-value=chart-traffic]')];
    window.cleared += keys.filter((key) => !key.textContent).length;
  }).observe(document.querySelector('#live'), { childList: true, subtree: true, characterData: true });
  document.body.addEventListener('htmx:after:swap', () => { window.refreshes += 1; });
}"""


def test_scripts_write_numbers_as_the_server_does(open_page: Callable[..., Page]) -> None:
    numbers = [0, 999, 9_999, 10_000, 123_456, 12_345_678, 5_000_000_000, -12_000, 2.5]
    spans = [0, 999, 12_000, 60_000, 110_000, 185_000, 7_800_000, 356_400_000]
    for locale, language, per_second in (("en", "en", "/s"), ("zh-CN", "zh", "/秒")):
        page = open_page(locale=locale)
        page.goto("/")
        assert page.evaluate(FORMAT, ["number", numbers]) == [figures.number(one) for one in numbers]
        rates = [0, 0.01, 0.5, 9.9, 10.4, 52_000]
        assert page.evaluate(FORMAT, ["rate", rates]) == [
            f"{figures.rate(one)} {per_second}" for one in rates
        ]
        sizes = [0, 1_023, 1_024, 150 * 1_024, 3 << 30]
        assert page.evaluate(FORMAT, ["size", sizes]) == [figures.size(one) for one in sizes]
        found = page.evaluate(FORMAT, ["span", spans])
        assert found == [figures.span_in("zh" if language == "zh" else "en", one) for one in spans]


def test_a_refresh_keeps_the_values_of_a_legend(page: Page) -> None:
    page.goto("/")
    value = page.locator("[data-chart-value=chart-traffic]").first
    expect(value).to_have_text(re.compile(r"\d /s"), timeout=NEXT_POLL_MS)
    page.evaluate(WATCH)
    wait_until(lambda: page.evaluate("window.refreshes") >= 3, what="refreshes")
    assert page.evaluate("window.cleared") == 0


def test_the_legend_has_the_time_under_the_cursor(page: Page) -> None:
    page.goto("/")
    time = page.locator("[data-chart-time=chart-traffic]")
    expect(page.locator("#chart-traffic canvas")).to_be_visible()
    expect(time).to_have_text("")
    page.locator("#chart-lag .u-over").hover()
    expect(time).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    page.evaluate(WATCH)
    wait_until(lambda: page.evaluate("window.refreshes") >= 2, what="refreshes")
    expect(time).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))


def test_charts_of_a_page_begin_at_the_same_time_and_say_their_span(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 1280, "height": 900})
    page.goto("/")
    begins = page.eval_on_selector_all(
        "metaq-chart", "all => all.map((one) => JSON.parse(one.dataset.chart).from)"
    )
    assert len(begins) == 4 and len(set(begins)) == 1
    expect(page.locator("figure h2 small").first).to_have_text("last hour")
    clipped = "all => all.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert page.eval_on_selector_all("figure h2", clipped) == []
