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
from typing import Any, Self, final, overload

from typing_extensions import disjoint_base

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
    ScanSettings,
    ServerSettings,
    StoreSettings,
    TopicPolicy,
)

__all__ = [
    "HOT_CODES",
    "WIRE_VERSION",
    "Answer",
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
    "Frame",
    "FrameDecoder",
    "FrameError",
    "Listener",
    "ListenerFigures",
    "Message",
    "Network",
    "PlaneFigures",
    "PullEvent",
    "PullStream",
    "Record",
    "Request",
    "Scan",
    "ScanBatch",
    "ScanStop",
    "SendBuffer",
    "SendFuture",
    "Store",
    "StoreFailure",
    "StoreFigures",
    "UniqueIds",
    "UnsentBatch",
    "Unsettled",
    "compress",
    "decode_messages",
    "decode_records",
    "decompress",
    "encode_frame",
    "register_message_rules",
    "register_send_types",
    "tag_code",
]

# ----------------------------------------------------------------------------
# Errors, shared by all readers
# ----------------------------------------------------------------------------

class CoreError(Exception):
    """The root of the exceptions that the data plane raises."""

class StoreFailure(CoreError):
    """The store failed: a full disk, a failed sync, a damaged file, another process that has it open."""

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
        """The oldest events that wait for the control plane."""
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
    def figures(self) -> ListenerFigures: ...

@final
class ListenerFigures:
    """The traffic of a listener, summed over all connections since it was bound."""

    @property
    def connections(self) -> int:
        """How many are open now."""
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
    connections stay open in between."""

    def __new__(cls, listener: Listener, store: Store, settings: BrokerSettings) -> Self:
        """Raises RuntimeError while another plane serves the listener, OSError if no descriptor is left."""
    def start(self) -> None:
        """Delivers what is due and answers the listener's hot requests from now on. Raises RuntimeError after
        `stop`."""
    def stop(self) -> None:
        """Refuses hot requests, ends the plane's threads and answers everything that waits in it: held pulls,
        sends that wait for the disk or for a limit, pulls that wait for a filter function. Offsets and
        progress can still be read. Safe to call twice."""
    def put_topics(self, topics: Sequence[TopicPolicy]) -> None:
        """Adds or replaces these topics in one step."""
    def remove_topic(self, name: str) -> None: ...
    def put_groups(self, groups: Sequence[GroupPolicy]) -> None: ...
    def remove_group(self, name: str) -> None: ...
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
    def offsets(self) -> dict[str, dict[int, int]]: ...
    def take_changed_offsets(self) -> dict[str, tuple[dict[int, int], dict[int, int]]]:
        """The `topic@group` keys that changed since the last call. Each has its committed offsets by queue
        and the resets that its consumers have not followed yet; a removed key has neither."""
    def assign_offset(self, group: str, topic: str, queue_id: int, committed_offset: int) -> None:
        """Sets the committed offset of a group whose consumers do not run."""
    def reset_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Moves a group to another offset of a queue, whether or not its consumers run. The answer to their
        next pull sends them there. Offsets that they commit before they have moved are ignored."""
    def remove_offsets(self, group: str | None = None, topic: str | None = None) -> None: ...
    def load_delay_offsets(self, offsets: Mapping[int, int]) -> None:
        """Level → the queue offset at which its delivery goes on. Load them before `start`."""
    def delay_offsets(self, timeout_ms: int = 5000) -> dict[int, int] | None:
        """The same as reached so far, once everything delivered is flushed; None if that takes too long."""
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
    ) -> int:
        """Stores a copy of a stored message, as safely as an acknowledged one, and returns its physical
        offset.

        Raises LookupError if no message begins there, StoreFailure if the store refuses."""
    def recall(
        self, topic: str, unique_key: str, due_ms: int, *, producer_group: str, born_host: str
    ) -> bool:
        """Cancels the delivery of the message with this key, which waits for this moment. The recall is
        stored as safely as an acknowledged message. False if the moment has come already.

        Raises StoreFailure if the store refuses."""
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
class Expression:
    """A compiled SQL92 expression, as the data plane runs it over every message of a filtered pull."""

    def __new__(cls, program: Program) -> Self:
        """Raises ValueError for an invalid program, or one that is too long for the data plane."""
    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is delivered."""

@final
class Store:
    """An open store directory; exactly one process has it at a time."""

    def __new__(cls, settings: StoreSettings, clock: Clock) -> Self:
        """Opens the directory and recovers it if needed. Raises StoreFailure, or ValueError for bad
        settings."""
    def close(self) -> None:
        """Flushes everything and removes the abort marker. Safe to call twice."""
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def max_offset(self, topic: str, queue_id: int) -> int: ...
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
        """The record that starts exactly there, as stored; None if none does or it is damaged."""
    def query(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[bytes], int, int]:
        """Records by key, newest first, then the index's last store time and physical offset."""
    def delete_topic(self, topic: str) -> None:
        """Drops the topic's queues; its records stay in the commit log until they age out."""
    def protect(self, consumed: Mapping[tuple[str, int], int]) -> None:
        """The lowest committed offset of each (topic, queue): nothing above it is deleted to make room."""
    def clean(self, *, force: bool = False) -> int:
        """Applies retention now and returns how many commit-log files it deleted."""
    def figures(self) -> StoreFigures: ...
    def take_reports(self) -> list[str]:
        """Reports for an operator since the last call: damage found, disk levels crossed."""

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
    """The network thread of one client, with one connection to each address that something is asked of."""

    def __new__(cls, settings: NetworkSettings) -> Self:
        """Starts the thread; raises OSError."""
    def close(self) -> None:
        """Ends it with all its connections. Safe to call twice, and in a forked process."""

