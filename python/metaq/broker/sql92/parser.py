"""Parses text into a tree, by the grammar in `sql92.lark` and by rules that a grammar cannot express.

Nothing here recurses into the expression: the parser keeps its own stack and hands every construct up as soon
as it is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NoReturn

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from metaq.broker.sql92.errors import BadExpression, bad_at
from metaq.broker.sql92.nodes import (
    Between,
    Constant,
    Equal,
    IsNull,
    Logic,
    Member,
    Negative,
    Node,
    Not,
    Order,
    Property,
    Search,
    Truth,
    is_truth,
)

EXPRESSION_CHARACTERS_MAX = 16 * 1024
TOKENS_MAX = 4096
NESTING_MAX = 64
LONG_MAX = 2**63 - 1

SEARCHES: dict[str, Literal["contains", "starts_with", "ends_with"]] = {
    "CONTAINS": "contains",
    "STARTSWITH": "starts_with",
    "ENDSWITH": "ends_with",
}


def parse(text: str) -> Node:
    """The tree of a whole expression, which yields a truth value. Raises BadExpression."""
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise BadExpression(
            f"SQL92: the expression has {len(text)} characters, the limit is {EXPRESSION_CHARACTERS_MAX}"
        )
    if not text.strip():
        raise BadExpression("SQL92: the expression is empty")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise BadExpression("SQL92: the expression is not valid Unicode")
    try:
        return _parse(text)
    except _Wrong as wrong:
        raise bad_at(text, wrong.at, wrong.what) from None
    except UnexpectedToken as unexpected:
        if unexpected.token.type == "$END":
            raise bad_at(text, len(text.rstrip()), "the expression ends too early") from None
        at = unexpected.token.start_pos or 0
        raise bad_at(text, at, f"{_shown(unexpected.token)} was not expected here") from None
    except UnexpectedCharacters as unexpected:
        at = unexpected.pos_in_stream or 0
        what = {"'": "this string has no end", "/": "this comment has no end"}.get(
            text[at], f"{text[at]!a} means nothing here"
        )
        raise bad_at(text, at, what) from None


def _parse(text: str) -> Node:
    parser = _grammar().parse_interactive(text)
    parentheses = signs = 0
    for tokens, token in enumerate(parser.iter_parse(), start=1):
        parentheses += (token.type == "LPAR") - (token.type == "RPAR")
        signs = signs + 1 if token.type in ("NOT", "PLUS", "MINUS") else 0
        if tokens > TOKENS_MAX:
            raise _Wrong(_at(token), f"more than {TOKENS_MAX} words and signs")
        if max(parentheses, signs) > NESTING_MAX:
            raise _Wrong(_at(token), f"more than {NESTING_MAX} parentheses or signs in each other")
    tree: Node = parser.feed_eof()  # type: ignore[no-untyped-call]
    return tree


@cache
def _grammar() -> Lark:
    grammar = files(__package__).joinpath("sql92.lark").read_text("utf-8")
    # The basic lexer knows a keyword everywhere; the contextual one would take AND for a name.
    return Lark(
        grammar,
        start="selector",
        parser="lalr",
        lexer="basic",
        maybe_placeholders=False,
        transformer=_Trees(),
    )


class _Wrong(Exception):
    """A rule is broken at a position in the text."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at
        self.what = what


def _shown(token: Token) -> str:
    return f"{token[:32]!a}"


def _refuse(node: Node, what: str) -> NoReturn:
    raise _Wrong(node.at, what)


def _truth(node: Node) -> Node:
    if isinstance(node, Property):
        return Truth(node.at, node)
    if not is_truth(node):
        _refuse(node, "a condition is needed here, such as a = 1")
    return node


def _ordered(node: Node) -> Node:
    """Only numbers and properties have an order."""
    number = isinstance(node, Constant) and isinstance(node.value, int | float) and not is_truth(node)
    if not number and (isinstance(node, Constant) or is_truth(node)):
        _refuse(node, "only a number or a property can be compared by order")
    return node


def _equal(left: Node, right: Node) -> Equal:
    for node in (left, right):
        if isinstance(node, Constant) and node.value is None:
            _refuse(node, "nothing equals NULL: write IS NULL or IS NOT NULL")
    if isinstance(left, Constant) and isinstance(right, Constant) and is_truth(left) and not is_truth(right):
        _refuse(right, "TRUE and FALSE compare with each other only")
    return Equal(left.at, left, right)


