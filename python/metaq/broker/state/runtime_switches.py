"""What an operator may switch while the broker runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Switches:
    """By Apache's names on the wire; what is changed lasts until the next start."""

    server_side_reset: bool = True
    """A reset is the broker's word, told with the next pull and kept against what consumers commit meanwhile.
    Switched off, it is only sent to the consumers that run, as brokers before 5.0 do."""
    store_replies: bool = True
    """The reply to a request is stored besides being pushed to whoever asked."""


WIRE_NAMES = {
    "useServerSideResetOffset": "server_side_reset",
    "storeReplyMessageEnable": "store_replies",
}
