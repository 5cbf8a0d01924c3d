"""The scrub of a running broker finds damage that nobody reads, names it, and remembers it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from metaq._core import truncate_store
from metaq.broker.options import BrokerOptions
from metaq.broker.scrubbing.pace import ScrubSettings
from metaq.settings import KIB, MIB
from tests.support.broker_cluster import broker_options, connected, started_broker
from tests.support.waiting import run, until

BODY = b"a body of some length" * 20


def options(directory: Path, interval_s: float) -> BrokerOptions:
    scrub = ScrubSettings(interval_s, 64 * MIB)
    return dataclasses.replace(broker_options(directory), scrub=scrub)


def flip(directory: Path, body: bytes) -> None:
    (path,) = (directory / "commitlog").glob("0*0")
    with path.open("r+b") as file:
        at = file.read(MIB).index(body) + len(body) - 1
        file.seek(at)
        file.write(bytes([body[-1] ^ 8]))


def test_damage_is_found_named_and_remembered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(options(tmp_path, 0.3)) as broker:
            async with connected(broker.address) as client:
                for number in range(9):
                    await client.send("orders", b"%d" % number + BODY + b"%d" % number, queue_id=number % 2)
            scrubber = broker.node.scrubber
            await until(lambda: scrubber.record.completed_ms is not None)
            assert scrubber.report().damaged == 0
            flip(tmp_path, b"5" + BODY + b"5")
            await until(lambda: broker.store.damaged_messages() == [("orders", 1, 2, True)])
            await until(lambda: scrubber.report().unrepaired == 1)
            passes = scrubber.record.completed_ms
            await until(lambda: scrubber.record.completed_ms != passes)
            assert scrubber.report().damaged == 1, "each range counts once"
        async with started_broker(options(tmp_path, 3_600)) as broker:
            await until(lambda: broker.store.damaged_messages() == [("orders", 1, 2, True)])
            report = broker.node.scrubber.report()
            assert (report.damaged, report.unrepaired) == (1, 1), "a restart does not forget it"

    run(scenario)


def test_a_scrub_goes_on_after_a_restart_and_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_broker(options(tmp_path, 3_600)) as broker:
            async with connected(broker.address) as client:
                await client.send("orders", BODY)
            scrubber = broker.node.scrubber
            await until(lambda: scrubber.record.completed_ms is not None)
            before = scrubber.record
        async with started_broker(options(tmp_path, 0)) as broker:
            report = broker.node.scrubber.report()
            assert (report.interval_ms, report.completed_ms) == (0, before.completed_ms)

    run(scenario)


def test_a_scrub_survives_a_truncation_and_a_change_of_role(tmp_path: Path) -> None:
    async def scenario() -> None:
        slow = dataclasses.replace(options(tmp_path, 3_600), scrub=ScrubSettings(3_600, 64 * KIB))
        async with (
            started_broker(options(tmp_path, 0)) as broker,
            connected(broker.address) as client,
        ):
            for number in range(40):
                await client.send("orders", b"%d" % number + bytes(10_000))
        async with started_broker(slow) as broker:
            scrubber = broker.node.scrubber
            await until(lambda: scrubber.record.position > 100_000)
            assert scrubber.record.completed_ms is None
            cut_at = broker.store.end_offset() // 8
            offsets = [offset for offset, *_ in broker.store.queue_entries("orders", 0, 0, 40)]
            cut_at = next(offset for offset in offsets if offset > cut_at)
            await broker.reopen_store(lambda settings: truncate_store(settings, cut_at=cut_at))
            await broker.become_master()
            await until(lambda: scrubber.record.completed_ms is not None, 30)
            report = scrubber.report()
            assert (report.damaged, report.fault, report.percent) == (0, None, None)

    run(scenario)
