"""Renders templates: whole pages, or the one block that the browser asked for."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from metaq.admin.health.results import Finding
from metaq.console import figures
from metaq.console.console import Console, console_of
from metaq.console.finding_words import finding_sentence, finding_title
from metaq.console.live.rings import Series
from metaq.console.static_files import static_path
from metaq.console.words import Language, chosen_language, word

BLOCK_OF_TARGET: Mapping[str, str] = {
    "live": "live",
    "drawer": "content",
    "dialog-body": "content",
    "action-effect": "content",
}
"""The block of a page that replaces an element of the browser's page, by the element's id."""
DEFAULT_NAMESERVERS: Final = "127.0.0.1:9876"
LOCAL_COMMANDS: Final = ("metaq nameserver", "metaq pipeline run", "metaq console link")
"""Commands that ask no cluster, or find it in a file."""
APPLE: Final = re.compile("Macintosh|iPhone|iPad")
"""Browsers whose keyboards have ⌘ instead of Ctrl."""
SPARKLINE_STEPS_MIN: Final = 60
"""Ten minutes, in steps of ten seconds."""


def render(request: Request, template: str, status_code: int = 200, **context: object) -> HTMLResponse:
    """Returns the page, or the block of it that htmx asked for by its target."""
    page = environment().get_template(template)
    variables = _variables(request) | context
    block = BLOCK_OF_TARGET.get(_target(request), "")
    if block in page.blocks:
        text = "".join(page.blocks[block](page.new_context(variables)))
    else:
        text = page.render(variables)
    return HTMLResponse(text, status_code)


def render_part(request: Request, template: str, status_code: int = 200, **context: object) -> HTMLResponse:
    """Returns a template that is a fragment of its own."""
    return HTMLResponse(render_text(request, template, **context), status_code)


def render_text(request: Request, template: str, **context: object) -> str:
    """Returns the HTML of a fragment."""
    return environment().get_template(template).render(_variables(request) | context)


def language_of(request: Request) -> Language:
    """Returns the language of the reader."""
    return chosen_language(request.cookies.get("metaq-language"), request.headers.get("accept-language", ""))


def words_of(request: Request, key: str, **fields: object) -> str:
    """Returns a word in the language of the reader."""
    return word(language_of(request), key, fields)


def url_of(request: Request, path: str, **query: object) -> str:
    """Returns an address below the base path; None among the parameters is left out."""
    return _url(console_of(request).settings.base_path, path, query)


def utc_offset_min(request: Request) -> int:
    """Returns the reader's zone, which the browser's script keeps in a cookie."""
    text = request.cookies.get("metaq-utc-offset", "0")
    try:
        offset = int(text)
    except ValueError:
        return 0
    return offset if -1440 < offset < 1440 else 0


def command_line(nameservers: str, *words: str) -> str:
    """Returns a command of `metaq` to paste, with the name servers if they are not the default."""
    where = () if nameservers == DEFAULT_NAMESERVERS else ("--namesrv", nameservers)
    return shlex.join(("metaq", *words, *where))


def at_cluster(nameservers: str, command: str) -> str:
    """Returns a command with the name servers of this console, unless it names others or needs none."""
    is_asked = command.startswith("metaq ") and not command.startswith(LOCAL_COMMANDS)
    if not is_asked or "--namesrv" in command or nameservers == DEFAULT_NAMESERVERS:
        return command
    return f"{command} --namesrv {shlex.quote(nameservers)}"


def refreshes_live(request: Request) -> bool:
    """Whether the browser asks only for the changing part of a page that it shows already."""
    return _target(request) == "live"


def _target(request: Request) -> str:
    if request.headers.get("hx-request") != "true" or request.headers.get("hx-history-restore-request"):
        return ""
    return request.headers.get("hx-target", "").partition("#")[2]


def _url(base_path: str, path: str, query: Mapping[str, object]) -> str:
    kept = [(name, value) for name, value in query.items() if value is not None and value != ""]
    return base_path + path + ("?" + urlencode(kept) if kept else "")


def _variables(request: Request) -> dict[str, Any]:
    console = console_of(request)
    base_path = console.settings.base_path
    language = language_of(request)

    def t(key: str, **fields: object) -> str:
        return word(language, key, fields)

    def url(path: str, **query: object) -> str:
        return _url(base_path, path, query)

    def static(name: str) -> str:
        return base_path + static_path(name)

    def here(**changes: object) -> str:
        """Returns the address of this page with some of its parameters changed."""
        return _url(base_path, quote(request.scope["path"]), dict(request.query_params) | changes)

    return {
        "request": request,
        "console": console,
        "settings": console.settings,
        "live": console.live,
        "cluster_name": console.settings.cluster_label or _cluster_name(console),
        "identity": getattr(request.state, "identity", None),
        "language": language,
        "theme": _theme(request),
        "t": t,
        "url": url,
        "static": static,
        "here": here,
        "command_line": partial(command_line, console.settings.nameservers),
        "at_cluster": partial(at_cluster, console.settings.nameservers),
        "units": {**figures.UNITS[language], "rate": t("common.per_second")},
        "palette_key": "⌘K" if APPLE.search(request.headers.get("user-agent", "")) else "Ctrl K",
        "now_ms": int(time.time() * 1000),
        "utc_offset_min": utc_offset_min(request),
        "path": request.scope["path"],
        "is_fragment": bool(_target(request)),
        "in_drawer": _target(request) == "drawer",
    }


def _cluster_name(console: Console) -> str:
    """Returns the name that brokers give their cluster, or the name servers until one has answered."""
    health = console.live.health.value
    names = sorted({broker.cluster for broker in health.brokers if broker.cluster}) if health else []
    return ", ".join(names) or console.settings.nameservers


def _theme(request: Request) -> str:
    theme = request.cookies.get("metaq-theme", "")
    return theme if theme in ("light", "dark") else "auto"


@cache
def environment() -> Environment:
    """Returns the templates with their filters."""
    environment = Environment(
        loader=PackageLoader("metaq.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {
        "number": figures.number,
        "exact": figures.exact,
        "rate": figures.rate,
        "size": figures.size,
        "span": _span,
        "share": figures.share,
        "iso": figures.iso,
        "moment": _moment,
        "segment": segment,
        "attribute_json": attribute_json,
        "sparkline": sparkline,
        "first_known": first_known,
        "known_from": known_from,
        "finding_title": _finding_title,
        "finding_sentence": _finding_sentence,
    }
    return environment


@pass_context
def _span(context: Context, milliseconds: float | None) -> str | None:
    return figures.span_in(context["language"], milliseconds)


@pass_context
def _moment(context: Context, milliseconds: int | None) -> str | None:
    return figures.moment(milliseconds, context["utc_offset_min"])


@pass_context
def _finding_title(context: Context, finding: Finding) -> str:
    return finding_title(context["language"], finding)


@pass_context
def _finding_sentence(context: Context, finding: Finding) -> str | None:
    return finding_sentence(context["language"], finding)


def segment(name: str) -> str:
    """Returns a name as one segment of a path; `%RETRY%group` and `a/b` stay one."""
    return quote(name, safe="")


def attribute_json(value: object) -> str:
    """Returns JSON for an attribute; Jinja escapes the quotes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def first_known(values: list[float | None]) -> int:
    """Returns where curves begin: with the first value that the console knows, but a few minutes back."""
    known = next((index for index, value in enumerate(values) if value is not None), len(values))
    return min(known, max(len(values) - SPARKLINE_STEPS_MIN, 0))


def known_from(series: Series) -> int | None:
    """Returns the time of the first value that the console knows."""
    known = (index for index, value in enumerate(series.values) if value is not None)
    index = next(known, None)
    return None if index is None else series.start_ms + index * series.step_ms


def sparkline(
    values: list[float | None], first: int = 0, least: float = 10.0, width: int = 84, height: int = 20
) -> Markup:
    """Returns the values from `first` on as a small curve in SVG. Gaps stay gaps. The top is at
    `least` or higher, so that small values look small."""
    values = values[first:]
    top = max((value for value in values if value is not None), default=0.0)
    top = max(top, least)
    step = width / max(len(values) - 1, 1)
    parts: list[str] = []
    is_open = False
    for index, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        y = height - 1 - value / top * (height - 2)
        parts.append(f"{'L' if is_open else 'M'}{index * step:.1f} {y:.1f}")
        is_open = True
    # Every part is a number of ours, so nothing in it needs to be escaped.
    return Markup(
        f'<svg class="sparkline" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' aria-hidden="true" focusable="false"><path d="{"".join(parts)}"/></svg>'
    )
