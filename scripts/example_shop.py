"""A shop that uses MetaQ: the traffic behind the pictures of the console.

    with Shop(nameserver) as shop:
        ...

Services send orders, payments, shipments and mails. Some of their consumers keep up, one falls behind, one
is stopped, and two reject messages. Reminders wait for their time, two payments are open transactions, and
three pipelines report.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

import metaq
from metaq.admin import Admin
from metaq.admin.pipelines.reports import SPARK_QUERY, PipelineReport
from metaq.client.session.routes import Queue

BROKER: Final = "broker-a"
TOPICS: Final = {"orders": 8, "payments": 4, "shipments": 4, "mails": 2, "stock-levels": 4, "reminders": 2}
PEOPLE: Final = ("王芳", "李伟", "Ada Lovelace", "张敏", "Noor Haddad", "刘洋", "Jonas Weber", "陈静")
CITIES: Final = ("杭州", "Berlin", "上海", "Amman", "深圳", "Lyon")
GOODS: Final = (
    ("乌龙茶 250 g", 68),
    ("Notebook A5", 12),
    ("保温杯", 129),
    ("Desk lamp", 45),
    ("机械键盘", 399),
)
REMINDERS: Final = 160
SLOW_HANDLING_S: Final = 0.25


class Shop:
    """The services of the shop, each in a thread. A context manager; leaving it stops them."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._stops = threading.Event()
        self._threads: list[threading.Thread] = []
        self._rest = ExitStack()
        self._random = random.Random(7)
        self._numbers = itertools.count(48_210)
        self.traced_id = ""
        """The id of an order with a complete timeline."""

    def __enter__(self) -> Self:
        self._admin = self._rest.enter_context(Admin(self._nameserver))
        for topic, queues in TOPICS.items():
            self._admin.topics.create(topic, queues=queues)
        self._client = self._rest.enter_context(self._connected("shop"))
        self._producer = self._rest.enter_context(self._client.producer("shop"))
        self._stopped_group()
        self._consumers()
        self._reminders()
        self._open_transactions()
        for service in (self._send_orders, self._send_stock_levels, self._report_pipelines):
            thread = threading.Thread(target=service, name=service.__name__, daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join()
        self._rest.close()

    # Inside: who sends

    def _connected(self, name: str) -> metaq.Client:
        return metaq.Client(self._nameserver, client_id=f"{name}@10.0.3.{len(name)}", trace_topic=True)

    def _order(self) -> dict[str, object]:
        goods, price = self._random.choice(GOODS)
        count = self._random.randint(1, 4)
        return {
            "order": f"A-{next(self._numbers)}",
            "customer": {"name": self._random.choice(PEOPLE), "city": self._random.choice(CITIES)},
            "lines": [{"goods": goods, "count": count, "price": price}],
            "total": count * price,
            "paid": self._random.random() < 0.8,
        }

    def _send(self, topic: str, content: dict[str, object], tag: str, key: str) -> str:
        body = json.dumps(content, ensure_ascii=False).encode()
        sent = self._producer.send(topic, body, tag=tag, keys=[key], properties={"source": "web"})
        return sent.id

    def _send_orders(self) -> None:
        began_s = time.monotonic()
        while not self._stops.wait(0.04):
            # Traffic comes in waves, as in life.
            wave = math.sin((time.monotonic() - began_s) / 16) + 1.2
            if self._random.random() > wave / 2.2:
                continue
            order = self._order()
            key = str(order["order"])
            order_id = self._send("orders", order, "paid" if order["paid"] else "created", key)
            self.traced_id = self.traced_id or order_id
            if order["paid"]:
                self._send(
                    "payments", {"order": key, "amount": order["total"], "currency": "CNY"}, "card", key
                )
            if self._random.random() < 0.3:
                self._send("shipments", {"order": key, "carrier": "顺丰速运"}, "packed", key)
            if self._random.random() < 0.15:
                self._send("mails", {"order": key, "template": "订单已创建"}, "order-created", key)

    def _send_stock_levels(self) -> None:
        while not self._stops.wait(0.2):
            goods, _ = self._random.choice(GOODS)
            self._send(
                "stock-levels", {"goods": goods, "left": self._random.randint(0, 90)}, "counted", goods[:3]
            )

    def _reminders(self) -> None:
        for number in range(REMINDERS):
            # Most customers are reminded after about half an hour.
            minutes = min(max(self._random.gammavariate(3, 14), 2), 119)
            self._producer.send(
                "reminders",
                json.dumps({"customer": self._random.choice(PEOPLE), "text": "您的购物车还有商品"}).encode(),
                tag="cart",
                keys=[f"cart-{1_000 + number}"],
                delay=timedelta(minutes=minutes),
            )

    def _open_transactions(self) -> None:
        producer = self._rest.enter_context(self._client.producer("checkout"))

        @producer.check
        def check(message: metaq.Message) -> bool | None:
            return None

        for number in (48_101, 48_117):
            key = f"A-{number}"
            body = json.dumps({"order": key, "amount": 399}).encode()
            transaction = producer.transaction("payments", body, tag="card", keys=[key])
            # The broker gives it up if the shop runs for long.
            self._rest.enter_context(suppress(metaq.Undecided))
            self._rest.enter_context(transaction)

    # Inside: who consumes

    def _consumers(self) -> None:
        self._consumer("billing-1", "orders", "billing", self._bill)
        self._consumer("billing-2", "orders", "billing", self._bill)
        self._consumer("warehouse", "orders", "warehouse", self._pack, concurrency=1)
        self._consumer("fraud-check", "payments", "fraud-check", self._check_payment)
        self._consumer("mailer", "mails", "mailer", self._mail)
        self._consumer("tracking", "shipments", "tracking", lambda message: None)
        self._consumer("search-index", "stock-levels", "search-index", lambda message: None)

    def _consumer(
        self,
        name: str,
        topic: str,
        group: str,
        handle: Callable[[metaq.Message], None],
        concurrency: int = 4,
    ) -> None:
        client = self._connected(name)
        client.consumer(topic, group=group, start="earliest", concurrency=concurrency)(handle)
        self._rest.enter_context(client)

    def _stopped_group(self) -> None:
        """A report that ran at night and waits for the next one."""
        for _ in range(60):
            order = self._order()
            self._send("orders", order, "paid", str(order["order"]))
        self._admin.groups.create("nightly-report")
        first = {Queue("orders", BROKER, number): 2 for number in range(TOPICS["orders"])}
        self._admin.offsets.commit("nightly-report", first)

    def _bill(self, message: metaq.Message) -> None:
        self._stops.wait(0.01)

    def _pack(self, message: metaq.Message) -> None:
        self._stops.wait(SLOW_HANDLING_S)

    def _check_payment(self, message: metaq.Message) -> None:
        if json.loads(message.body)["amount"] == 4 * 399:
            raise metaq.Reject("the amount 1,596 is above the limit of the card")

    def _mail(self, message: metaq.Message) -> None:
        number = int(json.loads(message.body)["order"].removeprefix("A-"))
        if number % 5 == 0:
            raise metaq.Reject(
                "550 5.1.1 mailbox unavailable" if number % 2 else "template 订单已创建 has no subject"
            )

    # Inside: pipelines

    def _report_pipelines(self) -> None:
        started_ms = int(time.time() * 1000) - 5_400_000
        lake = PipelineReport(
            name="orders-lake",
            kind="log-lake",
            run="orders-lake-1",
            host="etl-1",
            pid=os.getpid(),
            started_ms=started_ms,
            state="running",
            phase="append",
            topics=("orders",),
            group="orders-lake",
        )
        reports = [
            lake,
            replace(
                lake,
                name="crm-mirror",
                kind="binlog-sync",
                run="crm-1",
                phase="follow",
                topics=("crm-changes",),
            ),
            replace(
                lake, name="revenue-per-minute", kind=SPARK_QUERY, run="revenue-1", host="spark-2", phase=""
            ),
        ]
        rows = 1_284_000
        while not self._stops.is_set():
            rows += 210
            rate = 20 + 4 * self._random.random()
            self._admin.pipelines.send(
                replace(
                    reports[0], rows=rows, rows_in_per_second=rate, rows_out_per_second=rate, lag_messages=42
                )
            )
            self._admin.pipelines.send(
                replace(
                    reports[1],
                    state="failing",
                    group=None,
                    rows=88_412,
                    rows_in_per_second=0.0,
                    rows_out_per_second=0.0,
                    lag_ms=95_000,
                    last_error="MariaDB at 10.0.3.20:3306 does not answer: connection refused",
                    last_error_ms=int(time.time() * 1000) - 8_000,
                )
            )
            self._admin.pipelines.send(
                replace(
                    reports[2],
                    group=None,
                    rows=64_120,
                    rows_in_per_second=rate,
                    rows_out_per_second=1.0,
                    lag_messages=0,
                )
            )
            self._stops.wait(10)
