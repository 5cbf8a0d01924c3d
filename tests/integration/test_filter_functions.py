"""Filter functions on a real broker with real workers: good ones and harmful ones."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metaq._core import Clock, FilterBatch
from metaq.broker import Broker
from metaq.broker.functions import WorkerSettings, describe_functions
from metaq.broker.functions.pool import Pool
from metaq.errors import ConfigError
from metaq.filters.exchange import Ask
from metaq.protocol.bodies import SubscriptionGroupConfig
from metaq.protocol.commands.admin import GetBrokerRuntimeInfo
from metaq.protocol.commands.groups import UpdateAndCreateSubscriptionGroup
from metaq.protocol.reply import Reply
from metaq.settings import MIB
from tests.integration.test_sql92 import bodies, check, next_offset, pull, send_colors, sql, subscribe
from tests.support.broker_cluster import Client, broker_options, connected, started_broker
from tests.support.metaq import Metaq
from tests.support.metaq import run as run_metaq
from tests.support.waiting import run, until, wait_until

GOOD = '''
import ctypes, os, socket, subprocess, sys, time
from metaq.filters import FilterMessage, function

@function
def color(message: FilterMessage, *colors: str) -> bool:
    """Messages of these colors."""
    return message.properties.get("color") in colors

@function
def slow(message: FilterMessage, seconds: float) -> bool:
    time.sleep(seconds)
    return True

@function
def busy(message: FilterMessage, name: str) -> bool:
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME: a test sees it from outside.
    while True:
        pass

@function
def bad(message: FilterMessage, what: str) -> bool:
    """Harms whoever runs it, over every message that says `bad`."""
    if b"bad" not in message.body:
        return b"no" not in message.body
    if what == "raise":
        raise RuntimeError("\\ud800" + "x" * 100_000)
    if what == "loop":
        while True:
            pass
    if what == "memory":
        kept = []
        while True:
            kept.append(bytearray(10_000_000))
    if what == "exit":
        os._exit(7)
    if what == "leave":
        sys.exit(3)
    if what == "crash":
        ctypes.string_at(0)
    if what == "close":
        os.closerange(3, 1000)
    if what == "garbage":
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b"\\xff" * 64)
            except OSError:
                pass
    if what == "print":
        print("x" * 1_000_000)
        os.write(1, b"y" * 1_000_000)
        return False
    if what == "large":
        return "x" * 50_000_000
    if what == "read":
        return sys.stdin.read() != ""
    return None

@function
def secrets(message: FilterMessage, pid: int) -> bool:
    """Whether it sees anything of the broker's."""
    own = {link for link in map(read_link, os.listdir("/proc/self/fd")) if link}
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        names = []
    broker = {link for link in (read_link(name, pid) for name in names) if link}
    return bool(own & broker) or any(name.startswith("METAQ") for name in os.environ)

@function
def spy(message: FilterMessage, directory: str, pid: int) -> bool:
    """Whether it gets at anything that is not its own."""
    found = []
    for name, attempt in {
        "list": lambda: os.listdir(directory),
        "read": lambda: open(os.path.join(directory, "checkpoint"), "rb").read(),
        "write": lambda: open("/tmp/metaq-spy", "w"),
        "passwords": lambda: open("/etc/passwd").read(),
        "tcp": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "unix": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "signal": lambda: os.kill(pid, 0),
        "memory": lambda: open(f"/proc/{pid}/mem", "rb"),
        "environment": lambda: open(f"/proc/{pid}/environ", "rb").read(),
        "child": lambda: subprocess.run(["cat", "/etc/passwd"], check=True, capture_output=True),
    }.items():
        try:
            attempt()
            found.append(name)
        except (OSError, subprocess.CalledProcessError):
            pass
    if found:
        print("spied:", found)
    os.kill(os.getpid(), 0)
    return bool(found)