@final
class UniqueIds:
    """Makes the ids that one client gives to its messages."""

    def __new__(cls, prefix: bytes, counter: int, month_start_ms: int) -> Self: ...
    def begin_month(self, month_start_ms: int) -> None:
        """Ids tell their time in milliseconds since then."""
    def next(self) -> str: ...

@disjoint_base
class Message:
    """One message. A user makes one of `topic`, `body`, `tag`, `keys` and `properties`; the rest is known of
    a message that was stored. What was received is read when it is asked for, out of the one buffer that
    holds all of its pull: a message that is kept keeps that buffer."""

    __match_args__: tuple[str, ...]

    @overload
    def __new__(cls, topic: Message) -> Self:
        """The same again, as a subclass begins with it."""
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
        """As its sender gave it; raises UnreadableBody where it was compressed and cannot be inflated."""
    @property
    def body_size(self) -> int:
        """In bytes; the body itself is not made for it unless it is compressed."""
    @property
    def tag(self) -> str | None: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def properties(self) -> Mapping[str, str]:
        """The sender's own."""
    @property
    def id(self) -> str:
        """Given by the sender's client; stays the same through retries."""
    @property
    def offset_id(self) -> str:
        """Given by the broker: where it lies."""
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
    def born_host(self) -> str: ...
    @property
    def store_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int:
        """How often its group failed on it before."""
    @property
    def flag(self) -> int: ...
    @property
    def system_flag(self) -> int: ...
    @property
    def system_properties(self) -> Mapping[str, str]: ...
    def __replace__(self, **changes: object) -> Message:
        """The same but for these attributes; `copy.replace` of Python 3.13 calls it."""
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
    """The messages of a pull's body that have one of the tags (no tags let everything through), and those of
    them whose bodies are compressed. `queue` is where they were pulled from; what came through a retry topic
    shows the topic it had first, unless told otherwise. Raises FrameError on a malformed one."""

def register_message_rules(*, inflate: Callable[[bytes, int], bytes], system_names: frozenset[str]) -> None:
    """Hands in the Python parts of received messages; the first call counts. `inflate` decompresses a body
    by its system flag; `system_names` are the properties that are not the sender's own."""

