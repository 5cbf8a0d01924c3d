"""Names and commands that a person may have meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from metaq.errors import MetaqError, NoSuchGroup
from metaq.suggestions import did_you_mean

if TYPE_CHECKING:
    from metaq.admin import Admin

SYNONYMS = {
    "describe": "show",
    "get": "show",
    "info": "show",
    "inspect": "show",
    "ls": "list",
    "add": "create",
    "new": "create",
    "alter": "update",
    "edit": "update",
    "change": "update",
    "rm": "delete",
    "remove": "delete",
    "drop": "delete",
    "copy": "clone",
    "seek": "reset",
    "rewind": "reset",
    "produce": "send",
    "publish": "send",
    "pub": "send",
    "push": "send",
    "subscribe": "consume",
    "sub": "consume",
    "receive": "consume",
    "cat": "tail",
    "watch": "tail",
    "read": "tail",
    "topics": "topic",
    "groups": "group",
    "consumer": "group",
    "consumers": "group",
    "subscription": "group",
    "messages": "message",
    "msg": "message",
    "deadletter": "dlq",
    "dead-letters": "dlq",
    "dead": "dlq",
    "brokers": "broker",
    "namesrv": "nameserver",
    "start": "serve",
    "run": "serve",
    "status": "cluster status",
    "health": "cluster status",
    "check": "doctor",
    "diagnose": "doctor",
    "benchmark": "bench",
    "perf": "bench",
    "profile": "context",
    "pipelines": "pipeline",
    "redeliver": "resend",
    "retry": "resend",
    "replay": "resend",
    "dump": "export",
    "save": "export",
    "query": "find",
    "search": "find",
}
"""Words of other tools, and ours for them."""


def near_commands(word: str, known: Iterable[str]) -> list[str]:
    """Returns the commands that a person may have meant, the likeliest first."""
    from metaq.cli.mqadmin import COUNTERPARTS

    names = list(known)
    meant = SYNONYMS.get(word.lower()) or COUNTERPARTS.get(word, "").partition(",")[0] or None
    found = [meant] if meant is not None and meant.split()[0] in names else []
    found += [name for name in difflib.get_close_matches(word.lower(), names) if name not in found]
    return found


def add_near_names(error: MetaqError, admin: Admin) -> None:
    """Adds topics or groups with a name like the one that was not found to the hint of an error."""
    named = re.match(r"(?:topic|group) (\S+) does not exist", str(error))
    if named is None:
        return
    try:
        if isinstance(error, NoSuchGroup):
            names = [group.name for group in admin.groups.list().groups]
        else:
            names = [topic.name for topic in admin.topics.list()]
    except MetaqError:
        return
    meant = did_you_mean(named[1], names)
    if meant:
        error.hint = meant + (f" ({error.hint})" if error.hint else "")