def read_link(name, pid="self"):
    try:
        link = os.readlink(f"/proc/{pid}/fd/{name}")
    except OSError:
        return None
    # They share the memory for verdicts on purpose.
    shared = link.startswith(("/memfd:metaq-verdicts", "/dev/"))
    return None if shared or not link.startswith(("socket:", "/")) else link
'''


@asynccontextmanager
async def started(
    directory: Path, clock: Clock | None = None, **changes: int
) -> AsyncIterator[tuple[Broker, Client, Client]]:
    folder = directory / "functions"
    folder.mkdir(exist_ok=True)
    (folder / "good.py").write_text(GOOD)
    # So long that a busy machine does not look like a function that never ends.
    limits: dict[str, int] = {"timeout_ms": 30_000, "memory_bytes": 256 * MIB, **changes}
    filters = WorkerSettings(sources=(str(folder),), **limits)  # type: ignore[arg-type]
    options = broker_options(directory / "store", filters=filters)
    async with (
        started_broker(options, clock) as broker,
        connected(broker.address) as producer,
        connected(broker.address) as client,
    ):
        yield broker, producer, client
    assert workers_of(os.getpid()) == []


async def call(client: Client, topic: str, text: str, queue_offset: int = 0, hold_ms: int = 0) -> Reply:
    return await pull(client, topic, queue_offset, carried=text, expression_type="FUNCTION", hold_ms=hold_ms)


async def read_all(client: Client, topic: str, text: str, end: int) -> list[bytes]:
    """Pulls to the end of the queue; every pull must make progress."""
    found: list[bytes] = []
    queue_offset = 0
    while queue_offset < end:
        reply = await call(client, topic, text, queue_offset)
        assert reply.code in (0, 20), reply.remark
        assert next_offset(reply) > queue_offset
        found += bodies(reply)
        queue_offset = next_offset(reply)
    return found


def workers_of(parent: int) -> list[int]:
    """Returns the worker processes that a process has now."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"metaq.filters.worker" in (entry / "cmdline").read_bytes():
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(stat[1]) == parent and stat[0] != "Z":
                    found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def is_running(pid: int) -> bool:
    try:
        # Empty for a zombie.
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_function_chooses_by_heartbeat_and_by_pull(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as (broker, producer, client):
            await send_colors(producer, "t", "red", "green", "red", "blue")
            for kind, text in (
                ("FUNCTION", "color('red', 'blue')"),
                ("SQL92", "function:color('red', 'blue')"),
            ):
                version = 1 if kind == "FUNCTION" else 2
                await subscribe(client, "g", sql("t", text, version, expression_type=kind))
                for carried in (None, text):
                    found = await pull(client, "t", carried=carried, expression_type=kind, version=version)
                    assert (found.code, bodies(found)) == (0, [b"red-0", b"red-2", b"blue-3"])
                    assert next_offset(found) == 4
                assert (await pull(client, "t", 4, expression_type=kind, version=version)).code == 19
            nothing = await call(client, "t", "color('pink')")
            assert (nothing.code, next_offset(nothing)) == (20, 4), "passed over, never to be looked at again"
            assert (await call(client, "t", "color('pink')", 9)).code == 21
            assert broker.functions.tallies["color"].failures == 0

    run(scenario)


def test_messages_that_a_function_passes_count_for_the_groups_rate(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock.manual(1_750_000_000_000)
        async with started(tmp_path, clock) as (_, producer, client):
            await send_colors(producer, "t", *["red", "green"] * 10)
            limited = SubscriptionGroupConfig(
                group_name="g", attributes={"+consume.rate.messages": "1"}
            ).encode()
            (await client.connection.call(UpdateAndCreateSubscriptionGroup(), limited)).check()
            first = await call(client, "t", "color('red')")
            assert first.code == 0 and bodies(first)
            await send_colors(producer, "t", "red")
            early = await call(client, "t", "color('red')", next_offset(first), hold_ms=300)
            assert (early.code, bodies(early)) == (20, []), "the group has had its share"
            clock.advance_ms(60_000)
            late = await call(client, "t", "color('red')", next_offset(early), hold_ms=60_000)
            assert (late.code, bodies(late)) == (0, [b"red-0"])

    run(scenario)


def test_a_long_queue_is_filtered_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as (broker, producer, client):
            for number in range(700):
                await producer.send("t", b"%d" % number, color="red" if number % 100 == 50 else "green")
            found = await read_all(client, "t", "color('red')", 700)
            assert found == [b"%d" % number for number in range(50, 700, 100)]
            assert broker.functions.tallies["color"].messages == 700
            everything = await read_all(client, "t", "color('red', 'green')", 700)
            assert everything == [b"%d" % number for number in range(700)]
            assert broker.functions.tallies["color"].messages == 1_400, "none is looked at twice"
            info = await client.connection.call(GetBrokerRuntimeInfo())
            figures = json.loads(info.check().body)["table"]
            assert figures["filterFunction_color"] == "messages 1400, wanted 707, failures 0, workers lost 0"

    run(scenario)


@pytest.mark.parametrize(
    ("limits", "counts"), [({"batch_messages_max": 3}, [3, 3, 1]), ({"batch_bytes_max": 1}, [1] * 7)]
)
def test_a_batch_is_as_large_as_the_operator_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], counts: list[int]
) -> None:
    asked: list[int] = []
    look_at = Pool._look_at

    async def counting(pool: Pool, ask: Ask, batch: FilterBatch) -> bytes:
        asked.append(batch.count)
        return await look_at(pool, ask, batch)

    monkeypatch.setattr(Pool, "_look_at", counting)

    async def scenario() -> None:
        async with started(tmp_path, **limits) as (_, producer, client):
            await send_colors(producer, "t", *["green"] * 6, "red")
            assert await read_all(client, "t", "color('red')", 7) == [b"red-6"]
            assert asked == counts

    run(scenario)


def test_wrong_calls_are_reported_before_anything_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as (_, producer, client):
            await send_colors(producer, "t", "red")
            for text, says in {
                "colour('red')": "no function is called colour: there are bad, busy, color, secrets, slow",
                "color(red)": "column 7: a text in quotes",
                "slow('x')": "seconds must be a number",
                "slow()": "slow(seconds: number) does not take 0",
            }.items():
                refused = await call(client, "t", text)
                assert (refused.code, says in (refused.remark or "")) == (23, True), refused.remark
                told = await check(client, f"function:{text}")
                assert (told.code, says in (told.remark or "")) == (23, True), told.remark
            assert (await check(client, "color('red')", "FUNCTION")).code == 0
            await subscribe(client, "g", sql("t", "nobody()", expression_type="FUNCTION"))
            assert (await pull(client, "t", expression_type="FUNCTION")).code == 23
            assert workers_of(os.getpid()) == []

    run(scenario)


def test_a_waiting_pull_is_woken_by_what_its_function_wants(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path) as (broker, producer, client):
            await producer.send("t", b"first", color="green")
            waiting = asyncio.create_task(call(client, "t", "color('red')", 1, hold_ms=120_000))
            await until(lambda: broker.listener.figures().held == 1)
            requests = broker.listener.figures().requests
            for number in range(200):
                await producer.send("t", b"%d" % number, color="green")
            assert not waiting.done()
            assert broker.listener.figures().requests == requests + 200, "the client asked once"
            await producer.send("t", b"last", color="red")
            found = await asyncio.wait_for(waiting, 60)
            assert (found.code, bodies(found), next_offset(found)) == (0, [b"last"], 202)
            began = time.monotonic()
            waiting = asyncio.create_task(call(client, "t", "color('red')", 202, hold_ms=4_000))
            await until(lambda: broker.listener.figures().held == 1)
            await producer.send("t", b"not this", color="green")
            in_vain = await waiting
            assert (in_vain.code, next_offset(in_vain)) == (20, 203)
            assert time.monotonic() - began > 3.9

    run(scenario)


HARM = ["raise", "loop", "memory", "exit", "leave", "crash", "close", "large", "print", "read", "none"]


def test_whatever_a_function_does_its_pulls_go_on(tmp_path: Path) -> None:
    """If the function fails on a message, that one is delivered, and the others keep their verdicts."""

    async def scenario() -> None:
        async with started(tmp_path, timeout_ms=4_000) as (broker, producer, client):
            sent = [b"yes-0", b"no-1", b"bad-2", b"no-3", b"yes-4", b"no-5"]
            for body in sent:
                await producer.send("t", body)
            wanted = [b"yes-0", b"bad-2", b"yes-4"]
            for what in HARM:
                before = broker.functions.tallies["bad"].failures
                found = await read_all(client, "t", f"bad('{what}')", len(sent))
                # If nothing fails, the function's verdict counts, and there is nothing to read.
                failures = broker.functions.tallies["bad"].failures - before
                if what in ("print", "read"):
                    assert (found, failures) == ([b"yes-0", b"yes-4"], 0), what
                else:
                    assert (found, failures) == (wanted, 1), what
            # By the time limit, by itself, by the system, without its pipes. One without memory ends in order
            # if it notices in time.
            lost = broker.functions.tallies["bad"].workers_lost
            assert lost in (4, 5)
            found = await read_all(client, "t", "bad('garbage')", len(sent))
            assert set(wanted) <= set(found), "it may say too much, and is not believed against a message"
            assert broker.functions.tallies["bad"].workers_lost == lost + 1
            assert bodies(await call(client, "t", "color('red')")) == []

    run(scenario)


def test_a_slow_function_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            started(tmp_path, timeout_ms=4_000) as (broker, producer, client),
            connected(broker.address, "other") as other,
        ):
            for number in range(40):
                await producer.send("t", b"bad-%d" % number, color="red")
            slow = [asyncio.create_task(call(client, "t", "bad('loop')", number)) for number in range(3)]
            await until(lambda: len(workers_of(os.getpid())) == 2)
            began = time.monotonic()
            for _ in range(20):
                assert len(bodies(await call(other, "t", "color('red')"))) == 32
                await other.send("t", b"more")
                assert len(bodies(await pull(other, "t", carried="*", expression_type="TAG"))) == 32
            assert not all(task.done() for task in slow), time.monotonic() - began
            for reply in await asyncio.gather(*slow):
                assert reply.code in (0, 20)
            assert len(workers_of(os.getpid())) <= 3, "two for a function at the most"

    run(scenario)


def test_many_slow_messages_are_cut_into_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path, timeout_ms=3_000) as (broker, producer, client):
            for number in range(12):
                await producer.send("t", b"%d" % number)
            found = await read_all(client, "t", "slow(0.3)", 12)
            assert found == [b"%d" % number for number in range(12)]
            tally = broker.functions.tallies["slow"]
            assert (tally.messages, tally.failures, tally.workers_lost) == (12, 0, 0)

    run(scenario)


def test_a_worker_gets_nothing_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAQ_SECRET", "x")

    async def scenario() -> None:
        async with started(tmp_path) as (broker, producer, client):
            await producer.send("t", b"x")
            reply = await call(client, "t", f"secrets({os.getpid()})")
            assert (reply.code, broker.functions.tallies["secrets"].failures) == (20, 0)

    run(scenario)


def test_a_function_cannot_spy_on_the_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once, a function read the commit log and opened a socket."""

    async def scenario() -> None:
        with caplog.at_level("INFO", "metaq.broker.functions.process"):
            async with started(tmp_path) as (broker, producer, client):
                await producer.send("t", b"x")
                reply = await call(client, "t", f"spy('{tmp_path / 'store'}', {os.getpid()})")
                assert (reply.code, broker.functions.tallies["spy"].failures) == (20, 0)
        assert "no files but their own, no network and no other processes" in caplog.text

    run(scenario)


def test_what_is_not_protected_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "f.py").write_text(GOOD)
    data = str(tmp_path / "data")

    async def scenario() -> None:
        settings = WorkerSettings(sources=(str(tmp_path),), private=(data,), network=True)
        await describe_functions(settings)
        assert "filter functions are not kept from: " in caplog.text
        assert f"{data} (it lies in {tmp_path}, which functions may read)" in caplog.text
        assert "the network (filter_network is on)" in caplog.text

    run(scenario)


def test_a_client_that_leaves_and_a_broker_that_stops_wait_for_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started(tmp_path, timeout_ms=60_000) as (broker, producer, _):
            await producer.send("t", b"bad")
            async with connected(broker.address, "leaving") as leaving:
                gone = [asyncio.create_task(call(leaving, "t", "bad('loop')")) for _ in range(4)]
                await until(lambda: len(workers_of(os.getpid())) == 2)
            await asyncio.gather(*gone, return_exceptions=True)
            began = time.monotonic()
        assert time.monotonic() - began < 30, "the workers were not waited for"

    run(scenario)


def test_functions_that_cannot_be_loaded_stop_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "functions"
    folder.mkdir()

    async def says(text: str) -> str:
        (folder / "f.py").write_text(text)
        options = broker_options(tmp_path / "store", filters=WorkerSettings(sources=(str(folder),)))
        with pytest.raises(ConfigError) as raised:
            async with started_broker(options):
                pass
        return str(raised.value)

    async def scenario() -> None:
        assert "SyntaxError" in await says("def (")
        assert "ZeroDivisionError: division by zero (f.py, line 1)" in await says("1 / 0")
        assert "no function with the decorator" in await says("x = 1")
        assert "exit code 3" in await says("import os; os._exit(3)")
        assert workers_of(os.getpid()) == []

    run(scenario)


def test_no_worker_outlives_a_killed_broker(tmp_path: Path, start_metaq: Callable[..., Metaq]) -> None:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "good.py").write_text(GOOD)
    served = start_metaq(
        *("serve", "--namesrv-port", "0", "--broker-port", "0", "--data", str(tmp_path / "data")),
        *("--set", f"filter_functions={folder}", "--set", "filter_timeout_ms=10000"),
    )

    async def scenario() -> list[int]:
        async with connected(served.broker) as client:
            await client.send("t", b"bad")
            asked = asyncio.create_task(call(client, "t", "busy('busy-filter')"))

            def is_busy() -> bool:
                names = (Path(f"/proc/{pid}/comm").read_text() for pid in workers_of(served.pid))
                return "busy-filter\n" in names

            await until(is_busy)  # From then on the worker reads from nobody.
            workers = workers_of(served.pid)
            served.child.kill()
            await asyncio.gather(asked, return_exceptions=True)
            return workers

    workers = asyncio.run(scenario())
    assert len(workers) == 1
    wait_until(lambda: not is_running(workers[0]), what="ended: the worker")


def test_the_command_lists_the_functions(tmp_path: Path) -> None:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "good.py").write_text(GOOD)
    listed = run_metaq("filter", "list", str(folder), "-o", "json")
    assert listed.returncode == 0, listed.stderr
    functions = {entry["name"]: entry for entry in json.loads(listed.stdout)}
    assert sorted(functions) == ["bad", "busy", "color", "secrets", "slow", "spy"]
    assert functions["color"]["signature"] == "color([*colors: text])"
    assert functions["color"]["doc"] == "Messages of these colors."
    shown = run_metaq("filter", "list", METAQ_FILTER_FUNCTIONS=str(folder))
    assert "slow(seconds: number)" in shown.stdout
    wrong = run_metaq("filter", "list", "no.such.module")
    assert wrong.returncode == 2 and "No module named 'no'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    neither = run_metaq("filter", "list", "./nowhere")
    assert neither.returncode == 2 and "neither a folder nor the name of a module" in neither.stderr
