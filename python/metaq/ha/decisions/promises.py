"""Which records a node believes, and what it promises before it acts on one.

A node never believes a record that is older than one it has seen, whatever its epoch, nor one that is older
than what a beat in the register promises. Both mean that the register went back in time: a backup was
restored, or its data was lost. Nobody is elected then, and an operator has to decide.
"""

from __future__ import annotations

from collections.abc import Iterable

from metaq.ha.actions import PromiseRecord
from metaq.ha.group_record import Beat, GroupRecord, RecordPromise
from metaq.ha.view import Role, View


def objection(
    record: GroupRecord | None,
    promise: RecordPromise,
    promised_epoch: int,
    joined: bool,
    beats: Iterable[Beat],
) -> str:
    """Returns why the register's record must not be believed, or an empty text.

    `joined` says that the node's store belongs to this register's group.
    """
    has = "no record" if record is None else f"version {record.version} (epoch {record.epoch})"
    version = -1 if record is None else record.version
    newest = max(beats, key=lambda beat: beat.promised_version, default=None)
    if promise.version > max(version, 0) or (record is None and joined and promised_epoch > 0):
        return f"the register has {has} of the group, but this node has seen {_seen(promise, promised_epoch)}"
    if newest is not None and newest.promised_version > max(version, 0):
        return (
            f"the register has {has} of the group, but node {newest.id} has seen version "
            f"{newest.promised_version}"
        )
    if record is None:
        return ""
    if record.epoch < promised_epoch:
        return f"the register has {has} of the group, but this node has seen epoch {promised_epoch}"
    if record.version == promise.version > 0 and record.promise != promise:
        return f"the register has {has} of the group, but this node has seen another one with that version"
    return ""


def _seen(promise: RecordPromise, promised_epoch: int) -> str:
    return f"version {promise.version} (epoch {promised_epoch})"


def due_promise(view: View) -> PromiseRecord | None:
    """Returns the promise that this node must make before it acts on the record that it has read.

    A master goes on while its promise is being written, because it must be able to resign when its disk
    hangs. Whatever depends on the promise waits for it (`awaits_promises`).
    """
    own, record = view.own, view.register.record
    made = max(own.promised_record.version, own.promising if own.role is Role.MASTER else 0)
    if record is None or record.version <= made:
        return None
    return PromiseRecord(record.promise)


def must_ignore(view: View) -> bool:
    """Whether the record in this view is older than what the node has promised since it was read."""
    record = view.register.record
    if view.own.role is Role.MASTER or record is None:
        return False
    return record.version < view.own.promised_record.version
