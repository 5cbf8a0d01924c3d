"""The log agent with real files and a real broker: rotation, restarts, kills."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import metaq
from metaq.errors import CommandError, MetaqError
from metaq.pipelines.log_transport.agent import AgentSettings, LogAgent
from metaq.pipelines.log_transport.delay_warnings import DelayWarnings
from metaq.pipelines.log_transport.positions import Positions
from tests.support.metaq import Metaq
from tests.support.processes import Child, free_port
from tests.support.rounds import kill_loop, rounds, seeded
from tests.support.waiting import wait_until

TIMEOUT_S = 120.0


class Topic:
    """Reads everything that was sent to a topic so far."""

    def __init__(self, served: Metaq, topic: str) -> None:
        self._client = metaq.Client(served.nameserver)
        self._client.start()
        with self._client.producer("maker") as producer:
            producer.send(topic, b"made", tag="first")
        self._puller = self._client.puller(start="earliest")
        self._puller.assign(topic)
        self.messages: list[metaq.Message] = []

    def read(self) -> list[metaq.Message]:
        while found := self._puller.poll(0.05, count=1000):
            self.messages += [message for message in found if message.tag != "first"]
        return self.messages

    def bodies(self) -> list[bytes]:
        return [message.body for message in self.read()]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def topic(served: Metaq, request: pytest.FixtureRequest) -> Iterator[Topic]:
    read = Topic(served, request.node.name)
    yield read
    read.close()


@pytest.fixture
def settings(served: Metaq, tmp_path: Path, request: pytest.FixtureRequest) -> AgentSettings:
    return AgentSettings(
        nameserver=served.nameserver,
        topic=request.node.name,
        paths=(str(tmp_path / "logs" / "*.log"),),
        state=tmp_path / "positions.json",
        scan_interval_s=0.05,
        idle_pause_s=0.02,
        save_interval_s=0.1,
        rotated_after_s=1.5,
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@contextmanager
def running(settings: AgentSettings) -> Iterator[LogAgent]:
    agent = LogAgent(settings)
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            agent.run(lambda progress: None, stop)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield agent
    finally:
        stop.set()
        thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def test_lines_arrive_in_order_with_their_positions(
    settings: AgentSettings, logs: Path, topic: Topic
) -> None:
    append(logs / "a.log", "one", "two")
    with running(settings) as agent:
        wait_until(lambda: len(topic.read()) == 2)
        append(logs / "a.log", "three")
        append(logs / "b.log", "other")
        wait_until(lambda: len(topic.read()) == 4)
        wait_until(lambda: agent.progress.rows == 4)
    of_a = [m for m in topic.messages if m.properties["log.file"] == str(logs / "a.log")]
    assert [m.body for m in of_a] == [b"one", b"two", b"three"]
    assert [m.properties["log.at"] for m in of_a] == ["0", "4", "8"]
    assert len({m.properties["log.id"] for m in of_a}) == 1
    assert len({m.queue for m in of_a}) == 1
    with running(settings):
        append(logs / "a.log", "four")
        wait_until(lambda: len(topic.read()) == 5)
    assert topic.messages[-1].body == b"four", "nothing is sent again after a clean stop"
    assert topic.messages[-1].properties["log.id"] == of_a[0].properties["log.id"]


def test_rotation_loses_nothing(settings: AgentSettings, logs: Path, topic: Topic) -> None:
    path = logs / "a.log"
    append(path, "1")
    with running(settings):
        wait_until(lambda: topic.bodies() == [b"1"])
        with path.open("a") as old:
            path.rename(logs / "a.log.1")
            append(path, "of the new file")
            old.write("2, to the old name's file\nno end")
        wait_until(lambda: len(topic.read()) == 4)
        path.write_text("after a truncation\n")
        wait_until(lambda: len(topic.read()) == 5)
    assert sorted(topic.bodies()) == sorted(
        [b"1", b"2, to the old name's file", b"no end", b"of the new file", b"after a truncation"]
    )
    with running(settings):
        append(path, "last")
        wait_until(lambda: len(topic.read()) == 6)
    assert topic.messages[-1].body == b"last"


def test_a_quiet_file_is_read_on_after_its_rotation(
    settings: AgentSettings, logs: Path, topic: Topic
) -> None:
    path = logs / "a.log"
    append(path, "1")
    with running(replace(settings, close_after_s=0.1, rotated_after_s=120)) as agent, path.open("a") as old:
        wait_until(lambda: topic.bodies() == [b"1"])
        wait_until(lambda: len(open_files(logs)) == 1)
        path.rename(logs / "a.log.1")
        wait_until(lambda: bool(agent._missed))
        old.write("2\n")
        old.flush()
        wait_until(lambda: len(topic.read()) == 2)


def test_failed_lines_are_sent_again_while_more_are_written(
    start_metaq: Callable[..., Metaq], tmp_path: Path, logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = start_metaq("nameserver", "--listen", "127.0.0.1:0")
    data = ("--namesrv", names.nameserver, "--data", str(tmp_path / "data"))
    broker = start_metaq("broker", "--listen", f"127.0.0.1:{free_port()}", *data)
    settings = AgentSettings(
        nameserver=names.nameserver,
        topic="outage",
        paths=(str(logs / "*.log"),),
        state=tmp_path / "positions.json",
        idle_pause_s=0.02,
        send_timeout_s=1.0,
    )
    done = threading.Event()
    written = itertools.count()

    def write() -> None:
        while not done.wait(0.02):
            append(logs / "a.log", str(next(written)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with running(settings) as agent:
            wait_until(lambda: agent.progress.rows > 20)
            broker.child.kill()
            # Lines that are written meanwhile are read only when all lines in flight have failed.
            wait_until(lambda: "is sent again from byte" in caplog.text)
            start_metaq("broker", "--listen", broker.broker, *data)
            failed_at = agent.progress.rows
            wait_until(lambda: agent.progress.rows > failed_at + 20)
            done.set()
            writer.join()
            count = next(written)
            topic = Topic(names, "outage")
            wait_until(lambda: len({m.body for m in topic.read()}) == count)
            topic.close()
    finally:
        done.set()


def test_a_delay_is_warned_about_once(
    tmp_path: Path, logs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    is_due = DelayWarnings.is_due

    def counted(warnings: DelayWarnings) -> bool:
        nonlocal failures
        failures += 1
        return is_due(warnings)

    monkeypatch.setattr(DelayWarnings, "is_due", counted)
    settings = AgentSettings(
        nameserver=f"127.0.0.1:{free_port()}",
        topic="nobody-there",
        paths=(str(logs / "*.log"),),
        state=tmp_path / "positions.json",
        idle_pause_s=0.02,
        send_timeout_s=0.5,
    )
    append(logs / "a.log", "one")
    with running(settings):
        wait_until(lambda: failures >= 3)
    delays = [record.message for record in caplog.records if str(logs / "a.log") in record.message]
    assert len(delays) == 1, delays


def test_a_file_that_was_rotated_during_a_stop_is_found(
    settings: AgentSettings, logs: Path, topic: Topic
) -> None:
    path = logs / "a.log"
    append(path, "1")
    with running(settings):
        wait_until(lambda: topic.bodies() == [b"1"])
    append(path, "2")
    path.rename(logs / "a.log.1")
    append(path, "3")
    with running(settings):
        wait_until(lambda: len(topic.read()) == 3)
    assert sorted(topic.bodies()) == [b"1", b"2", b"3"]


def test_a_file_that_came_and_went_during_a_stop_is_warned_about_or_matched(
    settings: AgentSettings, logs: Path, topic: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    path = logs / "a.log"
    append(path, "1")
    with running(settings):
        wait_until(lambda: topic.bodies() == [b"1"])
    path.rename(logs / "a.log.2")
    append(logs / "a.log.1", "2")
    append(path, "3")
    with running(settings):
        wait_until(lambda: topic.bodies() == [b"1", b"3"])
    assert [record.message for record in caplog.records if "a.log.1 was written while" in record.message]
    caplog.clear()
    with running(replace(settings, paths=(*settings.paths, str(logs / "*.log.*")))):
        wait_until(lambda: b"2" in topic.bodies())
    assert not [record.message for record in caplog.records if "was written while" in record.message]


def test_a_quiet_file_is_closed_and_opened_again(settings: AgentSettings, logs: Path, topic: Topic) -> None:
    append(logs / "a.log", "1")
    with running(replace(settings, close_after_s=0.1)) as agent:
        wait_until(lambda: agent.progress.rows == 1 and not open_files(logs))
        append(logs / "a.log", "2")
        wait_until(lambda: len(topic.read()) == 2)
    assert topic.bodies() == [b"1", b"2"]


def open_files(folder: Path) -> list[str]:
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            name = str(Path(entry.path).readlink())
        except OSError:
            continue
        if name.startswith(str(folder)):
            found.append(name)
    return found


def test_two_agents_do_not_share_their_positions(settings: AgentSettings) -> None:
    with Positions(settings.state), pytest.raises(CommandError, match="another log transport"):
        LogAgent(settings)
    settings.state.write_text("[}")
    with pytest.raises(MetaqError, match="cannot be read"):
        LogAgent(settings)


PROGRAM = """
import sys
import threading
from pathlib import Path
from metaq.pipelines.log_transport.agent import AgentSettings, LogAgent

