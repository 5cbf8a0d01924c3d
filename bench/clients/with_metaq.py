"""Our own client, used only through its public names."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import islice

import metaq
from bench.clients.task import (
    BODY,
    READ_COUNT,
    READ_TIMEOUT_S,
    Result,
    Stopwatch,
    Task,
    time_each_send,
    time_reading,
    time_sending,
    time_sending_async,
)
from metaq import aio

ITERATION_BLOCK = 100
SAMPLE_EVERY_S = 0.05


def produce(task: Task) -> Result:
    with metaq.Client(task.server) as client, client.producer(task.group) as producer:
        send_soon, topic = producer.send_soon, task.topic

        def send(count: int) -> None:
            for _ in range(count):
                send_soon(topic, BODY)

        return time_sending(task, send, producer.flush)


def poll(task: Task) -> Result:
    with metaq.Client(task.server) as client, client.puller(start="earliest") as puller:
        puller.assign(task.topic)

        def read() -> int:
            messages = puller.poll(READ_TIMEOUT_S, count=READ_COUNT)
            for message in messages:
                if len(message.body) != len(BODY):
                    raise RuntimeError(f"a body of {len(message.body)} bytes")
            return len(messages)

        return time_reading(task, read)


def handler(task: Task) -> Result:
    """Consumes with a handler, in the threads of a consumer with default settings."""
    handled: Counter[int] = Counter()
    client = metaq.Client(task.server)

    @client.consumer(task.topic, group=task.group, start="earliest")
    def handle(message: metaq.Message) -> None:
        if len(message.body) == len(BODY):
            # Each thread has its own counter, so no lock is needed.
            handled[threading.get_ident()] += 1

    def count() -> int:
        return sum(list(handled.values()))

    with client:
        deadline = time.monotonic() + READ_TIMEOUT_S * 3
        while not count():
            if time.monotonic() > deadline:
                raise RuntimeError("the handler was not called")
            time.sleep(SAMPLE_EVERY_S)
        time.sleep(task.warmup_s)
        before, watch = count(), Stopwatch()
        while watch.passed_s() < task.round_s and count() < task.messages_max:
            time.sleep(SAMPLE_EVERY_S)
        now = count()
        return watch.result(now - before, now)


def iteration(task: Task) -> Result:
    with (
        metaq.Client(task.server) as client,
        client.subscribe(
            task.topic, group=task.group, start="earliest", idle_timeout=READ_TIMEOUT_S * 3
        ) as messages,
    ):

        def read() -> int:
            return sum(len(message.body) == len(BODY) for message in islice(messages, ITERATION_BLOCK))

        return time_reading(task, read)


async def produce_async(task: Task) -> Result:
    async with aio.Client(task.server) as client, client.producer(task.group) as producer:
        send_soon, topic = producer.send_soon, task.topic

        async def send(count: int) -> None:
            for _ in range(count):
                await send_soon(topic, BODY)

        return await time_sending_async(task, send, producer.flush)


async def send_async(task: Task) -> Result:
    async with aio.Client(task.server) as client, client.producer(task.group) as producer:
        return await time_each_send(task, lambda: producer.send(task.topic, BODY))
