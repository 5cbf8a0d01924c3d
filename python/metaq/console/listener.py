"""The socket that a console listens on."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

_BACKLOG: Final = 128


def bind(host: str, port: int, *, may_move: bool) -> socket.socket:
    """Returns a listening socket. If the port is taken and the console may move, it takes a free one. Raises
    OSError."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    try:
        return _bind(family, host, port)
    except OSError as error:
        if not may_move or error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        return _bind(family, host, 0)


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for connections of the process before.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def address_of_socket(
    listener: socket.socket, *, host: str = "", is_tls: bool = False, base_path: str = ""
) -> str:
    """Returns the address for browsers, with a slash at the end."""
    bound, port = listener.getsockname()[:2]
    name = host or bound
    shown = f"[{name}]" if ":" in name else name
    return f"{'https' if is_tls else 'http'}://{shown}:{port}{base_path}/"
