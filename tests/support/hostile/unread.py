"""Clients that make the broker keep much: they ask and do not read, or ask for what is not there yet."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.hostile.target import (
    KIB,
    MIB,
    Target,
    crowd,
    filled,
    in_parallel,
    linger,
    mute,
    pour,
    pull_frame,
)
from tests.support.plain_client import SUCCESS, PlainClient, frame, pull, queue_end, send, stored_records

VIEW_MESSAGE = 33
LARGE_TOPIC, MANY_TOPIC = "hostile_large", "hostile_many"
LARGE_BODY = 4 * MIB - KIB
HOLD_MS = 30_000


def view_unread(target: Target) -> None:
    """A message of 4 MiB is asked for by its offset 500 times, and no answer is read."""
    with target.connect() as client:
        _fill_large(client)
        record = next(stored_records(pull(client, LARGE_TOPIC, 0, 32, 1).body))
    view = frame(VIEW_MESSAGE, {"offset": str(record.physical_offset)})
    with ExitStack() as connections:
        pour(mute(target, connections), view * target.count(500))
        linger()


def hold_large_filters(target: Target) -> None:
    """Pulls wait with filters of five million tags, then with the largest that are allowed."""
    with target.connect() as client, ExitStack() as connections:
        _fill_large(client)
        end = queue_end(client, LARGE_TOPIC, 0)
        huge = pull_frame(LARGE_TOPIC, queue_offset=end, expression="a||" * 5_000_000, hold_ms=HOLD_MS)
        client_of_huge = mute(target, connections)
        pour(client_of_huge, huge, target.count(40))
        tags = "||".join(map(str, range(8_000)))
        allowed = pull_frame(LARGE_TOPIC, queue_offset=end, expression=tags, hold_ms=HOLD_MS)
        clients = [mute(target, connections) for _ in range(target.count(20))]
        in_parallel(lambda one: pour(one, allowed * 400), clients)
        linger()


def pull_small_unread(target: Target) -> None:
    """200 connections pull small messages all the time and read nothing."""
    with target.connect() as client:
        _fill_large(client)
        filled(client, MANY_TOPIC, 32, lambda missing: _send_some(client, MANY_TOPIC, missing, 1_500))
    with crowd(target, target.count(200)) as clients:
        requests = pull_frame(MANY_TOPIC, count=1) * 10_000
        in_parallel(lambda client: pour(client, requests), clients)
        linger()


def pull_large_unread(target: Target) -> None:
    """200 connections ask for 200 answers of 2 MB each, all at once, and read nothing."""
    with target.connect() as client:
        _fill_large(client)
    with crowd(target, target.count(200)) as clients:
        requests = pull_frame(LARGE_TOPIC) * 200
        in_parallel(lambda client: pour(client, requests), clients)
        linger()


def hold_and_leave(target: Target) -> None:
    """100,000 pulls of one connection wait for one queue; then the connection closes."""
    with target.connect() as client:
        _fill_large(client)
        end = queue_end(client, LARGE_TOPIC, 0)
    with ExitStack() as connections:
        held = pull_frame(LARGE_TOPIC, queue_offset=end, hold_ms=HOLD_MS)
        client = mute(target, connections)
        pour(client, held * 1_000, target.count(100))
        linger()


def _fill_large(client: PlainClient) -> None:
    """32 messages of 64 KiB, and one of 4 MiB behind them."""

    def fill(missing: int) -> None:
        _send_some(client, LARGE_TOPIC, missing - 1, 64 * KIB)
        _send_some(client, LARGE_TOPIC, 1, LARGE_BODY)

    filled(client, LARGE_TOPIC, 33, fill)


def _send_some(client: PlainClient, topic: str, count: int, size: int) -> None:
    for _ in range(count):
        if (reply := send(client, topic, 0, b"x" * size)).code != SUCCESS:
            raise RuntimeError(f"{topic}: {reply.code} {reply.remark}")
