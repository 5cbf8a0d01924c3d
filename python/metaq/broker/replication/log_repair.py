"""How a replica judges a log that differs from its master's, and gets the bytes to repair its own.

The socket is one whose handshake has come as far as the comparison of both logs. Calls block: run them in a
thread. All of them may raise LinkRefused or OSError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from metaq._core import Store
from metaq.ha.handshake import LinkRefused, Socket, compare, fetch, verify
from metaq.ha.view import Compared, Range

COMPARED_BYTES: Final = 1024 * 1024
"""How much of both logs is compared below the point at which they may part."""
VERIFY_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much of its log a node verifies for one request of a peer."""
PIECE_BYTES_MAX: Final = 512 * 1024
"""How much of its log a node sends for one request of a peer. It fits a message of the handshake."""
REPAIR_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much is repaired at a time. Larger damage takes several rounds."""


@dataclass(frozen=True, slots=True)
class SoundBytes:
    """Bytes of the master's log for a place where the own log is damaged."""

    physical_offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class VerifiedPiece:
    """A part of the own log whose records verify, and its CRC-32."""

    start: int
    end: int
    checksum: int


def compare_logs(
    socket: Socket, store: Store, end: int, log_start: int, refused_at: int | None, *, can_verify: bool
) -> Compared:
    """Compares both logs below an end. If they differ, or damage is known, both nodes verify their bytes.

    The master's log begins at `log_start`. At `refused_at` it sent a damaged record.
    `can_verify` says whether the master answers `verify`.
    """
    start = min(max(end - COMPARED_BYTES, log_start, store.start_offset(), 0), end)
    agrees = _same(socket, store, start, end)
    if not agrees:
        store.damaged_ranges(start, end)
    own_damage = tuple(
        (first, min(last, end)) for first, last in store.known_damage() if first < end and last > log_start
    )
    questions = [*([] if agrees else [(start, end)]), *own_damage]
    if refused_at is not None:
        # The master looks at what it sent, and finds out by itself whether its log is damaged there.
        questions.append((refused_at, refused_at + 1))
    if not questions:
        return Compared(end, agrees)
    peer_damage = _verify_peer(socket, questions) if can_verify else None
    is_explained = agrees or (
        peer_damage is not None
        and all(
            _same(socket, store, first, last)
            for first, last in _between(start, end, [*own_damage, *peer_damage])
        )
    )
    return Compared(end, agrees, own_damage, peer_damage, is_explained)


def fetch_sound_bytes(
    socket: Socket, store: Store, ranges: Sequence[Range], file_bytes: int
) -> list[SoundBytes]:
    """Copies damaged ranges of the own log aside and returns the master's bytes for them.

    Raises StoreFailure if there is no room for the copies: then nothing of the log may be replaced.
    """
    fetched: list[SoundBytes] = []
    budget = REPAIR_BYTES_MAX
    for start, end in (part for whole in ranges for part in _by_file(whole, file_bytes)):
        if budget <= 0:
            break
        end = min(end, start + budget)
        store.set_aside(start, end)
        data = bytearray()
        while start + len(data) < end:
            at = start + len(data)
            piece = fetch(socket, at, min(end, at + PIECE_BYTES_MAX))
            if not piece:
                raise LinkRefused(f"the master no longer has its log at {at}")
            data += piece
        fetched.append(SoundBytes(start, bytes(data)))
        budget -= len(data)
    return fetched


def compare_pieces(socket: Socket, store: Store, pieces: Sequence[VerifiedPiece]) -> int | None:
    """Compares verified pieces with the master's log. Where they differ, both nodes verify their bytes again,
    and learn of their damage by that.

    Returns the first offset at which the logs differ although both verify.
    """
    for piece in pieces:
        theirs = compare(socket, piece.start, piece.end)
        # A master that lacks them has deleted them by retention.
        if theirs is None or theirs == piece.checksum:
            continue
        peer_damage = _verify_peer(socket, [(piece.start, piece.end)])
        if peer_damage == () and store.damaged_ranges(piece.start, piece.end) == []:
            return piece.start
    return None


def _same(socket: Socket, store: Store, start: int, end: int) -> bool:
    theirs = compare(socket, start, end)
    mine = store.raw_checksum(start, end)
    return mine is not None and mine == theirs


def _verify_peer(socket: Socket, questions: Sequence[Range]) -> tuple[Range, ...] | None:
    """Returns the damaged ranges of the master's log in all these places; None if it lacks one of them."""
    damage: set[Range] = set()
    for first, last in questions:
        for start in range(first, max(last, first + 1), VERIFY_BYTES_MAX):
            found = verify(socket, start, min(last, start + VERIFY_BYTES_MAX))
            if found is None:
                return None
            damage.update((bad_start, bad_end) for bad_start, bad_end in found)
    return tuple(sorted(damage))


def _between(start: int, end: int, ranges: Sequence[Range]) -> Iterator[Range]:
    """The parts of a range that lie in none of the others."""
    at = start
    for first, last in sorted(ranges):
        if first > at:
            yield at, min(first, end)
        at = max(at, last)
        if at >= end:
            return
    yield at, end


def _by_file(whole: Range, file_bytes: int) -> Iterator[Range]:
    """Splits a range where files of the log begin."""
    at, end = whole
    while at < end:
        next_file = (at // file_bytes + 1) * file_bytes
        yield at, min(end, next_file)
        at = next_file
