"""The driver notices missing answers and events, tried on a made-up client program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.clients import PushConsumer, wait_for_bodies
from tests.interop.driver import ClientError, Driver
from tests.support.waiting import eventually

# Consumes two of three messages, refuses everything else, and ends on request.
PROGRAM = """
import json, sys
def tell(**line): print(json.dumps(line), flush=True)
tell(event="ready")
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "push_consumer":
        for body in ("one", "two"):
            tell(event="message", handle=asked["handle"], body=body)
        tell(id=asked["id"], result="client")
    elif asked["do"] == "end":
        break
    else:
        tell(id=asked["id"], error={"class": "MQBrokerException", "code": 17, "message": "no"})
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver([sys.executable, "-c", PROGRAM], tmp_path / "driver.log")
    yield driver
    driver.close()


def test_missing_message_is_noticed(driver: Driver) -> None:
    consumer = PushConsumer(driver, "push_consumer", {})
    assert [m["body"] for m in wait_for_bodies([consumer], ["one", "two"])] == ["one", "two"]
    with pytest.raises(TimeoutError, match=r"1 missing.*'three'"):
        wait_for_bodies([consumer], ["one", "two", "three"], timeout_s=0.2)


def test_error_of_the_client_is_raised(driver: Driver) -> None:
    with pytest.raises(ClientError, match="MQBrokerException 17: no") as raised:
        driver.call("send")
    assert (raised.value.kind, raised.value.code, raised.value.broker_code) == ("MQBrokerException", 17, None)


def test_end_of_the_client_is_noticed(driver: Driver) -> None:
    with pytest.raises(TimeoutError, match="process ended"):
        driver.call("end")
    with pytest.raises(RuntimeError, match="ended before a message"):
        driver.wait_for(lambda events: len(events) > 1, 5, "a message")


def test_condition_that_never_comes_true_is_noticed() -> None:
    with pytest.raises(TimeoutError, match=r"not large enough .* last seen: 1"):
        eventually(lambda: 1, lambda found: found > 1, 0.1, "large enough")
