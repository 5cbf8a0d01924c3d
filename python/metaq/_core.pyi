"""The data plane, built from `crates/`: sockets, frames, the store, the hot requests and the client's
threads.

Python owns configuration, membership and rare decisions. Rust applies rules per message, from data that
Python gave it (`BrokerPlane.put_topics`, `BrokerPlane.put_groups`). Every rule has exactly one owner.
Requests that the data plane does not answer itself are handed up by `Listener.drain`.

Four readers use this module, and the stub has one section for each: the servers, the client, Spark, and the
codec that they share.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence, Set
from contextvars import Context
from datetime import datetime
from typing import Any, Literal, Self, final, overload

from typing_extensions import Buffer, disjoint_base

from metaq.client.consumer.subscription import Subscription
from metaq.client.producer.arrow_rows import Rows
from metaq.client.producer.options import ProducerOptions
from metaq.client.producer.results import SendResult, SendStatus
from metaq.client.session.routes import Queue
from metaq.protocol.codes import ResponseCode
from metaq.settings import (
    BrokerSettings,
    GroupPolicy,
    NetworkSettings,
    Program,
    PullSettings,
    ReplicationSettings,
    ScanSettings,
    ServerSettings,
    StoreSettings,
    SubscriptionPolicy,
    TopicPolicy,
)

__all__ = [
    "HOT_CODES",
    "WIRE_VERSION",
    "Answer",
    "ApacheFollowerFigures",
    "ApacheHaFollower",
    "ApacheHaMaster",
    "ApacheSlaveFigures",
    "AsyncSendFuture",
    "BrokerPlane",
    "Clock",
    "Closed",
    "CompressionFailure",
    "ConnectionGone",
    "CoreError",
    "DoneBatch",
    "Expression",
    "FilterBatch",
    "FollowerFigures",
    "Frame",
    "FrameDecoder",
    "FrameError",
    "LinkFigures",
    "LinkListener",
    "LinkSocket",
    "Listener",
    "ListenerFigures",
    "Message",
    "Network",
    "PlaneFigures",
    "PullEvent",
    "PullStream",
    "Record",
    "ReplicationFollower",
    "ReplicationHub",
    "Request",
    "Scan",
    "ScanBatch",
    "ScanStop",
    "SendBuffer",
    "SendFuture",
    "SlowRequest",
    "StandingSubscription",
    "Store",
    "StoreClosed",
    "StoreFailure",
    "StoreFigures",
    "StoreOpened",
    "UniqueIds",
    "UnsentBatch",
    "Unsettled",
    "compress",
    "decode_messages",
    "decode_records",
    "decompress",
    "encode_frame",
    "give_back_freed_memory",
    "register_message_rules",
    "register_send_types",
    "rewrite_log",
    "tag_code",
    "tag_codes",
    "truncate_store",
]

# ----------------------------------------------------------------------------
# Errors, shared by all readers
# ----------------------------------------------------------------------------

class CoreError(Exception):
    """The root of the exceptions that the data plane raises."""

class StoreFailure(CoreError):
    """The store failed: a full disk, a failed sync, a damaged file, another process that has it open."""

class StoreClosed(StoreFailure):
    """The store was closed, for example because it is opened anew."""

class FrameError(CoreError):
    """Bytes that are not a frame: too long, a header past its frame, a malformed header."""

class ConnectionGone(CoreError):
    """The peer of that connection has left."""

class CompressionFailure(CoreError):
    """Bytes that cannot be decompressed, or would become more than they may."""

# ----------------------------------------------------------------------------
# 1. Server: read by metaq.broker and metaq.nameserver
# ----------------------------------------------------------------------------

HOT_CODES: tuple[int, ...]
"""Request codes that a broker's data plane answers itself."""

@final
class Clock:
    """The one clock of both planes."""

    def __new__(cls) -> Self:
        """The system's clock."""
    @staticmethod
    def manual(start_ms: int) -> Clock:
        """A clock that stands still until `advance_ms` moves it."""
    @staticmethod
    def ahead(by_ms: int) -> Clock:
        """A clock that runs this far ahead of the system's; `advance_ms` makes it jump."""
    def now_ms(self) -> int: ...
    def advance_ms(self, by_ms: int) -> None:
        """Raises ValueError on the system's clock."""

@final
class Listener:
    """Ports and connections of one process, from its start to its end.

    A broker's listener has its attached `BrokerPlane` answer `HOT_CODES`, and refuses them with
    SERVICE_NOT_AVAILABLE while there is none. A name server's listener hands every request up."""

    def __new__(cls, settings: ServerSettings, *, serves_broker: bool) -> Self:
        """Binds at once (raises OSError); connections are accepted from `start` on."""
    @property
    def port(self) -> int:
        """The bound port."""
    @property
    def old_port(self) -> int | None:
        """The second port, for clients up to 4.4; None unless it was asked for and free."""
    def start(self) -> None:
        """Accepts connections from now on. Safe to call again."""
    def stop(self, timeout_ms: int = 5000) -> None:
        """Stops accepting, writes what is due and closes all connections. Stop the plane first: it answers
        what waits. Safe to call twice."""
    def fileno(self) -> int:
        """A descriptor that is readable while `drain` has events."""
    def drain(self, count_max: int = 256) -> list[Request | Answer | Closed]:
        """The events that wait for the control plane: one of each connection in turn, its oldest first."""
    def pause(self, connection: int, paused: bool) -> None:
        """Leaves the events of a connection waiting, or lets `drain` return them again."""
    def invoke(
        self,
        connection: int,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = ...,
        oneway: bool = False,
    ) -> int:
        """Sends a request to a client and returns its opaque; raises ConnectionGone."""
    def set_relay(self, address: str | None) -> None:
        """The `host:port` of the present master, to which a replica's plane and `Request.relay` pass requests
        on; None if there is none. Requests under way to another address are answered with
        SERVICE_NOT_AVAILABLE. Raises ValueError if the address is malformed."""
    def hold_appends(self, timeout_ms: int) -> None:
        """Keeps hot requests back that append or commit an offset, in their order, with or without an
        attached plane; pulls go on. Once it returns, no request that came before is still being handled.
        After `timeout_ms` they are refused with SERVICE_NOT_AVAILABLE, and later ones are handled again. A
        second call sets a new time."""
    def release_appends(self) -> bool:
        """Has everything that was kept back handled in order by the attached plane: a master serves it, a
        replica relays it. Later requests come after it. False if nothing was kept back any more, because the
        time was over."""
    def count_group_memory(self, group: str, bytes: int) -> None:
        """Counts bytes that the control plane keeps for a group, with those of its pulls that wait; negative
        if it keeps less than before."""
    def set_slow_request_ms(self, limit_ms: int) -> None:
        """Keeps requests that take at least this long for `take_slow_requests`; 0: none."""
    def take_slow_requests(self) -> tuple[list[SlowRequest], int]:
        """The slow requests that the data plane answered since the last call, and how many more there were.
        The time that a pull is held does not count."""
    def figures(self) -> ListenerFigures: ...

@final
class SlowRequest:
    """A request that took long, or several of one kind that were handled together."""

    @property
    def remote(self) -> str:
        """The peer's `ip:port`."""
    @property
    def code(self) -> int | None:
        """None for answers that the peer was slow to read."""
    @property
    def requests(self) -> int: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def parts(self) -> list[tuple[str, int]]:
        """Milliseconds by part: `handled`, `flush`, `replicas`, `written`."""