nameserver, topic, pattern, state = sys.argv[1:]
settings = AgentSettings(
    nameserver=nameserver, topic=topic, paths=(pattern,), state=Path(state),
    scan_interval_s=0.02, idle_pause_s=0.01, save_interval_s=0.05, rotated_after_s=0.3,
)
LogAgent(settings).run(lambda progress: None, threading.Event())
"""


@kill_loop
def test_kills_lose_no_line(
    served: Metaq, tmp_path: Path, logs: Path, topic: Topic, request: pytest.FixtureRequest
) -> None:
    choice = seeded()
    (tmp_path / "agent.py").write_text(PROGRAM)
    arguments = [sys.executable, str(tmp_path / "agent.py"), served.nameserver, request.node.name]
    arguments += [str(logs / "a*"), str(tmp_path / "positions.json")]
    written: list[str] = []
    for life in range(rounds(4, 20)):
        child = Child(arguments, tmp_path / f"agent-{life}.log", dict(os.environ), directory=tmp_path)
        try:
            # Kill the agent a moment after its first lines have arrived.
            before, until = len(topic.read()), float("inf")
            while time.monotonic() < until:
                if until == float("inf") and len(topic.read()) > before:
                    until = time.monotonic() + choice.uniform(0.1, 0.6)
                lines = [f"{len(written) + n}" for n in range(choice.randrange(1, 200))]
                append(logs / "a.log", *lines)
                written += lines
                if choice.random() < 0.05:
                    (logs / "a.log").rename(logs / f"a.{len(written)}")
                time.sleep(choice.uniform(0, 0.02))
                assert len(written) < 1_000_000, "nothing arrives"
        finally:
            child.process.send_signal(signal.SIGKILL)
            child.process.wait()
    child = Child(arguments, tmp_path / "agent-last.log", dict(os.environ), directory=tmp_path)
    try:
        wait_until(lambda: {m.body.decode() for m in topic.read()} == set(written))
    finally:
        child.kill()
    once: dict[tuple[str, int], Any] = {}
    for message in topic.messages:
        position = (message.properties["log.id"], int(message.properties["log.at"]))
        assert once.setdefault(position, message.body) == message.body
    assert len(once) == len(written), "file and position identify a line"
