"""A small reverse proxy that serves a console below a path, as nginx or Caddy do."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding"})
CHUNK_BYTES = 65_536


class ReverseProxy(ThreadingHTTPServer):
    """Passes requests below `prefix` on. It notes all others in `strays` and answers 404."""

    daemon_threads = True

    def __init__(self, target: str, prefix: str, *, strips: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.prefix = prefix
        self.strips = strips
        """Whether the proxy takes the prefix away before it passes a request on."""
        self.passed: list[str] = []
        self.strays: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ReverseProxy

    def do_GET(self) -> None:
        proxy = self.server
        if self.path != proxy.prefix and not self.path.startswith(f"{proxy.prefix}/"):
            proxy.strays.append(self.path)
            self.send_error(404)
            return
        proxy.passed.append(self.path)
        path = self.path.removeprefix(proxy.prefix) or "/" if proxy.strips else self.path
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection = http.client.HTTPConnection(proxy.target)
        # The browser may close a stream at any time, and so may the console.
        with suppress(OSError, http.client.HTTPException):
            connection.request(self.command, path, body, headers)
            self._pass_back(connection.getresponse())
        connection.close()

    do_POST = do_GET

    def _pass_back(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.end_headers()
        while chunk := answer.read1(CHUNK_BYTES):
            self.wfile.write(chunk)

    def log_message(self, format: str, *arguments: object) -> None:
        """Prints nothing."""


@contextmanager
def reverse_proxy(target: str, prefix: str, *, strips: bool) -> Iterator[ReverseProxy]:
    """Runs a proxy in front of `target`, such as 127.0.0.1:8080."""
    with ReverseProxy(target, prefix, strips=strips) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
