"""The Host and Origin headers that are accepted."""

from __future__ import annotations

import pytest

from metaq.console.access.hosts import is_known_host, is_own_request, own_path

HOSTS = frozenset({"mq.example.com"})


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:8080", "localhost:8080", "LOCALHOST", "[::1]:8080", "127.1.2.3:1"),
        *("mq.example.com", "MQ.example.com:443"),
    ],
)
def test_own_names(host: str) -> None:
    assert is_known_host(host, HOSTS)


@pytest.mark.parametrize(
    "host",
    [
        *("", "example.com", "localhost.example.com", "127.0.0.1.example.com", "10.0.0.1:8080", "[::2]"),
        *("mq.example.com.evil.org", "evil.org@127.0.0.1.nip.io", "[::1", "a b", "evil.org@127.0.0.1"),
    ],
)
def test_names_of_others(host: str) -> None:
    assert not is_known_host(host, HOSTS)


@pytest.mark.parametrize(
    ("origin", "fetch_site", "is_own"),
    [
        ("", "", True),
        ("null", "", True),
        ("null", "same-origin", True),
        ("http://127.0.0.1:8080", "same-origin", True),
        ("http://127.0.0.1:8080", "", True),
        ("https://mq.example.com", "", True),
        ("http://127.0.0.1:3000", "", False),
        ("http://127.0.0.1:3000", "same-site", False),
        ("https://evil.org", "", False),
        ("null", "cross-site", False),
        ("", "cross-site", False),
        ("http://[", "", False),
    ],
)
def test_origins(origin: str, fetch_site: str, is_own: bool) -> None:
    found = is_own_request(origin=origin, fetch_site=fetch_site, host="127.0.0.1:8080", hosts=HOSTS)
    assert found is is_own


@pytest.mark.parametrize("path", ["/", "/topics/a%2Fb?search=x", "/a//b"])
def test_paths_of_this_host(path: str) -> None:
    assert own_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "topics", "//evil.example", "/\\evil.example", "https://evil.example", "/\t/x", "/é", "/" * 2001],
)
def test_addresses_elsewhere_become_the_first_page(path: str) -> None:
    assert own_path(path) == "/"
