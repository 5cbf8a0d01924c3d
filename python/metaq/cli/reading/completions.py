"""Names that a shell completes: topics, groups and contexts, read from the cluster at that moment.

A shell that completes must not wait or print errors: a cluster that does not answer has no names to offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from metaq.admin import Admin

TIMEOUT_S = 1.0


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    return _live(
        context,
        incomplete,
        lambda admin: (topic.name for topic in admin.topics.list() if topic.kind == "normal"),
    )


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    return _live(
        context,
        incomplete,
        lambda admin: (group.name for group in admin.groups.list().groups if group.kind == "normal"),
    )


def complete_context(incomplete: str) -> list[str]:
    from metaq.cli.reading.contexts import read_contexts
    from metaq.errors import MetaqError

    try:
        names = sorted(read_contexts().contexts)
    except MetaqError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _live(context: typer.Context, incomplete: str, names: Callable[[Admin], Iterable[str]]) -> list[str]:
    from metaq.admin import Admin
    from metaq.cli.reading.connection import credentials, name_servers
    from metaq.errors import MetaqError

    try:
        servers = name_servers(_flag(context, "namesrv"), context=_flag(context, "context"))
        with Admin(servers, timeout=TIMEOUT_S, partial=True, credentials=credentials(servers)) as admin:
            return sorted(name for name in names(admin) if name.startswith(incomplete))
    except (MetaqError, OSError):
        return []


def _flag(context: typer.Context, name: str) -> str | None:
    """A flag that was written anywhere before the word that is completed."""
    step: typer.Context | None = context
    while step is not None:
        if isinstance(value := step.params.get(name), str):
            return value
        step = step.parent  # type: ignore[assignment]
    return None
