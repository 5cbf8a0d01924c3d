"""The state of a copy of an Apache master, and the settings that must fit that master."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from metaq.broker.replication.apache_control import move_status
from metaq.broker.replication.apache_move import MovePhase, MoveState, _next_step
from metaq.broker.replication.apache_source import MasterFacts
from metaq.broker.replication.apache_start import check_settings
from metaq.errors import ConfigError
from metaq.protocol.commands.replication import GroupStatus, NodeStateWord
from metaq.settings import MIB
from tests.support.broker_cluster import broker_options

FACTS = MasterFacts("broker-a", "DefaultCluster", "h:2", MIB, 4 * MIB, "")
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@pytest.mark.parametrize(
    ("state", "word", "lag_bytes"),
    [
        (MoveState(), "waiting", None),
        (MoveState(MovePhase.COPYING, 10, 50, is_master_reachable=True), "catching up", 40),
        (MoveState(MovePhase.COPYING, 10, 50), "waiting", 40),
        (MoveState(MovePhase.CAUGHT_UP, 50, 50, is_master_reachable=True), "in sync", 0),
        (MoveState(MovePhase.CAUGHT_UP, 50, 50), "in sync", 0),
        (MoveState(MovePhase.START_OVER, 0, 50, is_master_reachable=True), "catching up", 50),
        (MoveState(MovePhase.DIVERGED, 60, 50, is_master_reachable=True), "waiting", 0),
    ],
)
def test_the_state_of_a_copy(state: MoveState, word: NodeStateWord, lag_bytes: int | None) -> None:
    group = move_status("broker-a", state, "h:1", "h:9")
    master, own = group.nodes
    assert (master.id, master.address, master.role) == (0, "h:1", "master")
    assert (master.state == "gone") is not state.is_master_reachable
    assert (own.address, own.role, own.state, own.lag_bytes) == ("h:9", "replica", word, lag_bytes)
    assert GroupStatus.decode(group.encode()) == group


def test_the_next_step_of_an_operator() -> None:
    for state, step in (
        (MoveState(MovePhase.CAUGHT_UP, 50, 50), "start the Apache master again"),
        (MoveState(MovePhase.COPYING, 10, 50, is_master_reachable=True), "wait until it is 0 bytes behind"),
        (MoveState(MovePhase.CAUGHT_UP, 50, 50, is_master_reachable=True), "mqadmin wipeWritePerm"),
        (MoveState(MovePhase.DIVERGED, 60, 50, is_master_reachable=True), "--force"),
    ):
        assert step in _next_step(state)


def test_settings_must_fit_the_master(tmp_path: Path) -> None:
    options = broker_options(tmp_path, apache_master="h:1")
    for fitting in (FACTS, dataclasses.replace(FACTS, delay_levels=LEVELS, message_size_bytes_max=MIB)):
        check_settings(fitting, options)
    for changes, reason in (
        ({"broker_name": "broker-b"}, "name=broker-a differs from 'broker-b'"),
        ({"cluster_name": "other"}, "cluster=DefaultCluster differs from 'other'"),
        ({"message_size_bytes_max": 5 * MIB}, "is less than maxMessageSize=5242880"),
        ({"delay_levels": "1s 2s"}, "delay_levels differ"),
        ({"delay_levels": "soon"}, "messageDelayLevel of the Apache master cannot be read"),
    ):
        with pytest.raises(ConfigError, match=reason):
            check_settings(dataclasses.replace(FACTS, **changes), options)
