"""Requests that the administration client signs, against Apache's broker with access control."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metaq.admin import Admin, Credentials
from metaq.cli import app
from metaq.errors import MetaqError
from tests.support.apache import start_broker, start_nameserver
from tests.support.waiting import wait_until

PASSWORD = "only-for-this-test"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker that refuses requests without a valid signature."""
    home = tmp_path_factory.mktemp("guarded")
    provider = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    settings = {
        "authenticationEnabled": True,
        "authenticationMetadataProvider": provider,
        "initAuthenticationUser": json.dumps({"username": "operator", "password": PASSWORD}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "operator", "secretKey": PASSWORD}),
        "authConfigPath": home / "auth",
    }
    nameserver = start_nameserver(home / "nameserver")
    broker = start_broker(home / "broker", [nameserver.address], heap="512m", settings=settings)
    try:
        with Admin(nameserver.address) as admin:
            wait_until(lambda: bool(admin.brokers.cluster().brokers), 60, "registered", interval_s=0.2)
        yield nameserver.address
    finally:
        broker.stop()
        nameserver.stop()


def test_only_signed_requests_are_served(guarded: str) -> None:
    with Admin(guarded) as admin, pytest.raises(MetaqError):
        admin.topics.create("Unsigned")
    with (
        Admin(guarded, credentials=Credentials("operator", "wrong")) as admin,
        pytest.raises(MetaqError, match=r"(?i)signature|auth"),
    ):
        admin.topics.create("Unsigned")
    with Admin(guarded, credentials=Credentials("operator", PASSWORD)) as admin:
        admin.topics.create("Signed", queues=3)
        assert len(admin.topics.show("Signed").queues) == 3
        names = {topic.name for topic in admin.topics.list()}
    assert "Signed" in names and "Unsigned" not in names


def test_a_context_signs_for_its_own_cluster_alone(guarded: str, tmp_path: Path) -> None:
    runner = CliRunner(env={"METAQ_CONTEXTS": str(tmp_path / "contexts.toml")})
    made = ("context", "set", "guarded", "--namesrv", guarded, "--access-key", "operator")
    assert runner.invoke(app, [*made, "--secret-key-file", "-"], input=PASSWORD).exit_code == 0
    assert runner.invoke(app, ["topic", "create", "ByContext", "--queues", "2"]).exit_code == 0
    shown = runner.invoke(app, ["topic", "show", "ByContext", "-o", "json"])
    assert len(json.loads(shown.stdout)["queues"]) == 2
    # The same broker under another name: the flag is somebody else's cluster, so it gets no signature.
    other = guarded.replace("127.0.0.1", "localhost")
    assert runner.invoke(app, ["topic", "create", "ByFlag", "--namesrv", other]).exit_code != 0


def test_no_text_shows_the_password() -> None:
    credentials = Credentials("operator", PASSWORD)
    assert PASSWORD not in repr(credentials)
    assert PASSWORD not in str(credentials.signed({"a": "b"}, b"body"))
