"""Settings that are derived from the options, and options that contradict each other."""

from __future__ import annotations

import pytest

from metaq.config import Config, load
from metaq.config.derive import broker_options, nameserver_settings, store_settings
from metaq.errors import ConfigError
from metaq.settings import DELAY_LEVELS_MS


def configured(*assignments: str) -> Config:
    return load(assignments=assignments, environment={})


def test_defaults_are_those_of_an_ordinary_broker() -> None:
    options = broker_options(configured(), ("127.0.0.1:9876",))
    assert (options.server.host, options.server.port, options.server.also_old_port) == (
        "127.0.0.1",
        10911,
        True,
    )
    assert options.broker.store_host == "127.0.0.1:10911"
    assert (options.broker.cluster, options.broker.name) == ("DefaultCluster", "broker-a")
    assert (options.store.directory, options.store.flush) == ("data", "sync")
    assert options.nameservers == ("127.0.0.1:9876",)
    server = nameserver_settings(configured())
    assert (server.host, server.port, server.also_old_port) == ("127.0.0.1", 9876, False)


def test_listen_is_for_a_role_of_its_own() -> None:
    config = configured("listen=127.0.0.2:7000")
    assert nameserver_settings(config, alone=True).host == "127.0.0.2"
    assert nameserver_settings(config, alone=True).port == 7000
    assert broker_options(config, (), alone=True).broker.store_host == "127.0.0.2:7000"
    with pytest.raises(ConfigError, match=r"listen=127\.0\.0\.2:7000 is only for a name server or a broker"):
        nameserver_settings(config)


def test_a_bare_port_goes_with_the_host() -> None:
    config = configured("listen=0", "host=127.0.0.3")
    assert (nameserver_settings(config, alone=True).host, nameserver_settings(config, alone=True).port) == (
        "127.0.0.3",
        0,
    )


def test_version_six_stands_in_brackets() -> None:
    options = broker_options(configured("listen=[::1]:7000"), (), alone=True)
    assert (options.server.host, options.broker.store_host) == ("::1", "[::1]:7000")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::"])
def test_listening_beyond_this_machine_must_be_asked_for_by_name(host: str) -> None:
    with pytest.raises(
        ConfigError, match="is open to other machines, but MetaQ has no access control"
    ) as caught:
        nameserver_settings(configured(f"host={host}"))
    assert "--insecure-listen" in caught.value.hint
    assert nameserver_settings(configured(f"host={host}", "insecure_listen=true")).host == host


def test_an_unspecified_address_is_not_told_to_clients() -> None:
    options = broker_options(configured("host=0.0.0.0", "insecure_listen=yes"), ())
    assert not options.broker.store_host.startswith("0.0.0.0")
    options = broker_options(
        configured("host=0.0.0.0", "insecure_listen=yes", "advertised_host=192.0.2.7"), ()
    )
    assert options.broker.store_host == "192.0.2.7:10911"


def test_names_become_addresses() -> None:
    assert nameserver_settings(configured("host=localhost")).host == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"the host no-such-host\.invalid cannot be resolved"):
        nameserver_settings(configured("host=no-such-host.invalid"))


def test_disk_levels_rise() -> None:
    with pytest.raises(ConfigError, match="must rise in this order"):
        store_settings(configured("disk_clean_percent=90"))


def test_the_largest_message_fits_a_frame() -> None:
    with pytest.raises(
        ConfigError, match="message_size_bytes_max=33554432 does not fit frame_bytes_max=16777216"
    ):
        store_settings(configured("message_size_bytes_max=32M"))
    assert store_settings(configured("message_size_bytes_max=32M", "frame_bytes_max=64M"))


def test_a_replica_is_refused_while_there_is_no_replication() -> None:
    with pytest.raises(ConfigError, match="id=1 asks for a replica"):
        broker_options(configured("id=1"), ())


def test_the_port_of_old_clients_needs_room() -> None:
    with pytest.raises(ConfigError, match="broker_port=2 is too low"):
        broker_options(configured("broker_port=2"), ())


def test_delay_levels_are_read_by_unit() -> None:
    options = broker_options(configured("delay_levels=2s 3m 1h 1d"), ())
    assert options.store.delay_levels_ms == (2_000, 180_000, 3_600_000, 86_400_000)
    assert broker_options(configured(), ()).store.delay_levels_ms == DELAY_LEVELS_MS


def test_a_copy_of_an_apache_master_has_no_other_role() -> None:
    options = broker_options(configured("apache_master=10.0.0.4:10911"), ())
    assert (options.apache_master, options.replication) == ("10.0.0.4:10911", None)
    for setting in ("register=etcd://127.0.0.1:2379", "master=127.0.0.1:10912", "replica_ids=1"):
        with pytest.raises(ConfigError, match=f"and {setting.partition('=')[0]} cannot be used together"):
            broker_options(configured("apache_master=10.0.0.4:10911", setting), ())
    with pytest.raises(ConfigError, match="but its id is 2"):
        broker_options(configured("apache_master=10.0.0.4:10911", "id=2"), ())


@pytest.mark.parametrize("address", ["10911", "10.0.0.4", ":10911", "10.0.0.4:0", "10.0.0.4:70000"])
def test_the_address_of_an_apache_master_names_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        configured(f"apache_master={address}")
