"""The key by which name servers know a broker again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from metaq.broker.background.registration_key import FILE_NAME, registration_key
from metaq.broker.options import BrokerOptions
from metaq.broker.replication.options import ReplicationOptions
from tests.support.broker_cluster import broker_options


def grouped(options: BrokerOptions, key: bytes, **names: str) -> BrokerOptions:
    group = ReplicationOptions(broker_id=1, host="127.0.0.1", port=0, advertised_host="127.0.0.1", key=key)
    return dataclasses.replace(
        options, replication=group, broker=dataclasses.replace(options.broker, **names)
    )


def test_a_broker_keeps_its_private_key(tmp_path: Path) -> None:
    options = broker_options(tmp_path / "a")
    key = registration_key(options)
    assert registration_key(options) == key
    assert registration_key(broker_options(tmp_path / "b")) != key
    assert (tmp_path / "a" / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_damaged_key_is_replaced(tmp_path: Path) -> None:
    options = broker_options(tmp_path)
    for damaged in (b"", b"\xff" * 64, b"0" * 1_000_000):
        (tmp_path / FILE_NAME).write_bytes(damaged)
        key = registration_key(options)
        assert len(key) == 64
        assert registration_key(options) == key


def test_a_key_that_cannot_be_kept_stops_no_broker(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    assert len(registration_key(broker_options(tmp_path))) == 64


def test_the_nodes_of_a_group_have_one_key(tmp_path: Path) -> None:
    one, two = broker_options(tmp_path / "1"), broker_options(tmp_path / "2")
    key = registration_key(grouped(one, b"secret"))
    assert registration_key(grouped(two, b"secret")) == key
    assert registration_key(grouped(two, b"another")) != key
    assert registration_key(grouped(two, b"secret", name="broker-b")) != key
    assert not (tmp_path / "1").exists()
