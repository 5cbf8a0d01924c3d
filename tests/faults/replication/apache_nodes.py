"""Apache's own group: three brokers that its controller switches, under the same load and the same faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.faults.replication.register_watch import GROUP, Group
from tests.support.apache import SHORT_LIVED, ApacheServer, start_broker, start_nameserver
from tests.support.plain_client import SUCCESS, PlainClient, ServerClosed, create_topic
from tests.support.processes import free_port
from tests.support.waiting import eventually, wait_until

GET_REPLICA_INFO = 1004
WELL_TIMEOUT_S = 180
_LOOK_INTERVAL_S = 0.1

DEFAULTS: Mapping[str, object] = {}
STRICT: Mapping[str, object] = {
    "brokerRole": "SYNC_MASTER",
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "inSyncReplicas": 2,
    "totalReplicas": 3,
}
"""A message counts when every broker in sync has it, and at least two are."""


class ApacheNodes:
    """The brokers, and one name server with the controller in it."""

    def __init__(self, home: Path, settings: Mapping[str, object], replicas: int = 3) -> None:
        self.last = Group()
        """The newest state that the controller reported."""
        self.brokers: list[ApacheServer] = []
        self._masters: dict[int, set[int]] = {}
        self._stopped = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)
        controller_port = free_port()
        self._controller = f"127.0.0.1:{controller_port}"
        self._nameserver = start_nameserver(
            home / "nameserver",
            jvm_flags=SHORT_LIVED,
            settings={
                "enableControllerInNamesrv": True,
                "controllerDLegerGroup": "group1",
                "controllerDLegerPeers": f"n0-{self._controller}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": home / "controller",
            },
        )
        self._settings = {"enableControllerMode": True, "controllerAddr": self._controller, **settings}
        self._watching.start()
        try:
            for number in range(1, replicas + 1):
                self.brokers.append(self._start(home / f"broker-{number}"))
            self.wait_in_sync()
        except BaseException:
            self.stop()
            raise

    def _start(self, home: Path) -> ApacheServer:
        return start_broker(
            home,
            [self._nameserver.address],
            name=GROUP,
            heap="512m",
            jvm_flags=SHORT_LIVED,
            settings={"mappedFileSizeCommitLog": 16 << 20, **self._settings},
        )

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers]

    @property
    def nameserver_address(self) -> str:
        return self._nameserver.address

    @property
    def controller_address(self) -> str:
        return self._controller

    def master_address(self) -> str:
        """The address of the last master that was seen, for senders that try again anyway."""
        return self.addresses[max(self.last.master - 1, 0)]

    def master(self) -> ApacheServer:
        """Waits until a living broker is master, and returns it."""

        def find() -> ApacheServer | None:
            found = self.last
            broker = self.brokers[found.master - 1] if found.master else None
            return broker if broker is not None and broker.child.alive else None

        broker = eventually(find, lambda one: one is not None, WELL_TIMEOUT_S, "a living master")
        assert broker is not None
        return broker

    def masters(self) -> dict[int, set[int]]:
        return {epoch: set(numbers) for epoch, numbers in self._masters.items()}

    def wait_in_sync(self) -> None:
        count = len(self.brokers)
        wait_until(
            lambda: len(self.last.in_sync) == count and self.last.master > 0, WELL_TIMEOUT_S, "all in sync"
        )

    def create_topic(self, topic: str, queues: int) -> None:
        def created() -> bool:
            with suppress(OSError, ServerClosed), PlainClient(self.master().address, 10) as client:
                return create_topic(client, topic, queues).code == SUCCESS
            return False

        wait_until(created, WELL_TIMEOUT_S, f"topic {topic}")

    def stop(self) -> None:
        self._stopped.set()
        self._watching.join(timeout=30)
        for server in (*self.brokers, self._nameserver):
            if server.child.alive:
                server.kill()

    def __enter__(self) -> ApacheNodes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- the controller

    def _watch(self) -> None:
        while not self._stopped.wait(_LOOK_INTERVAL_S):
            with suppress(OSError, ServerClosed), PlainClient(self._controller, 5) as client:
                while not self._stopped.wait(_LOOK_INTERVAL_S):
                    reply = client.call(GET_REPLICA_INFO, {"brokerName": GROUP})
                    if reply.code == SUCCESS:
                        self._note(reply.fields, json.loads(reply.body or b"{}"))

    def _note(self, fields: Mapping[str, str], body: Mapping[str, object]) -> None:
        address, epoch = fields.get("masterAddress") or "", int(fields.get("masterEpoch") or 0)
        members = body.get("syncStateSet") or []
        assert isinstance(members, list)
        master = self.addresses.index(address) + 1 if address in self.addresses else 0
        self.last = Group(epoch, master, frozenset(map(int, members)))
        if master:
            self._masters.setdefault(epoch, set()).add(master)
