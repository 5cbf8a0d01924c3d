"""The audit log: durable, bounded, searchable."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.console import audit_log
from metaq.console.access.roles import Identity, Role
from metaq.console.audit_log import TEXT_LENGTH_MAX, AuditLog
from tests.support.waiting import run

ANNA = Identity("anna", Role.operator, "s1", "csrf")


def test_entries_survive_a_restart_newest_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path)
        assert await log.entries() == []
        await log.record(ANNA, "127.0.0.1", "metaq topic delete orders", "orders", "done", "4 queues")
        await log.record(ANNA, "::1", "metaq group reset billing", "billing", "failed", "no broker")
        again = AuditLog(tmp_path)
        await again.record(ANNA, "::1", "metaq topic create 订单", "订单", "done")
        entries = await again.entries()
        assert [entry.number for entry in entries] == [3, 2, 1]
        assert [entry.target for entry in entries] == ["订单", "billing", "orders"]
        first = entries[-1]
        assert (first.name, first.role, first.session, first.address) == (
            "anna",
            "operator",
            "s1",
            "127.0.0.1",
        )
        assert (first.command, first.result, first.detail) == (
            "metaq topic delete orders",
            "done",
            "4 queues",
        )
        assert [entry.time_ms for entry in entries] == sorted((e.time_ms for e in entries), reverse=True)
        text = (tmp_path / "audit.jsonl").read_text()
        assert "csrf" not in text
        assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600

    run(scenario)


def test_search_and_paging(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path)
        for n in range(30):
            target = "Orders" if n % 3 == 0 else "billing"
            await log.record(ANNA, "127.0.0.1", f"command {n}", target, "done")
        page = await log.entries(limit=4, search="oRDERs")
        assert [entry.number for entry in page] == [28, 25, 22, 19]
        page = await log.entries(limit=4, search="orders", before=page[-1].number)
        assert [entry.number for entry in page] == [16, 13, 10, 7]
        assert [entry.number for entry in await log.entries(search="command 29")] == [30]
        assert await log.entries(search="nobody") == []
        assert await log.entries(before=1) == []

    run(scenario)


def test_two_files_bound_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path, file_bytes_max=10_000)
        for n in range(300):
            await log.record(ANNA, "127.0.0.1", f"command {n}", "x", "done")
        sizes = [path.stat().st_size for path in tmp_path.glob("audit*.jsonl")]
        assert len(sizes) == 2 and all(size <= 10_000 for size in sizes)
        numbers = [entry.number for entry in await log.entries(limit=1000)]
        assert numbers == list(range(300, 300 - len(numbers), -1))
        assert len(numbers) > 60
        (tmp_path / "audit.jsonl").unlink()
        older = AuditLog(tmp_path)
        await older.record(ANNA, "127.0.0.1", "next", "x", "done")
        newest, before = (await older.entries(limit=2))[:2]
        assert newest.number == before.number + 1

    run(scenario)


def test_an_action_and_its_end_are_one_entry(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path)

        async def write(command: str, *results: str) -> None:
            for result in results:
                await log.record(ANNA, "127.0.0.1", command, "x", result)

        await write("lost", "begun")
        await write("twice", "begun", "begun", "failed", "done")
        await write("lost", "begun", "done")
        await write("refused", "refused")
        await write("long", "begun", "done", "job stopped")
        folded = [(entry.command, entry.result) for entry in await log.entries(folds=True)]
        assert folded == [
            ("long", "job stopped"),
            ("long", "done"),
            ("refused", "refused"),
            ("lost", "done"),
            ("twice", "done"),
            ("twice", "failed"),
            ("lost", "begun"),
        ]
        pages: list[tuple[str, str]] = []
        before = None
        while page := await log.entries(folds=True, limit=1, before=before):
            pages += [(entry.command, entry.result) for entry in page]
            before = page[-1].number
        assert pages == folded, "an action whose end is on the page before has ended"
        unfinished = await log.entries(folds=True, search="begun")
        assert [entry.command for entry in unfinished] == ["lost"]
        assert len(await log.entries()) == log.newest_number == 11

    run(scenario)


def test_a_page_reads_only_the_end_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path)
        await log.record(ANNA, "127.0.0.1", "c" * 1_000, "x" * 1_000, "done")
        path = tmp_path / "audit.jsonl"
        line = path.read_bytes()
        path.write_bytes(b"".join(line.replace(b'"number":1,', b'"number":%d,' % n) for n in range(1, 4_001)))
        decoded: list[int] = []
        lines_from_end = audit_log._lines_from_end

        def counted(path: Path) -> Iterator[bytes]:
            for line in lines_from_end(path):
                decoded.append(len(line))
                yield line

        monkeypatch.setattr(audit_log, "_lines_from_end", counted)
        log = AuditLog(tmp_path)
        decoded.clear()
        page = await log.entries(limit=50)
        assert [entry.number for entry in page] == list(range(4_000, 3_950, -1))
        assert len(decoded) <= 60
        decoded.clear()
        numbers = [entry.number for batch in [b async for b in log.batches()] for entry in batch]
        assert numbers == list(range(4_000, 0, -1))
        assert len(decoded) <= 4_001, "an export is one pass"

    run(scenario)


def test_lines_that_are_longer_than_a_block_are_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [b"a" * size for size in (3, 0, audit_log.BLOCK_BYTES * 3, 1, audit_log.BLOCK_BYTES - 1, 7)]
    for data in (b"\n".join(lines), b"\n".join(lines) + b"\n", b"", b"\n"):
        path.write_bytes(data)
        assert [line for line in audit_log._lines_from_end(path) if line] == [
            line for line in reversed(data.split(b"\n")) if line
        ]
    assert list(audit_log._lines_from_end(tmp_path / "missing")) == []


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path)
        await log.record(ANNA, "127.0.0.1", "first", "x", "done")
        with (tmp_path / "audit.jsonl").open("ab") as file:
            file.write(b'{"number":2,"time_ms":17')
        again = AuditLog(tmp_path)
        await again.record(ANNA, "127.0.0.1", "second", "x", "done")
        with (tmp_path / "audit.jsonl").open("ab") as file:
            file.write(b"\xff\xfe not JSON\n")
        await again.record(ANNA, "127.0.0.1", "third", "x", "done")
        assert [entry.command for entry in await again.entries()] == ["third", "second", "first"]

    run(scenario)


def test_long_and_odd_texts_fit(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path)
        await log.record(ANNA, "127.0.0.1", "c" * 50_000, "line\nbreak", "done", "\udc80")
        (entry,) = await log.entries()
        assert len(entry.command) == TEXT_LENGTH_MAX and entry.command.endswith("…")
        assert entry.target == "line\nbreak"
        assert entry.detail == "?"

    run(scenario)


def test_records_at_the_same_time_stay_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = AuditLog(tmp_path)
        await asyncio.gather(*(log.record(ANNA, "127.0.0.1", f"c{n}", "x", "done") for n in range(40)))
        entries = await log.entries()
        assert [entry.number for entry in entries] == list(range(40, 0, -1))
        assert {entry.command for entry in entries} == {f"c{n}" for n in range(40)}

    run(scenario)
