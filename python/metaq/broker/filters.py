"""What consumers may select messages by, besides tags."""

from __future__ import annotations

from dataclasses import dataclass

from metaq.broker.sql92 import BadExpression, compile_expression
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused
from metaq.settings import Program

SQL92 = "SQL92"
TAG = "TAG"


@dataclass(frozen=True, slots=True)
class Filters:
    """Decides which filters are taken, and compiles them."""

    property_filter: bool = True
    """Whether messages may be selected by their properties."""

    def compile(self, expression_type: str, expression: str) -> Program | None:
        """None for tags. Raises Refused for what is not taken here, BadExpression for what is wrong."""
        if is_tags(expression_type):
            return None
        kind = ascii(expression_type[:32])[1:-1]
        if not self.property_filter:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}: "
                "subscribe by tags, or set enable_property_filter",
            )
        if expression_type != SQL92:
            raise BadExpression(f"there are no filters of type {kind}: subscribe by tags or by {SQL92}")
        return compile_expression(expression)


def is_tags(expression_type: str) -> bool:
    return expression_type in ("", TAG)
