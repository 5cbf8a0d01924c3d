"""Delayed messages: when they are due, which they are, and how to recall one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.waiting.results import DelayedMessages, DelayedOverview, DueBucket
from metaq.console.console import console_of
from metaq.console.figures import moment, number
from metaq.console.live.latest import latest_of
from metaq.console.live.parts import Part
from metaq.console.pages.times import moment_of
from metaq.console.rendering import render, utc_offset_min

BARS: Final = 48
SHOWN: Final = 50
TIMES: Final = 4
"""Equal parts of the time axis that have a label at each end."""
BAR_PX_MAX: Final = 150
MINUTE_MS: Final = 60_000


async def delayed(request: Request) -> Response:
    """The histogram of due times, and the messages that are due next or within a chosen span."""
    parameters = request.query_params
    topic = parameters.get("topic", "").strip()[:255]
    from_ms, to_ms = moment_of(parameters.get("from")), moment_of(parameters.get("to"))
    # Side by side: a broker that hangs delays the page by one time-out and not by two.
    overview, messages = await asyncio.gather(
        _look_at_all(request), _look_at_messages(request, topic, from_ms, to_ms)
    )
    histogram = overview.value.histogram if overview.value else ()
    tallest = max((bucket.messages for bucket in histogram), default=0)
    return render(
        request,
        "delayed.html",
        overview=overview,
        messages=messages,
        topic=topic,
        from_ms=from_ms,
        to_ms=to_ms,
        tallest=tallest,
        counts=count_labels(tallest),
        times=time_labels(histogram, utc_offset_min(request)),
    )


async def _look_at_all(request: Request) -> Part[DelayedOverview]:
    admin = console_of(request).admin

    async def ask(_: DelayedOverview | None) -> DelayedOverview:
        return await admin.delayed.overview(buckets=BARS)

    return await latest_of(request).ask(("delayed",), ask)


async def _look_at_messages(
    request: Request, topic: str, from_ms: int | None, to_ms: int | None
) -> Part[DelayedMessages]:
    admin = console_of(request).admin

    async def ask(_: DelayedMessages | None) -> DelayedMessages:
        return await admin.delayed.list(topic=topic or None, from_ms=from_ms, to_ms=to_ms, limit=SHOWN)

    return await latest_of(request).ask(("delayed-messages", topic, str(from_ms), str(to_ms)), ask)


def count_labels(tallest: int) -> list[tuple[str, int]]:
    """Returns the labels of the axis of counts, each with its height above the bottom in pixels."""
    labels = [(number(0) or "", 0), (number(tallest) or "", BAR_PX_MAX)]
    # Half a message says nothing.
    if tallest >= 10 or (tallest and tallest % 2 == 0):
        labels.insert(1, (number(tallest // 2) or "", BAR_PX_MAX // 2))
    return labels


def time_labels(histogram: Sequence[DueBucket], offset_min: int) -> list[str]:
    """Returns the labels of the axis of time, at equal distances. The day is there where it changes, and
    seconds only if the bars are that narrow."""
    if not histogram:
        return []
    begin_ms, end_ms = histogram[0].from_ms, histogram[-1].to_ms
    step_ms = (end_ms - begin_ms) / TIMES
    digits = 8 if (end_ms - begin_ms) < TIMES * MINUTE_MS else 5
    labels, day = [], ""
    for part in range(TIMES + 1):
        date, _, time = (moment(round(begin_ms + part * step_ms), offset_min) or "").partition(" ")
        labels.append(time[:digits] if date == day else f"{date[5:]} {time[:digits]}")
        day = date
    return labels


ROUTES = [Route("/delayed", delayed)]
