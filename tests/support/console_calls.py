"""Uses of actions without a browser: a call with a cluster that a test makes up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from metaq.console.access.roles import Identity, Role
from metaq.console.actions.action import Call
from metaq.console.actions.jobs import Jobs
from metaq.console.console import Console

_FIGURES = SimpleNamespace(members=0)


def call_of(
    admin: object,
    form: dict[str, str],
    *,
    selected: tuple[str, ...] = (),
    missing: dict[str, tuple[str, ...]] | None = None,
    jobs: Jobs | None = None,
    audit: object = None,
) -> Call:
    """Returns a call of an operator. `missing` has the brokers of topics and groups that the newest look
    did not reach."""
    rows = {
        name: SimpleNamespace(missing=brokers, figures=_FIGURES) for name, brokers in (missing or {}).items()
    }
    table = SimpleNamespace(value=SimpleNamespace(rows=rows))
    console = Console(
        settings=cast(
            "Any", SimpleNamespace(nameservers="127.0.0.1:9876", base_path="", cluster_label="shop")
        ),
        admin=cast("Any", admin),
        live=cast("Any", SimpleNamespace(topics=table, groups=table, changed=lambda: None)),
        access=cast("Any", SimpleNamespace(audit=audit)),
        jobs=jobs or Jobs(),
    )
    app = SimpleNamespace(state=SimpleNamespace(console=console))
    request = Request({"type": "http", "headers": [], "app": app})
    return Call(request, console, Identity("ann", Role.operator), form, selected)
