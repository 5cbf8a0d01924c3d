"""Requests of every command with values of every kind, made from the types of their fields.

A broker, its name server and a healthy client run beside them. The broker is stopped and killed in between,
and must start again on whatever it has kept. METAQ_SEED repeats the requests of a run.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.hostile.catalogue import UNKNOWN_CODES, catalogue
from tests.support.hostile.restarts import Attacked, End
from tests.support.rounds import draw_seed, kill_loop, rounds
from tests.support.serving import MIB

BURST_S = 10.0
ENDS: tuple[End, ...] = ("stop", "kill", "kill", "stop") * rounds(1, 10)
SETTINGS = {
    "commit_log_file_bytes": 64 * MIB,
    "memory_bytes_max": 96 * MIB,
    "connection_memory_bytes_max": 32 * MIB,
    "clients_bytes_max": 32 * MIB,
    "memory_trim_interval_s": 1,
}


@kill_loop
def test_no_request_hurts_the_broker_its_start_or_others(tmp_path: Path) -> None:
    attacked = Attacked(tmp_path, SETTINGS, draw_seed())
    attacked.run(BURST_S, ENDS, print)
    print(f"{attacked.throwers.frames:,} requests, {attacked.acknowledged:,} messages acknowledged")
    assert attacked.problems == []
    assert attacked.acknowledged > 0
    assert attacked.starts == len(ENDS) + 2
    codes = attacked.throwers.codes()
    wanted = {known.command.code for known in catalogue()} | set(UNKNOWN_CODES)
    assert wanted - codes.keys() == set(), "the run was too short for these codes"
