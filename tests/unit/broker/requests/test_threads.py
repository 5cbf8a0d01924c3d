"""The threads on which requests are handled."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import metaq.broker
from metaq.protocol.dispatch import handled_by


def handler_classes() -> Iterator[type]:
    for module in pkgutil.walk_packages(metaq.broker.__path__, "metaq.broker."):
        for kind in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(kind) and kind.__module__ == module.name and any(handled_by(kind)):
                yield kind


def test_no_request_takes_a_thread_that_persistence_needs() -> None:
    """Clients must not be able to occupy the threads of `asyncio.to_thread`: each kind of work they cause
    has a pool of its own."""
    methods = [(kind, name) for kind in handler_classes() for name in {name for _, name in handled_by(kind)}]
    assert len(methods) > 50
    offenders = [
        f"{kind.__name__}.{name}"
        for kind, name in methods
        if "to_thread" in inspect.getsource(getattr(kind, name))
    ]
    assert offenders == []
