"""Switches that an operator may change while the broker runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Switches:
    """Known on the wire under Apache's names. `RunTimeOptions` changes them."""

    server_side_reset: bool = True
    """On: the broker applies a reset itself. The answer to the next pull sends consumers to the new offset,
    and offsets that they commit before are ignored. Off: the reset is only sent to running consumers, as
    brokers before 5.0 do."""
    store_replies: bool = True
    """Whether the reply to a request is stored as well as pushed to its requester."""
