"""A misspelt option is refused with the one that was meant, in both faces of the client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metaq.errors import UsageError
from tests.support.clients import FACES, Face

NOBODY = "127.0.0.1:1"


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


def test_the_option_that_was_meant(face: Face) -> None:
    async def scenario() -> None:
        client: Any = face.client(NOBODY)
        with pytest.raises(UsageError, match=r"no option concurency; did you mean concurrency\?"):
            client.consumer("t", group="g", concurency=4)
        with pytest.raises(UsageError, match=r"no option handler_timout; did you mean handler_timeout\?"):
            client.consumer("t", group="g", handler_timout=4)
        with pytest.raises(UsageError, match=r"no option strat; did you mean .*start"):
            client.subscribe("t", group="g", strat="earliest")
        with pytest.raises(UsageError, match=r"no option readfrom; did you mean read_from\?"):
            client.puller(readfrom="replica")
        with pytest.raises(UsageError, match=r"no option compresion; did you mean compression"):
            client.producer("g", compresion="zlib")
        with pytest.raises(UsageError, match=r"no option xyzzy; it has accept, "):
            client.producer("g", xyzzy=1)
        await face.call(client.start)
        producer = client.producer("g")
        await face.call(producer.start)
        for send in (producer.send, producer.send_soon, producer.request):
            with pytest.raises(UsageError, match=r"no option tags; did you mean tag\?"):
                await face.call(send, "t", b"x", tags="paid")
        await face.call(client.close)

    asyncio.run(scenario())


def test_a_delay_level_that_no_broker_has(face: Face) -> None:
    async def scenario() -> None:
        client: Any = face.client(NOBODY)
        await face.call(client.start)
        producer = client.producer("g")
        more = client.producer("more", delay_levels_max=20, timeout=0.2)
        for each in (producer, more):
            await face.call(each.start)
        with pytest.raises(UsageError, match=r"delay_level is 99: the highest is 18 \(delay_levels_max\)"):
            await face.call(producer.send, "t", b"x", delay_level=99)
        with pytest.raises(UsageError, match="the highest is 20"):
            await face.call(more.send, "t", b"x", delay_level=21)
        more._prepare("t", b"x", delay_level=20) if not face.is_sync else None
        with pytest.raises(UsageError, match="delay_levels_max is 0"):
            client.producer("none", delay_levels_max=0)
        await face.call(client.close)

    asyncio.run(scenario())
