"""`kill -9` again and again while messages are sent with `flush=sync`, and what must be there afterwards."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.faults.senders import Senders, served_queues
from tests.support.checker import Served, violations
from tests.support.plain_client import SUCCESS, create_topic
from tests.support.serving import KIB, SMALL_FILES, Serving

KILLS = 32
QUEUES = 4
SENDERS = 4
TOPIC = "kill_loop"
SETTINGS = {**SMALL_FILES, "commit_log_file_bytes": 256 * KIB, "allocation_step_bytes": 64 * KIB}


def test_nothing_acknowledged_is_lost_however_often_it_is_killed(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    data, home = tmp_path / "data", tmp_path / "home"
    senders = Senders(TOPIC, QUEUES, count=SENDERS, seed=seed)
    earlier: dict[int, list[Served]] = {queue_id: [] for queue_id in range(QUEUES)}
    kills = 0

    broker = Serving(home, data, settings=SETTINGS)
    try:
        with broker.connect() as client:
            assert create_topic(client, TOPIC, QUEUES).code == SUCCESS
        senders.start()
        while kills < KILLS:
            senders.target = broker.broker
            time.sleep(choice.uniform(0.02, 0.3))
            broker.kill()
            senders.target = ""
            kills += 1
            while choice.random() < 0.25:
                # Some die before they are up: recovery itself must survive being cut off.
                broker = Serving(home, data, settings=SETTINGS, wait=False)
                time.sleep(choice.uniform(0.0, 0.3))
                broker.kill()
                kills += 1
            broker = Serving(home, data, settings=SETTINGS)
            _check(senders, broker, earlier)
        senders.stop()
        with broker.connect() as client:
            everything = served_queues(client, TOPIC, QUEUES)
        assert violations(senders.history, everything, earlier) == []
        assert broker.stop() == 0
        with Serving(home, data, settings=SETTINGS) as broker, broker.connect() as client:
            assert served_queues(client, TOPIC, QUEUES) == everything
    finally:
        senders.target = ""
        if broker.child.alive:
            broker.kill()
    acknowledged = senders.history.acknowledged_count()
    total = sum(len(messages) for messages in everything.values())
    print(f"{kills} kills, {acknowledged} acknowledged, {total} there, {len(senders.refusals)} refused")
    assert acknowledged > KILLS
    assert senders.refusals == []


def _check(senders: Senders, broker: Serving, earlier: dict[int, list[Served]]) -> None:
    """Adds the records since the last call to those before; nobody sends meanwhile."""
    begins = {queue_id: len(messages) for queue_id, messages in earlier.items()}
    with broker.connect() as client:
        for queue_id, messages in served_queues(client, TOPIC, QUEUES, begins).items():
            earlier[queue_id] += messages
    assert violations(senders.history, earlier) == []
