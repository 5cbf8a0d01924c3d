"""A message for a queue whose broker is away waits between its tries, even if other brokers are there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import metaq
from metaq.errors import NotSent
from tests.support.processes import free_port
from tests.support.written_broker import STORED, Answer, WrittenBroker

MakeBroker = Callable[[Callable[[int], Answer]], WrittenBroker]


@pytest.mark.parametrize("is_soon", [False, True], ids=["send", "send_soon"])
@pytest.mark.parametrize("broker_name", ["dead", "unknown"])
def test_tries_for_a_broker_that_is_away_are_few(broker: MakeBroker, is_soon: bool, broker_name: str) -> None:
    names = broker(lambda _: (0, STORED))
    names.others = {"dead": f"127.0.0.1:{free_port()}"}
    queue = metaq.Queue("t", broker_name, 0)
    with metaq.Client(names.address) as client, client.producer("g", timeout=1.5) as producer:
        assert producer.send("t", b"x").status == "stored"
        with pytest.raises(NotSent) as caught:
            if is_soon:
                producer.send_soon("t", b"x", queue=queue).result()
            else:
                producer.send("t", b"x", queue=queue)
        producer._producer._buffered._failed_count = 0  # The failure was seen.
    found = re.search(r"after (\d+) attempts", str(caught.value))
    assert found is not None and 2 <= int(found[1]) <= 40, str(caught.value)
