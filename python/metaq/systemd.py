"""Tells systemd how a service does, by the protocol of `Type=notify` (sd_notify)."""

from __future__ import annotations

import logging
import os
import socket

_log = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(*lines: str) -> bool:
    """Sends the lines in one datagram; returns whether systemd, or another supervisor, listens.

    A service does its work without a supervisor as well, so a failure is only logged.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return False
    # An address that begins with @ is abstract: it is in no file system.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        _log.warning("NOTIFY_SOCKET=%s cannot be reached: %s", path, error.strerror or error)
        return False
    return True
