"""Draws the gallery of the console: docs/images/console.

    python -m scripts.screenshots [--minutes 4] [--only PART] [--folder DIR]

It starts MetaQ with its console on free ports, lets an example shop send and consume for some minutes, so
that charts have a past, and photographs every page: all of them in light colours, some in dark ones, in
Chinese and on a phone.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, expect

from metaq.admin import Admin
from scripts.example_shop import Shop
from scripts.small_png import with_palette
from tests.support.browser import PHONE, SignedIn, chromium, sign_in
from tests.support.console_links import console_links
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "images" / "console"
BYTES_MAX: Final = 2_500_000
DARK: Final[dict[str, Any]] = {"color_scheme": "dark"}
CHINESE: Final[dict[str, Any]] = {"locale": "zh-CN"}
ON_PHONE: Final[dict[str, Any]] = {"viewport": PHONE}
Steps = Callable[[Page], None]


@dataclass(frozen=True)
class Picture:
    """A page, how it is opened, and how one gets to the state that is shown."""

    name: str
    path: str
    waits_for: str
    """A selector: the picture is taken when this is visible."""
    options: dict[str, Any]
    steps: Steps | None = None


def pictures(message: str) -> Iterator[Picture]:
    """All pictures of the gallery; `message` is the address of a message with a timeline."""
    light: dict[str, Any] = {}
    drawn = "metaq-chart canvas"
    row = "tbody tr"
    yield Picture("overview", "/", drawn, light)
    yield Picture("topics", "/topics", row, light)
    yield Picture("topic", "/topics/orders", row, light)
    yield Picture("topic-live", "/topics/orders/live", row, light)
    yield Picture("topic-queues", "/topics/orders/queues", row, light)
    yield Picture("topic-traffic", "/topics/orders/traffic", drawn, light)
    yield Picture("groups", "/groups", row, light)
    yield Picture("group", "/groups/warehouse", drawn, light)
    yield Picture("group-queues", "/groups/billing/queues", row, light)
    yield Picture("group-members", "/groups/billing/members", row, light)
    yield Picture("messages", "/messages?by=time&topic=payments&from=-1h", row, light)
    yield Picture("message", message, ".timeline li", light)
    yield Picture("dead-letters", "/dead-letters", row, light)
    yield Picture("dead-letters-of-group", "/dead-letters/mailer", row, light)
    yield Picture("delayed", "/delayed", ".histogram", light)
    yield Picture("transactions", "/transactions", row, light)
    yield Picture("cluster", "/cluster", row, light)
    yield Picture("broker", "/cluster/broker-a", "main", light)
    yield Picture("pipelines", "/pipelines", row, light)
    yield Picture("reset", "/groups/nightly-report", drawn, light, preview_reset)
    yield Picture("palette", "/", drawn, light, open_palette)
    yield Picture("audit", "/audit", row, light)
    yield Picture("settings", "/settings", "main h2", light)
    yield Picture("overview-dark", "/", drawn, DARK)
    yield Picture("topic-dark", "/topics/orders", row, DARK)
    yield Picture("group-dark", "/groups/warehouse", drawn, DARK)
    yield Picture("message-dark", message, ".timeline li", DARK)
    yield Picture("overview-chinese", "/", drawn, CHINESE)
    yield Picture("groups-chinese", "/groups", row, CHINESE)
    yield Picture("dead-letters-chinese", "/dead-letters/mailer", row, CHINESE)
    yield Picture("overview-phone", "/", drawn, ON_PHONE)
    yield Picture("topics-phone", "/topics", row, ON_PHONE)
    yield Picture("group-phone", "/groups/warehouse", drawn, ON_PHONE)
    yield Picture("message-phone", message, ".timeline li", ON_PHONE)


def preview_reset(page: Page) -> None:
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Latest: after the last message").check()
    page.get_by_role("button", name="Preview").click()
    page.wait_for_selector("[data-effect] tbody tr")


def open_palette(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("re")
    expect(page.get_by_role("option", name="reminders")).to_be_visible()


def act(browser: Browser, operator: SignedIn) -> None:
    """Does a few things through the console, so that the audit log has entries."""
    context = operator.context(browser)
    page = context.new_page()
    for path, fields in (
        ("/actions/create-topic", {"input[name=topic]": "returns"}),
        ("/actions/create-group?", {"input[name=group]": "returns-desk"}),
        ("/actions/limit-group?group=warehouse", {"input[name=messages_per_second]": "200"}),
    ):
        page.goto(path)
        for field, value in fields.items():
            page.locator(field).fill(value)
        page.get_by_role("button", name="Preview").click()
        page.locator("[data-apply]").click()
        page.wait_for_selector("[data-outcome]")
    context.close()


def photograph(browser: Browser, operator: SignedIn, picture: Picture, folder: Path) -> None:
    context = operator.context(browser, **picture.options)
    page = context.new_page()
    page.goto(picture.path)
    page.wait_for_selector(picture.waits_for)
    expect(page.locator("#live-dot")).to_have_class(re.compile("dot--live"))
    if picture.steps is not None:
        picture.steps(page)
    png = page.screenshot()
    page.goto("about:blank")
    (folder / f"{picture.name}.png").write_bytes(with_palette(page, png))
    context.close()


def build_history(shop: Shop, nameserver: str, minutes: float) -> str:
    """Waits until there is something to see. Returns the address of a message that was delivered."""
    began_s = time.monotonic()
    with Admin(nameserver) as admin:
        wait_until(lambda: shop.traced_id, what="sent")
        wait_until(
            lambda: any(
                group.state == "consumed" for group in admin.traces.timeline(shop.traced_id, "orders").groups
            ),
            what="delivered",
            interval_s=1,
        )
        wait_until(
            lambda: (admin.dead_letters.counts(["mailer"])[0].stored or 0) > 2, what="rejected", interval_s=1
        )
    timeout_s = minutes * 60 + 60
    wait_until(lambda: time.monotonic() - began_s >= minutes * 60, timeout_s, "old enough", interval_s=1)
    return f"/messages/{shop.traced_id}?topic=orders"


def draw(folder: Path, minutes: float, only: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        console = ("--set", "console=true", "--console-port", "0", "--set", "console_poll_interval_s=1")
        served = Metaq.serve(Path(home), *console)
        try:
            with Shop(served.nameserver) as shop:
                message = build_history(shop, served.nameserver, minutes)
                with chromium() as browser:
                    operator = sign_in(browser, console_links(served.ready).operator)
                    act(browser, operator)
                    for picture in pictures(message):
                        if only in picture.name:
                            photograph(browser, operator, picture, folder)
                            print(folder.name, picture.name, flush=True)
        finally:
            served.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=4, help="how long the shop runs before the first picture"
    )
    parser.add_argument("--only", default="", help="draw only the pictures with this text in their name")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    draw(arguments.folder, arguments.minutes, arguments.only)
    size = sum(file.stat().st_size for file in arguments.folder.glob("*.png"))
    print(f"{arguments.folder}: {size / 1000:.0f} kB")
    if size > BYTES_MAX:
        print(f"the pictures are larger than {BYTES_MAX / 1000:.0f} kB together", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
