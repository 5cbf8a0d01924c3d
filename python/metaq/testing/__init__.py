"""MetaQ inside a test: the real name server and broker in this process, on free ports, with a clock to move.

    with LocalMetaq() as metaq:
        ...  # any client, at metaq.nameserver
        metaq.clock.advance(timedelta(hours=2))
        assert metaq.dead_letters("billing") == []

pytest has it as the fixture `metaq_server` (plugin.py). What comes from here is in:

local.py     LocalMetaq, for tests that are no coroutines
aio.py       AsyncLocalMetaq, the same in the test's own event loop
clock.py     the clock's two faces
servers.py   what both are made of
stored.py    messages as assertions see them
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


def __getattr__(name: str) -> object:
    # pytest imports the plugin, and so this package, in every run of everybody who has MetaQ installed; the
    # broker is loaded by those who use it.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
