"""The stream of the messages that arrive in a topic, as rows of HTML.

Each stream asks the brokers twice in a second for the newest messages, and shows a bounded number of them. So
a busy topic costs no more than a quiet one, and the stream says how many messages it has left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from metaq.admin.results import NewestMessages
from metaq.client.session.routes import Queue
from metaq.console.console import Console, console_of
from metaq.console.events import event, event_stream, html_event
from metaq.console.pages.body_reading import BodyReader
from metaq.console.pages.message_search import MessageQuery, message_query
from metaq.console.rendering import render_text, words_of
from metaq.errors import MetaqError, UsageError

INTERVAL_S: Final = 0.5
PER_SECOND_MAX: Final = 50
"""Messages that one viewer sees in a second."""
TAILS_MAX: Final = 20
"""Streams of one console at the same time."""
DURATION_S_MAX: Final = 3600.0
"""A page that was forgotten stops to ask."""
PAUSE_S: Final = 3.0
"""The pause after a question that failed."""
_SILENCE_S_MAX: Final = 10.0

log = logging.getLogger(__name__)


class OpenTails:
    """Counts the streams of one console."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def one_more(self) -> Iterator[bool]:
        """Yields False if there are too many already."""
        if self.count >= TAILS_MAX:
            yield False
            return
        self.count += 1
        try:
            yield True
        finally:
            self.count -= 1


async def tail(request: Request) -> Response:
    """Sends `rows` with new messages, the newest first, `left-out` with a number, and `trouble` with a
    sentence. `end` says why nothing comes any more."""
    query = message_query(request, request.path_params["name"])
    return event_stream(_stream(request, console_of(request), query))


async def _stream(request: Request, console: Console, query: MessageQuery) -> AsyncIterator[bytes]:
    if not hasattr(request.app.state, "open_tails"):
        request.app.state.open_tails = OpenTails()
    tails: OpenTails = request.app.state.open_tails
    with tails.one_more() as is_allowed:
        if not is_allowed:
            yield event("end", {"text": words_of(request, "topic.too_many_tails", most=TAILS_MAX)})
            return
        try:
            async for part in _events(request, console, query):
                yield part
            reason = words_of(request, "topic.tail_ended")
        except UsageError as error:
            reason = str(error)
    yield event("end", {"text": reason})


async def _events(request: Request, console: Console, query: MessageQuery) -> AsyncIterator[bytes]:
    now_s = asyncio.get_running_loop().time
    began_s = spoken_s = now_s()
    ends: Mapping[Queue, int] | None = None
    yield event("open", {})
    while now_s() - began_s < DURATION_S_MAX:
        reader = BodyReader()
        try:
            found = await _newest(console, query, ends, reader)
        except UsageError:
            raise
        except MetaqError as error:
            yield event("trouble", {"text": str(error)})
            await asyncio.sleep(PAUSE_S)
            continue
        if ends is None or found.ends.keys() - ends.keys():
            # All messages of queues that we see for the first time are old, and may hide new ones of others.
            # So this round only finds their ends; the next one has the messages of all queues.
            ends = {**found.ends, **(ends or {})}
            await asyncio.sleep(INTERVAL_S)
            continue
        for part in _parts(request, found, reader):
            spoken_s = now_s()
            yield part
        # A broker that did not answer goes on where it was.
        ends = {**ends, **found.ends}
        if now_s() - spoken_s > _SILENCE_S_MAX:
            spoken_s = now_s()
            yield b": quiet\n\n"
        await asyncio.sleep(INTERVAL_S)


async def _newest(
    console: Console, query: MessageQuery, ends: Mapping[Queue, int] | None, reader: BodyReader
) -> NewestMessages:
    return await console.admin.messages.newest(
        query.topic,
        # The first question only finds the ends of the queues.
        limit=1 if ends is None else int(PER_SECOND_MAX * INTERVAL_S),
        after=ends,
        tags=query.tag or None,
        sql=query.sql or None,
        key=query.key or None,
        matches=(lambda message: query.matches(message, reader)) if query.text and ends is not None else None,
        queues=query.queues,
    )


def _parts(request: Request, found: NewestMessages, reader: BodyReader) -> list[bytes]:
    parts = []
    if found.messages:
        rows = [reader.row(message) for message in found.messages]
        html = render_text(request, "messages/rows.html", rows=rows, with_topic=False)
        parts.append(html_event("rows", html))
    if found.unseen or found.failures:
        silent = [failure.broker for failure in found.failures]
        parts.append(event("left-out", {"count": found.unseen, "silent": silent}))
    return parts


ROUTES = [Route("/topics/{name}/tail", tail)]
