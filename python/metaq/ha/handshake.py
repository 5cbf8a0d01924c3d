"""The first words on a replication link, before the stream of the log begins.

    replica                                   master
    Hello      who I am, my log, a nonce ──▶
               ◀──  who I am, a nonce, my proof        Challenge
    Proof      my proof               ──▶
               ◀──  my epochs and the ends of my log   Welcome, Refused or SendTail
    Compare    a range of the log     ──▶              as often as needed
               ◀──  its checksum                       Checksum
    Verify     a range of the log     ──▶              if both logs differ
               ◀──  what is damaged there              Verified
    Fetch      a range of the log     ──▶              to repair the own log
               ◀──  its bytes                          Piece
    Follow     where to begin         ──▶
               ◀──  the stream

A replica that only compares its log with the master's, for its scrubber, closes the connection then.

After SendTail the stream runs the other way: a fixed master that starts with a shorter log than its replica
fetches the rest before it serves.

Each end proves that it holds the group's key without sending it: an HMAC over both nonces and both
identities, with a different label for each direction, so that no proof can be replayed or reflected. Every
message is JSON after its length in four bytes, and short. Calls block; run them in a thread. The socket has
one deadline for all of them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Annotated, Final, Protocol, TypeVar

import msgspec

from metaq.errors import MetaqError
from metaq.ha.epochs import EPOCHS_MAX
from metaq.ha.group_record import Epoch, Incarnation, LogEnd, NodeId

VERSION: Final = 1
_MESSAGE_BYTES_MAX: Final = 1 << 20
_NONCE_BYTES: Final = 16

_M = TypeVar("_M")

Version = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Epochs = Annotated[list[tuple[Epoch, LogEnd]], msgspec.Meta(max_length=EPOCHS_MAX)]
Nonce = Annotated[str, msgspec.Meta(max_length=64)]


class LinkRefused(MetaqError):
    """The peer on a replication link is not who it should be, or does not want us."""


class LinkDone(LinkRefused):
    """The replica wanted nothing but to compare both logs, and has left."""


class Socket(Protocol):
    """The calls of `metaq._core.LinkSocket` that the handshake needs."""

    def send(self, data: bytes) -> None: ...
    def receive(self, size: int) -> bytes: ...


class ComparedLog(Protocol):
    """The log of a master, as far as a replica may look at it before it follows."""

    def checksum(self, from_offset: int, to_offset: int) -> int | None:
        """Returns the checksum of a range, or None if the log lacks some of it."""
        ...

    def damaged_ranges(self, from_offset: int, to_offset: int) -> list[tuple[int, int]] | None:
        """Verifies a range, and returns what is damaged there, or None if the log lacks some of it."""
        ...

    def piece(self, from_offset: int, to_offset: int) -> bytes | None:
        """Returns the first bytes of a range, or None if the log lacks them."""
        ...


class Identity(msgspec.Struct, frozen=True):
    """A node as it introduces itself."""

    cluster: str
    group: str
    node_id: NodeId
    incarnation: Incarnation


class OwnLog(msgspec.Struct, frozen=True):
    """The log of a replica: the epoch that it follows, its history, and its end."""

    epoch: Epoch
    epochs: Epochs
    end_offset: LogEnd


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The replica's first words."""

    version: Version
    identity: Identity
    nonce: Nonce
    log: OwnLog


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """The master's first words, with its proof."""

    version: Version
    identity: Identity
    nonce: Nonce
    proof: bytes


class Proof(msgspec.Struct, frozen=True, tag=True):
    """The replica's proof."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The master's log: its epochs with the physical offset where each begins, and its two ends."""

    epoch: Epoch
    """The epoch of the master's own lifetime."""
    epochs: Epochs
    start_offset: LogEnd
    end_offset: LogEnd
    file_bytes: LogEnd
    client_address: str
    """The address of the master for clients. A replica relays their requests to it."""
    verifies: bool = False
    """The master answers Verify and Fetch. Older versions do not."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The master does not serve this replica."""

    reason: str


