"""Signing in with a password."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from metaq.console.access import passwords
from metaq.console.access.passwords import PasswordDirectory
from metaq.console.access.roles import Role
from tests.support.console_app import ServedApp, served_app
from tests.support.visitor import Answer, Visitor

PASSWORDS = {Role.operator: "open sesame!", Role.viewer: "only looking"}


@pytest.fixture
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with served_app(tmp_path_factory.mktemp("state"), directory=PasswordDirectory(PASSWORDS)) as served:
        yield served


def sign_in(person: Visitor, name: str, password: str, wanted: str = "") -> Answer:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', person.get("/login").text)
    assert found
    form = {"name": name, "password": password, "csrf": found[1], "next": wanted}
    return person.post("/login", form)


def test_a_password_signs_in(app: ServedApp) -> None:
    for role, password in PASSWORDS.items():
        person = app.visitor()
        answer = sign_in(person, role.value, password, "/who")
        assert (answer.status, answer.location) == (303, "/who")
        assert person.get("/who").text == f"{role} {role}"
        assert person.get("/login?next=/topics").location == "/topics"


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "topics", "/a\nb", "/\t/evil"]
)
def test_the_way_on_stays_on_this_host(app: ServedApp, wanted: str) -> None:
    assert sign_in(app.visitor(), "viewer", PASSWORDS[Role.viewer], wanted).location == "/"


def test_a_wrong_password(app: ServedApp) -> None:
    person = app.visitor()
    answer = sign_in(person, "operator", "guess")
    assert (answer.status, "The name or the password is wrong." in answer.text) == (403, True)
    assert person.get("/who").status == 303
    assert "guess" not in answer.text


def test_many_wrong_passwords_are_slowed_down(app: ServedApp) -> None:
    now_s = time.monotonic() + 1.0
    app.access.brake._clock = lambda: now_s
    person = app.visitor()
    assert [sign_in(person, "operator", f"guess {n}").status for n in range(6)] == [403] * 5 + [429]
    late = sign_in(person, "operator", PASSWORDS[Role.operator])
    assert (late.status, late.headers["Retry-After"]) == (429, "1")
    assert "Too many wrong passwords. Try again in 1 s." in late.text
    now_s += 1.0
    assert sign_in(person, "operator", PASSWORDS[Role.operator]).status == 303


def test_many_sign_ins_are_slowed_down(app: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_SIGN_INS_MAX", 2)
    statuses = [sign_in(app.visitor(), "viewer", PASSWORDS[Role.viewer]).status for _ in range(3)]
    assert statuses == [303, 303, 429]
    late = sign_in(app.visitor(), "viewer", PASSWORDS[Role.viewer])
    assert int(late.headers["Retry-After"]) > 0
    assert "Too many people signed in with this name." in late.text
    assert len(app.access.sessions) == 2
    assert sign_in(app.visitor(), "operator", PASSWORDS[Role.operator]).status == 303


def test_a_form_that_this_browser_did_not_ask_for(app: ServedApp) -> None:
    form = {"name": "operator", "password": PASSWORDS[Role.operator]}
    assert app.visitor().post("/login", form).status == 403
    other = re.search(r'name="csrf" value="([0-9a-f]+)"', app.visitor().get("/login").text)
    assert other
    person = app.visitor()
    person.get("/login")
    answer = person.post("/login", {**form, "csrf": other[1]})
    assert (answer.status, "This form is too old" in answer.text) == (403, True)
    assert person.post("/login", {**form, "password": "x" * 70_000}).status == 413


def test_the_page_is_in_the_language_of_the_reader(app: ServedApp) -> None:
    assert '<html lang="en" ' in app.visitor().get("/login").text
    chinese = app.visitor().get("/login", Accept_Language="zh-CN,zh;q=0.9,en;q=0.8").text
    assert '<html lang="zh-CN" ' in chinese and "登录 MetaQ" in chinese
    hostile = app.visitor().get("/login?next=%2F%22%3E%3Cscript%3E").text
    assert "<script>" not in hostile


def test_the_page_has_the_colours_that_the_reader_chose(app: ServedApp) -> None:
    person = app.visitor()
    assert 'data-theme="auto"' in person.get("/login").text
    person.cookies["metaq-theme"] = "dark"
    assert 'data-theme="dark"' in person.get("/login").text
    person.cookies["metaq-theme"] = "x"
    assert 'data-theme="auto"' in person.get("/login").text