def _order(
    operator: Literal["greater", "greater_or_equal", "less", "less_or_equal"],
) -> Callable[[Any, Node, Node], Node]:
    def build(self: Any, left: Node, right: Node) -> Node:
        return Order(left.at, operator, _ordered(left), _ordered(right))

    return build


def _between(operand: Node, low: Node, high: Node, *, negated: bool) -> Node:
    for node in (operand, low, high):
        _ordered(node)
    # A number with a minus sign is not a constant, so only bare bounds are compared.
    if isinstance(low, Constant) and isinstance(high, Constant) and not negated:
        assert isinstance(low.value, int | float) and isinstance(high.value, int | float)
        is_decimal = isinstance(low.value, float) or isinstance(high.value, float)
        bounds = (float(low.value), float(high.value)) if is_decimal else (low.value, high.value)
        if bounds[0] > bounds[1]:
            _refuse(low, "the lower bound of BETWEEN is above the upper one")
    return Between(operand.at, negated, operand, low, high)


def _member(operand: Node, texts: tuple[str, ...], *, negated: bool) -> Node:
    if not isinstance(operand, Property):
        _refuse(operand, "IN needs a property to its left")
    return Member(operand.at, negated, operand, texts)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _at(token: Token) -> int:
    return token.start_pos or 0


@v_args(inline=True)
class _Trees(Transformer[Token, Node]):
    """One method for each construct of the grammar."""

    def selector(self, tree: Node) -> Node:
        return _truth(tree)

    def either(self, left: Node, _: Token, right: Node) -> Node:
        return Logic(left.at, "or", _truth(left), _truth(right))

    def all(self, left: Node, _: Token, right: Node) -> Node:
        return Logic(left.at, "and", _truth(left), _truth(right))

    def equal(self, left: Node, right: Node) -> Node:
        return _equal(left, right)

    def unequal(self, left: Node, right: Node) -> Node:
        return Not(left.at, _equal(left, right))

    def is_null(self, operand: Node, *_: Token) -> Node:
        return IsNull(operand.at, operand)

    def is_not_null(self, operand: Node, *_: Token) -> Node:
        return Not(operand.at, IsNull(operand.at, operand))

    greater = _order("greater")
    greater_or_equal = _order("greater_or_equal")
    less = _order("less")
    less_or_equal = _order("less_or_equal")

    def between(self, operand: Node, _: Token, low: Node, _and: Token, high: Node) -> Node:
        return _between(operand, low, high, negated=False)

    def not_between(self, operand: Node, _not: Token, _: Token, low: Node, _and: Token, high: Node) -> Node:
        return _between(operand, low, high, negated=True)

    def texts(self, *tokens: Token) -> tuple[str, ...]:
        return tuple(_unquoted(token) for token in tokens)

    def member(self, operand: Node, _: Token, texts: tuple[str, ...]) -> Node:
        return _member(operand, texts, negated=False)

    def not_member(self, operand: Node, _not: Token, _: Token, texts: tuple[str, ...]) -> Node:
        return _member(operand, texts, negated=True)

    def search(self, operand: Node, word: str, text: Token) -> Node:
        return Search(operand.at, False, SEARCHES[word], operand, _unquoted(text))

    def not_search(self, operand: Node, _: Token, word: str, text: Token) -> Node:
        return Search(operand.at, True, SEARCHES[word], operand, _unquoted(text))

    def word(self, token: Token) -> str:
        return token.type

    def negative(self, operand: Node) -> Node:
        return Negative(operand.at, operand)

    def negation(self, _: Token, operand: Node) -> Node:
        return Not(_at(_), _truth(operand))

    def text(self, token: Token) -> Node:
        return Constant(_at(token), _unquoted(token))

    def whole(self, token: Token) -> Node:
        digits = token.rstrip("lL")
        value = int(digits) if len(digits) <= len(str(LONG_MAX)) else None
        if value is None or value > LONG_MAX:
            raise _Wrong(_at(token), f"a whole number may be {LONG_MAX} at most")
        return Constant(_at(token), value)

    def decimal(self, token: Token) -> Node:
        value = float(token)
        if math.isinf(value):
            raise _Wrong(_at(token), "this number is too large")
        if value == 0.0:
            raise _Wrong(_at(token), "a decimal number must be above zero: write 0")
        return Constant(_at(token), value)

    def true(self, token: Token) -> Node:
        return Constant(_at(token), True)

    def false(self, token: Token) -> Node:
        return Constant(_at(token), False)

    def null(self, token: Token) -> Node:
        return Constant(_at(token), None)

    def property(self, token: Token) -> Node:
        return Property(_at(token), str(token))
