"""Every wrong argument is a MetaqError at the call, in both faces of the client, whatever its type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import metaq
from metaq.errors import UsageError
from tests.support.clients import FACES, Face

NOBODY = "127.0.0.1:1"
LONE = "\ud800"
"""A lone surrogate, which UTF-8 cannot encode."""


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.mark.parametrize(
    ("nameservers", "right"),
    [
        ("a:1,b:2", "a:1;b:2"),
        ("127.0.0.1:9876, 127.0.0.2:9876", "127.0.0.1:9876;127.0.0.2:9876"),
        ("http://127.0.0.1:9876", "write 127.0.0.1:9876"),
        ("rocketmq://names/x:9876", "write names"),
        ("a b:1", "blank"),
    ],
)
def test_a_list_with_commas_and_a_url_are_refused_with_the_right_form(
    face: Face, nameservers: str, right: str
) -> None:
    with pytest.raises(UsageError) as refused:
        face.client(nameservers)
    assert right in str(refused.value)


def test_ipv6_and_several_name_servers_are_accepted(face: Face) -> None:
    face.client("[::1]:9876")
    face.client("names-1.example.com:9876; 127.0.0.1:9876")


SENDS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("t", b"x"), {"properties": {"a": LONE}}),
    (("t", b"x"), {"properties": {LONE: "a"}}),
    (("t", b"x"), {"properties": [("a", "b")]}),
    (("t", b"x"), {"properties": "ab"}),
    (("t", b"x"), {"properties": {1: "a"}}),
    (("t", b"x"), {"tag": LONE}),
    (("t", b"x"), {"tag": 7}),
    (("t", b"x"), {"keys": 7}),
    (("t", b"x"), {"keys": [None]}),
    (("t", b"x"), {"keys": [LONE]}),
    (("t", b"x"), {"key": LONE}),
    (("t", b"x"), {"key": 7}),
    (("t", b"x"), {"deliver_at": datetime.min}),
    (("t", b"x"), {"deliver_at": 7}),
    (("t", b"x"), {"delay": float("nan")}),
    (("t", b"x"), {"colour": "red"}),
    ((7, b"x"), {}),
    (("t", None), {}),
    (("t", 7), {}),
]


@pytest.mark.parametrize(("arguments", "options"), SENDS)
def test_a_send(face: Face, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    async def scenario(producer: Any) -> None:
        for send in (producer.send, producer.send_soon, producer.send_oneway, producer.request):
            with pytest.raises(UsageError):
                await face.call(send, *arguments, **options)

    _with_producer(face, scenario)


def _fail(message: metaq.Message) -> str:
    raise LookupError("no customer")


@pytest.mark.parametrize("key", [lambda message: 7, lambda message: None, lambda message: "", _fail, "text"])
def test_a_key_function(face: Face, key: Any) -> None:
    async def scenario(producer: Any) -> None:
        with pytest.raises(UsageError, match="key"):
            await face.call(producer.send_many, [metaq.Message("t", b"x")], key=key)

    _with_producer(face, scenario)


def test_many(face: Face) -> None:
    async def scenario(producer: Any) -> None:
        for messages in (None, 7, [b"x"]):
            with pytest.raises(UsageError):
                await face.call(producer.send_many, messages)
        with pytest.raises(UsageError):
            await face.call(producer.send_many, [metaq.Message("t", b"x")], queue=7)

    _with_producer(face, scenario)


def _with_producer(face: Face, scenario: Callable[[Any], Any]) -> None:
    async def run() -> None:
        client = face.client(NOBODY)
        await face.call(client.start)
        try:
            producer = client.producer("g", timeout=0.2)
            await face.call(producer.start)
            await scenario(producer)
        finally:
            await face.call(client.close, 0)

    asyncio.run(run())


CONSUMERS: list[dict[str, Any]] = [
    {"topic": None},
    {"topic": 7},
    {"topic": [None]},
    {"group": None},
    {"concurrency": "4"},
    {"concurrency": 2.5},
    {"concurrency": True},
    {"concurrency": None},
    {"batch": "10"},
    {"batch": 2.5},
    {"batch": True},
    {"pull_count": "1"},
    {"buffer_count": "1"},
    {"retries_max": "1"},
    {"suspend": "1"},
    {"suspend": float("nan")},
    {"tags": 7},
    {"tags": [7]},
    {"sql": 7},
    {"sql": LONE},
    {"tags": LONE},
    {"start": 7},
    {"strategy": 7},
    {"on_rebalance": 7},
    {"offsets_file": 7},
]


@pytest.mark.parametrize("options", CONSUMERS)
def test_a_consumer(face: Face, options: dict[str, Any]) -> None:
    client = face.client(NOBODY)
    keywords = {"topic": "t", "group": "g", **options}
    with pytest.raises(UsageError):
        client.consumer(**keywords)
    if "batch" not in keywords:
        with pytest.raises(UsageError):
            client.subscribe(**keywords)


@pytest.mark.parametrize(
    "options",
    [{"group": 7}, {"tags": 7}, {"buffer_count": "1"}, {"start": None}, {"read_from": 7}, {"colour": "red"}],
)
def test_a_puller(face: Face, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        face.client(NOBODY).puller(**options)


def test_a_handler_and_an_idle_timeout(face: Face) -> None:
    client = face.client(NOBODY)
    with pytest.raises(UsageError):
        client.consumer("t", group="g")(7)
    with pytest.raises(UsageError):
        client.subscribe("t", group="h", idle_timeout="3")


@pytest.mark.parametrize("after", ["soon", -1, float("nan"), True])
def test_a_retry(after: Any) -> None:
    with pytest.raises(UsageError):
        metaq.Retry(after=after)


def test_a_file_of_offsets_that_cannot_be_written(face: Face, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def scenario() -> None:
        client = face.client(NOBODY)
        declare = client.consumer(
            "t", group="g", mode="broadcast", offsets_file=tmp_path / "file" / "offsets"
        )
        declare(face.handler(lambda message: None))
        try:
            with pytest.raises(metaq.MetaqError, match="offsets"):
                await face.call(client.start)
        finally:
            await face.call(client.close, 0)

    asyncio.run(scenario())
