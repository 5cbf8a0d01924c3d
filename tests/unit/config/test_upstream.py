"""A broker.conf of Apache RocketMQ means the same here."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq.config import load
from metaq.config.derive import broker_options
from metaq.config.options import OPTIONS
from metaq.config.upstream import SAME, WITHOUT_EFFECT, properties
from metaq.errors import ConfigError

BROKER_CONF = """
# A comment
! another
brokerClusterName = RaftCluster
brokerName=broker-7
brokerId: 0
listenPort 20911
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
storePathRootDir=/srv/rocketmq\\
    /store
flushDiskType = SYNC_FLUSH
autoCreateTopicEnable=false
autoCreateSubscriptionGroup=true
defaultTopicQueueNums=4
deleteWhen=03;15
fileReservedTime=48
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=20000
maxMessageSize=65536
brokerIP1=10.1.2.3
brokerPermission=4
brokerRole=ASYNC_MASTER
diskMaxUsedSpaceRatio=60
enabledAppendPropCRC=false
flushConsumerOffsetInterval=2500
messageDelayLevel=1s 5s 10s
brokerNmae=typo
nobodyKnowsThis=1
"""


def load_text(directory: Path, text: str) -> object:
    path = directory / "broker.conf"
    path.write_text(text, encoding="utf-8")
    return load(file=str(path), environment={})


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(BROKER_CONF, encoding="utf-8")
    config = load(file=str(path), environment={})
    expected = {
        "delay_levels": "1s 5s 10s",
        "cluster": "RaftCluster",
        "name": "broker-7",
        "id": 0,
        "broker_port": 20911,
        "namesrv": ("10.0.0.1:9876", "10.0.0.2:9876"),
        "data": "/srv/rocketmq/store",
        "flush": "sync",
        "auto_create_topic": False,
        "auto_create_group": True,
        "default_topic_queues": 4,
        "delete_when": "03;15",
        "file_reserved_hours": 48,
        "commit_log_file_bytes": 2**20,
        "consume_queue_file_entries": 1000,
        "message_size_bytes_max": 65536,
        "advertised_host": "10.1.2.3",
        "permission": 4,
        "disk_clean_percent": 60,
        "record_checksums": False,
        "offsets_persist_interval_s": 2.5,
    }
    assert {name: config[name] for name in expected} == expected
    assert {name for name, setting in config.settings.items() if setting.origin == str(path)} == set(expected)
    assert [note.removeprefix(f"{path}: ") for note in config.notes] == [
        "brokerNmae is not known and is ignored (did you mean brokerName?)",
        "nobodyKnowsThis is not known and is ignored",
    ]


def test_every_translation_leads_to_an_option() -> None:
    assert {name for name, _ in SAME.values()} <= set(OPTIONS)
    assert not WITHOUT_EFFECT & SAME.keys()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("brokerRole=SYNC_MASTER", "needs replicas, but none are configured"),
        ("brokerRole=SLAVE\nbrokerId=1", "nothing says which broker is its master"),
    ],
)
def test_a_role_in_a_group_that_is_not_described_stops_the_start(
    tmp_path: Path, text: str, complaint: str
) -> None:
    config = load_text(tmp_path, text)
    with pytest.raises(ConfigError, match=complaint):
        broker_options(config, (), alone=True)


def test_a_slave_becomes_a_replica_of_its_master(tmp_path: Path) -> None:
    config = load_text(
        tmp_path, "brokerRole=SLAVE\nbrokerId=1\nhaMasterAddress=127.0.0.1:10912\nhaListenPort=20912"
    )
    replication = broker_options(config, (), alone=True).replication
    assert replication is not None and replication.fixed is not None
    assert (replication.broker_id, replication.port) == (1, 20912)
    assert replication.fixed.master_address == "127.0.0.1:10912"


def test_an_unknown_role_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="brokerRole=LEADER is not known"):
        load_text(tmp_path, "brokerRole=LEADER")


def test_a_value_of_the_wrong_kind_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mappedFileSizeConsumeQueue=much must be a whole number"):
        load_text(tmp_path, "mappedFileSizeConsumeQueue=much")
    with pytest.raises(ConfigError, match=r"flush=NOW \(.*broker.conf\) must be sync or async"):
        load_text(tmp_path, "flushDiskType=NOW")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", [("a", "b")]),
        ("a = b ", [("a", "b")]),
        ("a:b\r\nc d\re=", [("a", "b"), ("c", "d"), ("e", "")]),
        ("a=b=c:d", [("a", "b=c:d")]),
        ("a\\ b\\==c\\u00e9\\n", [("a b=", "cé")]),
        ("a=x\\\n   y", [("a", "xy")]),
        ("a=x\\\\\nb=y", [("a", "x\\"), ("b", "y")]),
        ("\n  # no\n  ! no\n\n", []),
    ],
)
def test_java_properties(text: str, pairs: list[tuple[str, str]]) -> None:
    assert list(properties(text)) == pairs
