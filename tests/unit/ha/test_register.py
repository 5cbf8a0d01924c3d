"""The value of `--register`: what is read, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.errors import ConfigError
from metaq.ha.register import RegisterAddress, open_register, parse_register


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("etcd://localhost:2379", RegisterAddress((("localhost", 2379),))),
        (" etcd://a:1,b.c-d:65535/ ", RegisterAddress((("a", 1), ("b.c-d", 65535)))),
        ("etcd://[::1]:2379,10.0.0.1:2379", RegisterAddress((("::1", 2379), ("10.0.0.1", 2379)))),
        ("etcds://a:1", RegisterAddress((("a", 1),), tls=True)),
        (
            "etcds://a:1/?ca_file=/c.pem&cert_file=/d.pem&key_file=/k.pem&timeout_ms=100",
            RegisterAddress(
                (("a", 1),), True, ca_file="/c.pem", cert_file="/d.pem", key_file="/k.pem", timeout_ms=100
            ),
        ),
        (
            "etcds://a:1?user=me%40here&password_file=/a%20file",
            RegisterAddress((("a", 1),), True, user="me@here", password_file="/a file"),
        ),
        ("etcd://a:1?token_file=/t", RegisterAddress((("a", 1),), token_file="/t")),
    ],
)
def test_what_is_right(text: str, expected: RegisterAddress) -> None:
    assert parse_register(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must start with etcd:// or etcds://"),
        ("localhost:2379", "must start with etcd:// or etcds://"),
        ("http://localhost:2379", "not with http://"),
        ("etcd://", "'' is not of the form host:port"),
        ("etcd://a", "'a' is not of the form host:port"),
        ("etcd://a:1,", "'' is not of the form host:port"),
        ("etcd://a:0", "'a:0' is not of the form host:port"),
        ("etcd://a:65536", "'a:65536' is not of the form host:port"),
        ("etcd://a:٣", "is not of the form host:port"),
        ("etcd://::1:2379", "'::1:2379' is not of the form host:port"),
        ("etcd://a b:1", "'a b:1' is not of the form host:port"),
        ("etcd://a\r\nX:1", "is not of the form host:port"),
        ("etcd://a:1,a:1", "a:1 is given twice"),
        ("etcd://" + ",".join(f"a:{port}" for port in range(1, 18)), "at most 16"),
        ("etcd://a:1/prefix", "must not have a path (/prefix)"),
        ("etcd://a:1?nonsense", "of the form name=value"),
        ("etcd://a:1?user=%ff&password_file=/p", "of the form name=value"),
        ("etcd://a:1?pasword_file=x", "'pasword_file' is not an option; the options are ca_file"),
        ("etcd://a:1?timeout_ms=99", "timeout_ms must be a number from 100 to 3000, not '99'"),
        ("etcd://a:1?timeout_ms=soon", "timeout_ms must be a number"),
        ("etcd://a:1?timeout_ms=200&timeout_ms=300", "timeout_ms is given twice"),
        ("etcd://a:1?user=&password_file=x", "user is empty"),
        ("etcd://a:1?user=me", "user and password_file must be given together"),
        ("etcds://a:1?cert_file=x", "cert_file and key_file must be given together"),
        ("etcd://a:1?ca_file=x", "ca_file needs TLS; start the address with etcds://"),
        ("etcd://a:1?token_file=t&user=u&password_file=p", "either token_file, or user and password_file"),
    ],
)
def test_what_is_wrong_is_named_with_an_example(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_register(text)
    assert complaint in str(raised.value)
    assert "; for example etcd" in str(raised.value)
    parse_register(raised.value.hint)


@pytest.mark.parametrize(
    "text", ["etcd://me:geheim@a:1", "etcd://me:geheim?x@a:1", "etcds://me:geheim/x@a:1"]
)
def test_a_password_in_the_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="password_file=") as raised:
        parse_register(text)
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "clear"),
    [
        ("etcd://a:1", False),
        ("etcd://a:1?token_file=/t", True),
        ("etcd://127.0.0.1:1,a:1?user=u&password_file=/p", True),
        ("etcd://127.0.0.1:1,localhost:1,[::1]:1?user=u&password_file=/p", False),
        ("etcds://a:1?user=u&password_file=/p", False),
    ],
)
def test_it_knows_whether_a_secret_crosses_the_network_in_clear(text: str, clear: bool) -> None:
    assert parse_register(text).sends_secrets_in_clear is clear


@pytest.mark.parametrize(
    ("options", "content", "complaint"),
    [
        ("ca_file={0}", None, "ca_file: cannot load {0}: No such file"),
        ("ca_file={0}", b"nothing", "ca_file: cannot load {0}"),
        ("cert_file={0}&key_file={0}", b"nothing", "cert_file and key_file: cannot load {0}"),
        ("user=u&password_file={0}", None, "password_file: cannot read {0}: No such file"),
        ("user=u&password_file={0}", b"\n", "password_file: {0} must hold 1 to 8192 bytes"),
        ("user=u&password_file={0}", b"x" * 9000, "password_file: {0} must hold 1 to 8192 bytes"),
        ("token_file={0}", b"\xff", "token_file: cannot read {0}: it is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, options: str, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        open_register(f"etcds://127.0.0.1:1/?{options.format(file)}")
    assert complaint.format(file) in str(raised.value)
