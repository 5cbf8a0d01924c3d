"""metaq dlq against a running MetaQ."""

from __future__ import annotations

import asyncio
import json
import time
from uuid import uuid4

import pytest

from metaq._core import Record
from metaq.protocol.messages import ConsumerSendMsgBack
from tests.support.broker_cluster import connected
from tests.support.metaq import Metaq


@pytest.fixture
def group(served: Metaq) -> str:
    """A group that has given up three messages."""
    name = f"G_{uuid4().hex[:8]}"
    topic = f"T_{name}"

    async def give_up() -> None:
        async with connected(served.broker) as client:
            await client.heartbeat(name, topic)
            for number in range(3):
                unique_id = f"{uuid4().hex[:24]}{number:08d}".upper()
                sent = await client.send(topic, b"letter-%d" % number, KEYS=f"k{number}", UNIQ_KEY=unique_id)
                back = ConsumerSendMsgBack(
                    physical_offset=int(sent.msg_id[-16:], 16),
                    group=name,
                    delay_level=-1,
                    failure_reason="no customer\x01KEYS\x02" if number == 1 else None,
                    failure_type="LookupError" if number == 1 else None,
                )
                (await client.connection.call(back)).check()

    asyncio.run(give_up())
    return name


def retried(served: Metaq, group: str) -> list[Record]:
    """Reads the group's retry topic."""

    async def read() -> list[Record]:
        async with connected(served.broker, "reader") as client:
            await client.heartbeat(group, f"%RETRY%{group}")
            return (await client.pull(group, f"%RETRY%{group}"))[1]

    return asyncio.run(read())


def listed(served: Metaq, group: str, *more: str) -> list[dict[str, object]]:
    outcome = served.run("dlq", "list", group, "-o", "json", *more)
    assert outcome.returncode == 0, outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def test_all_are_sent_again_once(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    assert [letter["body"] for letter in letters] == ["letter-0", "letter-1", "letter-2"]
    assert {letter["origin_topic"] for letter in letters} == {f"T_{group}"}
    outcome = served.run("dlq", "resend", group)
    assert outcome.stdout == f"3 dead letters of {group} sent again\n"
    again = retried(served, group)
    assert [record.body for record in again] == [b"letter-0", b"letter-1", b"letter-2"]
    for number, record in enumerate(again):
        assert record.reconsume_times == 0
        assert record.properties["RETRY_TOPIC"] == f"T_{group}"
        assert record.properties["KEYS"] == f"k{number}"
        assert "DLQ_ORIGIN_TOPIC" not in record.properties
    assert listed(served, group) == []
    assert len(listed(served, group, "--all")) == 3
    assert json.loads(served.run("dlq", "resend", group, "-o", "json").stdout) == {
        "group": group,
        "resent": 0,
    }


def test_single_ones_are_not_sent_a_second_time(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    assert letters[1]["id"] != letters[1]["offset_id"]
    for wanted in (letters[1]["id"], letters[2]["offset_id"]):
        assert served.run("dlq", "resend", group, "--id", str(wanted)).returncode == 0
    assert [record.body for record in retried(served, group)] == [b"letter-1", b"letter-2"]
    assert [letter["body"] for letter in listed(served, group)] == ["letter-0"]
    assert served.run("dlq", "resend", group).stdout == f"1 dead letter of {group} sent again\n"
    assert [record.body for record in retried(served, group)] == [b"letter-1", b"letter-2", b"letter-0"]
    assert "DLQ_REASON" not in retried(served, group)[0].properties


def test_the_reason_is_shown(served: Metaq, group: str) -> None:
    letters = listed(served, group)
    assert [letter["error_type"] for letter in letters] == [None, "LookupError", None]
    assert letters[1]["reason"] == "no customer KEYS "
    assert letters[1]["properties"]["KEYS"] == "k1", "a reason cannot set other properties"  # type: ignore[index]
    assert "(LookupError: no customer KEYS )" in served.run("dlq", "list", group).stdout


def test_a_wrong_id(served: Metaq, group: str) -> None:
    for wrong in ("nonsense", "0" * 32):
        outcome = served.run("dlq", "resend", group, "--id", wrong)
        assert outcome.returncode == 1 and "metaq dlq list" in outcome.stderr


def test_not_faster_than_asked_for(served: Metaq, group: str) -> None:
    began_s = time.monotonic()
    assert served.run("dlq", "resend", group, "--rate", "2").returncode == 0
    assert time.monotonic() - began_s >= 1.0, "three at two a second"


def test_a_group_without_any(served: Metaq) -> None:
    assert listed(served, "nobody_here") == []
    text = served.run("dlq", "resend", "nobody_here").stdout
    assert text == "0 dead letters of nobody_here sent again\n"
