"""aiokafka, with its defaults except for the settings given here."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer

from bench.clients.task import BODY, Result, Task, time_each_send, time_sending_async


async def produce_async(task: Task) -> Result:
    # Larger batches and a linger were tried and made no difference.
    async with AIOKafkaProducer(bootstrap_servers=task.server, acks="all") as producer:

        async def send(count: int) -> None:
            for _ in range(count):
                await producer.send(task.topic, BODY)

        return await time_sending_async(task, send, producer.flush)


async def send_async(task: Task) -> Result:
    async with AIOKafkaProducer(bootstrap_servers=task.server, acks="all") as producer:
        return await time_each_send(task, lambda: producer.send_and_wait(task.topic, BODY))
