"""Every error is in the tree, and has a code, a retriable flag and a hint."""

from __future__ import annotations

import importlib
import re

import pytest

from metaq import errors
from metaq.errors import ClientError, MetaqError, NoRoute, NotAllSent, NotSent

TREE = errors.__doc__ or ""
ELSEWHERE = {
    "FunctionError": "metaq.filters.declared",
    "WorkerLost": "metaq.broker.functions.process",
    "RegisterUnavailable": "metaq.ha.register",
    "Refused": "metaq.protocol.errors",
    "ProtocolError": "metaq.protocol.errors",
    "Unreachable": "metaq.protocol.errors",
}


def drawn() -> dict[str, str]:
    """The errors of the tree, each with its parent."""
    parents: dict[str, str] = {}
    path = ["MetaqError"]
    for indent, name in re.findall(r"^([│ ]*)[├└]── (\w+)", TREE, re.MULTILINE):
        depth = len(indent) // 4 + 1
        parents[name] = path[depth - 1]
        path[depth:] = [name]
    return parents


def test_the_tree_shows_every_error_under_its_parent() -> None:
    defined = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, MetaqError) and kind is not MetaqError
    }
    assert drawn().keys() == defined | ELSEWHERE.keys()
    for name, parent in drawn().items():
        kind = getattr(importlib.import_module(ELSEWHERE.get(name, "metaq.errors")), name)
        assert parent in {base.__name__ for base in kind.__bases__}, name


@pytest.mark.parametrize("kind", [MetaqError, NoRoute, NotSent])
def test_defaults_are_on_the_class(kind: type[MetaqError]) -> None:
    error = kind("why")
    assert (error.code, error.retriable, error.hint) == (kind.code, kind.retriable, kind.hint)
    other = kind("why", code=7, retriable=not kind.retriable, hint="do this")
    assert (other.code, other.retriable, other.hint) == (7, not kind.retriable, "do this")


def test_only_the_text_of_client_errors_includes_the_hint() -> None:
    assert str(ClientError("why", hint="do this")) == "why; do this"
    assert str(MetaqError("why", hint="do this")) == "why"


def test_many_messages_are_worth_another_attempt_if_all_failures_are() -> None:
    assert NotAllSent([NotSent("a"), NotSent("b")]).retriable
    assert not NotAllSent([NotSent("a"), NoRoute("b")]).retriable
