"""The record of the group in etcd, read without the product's client, and every version that it had."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from tests.support.etcd import Etcd, encoded

GROUP = "broker-a"
KEY = f"metaq/DefaultCluster/{GROUP}/group"
BEATS = f"metaq/DefaultCluster/{GROUP}/beat/"
_LOOK_INTERVAL_S = 0.1


class Group(NamedTuple):
    """One version of the record. Master 0 is nobody."""

    epoch: int = 0
    master: int = 0
    in_sync: frozenset[int] = frozenset()
    revision: int = 0


class RegisterWatch:
    """Reads the record again and again, and notes the masters of every epoch."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._lock = threading.Lock()
        self.last = Group()
        """The newest version that was seen."""
        self._masters: dict[int, set[int]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def record(self) -> Group:
        """Returns the record of now, or the last one that was seen while etcd does not answer."""
        for member in self._etcd.members:
            if not member.child.alive:
                continue
            with suppress(OSError):
                return self._note(member.call("/v3/kv/range", {"key": encoded(KEY)}, timeout_s=2.0))
        return self.last

    def beat(self, node_id: int) -> tuple[str, int]:
        """Returns the incarnation of a node and the number of its last beat; ("", 0) if it has none."""
        entries = self._etcd.call("/v3/kv/range", {"key": encoded(f"{BEATS}{node_id}")}).get("kvs") or []
        if not entries:
            return "", 0
        fields = json.loads(base64.b64decode(entries[0]["value"]))
        return fields["incarnation"], int(fields["sequence"])

    def value(self) -> str:
        """Returns the bytes of the record, in base64."""
        answer = self._etcd.call("/v3/kv/range", {"key": encoded(KEY)})
        return str(answer["kvs"][0]["value"])

    def put(self, value: str) -> None:
        """Overwrites the record, as the restore of a backup does."""
        self._etcd.call("/v3/kv/put", {"key": encoded(KEY), "value": value})

    def forget(self) -> None:
        """Believes the next version, whatever its revision: the register was replaced by another."""
        with self._lock:
            self.last = Group()

    def masters(self) -> dict[int, set[int]]:
        """Returns the masters of each epoch."""
        with self._lock:
            return {epoch: set(nodes) for epoch, nodes in self._masters.items()}

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=30)

    def _note(self, answer: dict[str, Any]) -> Group:
        entries = answer.get("kvs") or []
        if not entries:
            return self.last
        fields = json.loads(base64.b64decode(entries[0]["value"]))
        in_sync = frozenset(member["id"] for member in fields["in_sync"])
        found = Group(fields["epoch"], fields["master"], in_sync, int(entries[0]["mod_revision"]))
        with self._lock:
            # The revision goes back when an older copy of etcd comes back, the epoch of the group never.
            if (found.epoch, found.revision) >= (self.last.epoch, self.last.revision):
                self.last = found
            if found.master:
                self._masters.setdefault(found.epoch, set()).add(found.master)
        return found

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_INTERVAL_S):
            self.record()
