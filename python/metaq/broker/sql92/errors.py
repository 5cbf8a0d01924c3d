"""Errors in an expression, and their place in the text."""

from __future__ import annotations

from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

EXCERPT_CHARACTERS = 60


class BadExpression(Refused):
    """A filter that is wrong or exceeds a limit; answered with code 23."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


def bad_at(text: str, at: int, what: str, language: str = "SQL92") -> BadExpression:
    """Names line and column, both from 1, and shows the place."""
    at = min(max(at, 0), len(text))
    line_start = text.rfind("\n", 0, at) + 1
    line_end = text.find("\n", at)
    line = text[line_start : len(text) if line_end < 0 else line_end]
    column = at - line_start
    shown_from = max(0, column - EXCERPT_CHARACTERS // 2)
    shown = "".join(
        character if character.isprintable() else " "
        for character in line[shown_from : shown_from + EXCERPT_CHARACTERS]
    )
    row = text.count("\n", 0, at) + 1
    caret = " " * (column - shown_from) + "^"
    return BadExpression(f"{language}, line {row}, column {column + 1}: {what}\n  {shown}\n  {caret}")
