"""Requests of Apache's tools that have no meaning here, and why.

They are answered with code 3 like any unknown code, but with the reason, so that nobody looks for a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CONTAINER = "MetaQ has no broker containers: run each broker as a process of its own (metaq broker)"
_CONTROLLER = "MetaQ has no controller: it needs none to run a broker or a name server"
_STATIC = "MetaQ has no static topics: give the topic more queues instead (metaq topic update)"
_ROCKSDB = "MetaQ keeps nothing in RocksDB: consume queues and configuration are plain files"
_COLD = "MetaQ does not slow reads of old messages, so there is nothing to set"
_ACCESS = "this version of MetaQ has no access control, so there are no users and no access rules to change"
_POP = "this version of MetaQ has no pop consumption"
_LITE = "MetaQ has no lite topics"
_TIMER = "MetaQ has one way of delaying messages and no engine to switch to"

WHY: Final[Mapping[int, str]] = {
    354: _ROCKSDB,
    355: _ROCKSDB,
    513: _STATIC,
    902: _CONTAINER,
    903: _CONTAINER,
    **dict.fromkeys(range(1001, 1014), _CONTROLLER),
    2001: _COLD,
    2002: _COLD,
    2004: "MetaQ leaves reading ahead to the operating system, so there is no mode to set",
    **dict.fromkeys((3001, 3002, 3003, 3004, 3006, 3007, 3008, 3009), _ACCESS),
    5001: _TIMER,
    200056: _POP,
    **dict.fromkeys(range(200070, 200080), _LITE),
}


def remark(code: int) -> str:
    """The remark of the answer to such a request."""
    why = WHY.get(code)
    return f"request code {code} is not supported" + (f": {why}" if why else "")