@final
class SendBuffer:
    """The bounded buffer of one producer, from which batches are sent.

    Each batch is sent once; what that does not get stored is handed up by `drain` and waits for a word on it.
    """

    def __new__(
        cls,
        network: Network,
        ids: UniqueIds,
        options: ProducerOptions,
        event_loop: asyncio.AbstractEventLoop,
    ) -> Self:
        """For the loop that calls `drain`; raises OSError."""
    def fileno(self) -> int:
        """Readable when `drain` has something, or something has changed that is waited for."""
    def put(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Iterable[str] | None = None,
        key: str | None = None,
    ) -> SendFuture | None:
        """Takes a message with nothing unusual about it, of a topic that `put_checked` took one for; None
        where it does not, for whatever reason. Any thread may call it."""
    def put_here(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Iterable[str] | None = None,
        key: str | None = None,
    ) -> AsyncSendFuture | None:
        """The same on its event loop; None also where it is time for the loop's other tasks."""
    def ends_turn(self) -> bool:
        """Whether it is time for the loop's other tasks, once."""
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
        """Takes a message that was checked, and waits while there is no room, or with None takes it all the
        same; None where it is closed.

        `queue` is broker and number of the one queue it may go to, `alone` makes it a request of its own.
        Raises TimeoutError, ValueError.
        """
    def put_checked_here(
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
        """The same on its event loop. None where there is no room: the descriptor tells of it, and `put` and
        `put_here` take nothing, until `want_no_room`."""
    def want_no_room(self) -> None: ...
    def put_rows(self, rows: Rows, wait_s: float) -> bool:
        """Takes the rows of a table in their order, and waits while there is no room, at most so long each
        time; False where it is closed. Names of topics and of properties were checked, and the routes of rows
        that go to given queues are known.

        Raises ValueError with the number of a row and what is wrong with it, TimeoutError.
        """
    def take_parts(self) -> list[tuple[str, bool, str, int, int, str, int]]:
        """The half messages that were stored since the last time: topic, whether its place in its queue
        counts, broker, queue, place in the queue of half messages, offset id, how many messages it holds."""
    def set_route(self, topic: str, queues: Sequence[tuple[str, str, int]], is_template: bool) -> None:
        """Where the topic can be written to: broker, address of its master, and number of each queue."""
    def set_faults(self, faults: Sequence[tuple[str, float]]) -> None:
        """All brokers that failed lately, and for how many seconds more each of them is avoided."""
    def drain(
        self,
    ) -> tuple[list[UnsentBatch], list[DoneBatch], list[str], list[str]]:
        """Tells those who await what is done, and gives batches to go on with, those whose callbacks are to
        be called, topics that a message has made and brokers that worked again."""
    def news_end(self) -> int:
        """Where the news ends now, for `has_news`."""
    def has_news(self, until: int) -> bool:
        """Whether `drain` has still to come to there."""
    def flush(self) -> int:
        """Sends everything that is there now; what to ask `left` with."""
    def held_bytes(self) -> int:
        """What is in it and not done."""
    def left(self, epoch: int) -> int:
        """How many of the messages that came before that flush are not done."""
    def close(self) -> list[UnsentBatch]:
        """Takes no more, and gives up what is not done; each of these is waiting for `failed`."""
    def disable(self) -> None:
        """Takes no more, and touches nothing: after a fork."""

def register_send_types(
    *,
    result: type[SendResult],
    queue: type[Queue],
    statuses: dict[ResponseCode, SendStatus],
    not_durable: Callable[[SendResult], Exception],
    call_back: Callable[[Callable[[SendFuture], Any], SendFuture], None],
) -> None:
    """Hands in the types and functions that make the results of sends; the first call counts. `statuses` maps
    response codes, `not_durable` makes the error for a status that is not accepted, `call_back` calls a
    user's callback and logs what it raises."""

@final
class SendFuture:
    """What becomes of one message that `send_soon` took. Any thread may wait for it."""

    def result(self, timeout: float | None = None) -> SendResult:
        """Waits until the message is stored; raises what kept it from that, or TimeoutError."""
    def exception(self, timeout: float | None = None) -> Exception | None:
        """The same, and gives what `result` would raise; raises TimeoutError."""
    def done(self) -> bool:
        """Whether it is known what became of it."""
    def add_done_callback(self, callback: Callable[[SendFuture], Any]) -> None:
        """Calls it with the future, in a thread for callbacks; at once where it is done already. What the
        callback raises is logged."""

@final
class AsyncSendFuture(Awaitable[SendResult]):
    """What becomes of one message that `send_soon` took, for the tasks of its event loop.

    It is a future of asyncio in all but its class: `await`, `gather`, `wait`, `wait_for` and `shield` take
    it. Cancelled, it only stops telling: the message is sent all the same."""

    _asyncio_future_blocking: bool
    @property
    def _cancel_message(self) -> Any: ...
    def _make_cancelled_error(self) -> asyncio.CancelledError: ...
    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def done(self) -> bool:
        """Whether it is known what became of it."""
    def cancelled(self) -> bool: ...
    def cancel(self, msg: Any = None) -> bool:
        """False where it is done."""
    def result(self) -> SendResult:
        """Raises what kept the message from being stored, CancelledError or InvalidStateError."""
    def exception(self) -> Exception | None:
        """What `result` would raise; raises CancelledError or InvalidStateError."""
    def add_done_callback(
        self, callback: Callable[[Self], object], *, context: Context | None = None
    ) -> None:
        """Its loop calls it, soon after the future is done."""
    def remove_done_callback(self, callback: Callable[[Self], object]) -> int: ...
    def __await__(self) -> Generator[Any, None, SendResult]: ...
    def __iter__(self) -> Generator[Any, None, SendResult]: ...

@final
class DoneBatch:
    """Messages that are done and have callbacks. It keeps its room in the buffer until they were called."""

    def call_back(self) -> None:
        """Calls them, one after the other; what they raise is logged."""

@final
class UnsentBatch:
    """Messages for one queue that are not stored yet. One of `stored` and `failed` must be called."""

    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> tuple[str, int] | None:
        """The one queue it may go to."""
    @property
    def target(self) -> tuple[str, int] | None:
        """Where it was sent; None where no broker was known."""
    @property
    def count(self) -> int: ...
    @property
    def first_id(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def alone(self) -> tuple[str, int, int] | None:
        """Properties, system flag and flag of the one message; None for the records of a batch."""
    @property
    def answer(self) -> tuple[int, str | None, dict[str, str]] | None:
        """Code, remark and fields, where there was an answer."""
    @property
    def failure(self) -> str | None:
        """Why there was none."""
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
        """Where and how well; what is not accepted is an error of each message."""
    def failed(self, error: BaseException) -> None: ...
    def errors(self, count_max: int) -> list[Exception]:
        """Of the first so many messages, once one of the two was called."""

@final
class PullStream:
    """Messages out of any number of queues, each with one pull under way while there is room for more.

    `begin`, `take` and all the others may be called by any thread."""

    def __new__(cls, network: Network, settings: PullSettings) -> Self:
        """OSError where no descriptor is left for it."""
    def fileno(self) -> int:
        """Readable while `events` has something to give, or when messages came after `take` found none."""
    def begin(
        self,
        queue: Queue,
        subscription: Subscription,
        address: str,
        queue_offset: int,
        *,
        paused: bool = False,
    ) -> int:
        """Pulls this queue from the broker at the address; returns the number by which it is known here."""
    def end(self, number: int) -> None:
        """Gives the queue up, with what is held of it."""
    def resume(
        self, number: int, address: str, *, broker_id: int = 0, queue_offset: int | None = None
    ) -> None:
        """Goes on after an event, at another place of the queue where one is given."""
    def relocate(self, number: int, address: str) -> None:
        """Pulls to come go there."""
    def pause(self, number: int, paused: bool) -> None:
        """Whether anything of this queue is given."""
    def position(self, number: int) -> int | None:
        """The offset of the message that is given next; None for a queue that was given up."""
    def take(self, count: int) -> tuple[list[Message], list[Message]]:
        """Up to so many messages that are there, and those of them that are compressed: the last at most, so
        that whoever inflates it decides whether there is room for more."""
    def wait(self, count: int, timeout_s: float, wakes: int) -> tuple[list[Message], list[Message]]:
        """The same, waiting for the first one without holding the interpreter, until the time is over or
        `wake` has been called since `wakes()` gave that number."""
    def wakes(self) -> int: ...
    def wake(self) -> None: ...
    def events(self) -> list[PullEvent]:
        """What has to be decided, once."""
    def close(self) -> None:
        """Gives all queues up and ends its connections. Safe to call twice."""

@final
class PullEvent:
    """What has to be decided about one queue of a pull stream, which stands still until it is resumed."""

    @property
    def number(self) -> int:
        """The queue's, as `begin` gave it."""
    @property
    def kind(self) -> str:
        """`moved`: the queue does not reach to where we asked, `value` is where it goes on. `refused`:
        `value` is the code and `text` the remark. `failed` (no answer) and `malformed`: `text` says why.
        `suggested`: `value` is the id of the replica that the broker wants the next pull to go to."""
    @property
    def value(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def is_empty(self) -> bool:
        """Of a queue that moved: nothing is held of its old place."""

@final
class Unsettled:
    """What was pulled of one queue and is not done with; any thread may settle."""

    def __new__(cls) -> Self: ...
    def put(self, messages: list[Message], from_offset: int) -> list[Message]:
        """Those of them that were put: what lies before `from_offset` is not."""
    def settle(self, message: Message) -> None:
        """It is done with; a second time, or of a message that is not here, it does nothing."""
    def __len__(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Of all their bodies."""
    @property
    def first(self) -> int | None:
        """The lowest queue offset."""
    @property
    def span(self) -> int:
        """From there to the highest."""

# ----------------------------------------------------------------------------
# 3. Spark: read by metaq.spark
# ----------------------------------------------------------------------------

@final
class Scan:
    """A range of a queue, read ahead with several pulls under way and given as columns."""

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
        """ValueError for a range or a column that cannot be."""
    def take(self, timeout_s: float) -> tuple[ScanBatch | None, ScanStop | None]:
        """The next rows, and with the last of them why there are no more. Neither where the time is over
        before. Waits and decodes without holding the interpreter."""
    def close(self) -> None:
        """Gives the rest up. Safe to call twice."""

@final
class ScanBatch:
    """Rows of a range as columns in Arrow's layout."""

    @property
    def rows(self) -> int: ...
    @property
    def from_offset(self) -> int: ...
    @property
    def to_offset(self) -> int:
        """Every message between the two was looked at; those that are not among the rows were not wanted, or
        the broker did not give them."""
    @property
    def unreadable(self) -> list[tuple[int, str]]:
        """Queue offsets of rows whose body could not be inflated and is missing, and why; not all of very
        many."""
    def columns(self) -> list[tuple[int, list[bytes | None]]]:
        """Of each column the number of missing values and its buffers, handed over once. Fixed width: none,
        values; text and bytes: validity, ends, bytes; properties: ends, names' ends and bytes, values' ends
        and bytes."""

@final
class ScanStop:
    """Why a scan ended. `kind` is done, moved (`value`: where the queue begins or ends instead), stalled,
    refused (`value`: the code), failed, malformed or closed."""

    @property
    def kind(self) -> str: ...
    @property
    def queue_offset(self) -> int:
        """What was asked for; −1 for done and closed."""
    @property
    def value(self) -> int: ...
    @property
    def text(self) -> str: ...

# ----------------------------------------------------------------------------
# 4. Codec: read by metaq.remoting, the command line and tests
# ----------------------------------------------------------------------------

WIRE_VERSION: int
"""The version number that we write into frames (that of RocketMQ 5.5.0)."""

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
    """Collects bytes as they arrive and gives back every frame that is whole."""

    def __new__(cls, frame_bytes_max: int = ...) -> Self: ...
    def feed(self, data: bytes) -> list[Frame]:
        """Raises FrameError where the stream cannot go on."""

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
    """One whole frame, its length prefix included; `flag` bit 0 marks a response, bit 1 a oneway."""

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
    """The records of a pull's body, one after the other; raises FrameError on a malformed one."""

def tag_code(tag: str) -> int:
    """The hash that a consume queue keeps of a tag (Java's String.hashCode)."""

def compress(format: str, data: bytes) -> bytes:
    """In one of the formats `zlib`, `lz4` (its frames) and `zstd`."""

def decompress(format: str, data: bytes, bytes_max: int) -> bytes:
    """Up to so many bytes; raises CompressionFailure."""
