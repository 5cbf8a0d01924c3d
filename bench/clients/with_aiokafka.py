"""aiokafka, with its defaults but for what is named here."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer

from bench.clients.task import BODY, Result, Task, time_each_send, time_sending_async


async def produce_async(task: Task) -> Result:
    # As large batches and as long a wait for more as our producer has by default; with its own defaults,
    # 16 KiB and none, it is slower.
    async with AIOKafkaProducer(
        bootstrap_servers=task.server, acks="all", max_batch_size=256 * 1024, linger_ms=2
    ) as producer:

        async def send(count: int) -> None:
            for _ in range(count):
                await producer.send(task.topic, BODY)

        return await time_sending_async(task, send, producer.flush)


async def send_async(task: Task) -> Result:
    async with AIOKafkaProducer(bootstrap_servers=task.server, acks="all") as producer:
        return await time_each_send(task, lambda: producer.send_and_wait(task.topic, BODY))
