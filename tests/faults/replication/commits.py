"""A consumer group that commits growing offsets at all nodes, and checks that the master keeps them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.support.plain_client import SUCCESS, PlainClient, ServerClosed
from tests.support.waiting import wait_until

_UPDATE_CONSUMER_OFFSET = 15
_QUERY_CONSUMER_OFFSET = 14
_UPDATE_AND_CREATE_GROUP = 200
_INTERVAL_S = 0.1
LAG_S = 5.0
"""Offsets reach all nodes within a second; a busy machine needs longer."""
GROUP = "fault_commits"


class Commits:
    """One thread that commits and asks. `went_back` has a sentence for every offset that the master forgot.

    A commit counts unless a fault happened around it: a master that dies may take the last second of offsets
    with it, which costs repeats.
    """

    def __init__(self, addresses: Sequence[str], find_master: Callable[[], str], topic: str) -> None:
        self.went_back: list[str] = []
        self.made = 0
        self._addresses, self._find_master, self._topic = list(addresses), find_master, topic
        self._done: list[tuple[float, int]] = []
        self._faults: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Creates the group, and commits from now on."""
        wait_until(self._create_group, 60, "the group of the commits")
        self._thread.start()

    def _create_group(self) -> bool:
        body = json.dumps({"groupName": GROUP, "consumeEnable": True}).encode()
        with suppress(OSError, ServerClosed), PlainClient(self._find_master(), 10) as client:
            return client.call(_UPDATE_AND_CREATE_GROUP, {}, body).code == SUCCESS
        return False

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)

    def note(self, moment: float, offset: int) -> None:
        """Notes a commit that was answered with success."""
        self._done.append((moment, offset))

    def note_fault(self, moment: float | None = None) -> None:
        """Notes a fault that happens at this moment, or now."""
        self._faults.append(time.monotonic() if moment is None else moment)

    def check(self) -> None:
        """Asks once more, for the end of a trial: then the newest commits count as well."""
        self._ask(self._find_master(), time.monotonic() + LAG_S)

    def _run(self) -> None:
        choice = random.Random(0)
        offset = 0
        while not self._stopped.wait(_INTERVAL_S):
            with suppress(OSError, ServerClosed):
                address = choice.choice([*self._addresses, *[self._find_master()] * 3])
                if self._commit(address, offset + 1):
                    offset += 1
                    self.note(time.monotonic(), offset)
                    self.made += 1
            self._ask(self._find_master(), time.monotonic())

    def _commit(self, address: str, offset: int) -> bool:
        fields = {
            "consumerGroup": GROUP,
            "topic": self._topic,
            "queueId": "0",
            "commitOffset": str(offset),
        }
        with PlainClient(address, 3.0) as client:
            return client.call(_UPDATE_CONSUMER_OFFSET, fields).code == SUCCESS

    def _ask(self, address: str, now: float) -> None:
        fields = {"consumerGroup": GROUP, "topic": self._topic, "queueId": "0"}
        with suppress(OSError, ServerClosed), PlainClient(address, 3.0) as client:
            reply = client.call(_QUERY_CONSUMER_OFFSET, fields)
            if reply.code == SUCCESS:
                found, wanted = int(reply.fields["offset"]), self.floor(now)
                if found < wanted:
                    self.went_back.append(f"{address} has offset {found} of {GROUP}, not {wanted}")

    def floor(self, now: float) -> int:
        """Returns the newest offset that the group must not have forgotten by now."""
        for at, offset in reversed(self._done):
            if now - at >= LAG_S and not any(-LAG_S <= fault - at <= LAG_S for fault in self._faults):
                return offset
        return 0
