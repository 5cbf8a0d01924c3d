"""The client of a worker process, which is made for the first task and kept for the next ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from metaq.client.session.session import Session
from metaq.client.sync import Client

_P = ParamSpec("_P")
_T = TypeVar("_T")

_clients: dict[tuple[int, str], Client] = {}
_lock = threading.Lock()


def client_of(name_servers: str) -> Client:
    """Returns the client of this process: Spark forks its workers, and a client belongs to one process."""
    key = (os.getpid(), name_servers)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = Client(name_servers)
            client.start()
            _clients[key] = client
        return client


def session_of(client: Client) -> Session:
    return client._client._session


def run(
    client: Client, function: Callable[_P, Coroutine[Any, Any, _T]], /, *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Runs a coroutine on the loop of the client and waits for it."""
    return client._portal.run(function, *args, **kwargs)
