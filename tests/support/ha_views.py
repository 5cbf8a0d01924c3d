"""Views of a healthy group of three, for the tests of the master switch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metaq.ha.epochs import History
from metaq.ha.group_record import Beat, GroupRecord, Member, NodeState, RecordPromise
from metaq.ha.settings import HaSettings
from metaq.ha.view import Disk, Link, Own, RegisterView, Role, SeenBeat, SendGate, Source, SourceState, View

NOW = 1000.0
ONE, TWO, THREE = Member(1, "a"), Member(2, "b"), Member(3, "c")
RECORD = GroupRecord(epoch=5, master=1, in_sync=(ONE, TWO, THREE), min_in_sync=2, voters=(ONE, TWO, THREE))
HISTORY = History.of([(1, 0), (5, 50)])


def beat(member: Member, *, age_s: float = 0.5, is_fresh: bool = True, **fields: Any) -> SeenBeat:
    """Returns a beat that changed some time ago."""
    values: dict[str, Any] = {
        "id": member.id,
        "incarnation": member.incarnation,
        "client_address": "",
        "replication_address": f"host-{member.id}:10912",
        "flushed_end": 100,
        "log_epoch": 5,
        "promised_epoch": 5,
        "sequence": 1,
        "state": NodeState.MASTER if member.id == 1 else NodeState.REPLICA,
        **fields,
    }
    return SeenBeat(Beat(**values), NOW - age_s, is_fresh=is_fresh)


def link(member: Member, *, behind_s: float = 0.0, **fields: Any) -> Link:
    """Returns the link of a replica that was caught up some time ago."""
    at = NOW - behind_s
    values: dict[str, Any] = {
        "connected": True,
        "flushed_end": 100,
        "state_version": (0, 0),
        "contact_at": at,
        "caught_up_at": at,
        **fields,
    }
    return Link(member=member, **values)


def own(role: Role, member: Member = TWO, **fields: Any) -> Own:
    """Returns a node that has been in its role for a minute."""
    values: dict[str, Any] = {
        "role_since": NOW - 60,
        "awake_since": NOW - 60,
        "epoch": 0 if role is Role.CANDIDATE else 5,
        "following": 1 if role is Role.REPLICA else 0,
        "promised_epoch": 5,
        "promised_record": RecordPromise(),
        "promising": 0,
        "joined": True,
        "may_create": True,
        "history": HISTORY,
        "appended_end": 100,
        "flushed_end": 100,
        "confirmed_end": 100,
        "state_version": (0, 0),
        "disk": Disk.HEALTHY,
        "required": RECORD.members if role is Role.MASTER else frozenset(),
        "gate": SendGate.OPEN if role is Role.MASTER else SendGate.REFUSE,
        "acknowledge_until": float("-inf"),
        "beat_sent_at": NOW - 0.5,
        "renewed_at": float("-inf"),
        "progress_at": NOW,
        "resigned_at": None,
        "peer_epoch": 0,
        **fields,
    }
    return Own(member=member, role=role, **values)


def view(
    node: Own,
    *,
    record: GroupRecord | None = RECORD,
    readable: bool = True,
    settings: HaSettings | None = None,
    **fields: Any,
) -> View:
    """Returns what a node of a healthy group sees. Unless told otherwise, it has promised the record."""
    if record is not None and node.promised_record == RecordPromise():
        node = replace(node, promised_record=record.promise)
    values: dict[str, Any] = {
        "beats": {member.id: beat(member) for member in (ONE, TWO, THREE)},
        "links": {TWO: link(TWO), THREE: link(THREE)} if node.role is Role.MASTER else {},
        **fields,
    }
    revision = 7 if record is not None else 0
    readers = frozenset((ONE, TWO, THREE, *values["links"]))
    register = RegisterView(record, revision, readable, NOW - 60, readers=readers, read_at=NOW)
    return View(
        now=NOW,
        settings=settings if settings is not None else HaSettings(),
        own=node,
        register=register,
        **values,
    )


def connected(**fields: Any) -> Source:
    """Returns a connection to the master that waits for the start of the stream."""
    source = Source(1, 5, SourceState.CONNECTED, None, HISTORY, 0, 120)
    return replace(source, **fields)
