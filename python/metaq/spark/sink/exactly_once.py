"""Writes rows that consumers see exactly once: as half messages, and a marker that lists those that count.

Tasks store their rows as half messages, which no consumer sees. The driver writes one durable marker that
lists the half messages of the batch, and then commits them. The marker decides the batch. After it, any of
these finishes the work: the driver, its successor that replays the batch, or a worker that a broker asks.
Half messages that no marker lists are rolled back. docs/decisions/0001-exactly-once-spark-sink.md discusses
every crash.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from typing import Final

from metaq._core import Frame, decode_records
from metaq.client.producer.row_sender import HalfBatch
from metaq.client.producer.transactions import COMMIT, ROLL_BACK
from metaq.client.session.session import NOT_MINE, Session
from metaq.client.sync import Client
from metaq.errors import MetaqError, NoRoute, NotSent
from metaq.protocol.commands.clients import CheckTransactionState
from metaq.protocol.commands.messages import EndTransaction
from metaq.protocol.dispatch import Response
from metaq.protocol.errors import Unreachable
from metaq.protocol.properties import PRODUCER_GROUP, TRANSACTION, encode_properties
from metaq.retry import Retry, steady
from metaq.spark.errors import OptionError
from metaq.spark.sink.client import client_of, run, session_of
from metaq.spark.sink.half_ends import NotShown, end_all
from metaq.spark.sink.markers import Expired, Identity, Marker, Markers, StoredMarker, winner
from metaq.spark.sink.options import SinkOptions

__all__ = ["Identity", "abort", "answer_checks", "commit", "half_properties", "roll_back_quietly"]

_log = logging.getLogger(__name__)

_answering: weakref.WeakKeyDictionary[Session, set[str]] = weakref.WeakKeyDictionary()

BATCH: Final = "METAQ_SPARK_BATCH"
HALF_FIRST: Final = "METAQ_HALF_FIRST"
ROLLBACK_TIMEOUT_S: Final = 5.0
PAUSE_S: Final = 0.5


class NoMarkers(OptionError):
    """The markers of a query are not where they should be."""


def half_properties(identity: Identity, options: SinkOptions) -> str:
    """Returns the properties of every half message of a batch; they lead a checker to its marker."""
    kind = "job" if identity.is_job else "batch"
    return encode_properties(
        {
            TRANSACTION: "true",
            PRODUCER_GROUP: options.group,
            BATCH: f"{kind}/{identity.number}/{identity.name}",
        }
    )


def _identity_of(text: str) -> Identity | None:
    kind, _, rest = text.partition("/")
    number, _, name = rest.partition("/")
    if not name or not number.isdecimal():
        return None
    return Identity(name, int(number), is_job=kind == "job")


# On the driver


def commit(options: SinkOptions, identity: Identity, half_batches: Sequence[HalfBatch]) -> None:
    """Shows the batch and returns when all of it is shown. Raises if that is not certain."""
    client = client_of(options.nameservers)
    answer_checks(client, options)
    run(client, _commit_in_time, session_of(client), options, identity, half_batches)


async def _commit_in_time(
    session: Session, options: SinkOptions, identity: Identity, half_batches: Sequence[HalfBatch]
) -> None:
    """Tries again while brokers are away; every step may be repeated."""
    tries = Retry(options.timeout_s, steady(PAUSE_S))
    while True:
        try:
            return await _commit(session, options, identity, half_batches)
        except (NoMarkers, NoRoute, NotSent, Unreachable) as error:
            _log.warning("%s/%d: %s", identity.name, identity.number, error)
            if not await tries.pause():
                raise


async def _commit(
    session: Session, options: SinkOptions, identity: Identity, half_batches: Sequence[HalfBatch]
) -> None:
    ours = Marker.of(identity, options.group, half_batches, is_commit=True)
    markers = Markers(session, identity)
    near = ours.topics[0] if half_batches else options.topic
    if not await markers.exist():
        if near is None or (not half_batches and not _is_recorded(identity, options)):
            return
        # A topic that is created again while its broker is away would not know the batches decided there. A
        # query counts its batches from 0. A txnVersion may be any number, so its first one proves nothing;
        # there the other brokers of the topic, on which the markers are announced, must do.
        if identity.number > 0 and options.app_id is None and not options.may_start_late:
            raise NoMarkers(
                f"{markers.topic}, which knows the batches before {identity.number}, is not there: its broker"
                " may be away",
                hint="if this query has never written exactly once, give exactlyOnceFromAnyBatch=true",
            )
        await markers.create(near)
    if near is not None:
        await markers.announce(near)
    decided = await _decide(markers, identity, ours, options)
    if half_batches and (decided is None or decided.digest != ours.digest):
        _log.warning(
            "batch %s/%d was written before: the new rows are rolled back", identity.name, identity.number
        )
        await _roll_back(session, ours)
        if decided is not None and options.app_id is not None:
            _require_common_topic(identity, ours, decided)
    if decided is not None:
        await end_all(session, decided, commit=True, timeout_s=options.timeout_s)


def _is_recorded(identity: Identity, options: SinkOptions) -> bool:
    """Returns whether a write without rows gets a marker, or creates at least the topic of the markers.

    A write without rows uses up its `txnVersion`. Windows and joins have no rows at first, but their first
    batch creates the topic: a later batch could not tell whether it is the first one with rows.
    """
    return options.app_id is not None or (not identity.is_job and identity.number == 0)


def _require_common_topic(identity: Identity, ours: Marker, decided: Marker) -> None:
    """Raises OptionError if another write has this identity, rather than a repetition of this one."""
    if decided.topics and not set(ours.topics) & set(decided.topics):
        raise OptionError(
            f"txnAppId {identity.name} with txnVersion {identity.number} has written to"
            f" {', '.join(decided.topics)}, and writes to {', '.join(ours.topics)} now",
            hint="give each of several writes a txnAppId of its own",
        )


async def _decide(markers: Markers, identity: Identity, ours: Marker, options: SinkOptions) -> Marker | None:
    """Returns the marker that counts: ours or an earlier one. None if a later batch exists."""
    known = await _known(markers, options)
    decided = winner(known, identity.number)
    if decided is not None:
        return decided
    if any(marker.number > identity.number for marker in known):
        return None
    if not ours.chains and options.app_id is None:
        return None
    # Another driver of the same query may still run without knowing that it was replaced: the first counts.
    decided = winner(await markers.append_and_read(ours, options.timeout_s), identity.number)
    if decided is None:
        raise NotShown(f"batch {identity.name}/{identity.number} was given up before it was committed")
    return decided


async def _known(markers: Markers, options: SinkOptions) -> list[StoredMarker]:
    try:
        return await markers.read()
    except Expired:
        if options.may_start_late:
            return []
        raise


def abort(options: SinkOptions, identity: Identity, half_batches: Sequence[HalfBatch]) -> None:
    """Rolls back what tasks wrote, unless the batch is decided: Spark may abort a batch that it began to
    commit."""
    if not half_batches:
        return
    client = client_of(options.nameservers)
    try:
        run(client, _abort, session_of(client), options, identity, half_batches)
    except MetaqError as error:
        _log.warning(
            "%s/%d was not taken back, brokers will ask about it: %s", identity.name, identity.number, error
        )


async def _abort(
    session: Session, options: SinkOptions, identity: Identity, half_batches: Sequence[HalfBatch]
) -> None:
    ours = Marker.of(identity, options.group, half_batches, is_commit=False)
    markers = Markers(session, identity)
    if await markers.exist():
        if winner(await markers.read(), identity.number) is not None:
            return
        # A marker of the commit may still be under way. It must come too late.
        if winner(await markers.append_and_read(ours, options.timeout_s), identity.number) is not None:
            return
    await _roll_back(session, ours)


async def _roll_back(session: Session, marker: Marker) -> None:
    """Rolls back. Brokers that cannot be reached now will ask later."""
    try:
        await end_all(session, marker, commit=False, timeout_s=ROLLBACK_TIMEOUT_S)
    except MetaqError as error:
        _log.warning(
            "half messages of %s/%d are left to their brokers: %s", marker.name, marker.number, error
        )


# In tasks


def roll_back_quietly(client: Client, options: SinkOptions, half_batches: Sequence[HalfBatch]) -> None:
    """Rolls back after a task has failed; errors are only logged."""
    if not half_batches:
        return
    marker = Marker.of(Identity("task", 0), options.group, half_batches, is_commit=False)
    try:
        run(client, _roll_back, session_of(client), marker)
    except Exception:  # The error of the task itself is reported.
        _log.exception("half messages of a failed task are left to their brokers")


# In every process


def answer_checks(client: Client, options: SinkOptions) -> None:
    """Makes this process answer brokers that ask about half messages of the group, of any batch."""
    run(client, _answer_checks, session_of(client), options.group)


async def _answer_checks(session: Session, group: str) -> None:
    groups = _answering.setdefault(session, set())
    if group not in groups:
        groups.add(group)
        session.on_request(CheckTransactionState.code, _Answers(session, group).answer)
        await session.add_producer(group)


class _Answers:
    """Answers what became of half messages, according to their markers."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def answer(self, address: str, frame: Frame) -> Response | None:
        records = decode_records(frame.body)
        if not records or records[0].properties.get(PRODUCER_GROUP) != self._group:
            return NOT_MINE
        identity = _identity_of(records[0].properties.get(BATCH, ""))
        if identity is None:
            return NOT_MINE
        command = CheckTransactionState.parse(frame.fields)
        # The broker asks about a copy. The marker has the place of the original.
        first = int(records[0].properties.get(HALF_FIRST) or command.tran_state_table_offset)
        decision = await self._decision(identity, command.bname or "", first)
        if decision is None:
            return None
        end = EndTransaction(
            producer_group=self._group,
            tran_state_table_offset=command.tran_state_table_offset,
            commit_log_offset=command.commit_log_offset,
            commit_or_rollback=decision,
            msg_id="",
            from_transaction_check=True,
        )
        (await self._session.call(address, end)).check()
        return None

    async def _decision(self, identity: Identity, broker: str, half_offset: int) -> int | None:
        markers = Markers(self._session, identity)
        if not await markers.exist():
            return None
        known = await markers.find()
        decided = winner(known, identity.number)
        if decided is not None:
            return COMMIT if decided.lists(broker, half_offset) else ROLL_BACK
        is_past = any(marker.number > identity.number for marker in known)
        return ROLL_BACK if is_past else None
