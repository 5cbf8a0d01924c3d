"""MetaQ for tests: the real name server and broker in your process, on free ports, with a movable clock.

    with LocalMetaq() as metaq:
        ...  # any client, at metaq.nameserver
        metaq.clock.advance(timedelta(hours=2))
        assert metaq.dead_letters("billing") == []

pytest finds it as the fixture `metaq_server` (plugin.py). Tests use the names below; the rest is internal.

local.py     LocalMetaq, for plain tests
aio.py       AsyncLocalMetaq, for tests that are coroutines
clock.py     the movable clock, for both
servers.py   starts, stops and restarts the two servers
stored.py    stored messages, for assertions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaq.testing.aio import AsyncLocalMetaq
    from metaq.testing.clock import AsyncLocalClock, LocalClock
    from metaq.testing.local import LocalMetaq
    from metaq.testing.stored import StoredMessage

__all__ = ["AsyncLocalClock", "AsyncLocalMetaq", "LocalClock", "LocalMetaq", "StoredMessage"]

_MODULES = {
    "AsyncLocalClock": "clock",
    "AsyncLocalMetaq": "aio",
    "LocalClock": "clock",
    "LocalMetaq": "local",
    "StoredMessage": "stored",
}


if not TYPE_CHECKING:  # With it, type checkers would accept every misspelt name.

    def __getattr__(name: str) -> object:
        # pytest imports this package in every run on a machine with MetaQ, so the broker is loaded late.
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
