"""metaq delayed and metaq transaction against a running MetaQ."""

from __future__ import annotations

import asyncio
from typing import Any

from metaq._core import Clock
from metaq.errors import CommandError, NoSuchMessage
from tests.integration.test_broker_transactions import begin
from tests.support.broker_cluster import connected
from tests.support.invoking import CommandLine, cells
from tests.support.metaq import Metaq
from tests.support.waiting import wait_until


def test_delayed_messages(served: Metaq) -> None:
    command = CommandLine(served.nameserver)

    async def send() -> list[str]:
        async with connected(served.broker) as client:
            await client.heartbeat("g", "reminders")
            sent = [
                await client.send("reminders", b"x", KEYS="k", UNIQ_KEY="A", TIMER_DELAY_SEC="1800"),
                await client.send("reminders", b"x", UNIQ_KEY="B", TIMER_DELAY_SEC="7200"),
                await client.send("reminders", b"x", UNIQ_KEY="C", DELAY="18"),
            ]
            return [one.msg_id for one in sent]

    first, _, level = asyncio.run(send())

    def listed(*more: str) -> Any:
        return command.document("delayed", "list", *more)

    wait_until(lambda: len(listed()) == 3, interval_s=0.2)
    assert [message["id"] for message in listed("--to", "+1h")] == ["A"]
    assert [message["id"] for message in listed("--from", "+1h", "--topic", "reminders")] == ["B", "C"]
    limited = command.invoke("delayed", "list", "--limit", "1")
    assert cells(limited.stdout)[1][2] == first
    assert "there may be more messages" in limited.stderr
    assert command.document("delayed", "show")["pending"] == 3
    shown = command.printed("delayed", "show", "--buckets", "4")
    assert shown.splitlines()[0].split() == ["waiting", "3"] and "█" in shown

    preview = command.printed("delayed", "recall", first, "--dry-run")
    assert preview.startswith("would recall A for topic reminders, due ")
    refused = command.invoke("delayed", "recall", first, text="n\n")
    assert (refused.exit_code, "Recall this message" in refused.stderr) == (1, True)
    assert not any(message["is_recalled"] for message in listed())
    assert command.document("delayed", "recall", first, "--yes")["is_recalled"] is True
    wait_until(lambda: listed()[0]["is_recalled"], interval_s=0.2)
    again = command.refused("delayed", "recall", first, "--yes")
    assert isinstance(again, CommandError) and "was recalled before" in str(again)
    error = command.refused("delayed", "recall", level, "--yes")
    assert "waits for delay level 18" in str(error)


def test_open_transactions(served: Metaq) -> None:
    command = CommandLine(served.nameserver)
    assert command.printed("transaction", "list") == "no transaction is open\n"

    async def send() -> list[str]:
        async with connected(served.broker) as client:
            await client.heartbeat("g", "orders")
            sent = [await begin(client, body, Clock()) for body in (b"yes", b"no")]
            return [one.msg_id for one in sent]

    yes, no = asyncio.run(send())
    assert [line["id"] for line in command.document("transaction", "list")] == ["K-yes", "K-no"]
    assert command.document("transaction", "list", "--producer-group", "other") == []
    limited = command.invoke("transaction", "list", "--limit", "1")
    assert cells(limited.stdout)[1][2] == yes
    assert "2 transactions are open" in limited.stderr

    preview = command.printed("transaction", "commit", yes, "--dry-run")
    assert preview.startswith("would commit K-yes of producer group p for topic orders, began ")
    assert command.invoke("transaction", "commit", yes, text="\n").exit_code == 1
    assert command.printed("transaction", "commit", yes, text="y\n") == "transaction K-yes is committed\n"
    assert command.document("transaction", "rollback", no, "--yes")["decision"] == "rollback"
    error = command.refused("transaction", "commit", no, "--yes")
    assert isinstance(error, NoSuchMessage) and "it was rolled back before" in str(error)

    async def delivered() -> list[bytes]:
        async with connected(served.broker) as client:
            await client.heartbeat("g", "orders")
            return await client.bodies("g", "orders")

    assert asyncio.run(delivered()) == [b"yes"]
