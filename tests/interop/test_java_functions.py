"""Filter functions from the Java client, which knows only tags and SQL92: `function:name(…)`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.clients import WOKEN_S, Clients, Message, bodies, wait_for_bodies
from tests.interop.driver import ClientError
from tests.interop.kinds import each_once
from tests.support.servers import Cluster, uses_apache
from tests.support.waiting import eventually

FUNCTIONS = '''
from metaq.filters import FilterMessage, function

@function
def shorter(message: FilterMessage, size: int, *colors: str) -> bool:
    """Messages of these colors whose body, decompressed, has fewer bytes."""
    if message.properties.get("color") == "broken":
        raise RuntimeError("it cannot be said")
    return len(message.body) < size and message.properties.get("color") in colors
'''
WANTED = "function:shorter(10000, 'red', 'it''s green')"


def painted(prefix: str) -> list[Message]:
    """Returns two wanted messages, one of another color, and one so long that the client compresses it."""
    return [
        {"body": f"{prefix}-red", "properties": {"color": "red"}},
        {"body": f"{prefix}-blue", "properties": {"color": "blue"}},
        {"body": f"{prefix}-{'x' * 20_000}", "properties": {"color": "red"}},
        {"body": f"{prefix}-green", "properties": {"color": "it's green"}},
    ]


@pytest.fixture
def java_filtered(
    tmp_path: Path,
    cluster: Callable[..., Cluster],
    java_against: Callable[[Cluster], Clients],
) -> Clients:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "shop.py").write_text(FUNCTIONS)
    return java_against(cluster(settings={"filter_functions": folder}))


@each_once
@pytest.mark.skipif(uses_apache(), reason="Apache has no filter functions")
def test_a_function_chooses_what_a_push_consumer_gets(java_filtered: Clients) -> None:
    java = java_filtered
    topic = java.topic(queues=2)
    producer = java.producer()
    producer.send(topic, painted("before"))
    consumer = java.push_consumer(topic, sql=WANTED)
    wait_for_bodies([consumer], ["before-red", "before-green"])
    for number in range(3):
        # By now the consumer waits at the ends of its queues.
        producer.send(topic, painted(f"then-{number}"))
        wait_for_bodies([consumer], [f"then-{number}-red", f"then-{number}-green"], timeout_s=WOKEN_S)
    producer.send(topic, [{"body": "failed", "properties": {"color": "broken"}}])
    found = wait_for_bodies([consumer], ["failed"])
    rounds = ["before", *(f"then-{number}" for number in range(3))]
    wanted = [f"{prefix}-{color}" for prefix in rounds for color in ("red", "green")]
    assert sorted(bodies(found)) == sorted([*wanted, "failed"])

    with pytest.raises(ClientError, match="no function is called longer: there are shorter"):
        java.push_consumer(topic, sql="function:longer(1)")

    pulling = java.pull_consumer(heartbeat_interval_ms=500)
    (queue, _) = pulling.call("subscribe_queues", topic=topic)
    bounds = pulling.call("queue_bounds", **queue)

    def pulled() -> object:
        try:
            return pulling.call("pull", **queue, queue_offset=0, sql="function:shorter(1, 'red')")
        except ClientError as refused:
            assert "does not upgrade" in str(refused), refused
            return None

    nothing = eventually(pulled, lambda found: found is not None, 60, "a first pull")
    assert isinstance(nothing, dict)
    assert nothing["next_offset"] == bounds["max_offset"]
