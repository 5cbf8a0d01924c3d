"""confluent-kafka, which wraps librdkafka; with its defaults except for the settings given here."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench.clients.task import (
    BODY,
    READ_COUNT,
    READ_TIMEOUT_S,
    Result,
    Task,
    time_filling,
    time_reading,
    time_sending,
)

FLUSH_TIMEOUT_S = 120.0
FULL_WAIT_S = 0.01
# With its defaults it fetches so little ahead, and then pauses for a second at a time, that it stands still
# most of the time when messages are small, and is several times slower. These are the fastest of those tried.
FETCH_AHEAD = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 10}


class Sending:
    """The loop that its documentation shows, without a call per delivered message: nobody asked for it."""

    def __init__(self, task: Task) -> None:
        self._producer = Producer({"bootstrap.servers": task.server, "acks": "all"})
        self._topic = task.topic

    def send(self, count: int) -> None:
        produce, topic = self._producer.produce, self._topic
        for _ in range(count):
            while True:
                try:
                    produce(topic, BODY)
                    break
                except BufferError:
                    self._producer.poll(FULL_WAIT_S)
        self._producer.poll(0)

    def flush(self) -> None:
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        if left:
            raise RuntimeError(f"{left} messages were not delivered")


def produce(task: Task) -> Result:
    sending = Sending(task)
    return time_sending(task, sending.send, sending.flush)


def fill(task: Task) -> Result:
    sending = Sending(task)
    return time_filling(task, sending.send, sending.flush)


def consume(task: Task) -> Result:
    consumer = Consumer(
        {
            "bootstrap.servers": task.server,
            "group.id": task.group,
            "enable.auto.commit": False,
            **FETCH_AHEAD,
        }
    )
    consumer.assign([TopicPartition(task.topic, number, OFFSET_BEGINNING) for number in range(task.queues)])

    def read() -> int:
        messages = consumer.consume(READ_COUNT, READ_TIMEOUT_S)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(f"a message is an error: {message.error()}")
            body = message.value()
            if body is None or len(body) != len(BODY):
                raise RuntimeError(f"a body of another size: {body!r}")
        return len(messages)

    try:
        return time_reading(task, read)
    finally:
        consumer.close()