@final
class ListenerFigures:
    """The traffic of a listener, summed over all connections since it was bound."""

    @property
    def connections(self) -> int:
        """How many are open now."""
    @property
    def memory_bytes(self) -> int:
        """Memory that is kept for them now: what is not handled, what is not sent, and what waits."""
    @property
    def memory_bytes_peak(self) -> int: ...
    @property
    def group_memory_bytes(self) -> int:
        """Memory that is kept now for the group that uses most: its pulls that wait, its clients and their
        subscriptions."""
    @property
    def group_memory_bytes_peak(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def messages_in(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def messages_out(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def crossed(self) -> int:
        """Requests that were handed up."""
    @property
    def held(self) -> int:
        """Pulls that waited for a message."""
    @property
    def sends_slowed(self) -> int:
        """Acknowledgements that waited for their topic's limit."""
    @property
    def sends_over_limit(self) -> int:
        """Messages refused for their topic's limit."""
    @property
    def pulls_paced(self) -> int:
        """Pulls that waited for their group's limit."""
    @property
    def connections_cut(self) -> int:
        """Connections that were closed because too much memory was kept for them."""

@final
class Request:
    """One request that the data plane hands up."""

    @property
    def code(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def language(self) -> int: ...
    @property
    def oneway(self) -> bool: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def fields(self) -> dict[str, str]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def connection(self) -> int:
        """The number of the peer's connection; never reused while the listener lives."""
    @property
    def remote(self) -> str:
        """The peer's `ip:port`."""
    @property
    def age_ms(self) -> int:
        """The time since it arrived."""
    def respond(
        self,
        code: int = 0,
        *,
        remark: str | None = None,
        fields: Mapping[str, str] | None = None,
        body: bytes = ...,
    ) -> None:
        """Answers the request, once. A oneway request and a peer that has left get nothing."""
    def retry(self) -> None:
        """Hands a hot request back to the data plane, after a policy change that lets it be handled there. It
        does not come up a second time."""
    def relay(self) -> bool:
        """Passes the request on to the master (`Listener.set_relay`), whose answer goes to the client; do not
        answer it then. False if there is no master."""

@final
class Answer:
    """A client's response to `Listener.invoke`."""

    @property
    def connection(self) -> int: ...
    @property
    def opaque(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def fields(self) -> dict[str, str]: ...
    @property
    def body(self) -> bytes: ...

@final
class Closed:
    """A connection has ended."""

    @property
    def connection(self) -> int: ...
    @property
    def remote(self) -> str: ...
    @property
    def reason(self) -> str | None:
        """Why the server closed the connection, if the peer sent something other than frames."""

@final
class BrokerPlane:
    """The data plane of one lifetime as master: policy, offsets, delays, timers and transactions over a
    store.

    Build it, load what it must know, start it, stop it. Then build another one on the same listener:
    connections stay open in between.

    As replica it serves pulls and questions about offsets from its own copy of the log, as far as the master
    has confirmed it. It appends and delivers nothing. Sends, ends of transactions and committed offsets go to
    the master (`Listener.set_relay`). Without a master, sends and ends of transactions are refused with
    SERVICE_NOT_AVAILABLE. Committed offsets stay in this plane's table, where they only move forward. They
    are answered with success only if the settings say that this replica stands in for its master."""

    def __new__(
        cls,
        listener: Listener,
        store: Store,
        settings: BrokerSettings,
        *,
        is_replica: bool = False,
        has_replicas: bool = False,
    ) -> Self:
        """Raises RuntimeError while another plane serves the listener, OSError if no descriptor is left."""
    def start(self) -> None:
        """Delivers what is due and answers the listener's hot requests from now on. Raises RuntimeError after
        `stop`."""
    def stop(self, *, wait_confirmed: bool = True) -> None:
        """Refuses hot requests, ends the plane's threads and answers everything that waits in it: held pulls,
        sends that wait for the disk or for a limit, pulls that wait for a filter function. Offsets and
        progress can still be read. Safe to call twice.

        Without `wait_confirmed`, for a master that was replaced, sends that are not confirmed are answered
        with FLUSH_SLAVE_TIMEOUT at once."""
    def put_topics(self, topics: Sequence[TopicPolicy]) -> None:
        """Adds or replaces these topics in one step."""
    def remove_topic(self, name: str) -> None: ...
    def put_groups(self, groups: Sequence[GroupPolicy]) -> None: ...
    def remove_group(self, name: str) -> None: ...
    def put_member(
        self,
        group: str,
        connection: int,
        broadcasting: bool,
        subscriptions: Sequence[tuple[int, StandingSubscription]],
    ) -> None:
        """Gives the pulls of this connection in this group its own subscriptions, each with its version. Does
        nothing for a group that was not put."""
    def remove_member(self, group: str, connection: int) -> None: ...
    def put_expression(self, text: str, program: Program) -> None:
        """Keeps the program for pulls that carry this expression. When there are many, the oldest are
        dropped."""
    def put_function(self, text: str, function: str, call: str) -> None:
        """The same for a call of a filter function."""
    def functions_fileno(self) -> int:
        """Readable when a pull waits for a function that none has waited for."""
    def functions_wanted(self) -> list[str]:
        """The functions that pulls wait for."""
    def take_batch(self, function: str, messages_max: int, bytes_max: int) -> FilterBatch | None:
        """The first pull that waits for the function, with the messages to judge. The first message comes
        whatever its size."""
    def set_permission(self, permission: int) -> None:
        """The broker's own permission bits, over every topic's."""
    def load_offsets(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """`topic@group` → queue → committed offset. Load them before `start`."""
    def offsets(self) -> dict[str, dict[int, int]]:
        """All of them. The cost grows with the broker: for work off the event loop."""
    def offsets_of(self, group: str, topic: str) -> dict[int, int]:
        """Queue → the committed offset of one group in one topic."""
    def unsettled(self, group: str, queues_max: int) -> list[tuple[str, int, int, int | None]]:
        """Queues in which the group was given messages that it has not committed: topic, queue, the offset
        after the last one, and the committed offset if it has one. Looks at no more than `queues_max`."""
    def topics_of_group(self, group: str) -> list[str]:
        """The topics in which the group has committed offsets, in order."""
    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that have committed offsets in the topic, in order."""
    def take_changed_offsets(self) -> tuple[dict[str, tuple[dict[int, int], dict[int, int]]], bool]:
        """Some of the `topic@group` keys that have changed, and whether there are more. Each has its
        committed offsets by queue and the resets that its consumers have not followed yet; a removed key has
        neither."""
    def check_resets(self, group: str, wanted: Mapping[str, Sequence[int]]) -> str | None:
        """Returns why a reset or a copy may not set the offsets of these queues of the group, by topic; None
        if it may. Ask for all of them before the first `reset_offset`."""
    def assign_offset(self, group: str, topic: str, queue_id: int, committed_offset: int) -> None:
        """Sets a committed offset without a limit: what this replica's master has, or the broker's own
        progress."""
    def advance_offset(self, group: str, topic: str, queue_id: int, committed_offset: int) -> None:
        """Commits an offset unless a later one is committed or a reset is under way."""
    def take_kept_offsets(self) -> list[tuple[str, dict[int, int]]]:
        """Takes the offsets (`topic@group`, queue → offset) that this replica took without a master. What
        `assign_offset` set meanwhile did not change them."""
    def keep_offset(self, group: str, topic: str, queue_id: int, committed_offset: int) -> None:
        """Commits an offset at a replica that has no master, unless a later one is committed."""
    def watch_signs(self, queues: list[tuple[str, str, int]]) -> None:
        """Watches whether anybody reads these queues (group, topic, queue) from now on."""
    def take_silent(self, queues: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        """Ends the watch and returns the queues that nobody has read or committed since."""
    def reset_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Moves a group to another offset of a queue, whether or not its consumers run. The answer to their
        next pull sends them there. Offsets that they commit before they have moved are ignored."""
    def remove_offsets(self, group: str | None = None, topic: str | None = None) -> None: ...
    def load_delay_offsets(self, offsets: Mapping[int, int]) -> None:
        """Level → the queue offset at which its delivery goes on. Load them before `start`."""
    def delay_offsets(self, timeout_ms: int = 5000) -> dict[int, int] | None:
        """The same as reached so far, once everything delivered is flushed; None if that takes too long."""
    def load_timer_progress(self, wake_ms: int, physical_offset: int, queue_offset: int) -> None:
        """How far the last master of the group delivered messages that wait for a given moment: everything at
        or before this position, of the records before this offset of their queue. Load it before `start`."""
    def timer_progress(self, timeout_ms: int = 5000) -> tuple[int, int, int] | None:
        """The same as reached so far, once that is confirmed; None if that takes too long or is not known."""
    def hold_deliveries(self, timeout_ms: int = 1000) -> bool:
        """Delivers no delayed message until `release_deliveries`. False if a delivery that is under way takes
        too long."""
    def release_deliveries(self) -> None: ...
    def catch_up(self, timeout_ms: int = 5000) -> bool:
        """Delivers everything that is due after a clock jump, instead of a little later. False if that takes
        too long or the plane does not run."""
    def retries_exhausted(
        self, group: str, reconsume_times: int, times_max: int | None = None
    ) -> bool | None:
        """Whether a message that the group failed this often goes to its dead letters instead of its retry
        topic. `times_max` is the client's own limit. None if the plane does not know the group's."""
    def resend(
        self,
        physical_offset: int,
        topic: str,
        queue_id: int,
        *,
        reconsume_times: int,
        delay_level: int = 0,
        drop: Sequence[str] = ...,
        properties: Mapping[str, str] | None = None,
        system_names: Sequence[str] = ...,
    ) -> int:
        """Stores a copy of a stored message, as safely as an acknowledged one, and returns its physical
        offset. If its properties are too long, some are left out, longest first: those that have one of the
        system's names last, those in `properties` never. METAQ_LEFT_OUT then says how many.

        Raises LookupError if no message begins there, StoreFailure if the store refuses."""
    def set_recall_key(self, key: bytes) -> None:
        """Signs the handles of waiting messages with this key; the first one counts. Without a key, sends
        return no handles."""

    def recall(
        self, topic: str, unique_key: str, due_ms: int, *, producer_group: str, born_host: str
    ) -> Literal["stored", "late", "before"]:
        """Cancels the delivery of the message with this key, which waits for this moment. The recall is
        stored as safely as an acknowledged message. Nothing is stored if it is late, because the moment has
        come, or if the message was recalled before.

        Raises StoreFailure if the store refuses."""
    def delayed_figures(
        self, *, from_ms: int, step_ms: int, count: int
    ) -> tuple[int, int, int | None, int | None, list[int], list[tuple[int, int, int]]] | None:
        """Counts the delayed messages without reading them. Returns the number of messages with a time of
        their own, and of recalls among them; the first due time and the last one, to the minute; the messages
        in each of `count` spans; and level, delay and messages of each delay level that has some. Spans are
        whole minutes. The first has what is due before it as well, the last what is due behind it. None while
        not all of them are known, which is so just after a start."""
    def list_delayed(
        self, *, from_ms: int, to_ms: int, count_max: int, topic: str | None = None
    ) -> tuple[list[tuple[bytes, int, int, int | None, bool]], bool] | None:
        """The first delayed messages from a time on and before another one, and whether there may be more.
        Each comes as a record without body, with the size of the whole record, its due time, its delay level,
        and whether it was recalled. None as for `delayed_figures`."""
    def find_delayed(self, physical_offset: int) -> tuple[bytes, int, int, int | None, bool] | None:
        """The delayed message that is stored there; None if none waits there."""
    def list_transactions(
        self, *, count_max: int, timeout_ms: int, renew_ms: int, producer_group: str | None = None
    ) -> tuple[list[tuple[bytes, int, int, int]], int]:
        """The oldest open transactions, and how many are open. Each comes as the record of its half message
        without body, with the size of the whole record, the time at which it began, and the time from which
        on it is checked. The times are those of `due_transactions`."""
    def find_transaction(
        self, physical_offset: int, *, timeout_ms: int, renew_ms: int
    ) -> tuple[tuple[bytes, int, int, int] | None, str | None]:
        """The open transaction that has or had its half message there, or how it has ended. Raises
        LookupError if no half message is there."""
    def decide_transaction(self, physical_offset: int, commit: bool) -> str | None:
        """Ends the transaction of the half message there, once the end is flushed. Returns how it had ended
        before; None if it ends now. Raises LookupError if no half message is there, and StoreFailure."""
    def load_transactions(self) -> int:
        """Finds the open transactions in the store, from the loaded offsets on, and returns how many there
        are. Call it before `start`."""
    def transaction_offsets(self, timeout_ms: int = 5000) -> tuple[int, int] | None:
        """The first offsets that matter in the half topic and in the topic of ended transactions, once
        everything that has ended is flushed. None if that takes too long."""
    def due_transactions(
        self, *, timeout_ms: int, renew_ms: int, stored_before_ms: int, count_max: int
    ) -> list[tuple[bytes, int, bool]]:
        """The oldest half messages that have been open for longer than `timeout_ms` (or than their own
        property allows), or that were stored more than `renew_ms` ago. Each comes as stored, with the time at
        which its transaction began, and whether it is immune, so that its producer must not be asked yet."""
    def renew_transactions(self, queue_offsets: Sequence[int], checked: bool) -> list[bytes]:
        """Stores these half messages again at the end of their queue and returns the copies, with their real
        topic and queue. `checked` counts one more check. Transactions that have ended meanwhile are left
        out."""
    def give_up_transactions(self, queue_offsets: Sequence[int], topic: str) -> int:
        """Gives up these transactions and stores their messages in that topic; returns how many there
        were."""
    def resume_transaction(self, physical_offset: int, topic: str) -> bool:
        """Opens the transaction of a message in that topic again; False if too many are open. Raises
        LookupError if the topic has no such message."""
    def scrape(
        self, labels: Sequence[tuple[str, str]], *, series_max: int, by_topic: bool = True
    ) -> tuple[bytes, int]:
        """The metrics of topics, groups and requests in Prometheus' text format, each with these labels, and
        how many series found no room."""
    def figures(self) -> PlaneFigures: ...

@final
class PlaneFigures:
    """A broker plane at one moment; sums begin with its start."""

    @property
    def transactions_open(self) -> int: ...
    @property
    def limits_waiting(self) -> int:
        """Acknowledgements and pulls that wait for a limit."""
    @property
    def timers_pending(self) -> int:
        """Messages that wait for their moment."""
    @property
    def timers_read(self) -> int: ...
    @property
    def timers_delivered(self) -> int: ...
    @property
    def timers_recalled(self) -> int: ...
    @property
    def timers_queue_offset(self) -> int:
        """Their queue has been read up to here."""
    @property
    def timers_behind_ms(self) -> int:
        """How late the next delivery is."""

@final
class FilterBatch:
    """Messages for a filter function to judge, and the pull that waits for its verdicts."""

    @property
    def call(self) -> str:
        """Name and arguments, as the consumer wrote them."""
    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def count(self) -> int:
        """How many messages there are to judge."""
    @property
    def wanted_max(self) -> int:
        """How many messages the pull takes."""
    @property
    def more(self) -> bool:
        """Whether other pulls wait for the same function."""
    @property
    def records(self) -> bytes:
        """The messages as stored; empty once the batch is answered."""
    def answer(self, verdicts: bytes) -> None:
        """Takes one byte for each of the first messages: 0 drops it. The next pull judges messages without a
        byte again. Raises ValueError the second time."""
    def refuse(self, code: int, remark: str) -> None:
        """Answers the pull with an error."""

@final
class StandingSubscription:
    """A compiled subscription, which all members that have announced the same one share."""

    def __new__(cls, policy: SubscriptionPolicy) -> Self: ...

@final
class Expression:
    """A compiled SQL92 expression, as the data plane runs it over every message of a filtered pull."""

    def __new__(cls, program: Program) -> Self:
        """Raises ValueError for an invalid program, or one that is too long for the data plane."""
    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is delivered."""

def give_back_freed_memory(after_ms: int) -> bool:
    """Gives pages that the data plane has freed back to the system once they were unused for this long.

    The time applies to the whole process. Returns False if the platform has no thread for that: then they go
    back when the thread that freed them frees more. Raises OSError if the allocator refuses.
    """

def truncate_store(
    settings: StoreSettings, *, cut_at: int | None = None, start_over_at: int | None = None
) -> None:
    """Cuts the log of a store that is not open, or empties the store so that its log begins at an offset.

    A kill in between is harmless: the next start finishes it. Raises StoreFailure, or ValueError unless
    exactly one of the two is given.
    """

def rewrite_log(settings: StoreSettings, physical_offset: int, records: bytes, rebuild: bool) -> int:
    """Writes sound records of one log file over damaged ones in a store that is not open, and syncs them.

    Returns the end of the last whole record that was written. With `rebuild` the next start fills the queues
    again from there on. Raises StoreFailure, also if the bytes do not begin with a sound record.
    """

@final
class LinkSocket:
    """The connection of a replication link before the stream begins, with one deadline for all calls."""

    @staticmethod
    def connect(address: str, timeout_ms: int) -> LinkSocket:
        """Connects to `host:port`. Raises OSError."""
    @property
    def remote(self) -> str:
        """The peer's `host:port`."""
    def send(self, data: bytes) -> None:
        """Raises OSError, and TimeoutError after the deadline."""
    def receive(self, size: int) -> bytes:
        """Reads exactly that many bytes. Raises OSError, and TimeoutError after the deadline."""
    def close(self) -> None: ...

@final
class LinkListener:
    """The port on which replicas connect to their master."""

    def __new__(cls, address: str, timeout_ms: int) -> Self:
        """Binds `host:port`. Each connection has that much time before its stream begins. Raises OSError."""
    @property
    def port(self) -> int: ...
    def fileno(self) -> int:
        """Becomes readable when somebody has connected."""
    def accept(self) -> LinkSocket | None:
        """Returns the next connection, or None if there is none now. Raises OSError."""

@final
class LinkFigures:
    """A master's link to one replica."""

    @property
    def id(self) -> int: ...
    @property
    def node_id(self) -> int: ...
    @property
    def sent_offset(self) -> int: ...
    @property
    def held_offset(self) -> int:
        """The replica has acknowledged everything below this physical offset."""
    @property
    def state(self) -> tuple[int, int]:
        """The epoch and version of the control state that the replica has acknowledged."""
    @property
    def silent_ms(self) -> int:
        """The time since the replica was heard."""
    @property
    def ack_ms(self) -> int | None:
        """How long the replica takes to acknowledge records; None without traffic."""
    @property
    def closed(self) -> str | None:
        """Why the link was closed; None while it lives."""

@final
class ReplicationHub:
    """A master's links to its replicas, for one lifetime as master."""

    def __new__(cls, store: Store, settings: ReplicationSettings, epochs: list[tuple[int, int]]) -> Self:
        """`epochs` are the epochs of the log and where each begins; the last one is this master's."""
    def fileno(self) -> int:
        """Becomes readable when a link was closed, acknowledged state, or caught up. Call `links` then."""
    def add_link(self, socket: LinkSocket, node_id: int, from_offset: int) -> int:
        """Streams the log from that offset on and returns the link's id. Takes the socket. Raises OSError."""
    def require(self, node_ids: list[int]) -> None:
        """Sets the nodes, besides this one, that must hold a record before it is confirmed."""
    def send_state(self, link: int, epoch: int, version: int, entry: bytes) -> bool:
        """Sends control state; False if the link is gone or too much waits for it."""
    def state_waiting(self, link: int) -> int | None:
        """The bytes of control state that wait to be sent on the link; None if it is gone."""
    def links(self) -> list[LinkFigures]:
        """Returns every link. A closed one is named once and then forgotten."""
    def held(self) -> dict[int, int]:
        """Returns the highest offset that each node has acknowledged, connected or not."""
    def close_link(self, link: int, reason: str) -> None: ...
    def stop(self) -> None:
        """Ends every link. Nothing more is confirmed. Safe to call twice."""

@final
class FollowerFigures:
    """A replica's link to its master."""

    @property
    def master_end_offset(self) -> int:
        """The end of the master's log, as far as it was heard."""
    @property
    def confirmed_offset(self) -> int: ...
    @property
    def silent_ms(self) -> int:
        """The time since the master was heard."""
    @property
    def refused_offset(self) -> int | None:
        """The offset at which the master sent a damaged record; None if it did not."""
    @property
    def closed(self) -> str | None:
        """Why the link was closed; None while it lives."""

@final
class ReplicationFollower:
    """A replica's link to its master: appends its log, and shows what it has confirmed."""

    def __new__(
        cls,
        store: Store,
        settings: ReplicationSettings,
        socket: LinkSocket,
        epoch: int,
        state: tuple[int, int],
    ) -> Self:
        """Follows from the end of the store's log on. `state` is the control state that is durable."""
    def fileno(self) -> int:
        """Becomes readable when control state has arrived or the link was closed."""
    def take_state(self) -> list[tuple[int, int, bytes]]:
        """Returns the control state that has arrived: epoch, version and entry."""
    def acknowledge_state(self, epoch: int, version: int) -> None:
        """Tells the master that control state up to there is durable."""
    def figures(self) -> FollowerFigures: ...
    def stop(self) -> None:
        """Ends the link; nothing more is appended through it. Safe to call twice."""

@final
class ApacheFollowerFigures:
    """The link to an Apache master."""

    @property
    def received_offset(self) -> int:
        """The end of everything that the master has sent."""
    @property
    def silent_ms(self) -> int:
        """The time since the master was heard."""
    @property
    def closed(self) -> str | None:
        """Why the link was closed; None while it lives."""

@final
class ApacheHaFollower:
    """A slave's link to an Apache master: appends its log and reports what this disk holds."""

    def __new__(cls, store: Store, socket: LinkSocket, *, silence_ms: int) -> Self:
        """Follows from the end of the store's log on. Takes the socket. Raises OSError.

        The end of the log is compared with the master's first. `silence_ms` must exceed the master's
        haSendHeartbeatInterval.
        """
    def fileno(self) -> int:
        """Becomes readable when the link was closed."""
    def figures(self) -> ApacheFollowerFigures: ...
    def stop(self) -> None:
        """Ends the link; nothing more is appended through it. Safe to call twice."""

@final
class ApacheSlaveFigures:
    """The link to one Apache slave."""

    @property
    def id(self) -> int: ...
    @property
    def remote(self) -> str:
        """The slave's `host:port`."""
    @property
    def sent_offset(self) -> int:
        """The end of everything that was sent; -1 before the slave has said where to begin."""
    @property
    def reported_offset(self) -> int:
        """The end of the slave's log as it reports it, flushed or not; -1 before its first report."""
    @property
    def silent_ms(self) -> int:
        """The time since the slave was heard."""
    @property
    def closed(self) -> str | None:
        """Why the link was closed; None while it lives."""

@final
class ApacheHaMaster:
    """The links to Apache slaves. They get everything that is confirmed, and nobody waits for them."""

    def __new__(cls, store: Store, *, silence_ms: int, bytes_per_second: int = 0) -> Self:
        """`bytes_per_second` limits what each slave gets; 0 means no limit. Raises OSError."""
    def fileno(self) -> int:
        """Becomes readable when a link was closed. Call `links` then."""
    def add_link(self, socket: LinkSocket) -> int:
        """Serves a slave and returns the link's id. Takes the socket. Raises OSError, also for too many."""
    def links(self) -> list[ApacheSlaveFigures]:
        """Returns every link. A closed one is named once and then forgotten."""
    def stop(self) -> None:
        """Ends every link. Safe to call twice."""

@final
class Store:
    """An open store directory; exactly one process has it at a time."""

    def __new__(cls, settings: StoreSettings, clock: Clock) -> Self:
        """Opens the directory and recovers it if needed. Raises StoreFailure, or ValueError for bad
        settings."""
    def set_retention(self, settings: StoreSettings) -> None:
        """Retention and the levels of the disk follow these settings from now on; other settings stay.
        Raises ValueError for settings that cannot work."""
    def close(self) -> None:
        """Flushes everything and removes the abort marker. Safe to call twice."""
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def set_starts(self, topic: str, starts: Mapping[int, int]) -> None:
        """Readers of the topic get nothing below these queue offsets from now on, by queue; `min_offset` says
        so. Queues that are left out have no such start. The deletion of the topic forgets them."""
    def topics(self) -> set[str]:
        """Every topic that has a queue on disk, deleted from the table of topics or not."""
    def queue_ends(self) -> dict[str, dict[int, int]]:
        """Topic → queue → offset of its next message, for the queues touched since the store was opened."""
    def queue_entries(
        self, topic: str, queue_id: int, queue_offset: int, count_max: int
    ) -> list[tuple[int, int, int]]:
        """Physical offset, size in bytes and tag code of these lines of a consume queue."""
    def measure(
        self, topic: str, queue_id: int, from_offset: int, to_offset: int, bytes_max: int
    ) -> tuple[int, int, int | None, int | None]:
        """Measures the messages from `from_offset` on, up to `to_offset`, a million messages or `bytes_max`
        as stored. Returns where they end, how many bytes they have, and the physical offsets of the message
        before them and of the last one."""
    def queue_ids(self, topic: str) -> list[int]:
        """The queues of the topic that hold or held messages."""
    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int: ...
    def store_time_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When that message was stored; −1 if there is none."""
    def record_at(self, physical_offset: int) -> bytes | None:
        """The record that starts exactly there, as stored; None if none does or it is damaged.

        Clients name such offsets, and the body of a message may imitate a record. So the record's queue must
        point at it, which is true of every message whose topic was not deleted."""
    def query(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[bytes], int, int, bool]:
        """Records by key, newest first, then the index's last store time and physical offset, and whether the
        search ended at a limit (`query_entries_max`, `query_bytes_max`).

        Raises StoreFailure if readers wait for the repair of a message that may have the key."""
    def delete_topic(self, topic: str) -> None:
        """Drops the topic's queues; its records stay in the commit log until they age out.

        The log records the deletion, so a replica drops the same entries when it comes to that record."""
    def protect(self, consumed: Mapping[tuple[str, int], int]) -> None:
        """The lowest committed offset of each (topic, queue): nothing above it is deleted to make room."""
    def clean(self, *, force: bool = False) -> int:
        """Applies retention now and returns how many commit-log files it deleted."""
    def write_fault(self) -> str | None:
        """Why an append would be refused now; None if it would not."""
    def start_offset(self) -> int:
        """The physical offset of the oldest byte of the log."""
    def log_file_bytes(self) -> int:
        """The size of a file of the log; logs are copied only between stores with the same size."""
    def end_offset(self) -> int:
        """The physical offset behind the last record, confirmed or not."""
    def held_offset(self) -> int:
        """How far this store holds the log: flushed, or with asynchronous flush appended."""
    def confirmed_offset(self) -> int:
        """Everything below this physical offset is confirmed."""
    def raw_checksum(self, from_offset: int, to_offset: int) -> int | None:
        """Returns the CRC-32 of the log's bytes in that range, or None if the log lacks some of them."""
    def damaged_ranges(self, from_offset: int, to_offset: int) -> list[tuple[int, int]] | None:
        """Checks a part of the log and returns the damaged ranges, or None if the log lacks some of it.

        It may read the file with `from_offset` from its start, so call it on a thread.
        """
    def uncovered_records(self, from_offset: int, to_offset: int) -> int | None:
        """Checks a part of the log like `damaged_ranges` and returns how many sound records have a checksum
        of the body alone."""
    def scrub(self, from_offset: int, bytes_max: int) -> tuple[int, int | None, list[tuple[int, int]]] | None:
        """Verifies about that many bytes of the confirmed log from a record or the start of a file on.

        Returns where the next part begins, the CRC-32 of the bytes (None if they are damaged), and the
        damaged ranges; None at the end of the log. It reads the disk, so call it on a thread. Raises
        StoreFailure.
        """
    def name_damaged(self, from_offset: int, to_offset: int) -> None:
        """Names the messages of a damaged range in the reports and in `damaged_messages`.

        It may look into all queues, so call it on a thread. Raises StoreFailure.
        """
    def damaged_messages(self) -> list[tuple[str, int, int, bool]]:
        """Returns the first messages that readers did not get because they are damaged: topic, queue id,
        queue offset, and whether readers have left it out."""
    def known_damage(self) -> list[tuple[int, int]]:
        """Returns the damaged ranges that reads, dispatch and checks have found in the log, in order."""
    def log_bytes(self, physical_offset: int, bytes_max: int) -> bytes | None:
        """Returns bytes of one log file from any offset on; None where the log has none."""
    def set_aside(self, from_offset: int, to_offset: int) -> None:
        """Copies a part of the log into `cut/` and syncs the copy. Raises StoreFailure."""
    def lacks_entries(self, records: bytes) -> bool:
        """Whether one of these records is missing at the end of its queue."""
    def opened(self) -> StoreOpened:
        """How the store was found when it was opened."""
    def accept_flushed_mark(self) -> None:
        """Accepts that the log may end below an end that it was flushed to before. Until then every start
        shows that end as `opened().flushed_mark`. Returns when the new mark is on the disk. Raises
        StoreFailure."""
    def sync(self) -> None:
        """Returns when the log is synced up to its end, with either kind of flush. Raises StoreFailure."""
    def sync_age_ms(self) -> int:
        """How long the sync of the log that is under way has been running; 0 if there is none."""
    def sync_failed(self) -> bool:
        """Whether a sync of the log has failed: nothing more is acknowledged until a restart."""
    def is_log_cut(self) -> bool:
        """Whether somebody cut a file of the log while it was in use. Nothing more is acknowledged until the
        store is opened again, which gives the file its length back."""
    def is_full(self) -> bool:
        """Whether records are refused because the disk is full, or queue entries cannot be written."""
    def gate_confirmation(self, end_offset: int) -> None:
        """Confirms nothing beyond that offset until it is moved. To be called between two roles."""
    def ungate_confirmation(self) -> None:
        """Confirms records without replicas again."""
    def close_gate(self) -> None:
        """Confirms nothing more, whatever is under way, until the gate is moved."""
    def acknowledge_until(self, deadline_ms: int | None) -> None:
        """After this time, in milliseconds of CLOCK_BOOTTIME, new records are refused (code 14) and nothing
        is confirmed or acknowledged, until a later time is set. None or −1 takes the lease away. Set the
        first lease before records are appended."""
    def wait_flushed(self, end_offset: int, timeout_ms: int) -> bool:
        """Waits until everything below the offset is on this disk; False after the timeout."""
    def wait_confirmed(self, end_offset: int, timeout_ms: int) -> bool:
        """Waits until everything below the offset is confirmed; False after the timeout."""
    def fence(self, reason: str) -> None:
        """Refuses new records with this reason (code 14). A follower still appends copies."""
    def lift_fence(self) -> None: ...
    def use_own_retention(self) -> None:
        """Deletes old files by the store's settings from now on, until a follower is started. A replicated
        store deletes nothing before it is master or its master has named the start of its log."""
    def figures(self) -> StoreFigures: ...
    def take_reports(self) -> list[str]:
        """Reports for an operator since the last call: damage found, disk levels crossed."""

@final
class StoreOpened:
    """How a store was found when it was opened."""

    @property
    def log_end(self) -> int:
        """The end of the log after recovery. Of a replicated store all of it is synced."""
    @property
    def flushed_mark(self) -> int:
        """An end that the log is known to have been flushed to. A log that ends below has lost something."""
    @property
    def stopped_cleanly(self) -> bool:
        """The store was closed in order, with everything synced."""
    @property
    def boot_id(self) -> str:
        """The identity of the machine's current boot."""

@final
class StoreFigures:
    """A store at one moment."""

    @property
    def commit_log_min_offset(self) -> int: ...
    @property
    def commit_log_max_offset(self) -> int: ...
    @property
    def commit_log_files(self) -> int: ...
    @property
    def flushed_offset(self) -> int:
        """Everything below is on the disk."""
    @property
    def dispatched_offset(self) -> int:
        """Everything below has its queue entries."""
    @property
    def indexed_offset(self) -> int:
        """Everything below can be found by key."""
    @property
    def disk_used_percent(self) -> int:
        """−1 if the disk does not say."""
    @property
    def recovered_from_offset(self) -> int:
        """The physical offset at which the last start began to read the log."""
    @property
    def recovered_bytes(self) -> int: ...
    @property
    def damaged_records(self) -> int: ...
    @property
    def uncovered_records(self) -> int:
        """Records with a checksum of the body alone that were dispatched since the start."""
    @property
    def rebuilt_index_files(self) -> int:
        """Files of the key index that were wrong or missing, and were made again from the log."""
    @property
    def repaired_entries(self) -> int: ...
    @property
    def syncs(self) -> int: ...
    @property
    def queues_loaded(self) -> int: ...

# ----------------------------------------------------------------------------
# 2. Client: read by metaq.client
# ----------------------------------------------------------------------------

@final
class Network:
    """The network thread of one client, with one connection to each address that it sends requests to."""

    def __new__(cls, settings: NetworkSettings) -> Self:
        """Starts the thread; raises OSError."""
    def close(self) -> None:
        """Ends the thread and all its connections. Safe to call twice, and in a forked process."""

@final
class UniqueIds:
    """Makes the ids that one client gives to its messages."""

    def __new__(cls, prefix: bytes, counter: int, month_start_ms: int) -> Self: ...
    def begin_month(self, month_start_ms: int) -> None:
        """Sets the moment that ids count their milliseconds from."""
    def next(self) -> str: ...

@disjoint_base
class Message:
    """One message. Users make one from `topic`, `body`, `tag`, `keys` and `properties`. Stored messages have
    the other attributes as well.

    All messages of a pull share one buffer, and an attribute is decoded when you read it. So a message that
    you keep keeps the whole buffer in memory."""

    __match_args__: tuple[str, ...]

    @overload
    def __new__(cls, topic: Message) -> Self:
        """Copies a message. Constructors of subclasses begin with it."""
    @overload
    def __new__(
        cls,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: tuple[str, ...] = (),
        properties: Mapping[str, str] = ...,
        id: str = "",
        offset_id: str = "",
        queue: Queue | None = None,
        queue_offset: int = -1,
        physical_offset: int = -1,
        born_at: int = 0,
        stored_at: int = 0,
        born_host: str = "",
        store_host: str = "",
        reconsume_times: int = 0,
        flag: int = 0,
        system_flag: int = 0,
        system_properties: Mapping[str, str] = ...,
    ) -> Self: ...
    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes:
        """The body as its sender passed it. Raises UnreadableBody if it cannot be decompressed."""
    @property
    def stored_body(self) -> tuple[bytes, int]:
        """The body as the broker stores it, and the system flag that says how it is compressed. Nothing is
        decompressed."""
    @property
    def body_size(self) -> int:
        """The size in bytes. Only a compressed body must be decoded to know it."""
    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that the sender set, without those of the system."""
    @property
    def id(self) -> str:
        """The unique id, which the sender's client assigned. It stays the same through retries."""
    @property
    def offset_id(self) -> str:
        """The id that the broker assigned: its address and the physical offset."""
    @property
    def queue(self) -> Queue | None: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def born_at(self) -> int:
        """Milliseconds since 1970, by the sender's clock."""
    @property
    def stored_at(self) -> int:
        """Milliseconds since 1970, by the broker's clock."""
    @property
    def born_time(self) -> datetime:
        """`born_at` as a datetime in UTC. Raises ValueError if the sender set an invalid time."""
    @property
    def stored_time(self) -> datetime:
        """`stored_at` as a datetime in UTC."""
    @property
    def born_host(self) -> str: ...
    @property
    def store_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int:
        """How often its consumer group has failed to process it."""
    @property
    def flag(self) -> int: ...
    @property
    def system_flag(self) -> int: ...
    @property
    def system_properties(self) -> Mapping[str, str]: ...
    def reply(self, body: Buffer) -> Awaitable[None]:
        """Replies to a message that was sent with `request`. Works in the handler that got the message.

        In plain code it returns when the broker has taken the reply. In a coroutine function it sends at
        once; await what it returns. Raises InvalidMessage if the message is not a request, and UsageError
        outside of a handler: there, `producer.reply` replies."""
    def __replace__(self, **changes: object) -> Message:
        """Returns a copy with these attributes changed. `copy.replace` of Python 3.13 calls it."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
    def __reduce__(self) -> tuple[type[Message], tuple[object, ...]]: ...

def decode_messages(
    data: bytes,
    queue: Queue,
    *,
    tags: Set[str] | None = None,
    shows_first_topic: bool = True,
) -> tuple[list[Message], list[Message]]:
    """Decodes the body of a pull's answer. Returns the messages that have one of the tags (all messages if
    there are no tags), then the compressed ones among them.

    `queue` is the queue that was pulled. Messages from a retry topic show the topic that they were first sent
    to, unless `shows_first_topic` is False. Raises FrameError if a message is malformed."""

def register_message_rules(
    *,
    inflate: Callable[[bytes, int], bytes],
    system_names: frozenset[str],
    reply: Callable[[Message, Buffer], Awaitable[None]],
) -> None:
    """Registers what received messages need from Python; later calls have no effect. `inflate` decompresses a
    body by its system flag. `system_names` are the properties that belong to the system, not to the
    sender. `reply` is `Message.reply`."""

@final
class SendBuffer:
    """The bounded buffer of one producer, which sends its messages in batches.

    It sends each batch once. If that does not store the batch, `drain` returns it and Python decides what to
    do with it.
    """

    def __new__(
        cls,
        network: Network,
        ids: UniqueIds,
        options: ProducerOptions,
        event_loop: asyncio.AbstractEventLoop,
    ) -> Self:
        """`event_loop` is the loop that calls `drain`. Raises OSError."""
    def fileno(self) -> int:
        """A descriptor that is readable when `drain` has events, a flush has ended or space is free again."""
    def put(
        self,
        topic: str,
        body: Buffer,
        tag: str | None = None,
        keys: Iterable[str] | None = None,
        key: str | None = None,
    ) -> SendFuture | None:
        """Accepts a plain message for a topic that `put_checked` has accepted a message for. Any thread may
        call it.

        Returns None if the message is not plain or the buffer does not accept it now: call `put_checked`."""
    def put_on_loop(
        self,
        topic: str,
        body: Buffer,
        tag: str | None = None,
        keys: Iterable[str] | None = None,
        key: str | None = None,
    ) -> AsyncSendFuture | None:
        """Does the same on the event loop. Returns None also if `should_yield` would return True."""
    def should_yield(self) -> bool:
        """Whether the loop should run its other tasks now, after many messages in a row. When this returns
        True, the count begins again."""
    def put_checked(
        self,
        topic: str,
        body: bytes,
        properties: str,
        unique_id: str,
        *,
        queue: tuple[str, int] | None = None,
        alone: bool = False,
        system_flag: int = 0,
        flag: int = 0,
        wait_s: float | None = ...,
    ) -> SendFuture | None:
        """Accepts a message that Python has checked. Returns None if the buffer is closed.

        If the buffer is full, it waits up to `wait_s` seconds for space and then raises TimeoutError. With
        `wait_s=None` it exceeds the limit instead of waiting. `queue` names the broker and the number of the
        only queue that the message may go to. `alone` sends it as a request of its own. Raises ValueError if
        the message is too long for the wire or its id was not made by this client.
        """
    def put_checked_on_loop(
        self,
        topic: str,
        body: bytes,
        properties: str,
        unique_id: str,
        *,
        queue: tuple[str, int] | None = None,
        alone: bool = False,
        system_flag: int = 0,
        flag: int = 0,
    ) -> AsyncSendFuture | None:
        """Does the same on the event loop, without waiting. Returns None if the buffer is full or closed.

        After it was full, the descriptor becomes readable when space is free, and `put` and `put_on_loop`
        accept nothing, so that messages which wait go first. `stop_watching_space` ends this state."""
    def stop_watching_space(self) -> None: ...
    def put_rows(self, rows: Rows, wait_s: float) -> bool:
        """Puts the rows of a table in their order. Each time the buffer is full, it waits up to `wait_s`
        seconds. Returns False if the buffer is closed.

        The caller has checked the names of topics and properties, and has set the route of every topic whose
        rows name a queue. Raises ValueError with the number of an invalid row and what is wrong with it, and
        TimeoutError if the buffer stays full.
        """
    def take_half_batches(self) -> list[tuple[str, bool, str, int, int, str, int]]:
        """Returns the half messages that were stored since the last call: topic, whether the queue was given
        and the order counts, broker, queue number, offset in the queue of half messages, offset id, and the
        number of messages in it."""
    def set_route(self, topic: str, queues: Sequence[tuple[str, str, int]], is_template: bool) -> None:
        """Sets the queues that the topic is sent to: broker, address of its master, and number of each."""
    def set_faults(self, faults: Sequence[tuple[str, float]]) -> None:
        """Sets the brokers that failed lately, each with the seconds for which it is still avoided."""
    def drain(
        self,
    ) -> tuple[list[UnsentBatch], list[DoneBatch], list[str], list[str]]:
        """Resolves the futures of finished messages. Returns batches that were not stored, finished batches
        with callbacks to call, topics that a message has created, and brokers that work again."""
    def events_end(self) -> int:
        """The number of events so far, to pass to `has_events_before`."""
    def has_events_before(self, end: int) -> bool:
        """Whether `drain` has not returned all events before this number."""
    def flush(self) -> int:
        """Sends everything that is in the buffer now. Returns the epoch to pass to `unfinished_count`."""
    def held_bytes(self) -> int:
        """The bytes of all messages that are not finished."""
    def unfinished_count(self, epoch: int) -> int:
        """How many of the messages from before that flush are not finished."""
    def close(self) -> list[UnsentBatch]:
        """Closes the buffer and returns the batches that are not finished. Call `failed` on each of them."""
    def disable(self) -> None:
        """Closes the buffer in a forked process, where its threads and locks cannot be used."""

def register_send_types(
    *,
    result: type[SendResult],
    queue: type[Queue],
    statuses: dict[ResponseCode, SendStatus],
    not_durable: Callable[[SendResult], Exception],
    call_back: Callable[[Callable[[SendFuture], Any], SendFuture], None],
) -> None:
    """Registers the types and functions that make the results of sends; later calls have no effect.
    `statuses` maps response codes, `not_durable` makes the error for a status that is not accepted, and
    `call_back` calls a user's callback and logs its exceptions."""

@final
class SendFuture:
    """The outcome of one message that `send_soon` accepted. Any thread may wait for it."""

    def result(self, timeout: float | None = None) -> SendResult:
        """Waits until the message is stored. Raises the error if it was not stored, or TimeoutError."""
    def exception(self, timeout: float | None = None) -> Exception | None:
        """Waits in the same way and returns the error, or None. Raises TimeoutError."""
    def done(self) -> bool:
        """Whether the outcome is known."""
    def add_done_callback(self, callback: Callable[[SendFuture], Any]) -> None:
        """Calls the callback with this future, in the thread for callbacks, as soon as the outcome is known.
        Exceptions of the callback are logged."""

@final
class AsyncSendFuture(Awaitable[SendResult]):
    """The outcome of one message that `send_soon` accepted, for the tasks of its event loop.

    It works like a future of asyncio: you can `await` it and pass it to `gather`, `wait`, `wait_for` and
    `shield`. Cancelling it does not cancel the message, which is sent all the same."""

    @staticmethod
    def waiting(event_loop: asyncio.AbstractEventLoop) -> AsyncSendFuture:
        """Makes the future of a message that waits for room in the buffer."""
    def _enter(self, entered: AsyncSendFuture) -> None:
        """Continues with the outcome of another future: that of the message in the buffer."""
    def _refuse(self, error: Exception) -> None:
        """The message does not enter the buffer, for this reason."""
    _asyncio_future_blocking: bool
    @property
    def _cancel_message(self) -> Any: ...
    def _make_cancelled_error(self) -> asyncio.CancelledError: ...
    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def done(self) -> bool:
        """Whether the outcome is known."""
    def cancelled(self) -> bool: ...
    def cancel(self, msg: Any = None) -> bool:
        """Returns False if the outcome is known already."""
    def result(self) -> SendResult:
        """Raises the error if the message was not stored, CancelledError or InvalidStateError."""
    def exception(self) -> Exception | None:
        """Returns the error, or None. Raises CancelledError or InvalidStateError."""
    def add_done_callback(
        self, callback: Callable[[Self], object], *, context: Context | None = None
    ) -> None:
        """The loop calls the callback soon after the outcome is known."""
    def remove_done_callback(self, callback: Callable[[Self], object]) -> int: ...
    def __await__(self) -> Generator[Any, None, SendResult]: ...
    def __iter__(self) -> Generator[Any, None, SendResult]: ...

@final
class DoneBatch:
    """Finished messages that have callbacks. They occupy the buffer until the callbacks have run."""

    def call_back(self) -> None:
        """Runs the callbacks one after the other, and logs their exceptions."""

@final
class UnsentBatch:
    """Messages for one queue that are not stored yet. You must call `stored` or `failed`."""

    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> tuple[str, int] | None:
        """Broker and number of the only queue that it may go to; None for any queue."""
    @property
    def key(self) -> str | None:
        """The sharding key of its first message, if every message has one."""
    @property
    def target(self) -> tuple[str, int] | None:
        """Broker and number of the queue that it was sent to; None if no broker was known."""
    @property
    def count(self) -> int: ...
    @property
    def first_id(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def alone(self) -> tuple[str, int, int] | None:
        """Properties, system flag and flag of a message that was sent alone; None for a batch."""
    @property
    def answer(self) -> tuple[int, str | None, dict[str, str]] | None:
        """Code, remark and fields of the answer, if there was one."""
    @property
    def failure(self) -> str | None:
        """Why there was no answer, if the request failed."""
    @property
    def spent_s(self) -> float:
        """Seconds since it was sent."""
    def stored(
        self,
        broker: str,
        queue_id: int,
        queue_offset: int,
        code: int,
        offset_ids: str,
        recall_handle: str | None = None,
        transaction_id: str | None = None,
        *,
        is_accepted: bool = True,
    ) -> None:
        """Reports where it was stored. If the status is not accepted, each message gets an error."""
    def failed(self, error: BaseException) -> None:
        """Reports that it was not stored. Does nothing after `stored`."""
    def errors(self, count_max: int) -> list[Exception]:
        """The errors of the first `count_max` messages, after `stored` or `failed`."""

@final
class PullStream:
    """Messages from any number of queues. Each queue is pulled, one pull at a time, while there is space.

    Any thread may call any method."""

    def __new__(cls, network: Network, settings: PullSettings) -> Self:
        """Raises OSError if no descriptor is left."""
    def fileno(self) -> int:
        """A descriptor that is readable while there are `events`, and when messages come after `take` found
        none."""
    def begin(
        self,
        queue: Queue,
        subscription: Subscription,
        address: str,
        queue_offset: int,
        *,
        paused: bool = False,
    ) -> int:
        """Starts to pull a queue from the broker at the address. Returns the number of the queue in this
        stream."""
    def end(self, number: int) -> None:
        """Stops pulling the queue and drops its messages."""
    def resume(
        self, number: int, address: str, *, broker_id: int = 0, queue_offset: int | None = None
    ) -> None:
        """Continues after an event, at `queue_offset` if one is given."""
    def relocate(self, number: int, address: str) -> None:
        """Sends the next pulls to another address."""
    def pause(self, number: int, paused: bool) -> None:
        """Sets whether `take` and `wait` leave out the messages of this queue."""
    def position(self, number: int) -> int | None:
        """The offset of the next message; None after `end`."""
    def take(self, count: int) -> tuple[list[Message], list[Message]]:
        """Returns up to `count` messages that are there, then the compressed ones among them. Only the last
        message can be compressed: the caller decompresses it and decides whether there is space for more."""
    def wait(self, count: int, timeout_s: float, wake_count: int) -> tuple[list[Message], list[Message]]:
        """Does the same, but waits for the first message without holding the interpreter. Ends early if
        `wake` has been called since `wake_count()` returned this number."""
    def wake_count(self) -> int:
        """How often `wake` has been called."""
    def wake(self) -> None:
        """Ends all waits."""
    def events(self) -> list[PullEvent]:
        """Returns new events, each once."""
    def close(self) -> None:
        """Stops pulling all queues and ends the connections. Safe to call twice."""

@final
class PullEvent:
    """A decision that Python must make about one queue. The queue is not pulled until `PullStream.resume`."""

    @property
    def number(self) -> int:
        """The number of the queue, as `begin` returned it."""
    @property
    def kind(self) -> str:
        """`moved`: the queue does not contain the offset that we asked for, and continues at `value`.
        `refused`: `value` is the code and `text` the remark. `failed` (no answer) and `malformed`: `text`
        says why. `suggested`: the broker wants the next pull to go to the replica with the id `value`."""
    @property
    def value(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def is_empty(self) -> bool:
        """For `moved`: whether no messages from before the move are held."""

@final
class Unsettled:
    """The messages of one queue that were pulled and not processed yet. Any thread may call it."""

    def __new__(cls) -> Self: ...
    def put(self, messages: list[Message], from_offset: int) -> list[Message]:
        """Adds messages and returns the ones it added. Messages before `from_offset` are left out."""
    def settle(self, message: Message) -> None:
        """Removes a message that was processed. Does nothing if the message is not there."""
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int:
        """The size of all bodies."""
    @property
    def first(self) -> int | None:
        """The lowest queue offset."""
    @property
    def span(self) -> int:
        """The distance from the lowest to the highest queue offset."""

# ----------------------------------------------------------------------------
# 3. Spark: read by metaq.spark
# ----------------------------------------------------------------------------

@final
class Scan:
    """Reads a range of a queue ahead, with several pulls at a time, and returns it as columns."""

    def __new__(
        cls,
        network: Network,
        settings: ScanSettings,
        queue: Queue,
        subscription: Subscription,
        address: str,
        from_offset: int,
        to_offset: int,
    ) -> Self:
        """Raises ValueError for an invalid range or an unknown column."""
    def take(self, timeout_s: float) -> tuple[ScanBatch | None, ScanStop | None]:
        """Returns the next rows, and with the last rows the reason why the scan has ended. Both are None if
        nothing came within the timeout. Waits and decodes without holding the interpreter."""
    def close(self) -> None:
        """Stops the scan and drops the rest. Safe to call twice."""

@final
class ScanBatch:
    """Rows of a range as columns in Arrow's layout."""

    @property
    def rows(self) -> int: ...
    @property
    def from_offset(self) -> int: ...
    @property
    def to_offset(self) -> int:
        """Every message from `from_offset` up to here was covered. Messages without a row did not match, or
        the broker did not return them."""
    @property
    def unreadable(self) -> list[tuple[int, str]]:
        """Queue offsets of rows whose body is null because it could not be decompressed, and why. If there
        are many, only the first ones are listed."""
    def columns(self) -> list[tuple[int, list[bytes | None]]]:
        """Returns the number of nulls and the buffers of each column. A second call returns none.

        The buffers of a fixed-width column are None and the values. A column of text or bytes has validity,
        offsets and bytes. Properties have offsets, then offsets and bytes of the names, then of the
        values."""

@final
class ScanStop:
    """Why a scan ended. `kind` is done, moved (`value` is the offset at which the queue begins or ends),
    stalled, refused (`value` is the code), failed, malformed or closed."""

    @property
    def kind(self) -> str: ...
    @property
    def queue_offset(self) -> int:
        """The offset that the pull asked for; −1 for done and closed."""
    @property
    def value(self) -> int: ...
    @property
    def text(self) -> str: ...

# ----------------------------------------------------------------------------
# 4. Codec: read by metaq.remoting, the command line and tests
# ----------------------------------------------------------------------------

WIRE_VERSION: int
"""The version number that we write into frames. RocketMQ 5.5.0 uses the same."""

@final
class Frame:
    """One decoded frame, as a client sees it."""

    @property
    def code(self) -> int: ...
    @property
    def language(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def opaque(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def remark(self) -> str | None: ...
    @property
    def fields(self) -> dict[str, str]: ...
    @property
    def body(self) -> bytes: ...

@final
class FrameDecoder:
    """Collects bytes as they arrive and returns every complete frame."""

    def __new__(cls, frame_bytes_max: int = ...) -> Self: ...
    def feed(self, data: bytes) -> list[Frame]:
        """Raises FrameError if the bytes are not a frame; the stream cannot continue then."""

def encode_frame(
    code: int,
    *,
    opaque: int,
    flag: int = 0,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = ...,
    binary: bool = False,
) -> bytes:
    """Returns one frame with its length prefix. Bit 0 of `flag` marks a response, bit 1 a oneway request."""

@final
class Record:
    """One stored message."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def physical_offset(self) -> int: ...
    @property
    def flag(self) -> int: ...
    @property
    def system_flag(self) -> int: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def store_timestamp_ms(self) -> int: ...
    @property
    def store_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_transaction_offset(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def message_id(self) -> str:
        """The offset message id: store host and physical offset in hex."""

def decode_records(data: bytes) -> list[Record]:
    """Decodes the records in the body of a pull's answer. Raises FrameError if one is malformed."""

def tag_code(tag: str) -> int:
    """Returns the hash of a tag that consume queues store: Java's String.hashCode."""

def tag_codes(expression: str) -> list[int]:
    """Returns the hashes of the tags that `a || b` names, in order, each once."""

def compress(format: str, data: bytes) -> bytes:
    """Compresses data. `format` is `zlib`, `lz4` (the frame format) or `zstd`."""

def decompress(format: str, data: bytes, bytes_max: int) -> bytes:
    """Decompresses data. Raises CompressionFailure if it is damaged or longer than `bytes_max`."""
