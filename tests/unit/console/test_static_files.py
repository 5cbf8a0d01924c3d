"""The libraries that come with the console are the ones that their makers published."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from metaq.console.static_files import FOLDER, static_path, static_version

VENDORED = {
    "htmx.min.js": "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
    "hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
    "uplot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_the_libraries_are_unchanged_and_have_their_licences() -> None:
    files = {file.name: file for file in (FOLDER / "vendor").iterdir()}
    assert files.keys() == VENDORED.keys() | {"LICENSES.txt", "README.md"}
    for name, digest in VENDORED.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == digest, name
    licences = files["LICENSES.txt"].read_text()
    assert "htmx 4.0.1" in licences
    assert "uPlot 1.6.32" in licences
    assert all(f"`{name}`" in files["README.md"].read_text() for name in VENDORED)


def test_addresses_name_the_version() -> None:
    assert static_path("console.css") == f"/static/{static_version()}/console.css"


def test_pages_have_neither_inline_scripts_nor_inline_styles() -> None:
    """The security policy would refuse them."""
    templates = list((FOLDER.parent / "templates").rglob("*.html"))
    assert len(templates) > 10
    for template in templates:
        text = template.read_text()
        assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", text), template.name
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), template.name
        assert not re.search(r"\|\s*safe\b|Markup", text), template.name
        # htmx evaluates these as code.
        assert not re.search(r"hx-on|hx-vals=[\"']js:|\bjs:", text), template.name


def test_scripts_never_make_html_of_text() -> None:
    for script in FOLDER.glob("*.js"):
        text = script.read_text()
        if script.name == "live-tail.js":
            # It inserts rows that the server has rendered, and so escaped, as htmx does.
            text = text.replace("holder.innerHTML = html;", "", 1)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text), script


def test_every_icon_that_a_template_names_exists() -> None:
    known = set(re.findall(r'<symbol id="([a-z-]+)"', (FOLDER / "icons.svg").read_text()))
    for template in (FOLDER.parent / "templates").rglob("*.html"):
        used = set(re.findall(r"""m\.icon\(["']([a-z-]+)["']\)""", Path(template).read_text()))
        assert used <= known, template.name
