"""Rules that are checked before anything is sent, and the public surface of the package."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

import metaq
from metaq import aio, errors
from metaq.client.consumer import aio_consumers as consumers_aio
from metaq.client.consumer import sync_consumers as consumers_sync
from metaq.client.consumer.options import ConsumerOptions, HandlerKeywords, PullerKeywords
from metaq.client.consumer.pull.buffers import Limits
from metaq.client.consumer.pull.pull_consumer import PullConsumer
from metaq.client.producer import producer as aio_producer
from metaq.client.producer import sync_producer
from metaq.client.producer.options import ProducerKeywords, ProducerOptions
from metaq.client.producer.transactions import Transaction
from metaq.errors import ClientClosed, InvalidMessage, NotDelivered, NotSent, UsageError


@pytest.mark.parametrize("nameservers", ["", ";", "host", "host:x", 9876])
def test_a_client_needs_addresses(nameservers: Any) -> None:
    for kind in (metaq.Client, aio.Client):
        with pytest.raises(UsageError):
            kind(nameservers)


@pytest.mark.parametrize(
    "options",
    [
        {"group": ""},
        {"group": "a b"},
        {"timeout": 0},
        {"attempt_timeout": "1"},
        {"accept": ["anything"]},
        {"body_bytes_max": 0},
        {"linger": -1},
        {"buffer_bytes_max": 1.5},
        {"batches_in_flight_max": 0},
    ],
)
def test_a_producer_checks_its_options(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        metaq.Client().producer(**options)


def test_accept_takes_names_and_members() -> None:
    metaq.Client().producer(accept=["flush-timeout", metaq.SendStatus.REPLICA_MISSING])


PAIRS = [
    (metaq.Client, aio.Client),
    (sync_producer.Producer, aio_producer.Producer),
    (sync_producer.Transaction, Transaction),
    (consumers_sync.Consumer, consumers_aio.Consumer),
    (consumers_sync.Subscribed, consumers_aio.Subscribed),
    (consumers_sync.Puller, consumers_aio.Puller),
    (consumers_sync.ReceivedMessage, consumers_aio.ReceivedMessage),
]
FOR_THE_OTHER_FACE = {"poll_waiting"}
"""Methods that only the face for plain code calls."""


def shown(kind: type) -> set[str]:
    """Returns the public names of a class, without those of messages, which both faces share."""
    kinds = [base for base in kind.__mro__ if base not in (*metaq.Message.__mro__, object)]
    return {name for base in kinds for name in vars(base) if not name.startswith("_")} - FOR_THE_OTHER_FACE


@pytest.mark.parametrize(("plain", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_faces_have_the_same_names_and_signatures(plain: type, asynchronous: type) -> None:
    names = shown(asynchronous)
    assert shown(plain) == names
    for name in names:
        one, other = getattr(plain, name), getattr(asynchronous, name)
        assert callable(one) == callable(other), name
        if callable(one):
            assert inspect.signature(one).parameters == inspect.signature(other).parameters, name
        assert inspect.getdoc(one), name
        assert inspect.getdoc(other), name


DEFAULTS = {
    "producer": {
        **{field.name.removesuffix("_s"): field.default for field in fields(ProducerOptions)},
        "accept": (),
    },
    "consumer": {
        **{field.name: field.default for field in fields(ConsumerOptions)},
        **{f"buffer_{field.name.removesuffix('_max')}": field.default for field in fields(Limits)},
        **dict.fromkeys(("tags", "sql", "function")),
        "strategy": "average",
    },
    "puller": {
        name: parameter.default for name, parameter in inspect.signature(PullConsumer).parameters.items()
    },
}
KEYWORDS = {
    "producer": ProducerKeywords.__annotations__,
    "consumer": {**HandlerKeywords.__annotations__, "batch": int},
    "puller": PullerKeywords.__annotations__,
}


@pytest.mark.parametrize("client", [metaq.Client, aio.Client])
@pytest.mark.parametrize("method", DEFAULTS)
def test_docstrings_show_every_option_with_its_default(client: type, method: str) -> None:
    shown: dict[str, Any] = {}
    for line in re.findall(r"^- (.+?):", inspect.getdoc(getattr(client, method)) or "", re.MULTILINE):
        waiting: list[str] = []
        for name, default in re.findall(r"`(\w+)`(?: \((.+?)\)(?=,|$))?", line):
            waiting.append(name)
            if default:
                value = eval(re.sub(r" ([KM])iB", r" * \1", default), {"K": 2**10, "M": 2**20})
                shown.update(dict.fromkeys(waiting, value))
                waiting = []
    assert shown.keys() == KEYWORDS[method].keys()
    assert shown == {name: DEFAULTS[method][name] for name in shown}


def test_the_names_of_consumers_are_compared_too() -> None:
    assert {"consumer", "subscribe", "puller", "run"} <= shown(aio.Client)
    assert {"assign", "seek", "poll", "commit", "is_closed"} <= shown(consumers_aio.Puller)
    assert {"process", "ack", "retry", "reject", "reply"} == shown(consumers_aio.ReceivedMessage)


def test_another_event_loop_is_an_error() -> None:
    client = aio.Client("127.0.0.1:1")

    async def start() -> None:
        await client.start()

    async def use() -> None:
        await client.producer("g").start()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(start())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(use())
    loop.run_until_complete(client.close())
    loop.close()


def test_the_plain_face_takes_no_coroutine_functions() -> None:
    async def check(message: metaq.Message) -> bool:
        return True

    with metaq.Client("127.0.0.1:1") as client, client.producer("g") as producer:
        with pytest.raises(UsageError, match="coroutine"):
            producer.check(check)  # type: ignore[type-var]
        producer.check(lambda message: True)
        with pytest.raises(UsageError, match="already"):
            producer.check(lambda message: True)


def test_a_client_that_was_not_started_says_so() -> None:
    with pytest.raises(ClientClosed, match="not started"):
        metaq.Client().producer("g").start()


def test_many_must_be_messages() -> None:
    with metaq.Client("127.0.0.1:1") as client, client.producer("g") as producer:
        assert producer.send_many([]) == []
        with pytest.raises(InvalidMessage, match="bytes"):
            producer.send_many([b"x"])  # type: ignore[list-item]


ERRORS = {"MetaqError", *re.findall(r"[├└]── (\w+)", errors.__doc__ or "")}
"""All errors of the tree."""


def test_the_package_shows_what_it_says_and_loads_it_late() -> None:
    assert set(metaq.__all__) == {
        *("Client", "Consumer", "Message", "Producer", "Puller", "Queue", "ReceivedMessage", "Subscribed"),
        *(
            "Reject",
            "Retry",
            "RetryPolicy",
            "SendFuture",
            "SendResult",
            "SendStatus",
            "Transaction",
            "__version__",
            "aio",
        ),
        *ERRORS,
    }
    assert set(aio.__all__) == {
        "AcceptedSend",
        *("AsyncSendFuture", "Client", "Consumer", "Producer", "Puller", "ReceivedMessage", "Subscribed"),
        "Transaction",
    }
    for name in metaq.__all__:
        assert getattr(metaq, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        metaq.nonsense  # noqa: B018
    script = (
        "import metaq, sys;"
        "print([name for name in sys.modules if name.startswith('metaq.')], 'asyncio' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "['metaq.errors'] False"


def test_a_close_that_is_cut_short_leaves_no_future_open() -> None:
    async def scenario() -> None:
        client = aio.Client("127.0.0.1:1")  # No server listens there, so nothing is ever sent.
        await client.start()
        producer = client.producer("g")
        await producer.start()
        future = await producer.send_soon("t", b"x")
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(NotDelivered):
            await client.close(0)  # It can be repeated.
        with pytest.raises(NotSent):
            await asyncio.wait_for(future, timeout=60)

    asyncio.run(scenario())
