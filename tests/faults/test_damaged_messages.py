"""A lone broker names a damaged message, and the operator chooses whether readers skip it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.invoking import CommandLine
from tests.support.metaq import Metaq
from tests.support.plain_client import (
    PULL_NOT_FOUND,
    SUCCESS,
    PlainClient,
    create_topic,
    pull,
    read_queue,
    send,
)
from tests.support.waiting import wait_until

TOPIC = "damage"


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_a_lone_broker_names_a_damaged_message_and_follows_its_policy(tmp_path: Path, policy: str) -> None:
    served = Metaq.serve(tmp_path, "--set", f"damaged_messages={policy}")
    try:
        with PlainClient(served.broker) as client:
            assert create_topic(client, TOPIC, 1).code == SUCCESS
            for number in range(3):
                assert send(client, TOPIC, 0, f"message {number}".encode() * 50).code == SUCCESS
            _flip(tmp_path / "data", b"message 1" * 50)
            first = pull(client, TOPIC, 0, 0)
            assert (first.code, first.fields["nextBeginOffset"]) == (
                SUCCESS,
                "3" if policy == "skip" else "1",
            )
            second = pull(client, TOPIC, 0, 1, count_max=1)
            if policy == "skip":
                assert second.code == SUCCESS, second
                assert len(read_queue(client, TOPIC, 0)) == 2
            else:
                assert (second.code, second.fields["nextBeginOffset"]) == (PULL_NOT_FOUND, "1")
                held = pull(client, TOPIC, 0, 1, hold_ms=500)
                assert (held.code, held.fields["nextBeginOffset"]) == (PULL_NOT_FOUND, "1")
                assert pull(client, TOPIC, 0, 2).code == SUCCESS, "a reset leads past it"
        line = CommandLine(served.nameserver)
        (finding,) = (one for one in line.document("doctor")["findings"] if one["kind"] == "damaged-records")
        how = "left out" if policy == "skip" else "readers wait"
        assert f"topic {TOPIC}, queue 0, offsets 1 ({how})" in finding["text"]
        wait_until(
            lambda: "queue offset 1 (commit log" in served.child.log.read_text(), 30, "it is in the log"
        )
        wait_until(
            lambda: "are damaged" in served.child.log.read_text(), 30, "the place in the commit log too"
        )
        if policy == "stop":
            error = line.refused("tail", TOPIC, "--from", "earliest", "--no-follow")
            assert "offset 1 of queue" in str(error), error
    finally:
        assert served.stop() == 0


def _flip(data: Path, body: bytes) -> None:
    """Flips a bit of a body in the file that the running broker has mapped."""
    (path,) = (data / "commitlog").iterdir()
    with path.open("r+b") as file:
        at = file.read(1 << 20).index(body) + len(body) // 2
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))
