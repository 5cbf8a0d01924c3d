"""A visitor of the console over real HTTP, with cookies but without a browser."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import urlencode, urlsplit

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def location(self) -> str:
        return self.headers["location"] or ""


class Visitor:
    """Keeps the cookies of one person. Every request has a connection of its own."""

    def __init__(self, address: str, *, context: ssl.SSLContext | None = None) -> None:
        """`address` is that of the console, such as `http://127.0.0.1:8080/`."""
        self._address = urlsplit(address)
        self._context = context
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, form: dict[str, str] | None = None, **headers: str) -> Answer:
        body = urlencode(form or {}).encode()
        return self.ask("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded", **headers})

    def follow(self, link: str) -> Answer:
        """Opens a link and goes where it leads, as a click does."""
        parts = urlsplit(link)
        answer = self.get(f"{parts.path}?{parts.query}" if parts.query else parts.path)
        return self.get(answer.location) if answer.status == 303 else answer

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Header names may have `_` for `-`."""
        connection = self.connect()
        try:
            sent = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
            connection.request(method, path, body, {**sent, **self.headers()})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            connection.close()
        self._take_cookies(answer.headers)
        return Answer(answer.status, answer.headers, text)

    def headers(self) -> dict[str, str]:
        """Returns the header with the cookies, for requests on a connection of one's own."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Cookie": cookies} if cookies else {}

    def connect(self) -> http.client.HTTPConnection:
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._context)
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def _take_cookies(self, headers: http.client.HTTPMessage) -> None:
        for line in headers.get_all("set-cookie") or ():
            for name, cookie in SimpleCookie(line).items():
                if cookie["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = cookie.value
