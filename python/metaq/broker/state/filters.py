"""The filters by which consumers may select messages, besides tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metaq.broker.functions.call import Call, check_call, parse_call
from metaq.broker.sql92 import BadExpression, compile_expression
from metaq.filters.exchange import Description
from metaq.protocol.bodies import FUNCTION, SQL92, TAG
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.settings import Program

FUNCTION_PREFIX = "function:"
"""Begins a call in place of a SQL92 expression: the Java client sends no types but TAG and SQL92."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Decides which filters are accepted, and compiles them."""

    property_filter: bool = True
    """Whether messages may be selected by SQL92."""
    functions: Mapping[str, Description] = field(default_factory=dict)
    """The functions that the operator has registered."""

    def compile(self, expression_type: str, expression: str) -> Program | Call | None:
        """The compiled filter; None for tags. Raises Refused for a type that is switched off, BadExpression
        for a bad expression."""
        if is_tags(expression_type):
            return None
        if expression_type == FUNCTION:
            return self._call(expression)
        if expression_type == SQL92 and expression.startswith(FUNCTION_PREFIX):
            return self._call(expression.removeprefix(FUNCTION_PREFIX))
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

    def _call(self, text: str) -> Call:
        call = parse_call(text)
        check_call(call, self.functions)
        return call


def carried_key(expression_type: str, expression: str) -> str:
    """The text under which the data plane keeps a filter that pulls carry, whatever its type."""
    return f"{FUNCTION_PREFIX}{expression}" if expression_type == FUNCTION else expression


def is_tags(expression_type: str) -> bool:
    return expression_type in ("", TAG)
