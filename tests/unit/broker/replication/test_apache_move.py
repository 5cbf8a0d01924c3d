"""Decisions of a live move that need no master: when it is complete, and what it says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaq._core import Clock, Store
from metaq.broker.replication import apache_move
from metaq.broker.replication.apache_move import ApacheMove, MovePhase, MoveState
from metaq.broker.replication.apache_source import ApacheSource, LogRange, MasterFacts
from metaq.errors import CommandError
from metaq.journal.journal import Journal
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import GetBrokerConfig
from metaq.protocol.errors import Unreachable
from metaq.protocol.reply import Reply
from metaq.settings import MIB
from tests.support.broker_cluster import broker_options, connected, small_store, started_broker
from tests.support.waiting import run, until

GOOD = {
    "brokerRole": "ASYNC_MASTER",
    "brokerName": "broker-a",
    "haListenPort": "10912",
    "mappedFileSizeCommitLog": "1073741824",
    "maxMessageSize": "4194304",
}


class Configured(ApacheSource):
    def __init__(self, **changes: str) -> None:
        super().__init__("[::1]:10911")
        self.values = GOOD | changes

    async def _ask(self, command: Command) -> Reply:
        assert isinstance(command, GetBrokerConfig)
        lines = [f"{name}={value}\n" for name, value in self.values.items()]
        return Reply(0, None, {}, "".join(["# settings\n", *lines]).encode())


def test_the_settings_of_a_master() -> None:
    async def scenario() -> None:
        facts = await Configured().facts()
        assert (facts.ha_address, facts.log_file_bytes) == ("[::1]:10912", 1 << 30)
        for changes, reason in (
            ({"brokerRole": "SLAVE"}, "brokerRole='SLAVE'"),
            ({"enableControllerMode": "true"}, "enableControllerMode=true"),
            ({"haListenPort": "70000"}, "haListenPort='70000'"),
            ({"mappedFileSizeCommitLog": "large"}, "mappedFileSizeCommitLog='large'"),
        ):
            with pytest.raises(CommandError, match=reason):
                await Configured(**changes).facts()

    run(scenario)


def test_a_move_is_complete_when_all_is_here_and_the_master_is_quiet() -> None:
    state = MoveState(MovePhase.CAUGHT_UP, held_offset=10, master_end_offset=10, quiet_s=9.0, has_state=True)
    assert state.is_complete and state.bytes_behind == 0
    assert MoveState().bytes_behind is None
    for changed in (
        MoveState(MovePhase.COPYING, 10, 10, 9.0, True),
        MoveState(MovePhase.CAUGHT_UP, 9, 10, 9.0, True),
        MoveState(MovePhase.CAUGHT_UP, 10, 10, 1.0, True),
        MoveState(MovePhase.CAUGHT_UP, 10, 10, 9.0, False),
    ):
        assert not changed.is_complete


async def write_a_message(directory: Path) -> None:
    async with started_broker(broker_options(directory)) as broker, connected(broker.address) as client:
        await client.send("T", b"the master has lost this one")


@pytest.mark.parametrize(
    ("is_written", "found", "phase", "start_over_at", "reason"),
    [
        (False, LogRange(4096, 9000), MovePhase.START_OVER, 4096, "the master's begins at 4096: start over"),
        (True, LogRange(0, 50), MovePhase.DIVERGED, None, "the master's at 50: it has lost its end"),
        (False, None, MovePhase.CONNECTING, None, "gone"),
    ],
)
def test_what_keeps_a_move_from_copying(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_written: bool,
    found: LogRange | None,
    phase: MovePhase,
    start_over_at: int | None,
    reason: str,
) -> None:
    async def log_range(source: ApacheSource) -> LogRange:
        if found is None or not is_running:
            raise Unreachable("gone")
        return found

    async def facts(source: ApacheSource) -> MasterFacts:
        return MasterFacts("broker-a", "c", "127.0.0.1:1", 4 * MIB, 1, "")

    is_running = [True]
    monkeypatch.setattr(ApacheSource, "log_range", log_range)
    monkeypatch.setattr(ApacheSource, "facts", facts)
    monkeypatch.setattr(apache_move, "LOOK_INTERVAL_S", 0.01)

    async def scenario() -> None:
        if is_written:
            await write_a_message(tmp_path)
        store, journal = Store(small_store(tmp_path), Clock()), Journal.open(tmp_path / "journal")
        move = ApacheMove("127.0.0.1:1", store, journal)
        await move.start()
        await until(lambda: move.state.reason)
        assert (move.state.phase, move.state.start_over_at) == (phase, start_over_at)
        assert reason in move.state.reason
        with pytest.raises(CommandError, match="cannot take over"):
            await move.take_over()
        if found is not None:
            with pytest.raises(CommandError, match="still runs"):
                await move.take_over(force=True)
        is_running.clear()
        await move.take_over(force=True)
        assert move.state.phase is MovePhase.ENDED
        await journal.close()
        store.close()

    run(scenario)
