"""Free ports for servers that keep their addresses when they are started again."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from typing import Final

from metaq.errors import CommandError

HOST: Final = "127.0.0.1"
# Below the range from which Linux takes ports for outgoing connections. Nobody is given one of these by
# chance while a server is down.
_FIRST: Final = 15_000
_END: Final = 32_000
_TRIES_MAX: Final = 200


def free_base(distances: Collection[int]) -> int:
    """Returns a port for which the ports at all these distances from it are free. Raises CommandError."""
    last = _END - max(distances)
    for _ in range(_TRIES_MAX):
        base = random.randrange(_FIRST, last)
        if all(is_free(base + distance) for distance in distances):
            return base
    raise CommandError(
        f"no {len(distances)} free ports were found between {_FIRST} and {_END}",
        hint="choose them yourself with --port-base",
    )


def is_free(port: int) -> bool:
    """Returns whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