class SendTail(msgspec.Struct, frozen=True, tag=True):
    """A starting master asks the replica for the log and the control state that it lacks."""

    from_offset: LogEnd
    state: tuple[Epoch, LogEnd]


class Compare(msgspec.Struct, frozen=True, tag=True):
    """Asks for the checksum of a range of the master's log."""

    from_offset: LogEnd
    to_offset: LogEnd


class Checksum(msgspec.Struct, frozen=True, tag=True):
    """The checksum, or None if the master's log lacks some of the range."""

    checksum: int | None


class Verify(msgspec.Struct, frozen=True, tag=True):
    """Asks the master to verify the records of a range of its log."""

    from_offset: LogEnd
    to_offset: LogEnd


class Verified(msgspec.Struct, frozen=True, tag=True):
    """The damaged ranges, or None if the master's log lacks some of what was asked for."""

    damaged: list[tuple[int, int]] | None


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Asks for bytes of the master's log."""

    from_offset: LogEnd
    to_offset: LogEnd


class Piece(msgspec.Struct, frozen=True, tag=True):
    """The first of these bytes, or None if the master's log lacks them."""

    data: bytes | None


class Follow(msgspec.Struct, frozen=True, tag=True):
    """Asks for the stream: from this offset of the log and behind this position of the control state."""

    from_offset: LogEnd
    state: tuple[Epoch, LogEnd]


_HELLO: Final = msgspec.json.Decoder(Hello)
_PROOF: Final = msgspec.json.Decoder(Proof)
_CHECKSUM: Final = msgspec.json.Decoder(Checksum)
_VERIFIED: Final = msgspec.json.Decoder(Verified)
_PIECE: Final = msgspec.json.Decoder(Piece)
_CHALLENGE: Final[msgspec.json.Decoder[Challenge | Refused]] = msgspec.json.Decoder(Challenge | Refused)
_WELCOME: Final[msgspec.json.Decoder[Welcome | Refused | SendTail]] = msgspec.json.Decoder(
    Welcome | Refused | SendTail
)
_REQUEST: Final[msgspec.json.Decoder[Compare | Verify | Fetch | Follow]] = msgspec.json.Decoder(
    Compare | Verify | Fetch | Follow
)


def introduce(socket: Socket, identity: Identity, key: bytes, log: OwnLog) -> Welcome | SendTail:
    """Introduces a replica to the master at the other end and returns what the master says about its log.

    Raises LinkRefused if the master has another key, belongs to another group or refuses us, and OSError.
    """
    hello = Hello(VERSION, identity, secrets.token_hex(_NONCE_BYTES), log)
    _send(socket, hello)
    challenge = _receive(socket, _CHALLENGE)
    if isinstance(challenge, Refused):
        raise LinkRefused(f"the master refuses this node: {challenge.reason}")
    _check_peer(identity, challenge.version, challenge.identity)
    if not hmac.compare_digest(challenge.proof, _proof(key, "master", hello, challenge)):
        raise LinkRefused(
            "the master does not hold this group's key", hint="give every node the same --cluster-key file"
        )
    _send(socket, Proof(_proof(key, "replica", hello, challenge)))
    answer = _receive(socket, _WELCOME)
    if isinstance(answer, Refused):
        raise LinkRefused(f"the master refuses this node: {answer.reason}")
    return answer


def compare(socket: Socket, from_offset: int, to_offset: int) -> int | None:
    """Returns the checksum of a range of the master's log, or None if its log lacks some of it."""
    _send(socket, Compare(from_offset, to_offset))
    return _receive(socket, _CHECKSUM).checksum


def verify(socket: Socket, from_offset: int, to_offset: int) -> list[tuple[int, int]] | None:
    """Returns what is damaged in a range of the master's log, or None if its log lacks some of it."""
    _send(socket, Verify(from_offset, to_offset))
    return _receive(socket, _VERIFIED).damaged


def fetch(socket: Socket, from_offset: int, to_offset: int) -> bytes | None:
    """Returns the first bytes of a range of the master's log, or None if its log lacks them."""
    _send(socket, Fetch(from_offset, to_offset))
    return _receive(socket, _PIECE).data


