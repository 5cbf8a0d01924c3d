"""The sign-in page: readable in both colours and on a phone, and in the reader's time zone from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import (
    PHONE,
    Complaints,
    SignedIn,
    check_accessible,
    check_dark_colours,
    fits_width,
)
from tests.support.metaq import Metaq

PASSWORD = "only looking"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SignedIn]:
    """Nobody is signed in at this console, which takes passwords and needs no cluster."""
    home: Path = tmp_path_factory.mktemp("sign-in")
    (home / "viewer").write_text(f"{PASSWORD}\n")
    console = Metaq(
        *("console", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--state", str(home / "state")),
        *("--viewer-password-file", str(home / "viewer")),
        home=home,
    )
    yield SignedIn(console.ready["console"], {})
    console.stop()


def test_a_wrong_and_a_right_password(
    open_page: Callable[..., Page], stranger: SignedIn, complaints: Complaints
) -> None:
    complaints.expect("403")
    page = open_page(stranger, timezone_id="Asia/Shanghai")
    page.goto("login?next=/settings")
    card = page.locator(".sign-in__card").bounding_box()
    assert card is not None and card["width"] == 380
    check_accessible(page)
    page.get_by_label("Name").fill("viewer")
    page.get_by_label("Password").fill("a guess")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("The name or the password is wrong.")
    check_accessible(page)
    check_dark_colours(page)
    page.get_by_label("Name").fill("viewer")
    page.get_by_label("Password").fill(PASSWORD)
    with page.expect_request(lambda request: request.url.endswith("/settings")) as first:
        page.get_by_role("button", name="Sign in").click()
    assert "metaq-utc-offset=480" in first.value.all_headers()["cookie"]
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_the_page_on_a_phone_in_chosen_colours(open_page: Callable[..., Page], stranger: SignedIn) -> None:
    page = open_page(stranger, viewport=PHONE)
    page.context.add_cookies([{"name": "metaq-theme", "value": "dark", "url": stranger.address}])
    page.goto("login")
    assert fits_width(page)
    # Dark, although the system prefers light colours.
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 25)"
    check_accessible(page)
