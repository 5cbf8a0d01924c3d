"""The filters by which consumers may select messages, besides tags."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from metaq.broker.functions.call import Call, check_call, is_parsed, parse_call
from metaq.broker.sql92 import BadExpression, compile_expression, is_compiled
from metaq.filters.exchange import Description
from metaq.protocol.bodies import FUNCTION, SQL92, TAG, SubscriptionData
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.protocol.handling.askers import Peer
from metaq.settings import Program
from metaq.work_pools import WorkPool, compilation_pool

FUNCTION_PREFIX = "function:"
"""Begins a call in place of a SQL92 expression: the Java client sends no types but TAG and SQL92."""
EXPRESSION_CHARACTERS_MAX = 64 * 1024
"""The limit for all expressions that one client subscribes by; to compile them takes half a second."""
TAG_CHARACTERS_MAX = 256 * 1024
"""The limit for all its filters by tag."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Decides which filters are accepted, and compiles them."""

    property_filter: bool = True
    """Whether messages may be selected by SQL92."""
    functions: Mapping[str, Description] = field(default_factory=dict)
    """The functions that the operator has registered."""
    tags_max: int = 10_000
    """Tags of one subscription."""
    pool: WorkPool = field(default_factory=compilation_pool)
    _under_way: dict[tuple[str, str], asyncio.Future[Program | Call | None]] = field(default_factory=dict)
    """By type and expression. A consumer of many queues sends a new one with all its pulls at once."""

    def compile(self, expression_type: str, expression: str) -> Program | Call | None:
        """The compiled filter; None for tags. Raises Refused for a type that is switched off, BadExpression
        for a bad expression."""
        if is_tags(expression_type):
            return None
        call = _call_in(expression_type, expression)
        if call is not None:
            return self._call(call)
        kind = ascii(expression_type[:32])[1:-1]
        if not self.property_filter:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}: "
                "subscribe by tags, or set enable_property_filter",
            )
        if expression_type != SQL92:
            raise BadExpression(
                f"there are no filters of type {kind}: subscribe by tags, {SQL92} or {FUNCTION}"
            )
        return compile_expression(expression)

    async def compile_apart(self, peer: Peer, expression_type: str, expression: str) -> Program | Call | None:
        """The same for a filter that a client has sent: a new expression is compiled off the event loop, in
        the turn of this peer."""
        if self.is_compiled(expression_type, expression):
            return self.compile(expression_type, expression)
        key = (expression_type, expression)
        result = self._under_way.get(key)
        if result is None:
            result = asyncio.ensure_future(self.pool.run(peer, lambda: self.compile(*key)))
            self._under_way[key] = result
            result.add_done_callback(lambda done: self._ended(key, done))
        # If one request is cancelled, the others still need the result.
        return await asyncio.shield(result)

    def _ended(self, key: tuple[str, str], result: asyncio.Future[Program | Call | None]) -> None:
        del self._under_way[key]
        if not result.cancelled():
            result.exception()  # Nobody may be left to hear of it.

    async def compile_all_apart(self, peer: Peer, subscriptions: Iterable[SubscriptionData]) -> None:
        """Compiles the new ones among these filters. The answers to pulls say what is wrong with one."""
        for entry in subscriptions:
            with suppress(BadExpression):
                await self.compile_apart(peer, entry.expression_type, entry.sub_string)

    def is_compiled(self, expression_type: str, expression: str) -> bool:
        """Whether `compile` takes no time: only new expressions and calls do."""
        call = _call_in(expression_type, expression)
        if call is not None:
            return is_parsed(call)
        return expression_type != SQL92 or not self.property_filter or is_compiled(expression)

    def _call(self, text: str) -> Call:
        call = parse_call(text)
        check_call(call, self.functions)
        return call


def size_fault(subscriptions: Iterable[SubscriptionData]) -> str | None:
    """Why the filters of one client are too long together; None if they are not."""
    by_tags = by_expression = 0
    for entry in subscriptions:
        if is_tags(entry.expression_type):
            by_tags += len(entry.sub_string)
        else:
            by_expression += len(entry.sub_string)
    if by_expression > EXPRESSION_CHARACTERS_MAX:
        return f"expressions of {by_expression} characters, the limit is {EXPRESSION_CHARACTERS_MAX}"
    if by_tags > TAG_CHARACTERS_MAX:
        return f"tags of {by_tags} characters, the limit is {TAG_CHARACTERS_MAX}"
    return None


def carried_key(expression_type: str, expression: str) -> str:
    """The text under which the data plane keeps a filter that pulls carry, whatever its type."""
    return f"{FUNCTION_PREFIX}{expression}" if expression_type == FUNCTION else expression


def _call_in(expression_type: str, expression: str) -> str | None:
    """The call of a function; None if it is another filter."""
    if expression_type == FUNCTION:
        return expression
    if expression_type == SQL92 and expression.startswith(FUNCTION_PREFIX):
        return expression.removeprefix(FUNCTION_PREFIX)
    return None


def is_tags(expression_type: str) -> bool:
    return expression_type in ("", TAG)