def ask_to_follow(socket: Socket, from_offset: int, state: tuple[int, int]) -> None:
    """Asks for the stream, which begins with the next byte from the master."""
    _send(socket, Follow(from_offset, state))


def admit(
    socket: Socket,
    identity: Identity,
    key: bytes,
    welcome: Callable[[Identity, OwnLog], Welcome | Refused | SendTail],
    log: ComparedLog,
) -> tuple[Identity, Follow | SendTail]:
    """Admits a replica to a master and returns who it is and where the stream begins.

    `welcome` is asked only after the replica has proved that it holds the key. If it answers with SendTail,
    the replica sends its log to this node. Raises LinkDone, another LinkRefused or OSError.
    """
    hello = _receive(socket, _HELLO)
    try:
        _check_peer(identity, hello.version, hello.identity)
        if hello.identity.node_id == identity.node_id:
            raise LinkRefused(f"node id {identity.node_id} is taken: it is the master's own")
    except LinkRefused as error:
        _send(socket, Refused(str(error)))
        raise
    draft = Challenge(VERSION, identity, secrets.token_hex(_NONCE_BYTES), b"")
    challenge = msgspec.structs.replace(draft, proof=_proof(key, "master", hello, draft))
    _send(socket, challenge)
    try:
        proof = _receive(socket, _PROOF).proof
    except ConnectionError:
        raise LinkRefused(
            f"node {hello.identity.node_id} left when it saw this node's proof, so it does not hold this "
            "group's key (--cluster-key)"
        ) from None
    if not hmac.compare_digest(proof, _proof(key, "replica", hello, challenge)):
        _send(socket, Refused("it does not hold this group's key (--cluster-key)"))
        raise LinkRefused(f"node {hello.identity.node_id} does not hold this group's key")
    answer = welcome(hello.identity, hello.log)
    _send(socket, answer)
    if isinstance(answer, Refused):
        raise LinkRefused(f"node {hello.identity.node_id} is refused: {answer.reason}")
    if isinstance(answer, SendTail):
        return hello.identity, answer
    has_compared = False
    while True:
        try:
            request = _receive(socket, _REQUEST)
        except ConnectionError:
            if not has_compared:
                raise
            raise LinkDone(f"node {hello.identity.node_id} has compared its log") from None
        has_compared = True
        match request:
            case Follow():
                return hello.identity, request
            case Compare(from_offset, to_offset):
                _send(socket, Checksum(log.checksum(from_offset, to_offset)))
            case Verify(from_offset, to_offset):
                _send(socket, Verified(log.damaged_ranges(from_offset, to_offset)))
            case Fetch(from_offset, to_offset):
                _send(socket, Piece(log.piece(from_offset, to_offset)))


def _check_peer(own: Identity, version: int, peer: Identity) -> None:
    if version != VERSION:
        raise LinkRefused(f"the peer speaks version {version} of the protocol, this node {VERSION}")
    for what, mine, theirs in (
        ("cluster", own.cluster, peer.cluster),
        ("broker name", own.group, peer.group),
    ):
        if mine != theirs:
            raise LinkRefused(f"the peer's {what} is {theirs[:255]!r}, this node's is {mine!r}")


def _proof(key: bytes, role: str, hello: Hello, challenge: Challenge) -> bytes:
    """The HMAC over everything that both ends said about themselves."""
    said = msgspec.json.encode([role, hello, challenge.version, challenge.identity, challenge.nonce])
    return hmac.new(key, said, hashlib.sha256).digest()


def _send(socket: Socket, message: msgspec.Struct) -> None:
    body = msgspec.json.encode(message)
    socket.send(len(body).to_bytes(4, "big") + body)


def _receive(socket: Socket, decoder: msgspec.json.Decoder[_M]) -> _M:
    size = int.from_bytes(socket.receive(4), "big")
    if size > _MESSAGE_BYTES_MAX:
        raise LinkRefused(f"the peer announced a message of {size} bytes; the limit is {_MESSAGE_BYTES_MAX}")
    try:
        return decoder.decode(socket.receive(size))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise LinkRefused(f"the peer does not speak the replication protocol: {reason}") from None
