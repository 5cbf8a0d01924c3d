"""The whole chain, text to answer, against two evaluators that share no code with it.

SQLite judges what all SQL has in common: three-valued logic, comparisons of whole numbers, IN, BETWEEN, NULL.
A small interpreter judges what is RocketMQ's own, by walking the tree that the text was written from: how a
property becomes a number, what cannot be compared, and what is never looked at.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq._core import Expression
from metaq.broker.sql92 import compile_expression

Tree: TypeAlias = tuple[Any, ...]
Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

# Rules that all of SQL shares

NUMBERS, TEXTS = ("n", "m"), ("s", "t")
COMMON_TEXTS = st.sampled_from(["", "x", "y", "it's", "X"])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@st.composite
def common_conditions(draw: Draw) -> str:
    number, text = draw(st.sampled_from(NUMBERS)), draw(st.sampled_from(TEXTS))
    wholes = st.integers(-3, 3).map(str)
    negated = draw(st.sampled_from(["", "NOT "]))
    low, high = sorted(draw(st.tuples(st.integers(-3, 3), st.integers(-3, 3))))
    texts = ", ".join(quoted(entry) for entry in draw(st.lists(COMMON_TEXTS, min_size=1, max_size=6)))
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    return str(
        draw(
            st.sampled_from(
                [
                    f"{number} {operator} {draw(wholes)}",
                    f"{number} {negated}BETWEEN {low} AND {high}",
                    f"{text} {negated}IN ({texts})",
                    f"{text} {draw(st.sampled_from(['=', '<>']))} {quoted(draw(COMMON_TEXTS))}",
                    f"{draw(st.sampled_from(NUMBERS + TEXTS))} IS {negated}NULL",
                ]
            )
        )
    )


def combined(conditions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("NOT ({})".format, conditions),
        st.builds("({}) {} ({})".format, conditions, st.sampled_from(["AND", "OR"]), conditions),
        # Without parentheses: AND before OR, from left to right.
        st.builds(
            "({}) {} ({}) {} ({})".format,
            conditions,
            st.sampled_from(["AND", "OR"]),
            conditions,
            st.sampled_from(["AND", "OR"]),
            conditions,
        ),
    )


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


@settings(max_examples=400, deadline=None)
@given(
    expression=st.recursive(common_conditions(), combined, max_leaves=8),
    numbers=st.tuples(*[st.none() | st.integers(-4, 4)] * 2),
    # An empty property counts as missing: stored properties cannot represent it.
    texts=st.tuples(*[st.none() | COMMON_TEXTS.filter(bool)] * 2),
)
def test_what_sqlite_says(
    sqlite: sqlite3.Connection,
    expression: str,
    numbers: tuple[int | None, ...],
    texts: tuple[str | None, ...],
) -> None:
    row = dict(zip(NUMBERS + TEXTS, numbers + texts, strict=True))
    columns = ", ".join(f":{name} AS {name}" for name in row)
    wanted = sqlite.execute(f"SELECT ({expression}) IS 1 FROM (SELECT {columns})", row).fetchone()[0]
    properties = {name: str(value) for name, value in row.items() if value is not None}
    assert Expression(compile_expression(expression)).matches(properties) == bool(wanted)


# Rules of RocketMQ


class Incomparable(Exception):
    """The broker gives up on the message."""


DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def as_whole(text: str, bits: int) -> int:
    if not WHOLE.fullmatch(text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise Incomparable
    return int(text)


def as_decimal(text: str) -> tuple[bool, float, float]:
    """A key that sorts as Java does: minus zero below zero, NaN on top."""
    text = text.strip("".join(map(chr, range(33))))
    sign = -1.0 if text.startswith("-") else 1.0
    if text.lstrip("+-") == "NaN" and len(text) <= 4:
        return key_of(float("nan"))
    if text in ("Infinity", "+Infinity", "-Infinity"):
        return key_of(sign * float("inf"))
    bare = text[:-1] if text[-1:] in ("f", "F", "d", "D") else text
    if not DECIMAL.fullmatch(bare):
        raise Incomparable
    return key_of(float(bare))


def key_of(value: float) -> tuple[bool, float, float]:
    if value != value:
        return (True, 0.0, 0.0)
    is_minus_zero = value == 0.0 and str(value).startswith("-")
    return (False, value, -1.0 if is_minus_zero else 0.0)


class Interpreter:
    """Evaluates lazily and gives up by exception."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def answer(self, tree: Tree) -> bool:
        try:
            return self.value(tree) is True
        except Incomparable:
            return False

    def value(self, tree: Tree) -> Any:
        """None is unknown; numbers are ("i" | "l" | "d", value)."""
        return getattr(self, f"_{tree[0]}")(*tree[1:])

    def _property(self, name: str) -> str | None:
        return self.properties.get(name)

    def _constant(self, value: Any) -> Any:
        return value

    def _minus(self, operand: Tree) -> Any:
        value = self.value(operand)
        return (value[0], -value[1]) if isinstance(value, tuple) else None

    def _condition(self, operand: Tree) -> bool | None:
        value = self.value(operand)
        return value if value is None or isinstance(value, bool) else False

    def _not(self, operand: Tree) -> bool | None:
        value = self._condition(operand)
        return None if value is None else not value

    def _and(self, left: Tree, right: Tree) -> bool | None:
        first = self._condition(left)
        if first is False:
            return False
        second = self._condition(right)
        return False if second is False else None if None in (first, second) else True

    def _or(self, left: Tree, right: Tree) -> bool | None:
        first = self._condition(left)
        if first is True:
            return True
        second = self._condition(right)
        return True if second is True else None if None in (first, second) else False

    def _null(self, operand: Tree, negated: bool) -> bool:
        return (self.value(operand) is None) != negated

    def _equal(self, left: Tree, right: Tree, negated: bool) -> bool | None:
        first, second = self.value(left), self.value(right)
        if first is None and second is not None:
            return None
        equal = first is second if None in (first, second) else self.compare(first, second) == 0
        return equal != negated

    def _order(self, left: Tree, operator: str, right: Tree) -> bool | None:
        first = self.value(left)
        second = None if first is None else self.value(right)
        if None in (first, second):
            return None
        if isinstance(first, str) and isinstance(second, str):
            order = sign_of(as_decimal(first), as_decimal(second))
        else:
            order = self.compare(first, second)
        return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[operator]

    def _between(self, operand: Tree, low: Tree, high: Tree, negated: bool) -> bool | None:
        if negated:
            return self._or(("order", operand, "<", low), ("order", operand, ">", high))
        return self._and(("order", operand, ">=", low), ("order", operand, "<=", high))

    def _in(self, operand: Tree, texts: list[str], negated: bool) -> bool | None:
        value = self.value(operand)
        return (value in texts) != negated if isinstance(value, str) else None

    def _search(self, operand: Tree, word: str, text: str, negated: bool) -> bool:
        if not text:
            return False
        value = self.value(operand)
        if not isinstance(value, str):
            return False
        start, end = value.startswith(text), value.endswith(text)
        return {"CONTAINS": text in value, "STARTSWITH": start, "ENDSWITH": end}[word] != negated

    def compare(self, left: Any, right: Any) -> int:
        kinds = (kind_of(left), kind_of(right))
        match kinds:
            case ("text", "text") | ("bool", "bool"):
                return sign_of(left, right)
            case ("bool", "text"):
                raise Incomparable
            case ("text", "bool"):
                return sign_of(left.lower() == "true", right)
            case ("bool", _) | (_, "bool"):
                return -1
            case ("text", kind):
                return sign_of(read_as(kind, left), self.number(right))
            case (kind, "text"):
                return sign_of(self.number(left), read_as(kind, right))
            case _ if "d" in kinds:
                return sign_of(key_of(float(left[1])), key_of(float(right[1])))
        return sign_of(left[1], right[1])

    def number(self, value: tuple[str, Any]) -> Any:
        return key_of(value[1]) if value[0] == "d" else value[1]


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else str(value[0])


def read_as(kind: str, text: str) -> Any:
    return as_decimal(text) if kind == "d" else as_whole(text, 32 if kind == "i" else 64)


def sign_of(left: Any, right: Any) -> int:
    return (left > right) - (left < right)


PROPERTY_NAMES = ["a", "b", "c", "$d", "Not_e"]
LITERAL_TEXTS = st.sampled_from(["", "a", "ab", "5", "true", "it's", "ü𝄞"])
NUMERIC = "5,-1,0,+5,1.5, 5,5 ,5f,1e2,-0.0,0.0,NaN,-NaN,Infinity,-Infinity,2147483648,9223372036854775807"
ODD = "inf,nan,9223372036854775808,1e400,..,-,--1,1_0,a,ab,abc,true,TRUE,false,it's,ü𝄞,'"
VALUES = st.sampled_from(f"{NUMERIC},{ODD}".split(",")) | st.text(
    st.sampled_from("0123456789.eE+-fdx "), min_size=1, max_size=5
)


def numbers() -> st.SearchStrategy[Tree]:
    wholes = st.sampled_from([0, 1, 5, 100, 2**31 - 1, 2**31, 2**63 - 1]) | st.integers(0, 2**63 - 1)
    decimals = st.floats(min_value=5e-324, allow_infinity=False, allow_nan=False)
    return st.one_of(
        wholes.map(lambda value: ("constant", ("i" if value < 2**31 else "l", value))),
        (st.sampled_from([1.5, 5.0, 100.0]) | decimals).map(lambda value: ("constant", ("d", value))),
    )


def ordered() -> st.SearchStrategy[Tree]:
    """Operands of < and the other comparisons."""
    return st.one_of(
        st.sampled_from(PROPERTY_NAMES).map(lambda name: ("property", name)),
        numbers(),
        st.tuples(st.just("minus"), numbers()),
        st.sampled_from(PROPERTY_NAMES).map(lambda name: ("minus", ("property", name))),
    )


def extended(conditions: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    plain_bounds = st.tuples(ordered(), ordered()).filter(lambda pair: not is_reversed(*pair))
    values = ordered() | LITERAL_TEXTS.map(lambda text: ("constant", text))
    truths = st.booleans().map(lambda value: ("constant", value))
    names = st.sampled_from(PROPERTY_NAMES).map(lambda name: ("property", name))
    equals = st.one_of(
        st.tuples(values, values), st.tuples(names, truths), st.tuples(conditions, truths | names)
    )
    return st.one_of(
        st.tuples(st.just("not"), conditions | names | truths),
        st.tuples(st.sampled_from(["and", "or"]), conditions | names, conditions | truths),
        st.tuples(equals, st.booleans()).map(lambda it: ("equal", *it[0], it[1])),
        st.tuples(st.just("order"), ordered(), st.sampled_from(["<", "<=", ">", ">="]), ordered()),
        st.tuples(ordered(), plain_bounds, st.booleans()).map(lambda it: ("between", it[0], *it[1], it[2])),
        st.tuples(st.just("in"), names, st.lists(LITERAL_TEXTS, min_size=1, max_size=7), st.booleans()),
        st.tuples(
            st.just("search"),
            values | conditions,
            st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
            LITERAL_TEXTS,
            st.booleans(),
        ),
        st.tuples(st.just("null"), values | conditions, st.booleans()),
    )


def is_reversed(low: Tree, high: Tree) -> bool:
    if low[0] != "constant" or high[0] != "constant":
        return False
    return bool(Interpreter({}).compare(low[1], high[1]) > 0)


def written(tree: Tree) -> str:
    """The expression in words, with parentheses around everything that has parts."""
    match tree:
        case ("property", name):
            return str(name)
        case ("constant", bool() as value):
            return "TRUE" if value else "false"
        case ("constant", str() as text):
            return quoted(text)
        case ("constant", ("d", value)):
            return repr(value)
        case ("constant", (_, value)):
            return str(value)
        case ("minus", operand):
            return f"- {written(operand)}"
        case ("not", operand):
            return f"(NOT {written(operand)})"
        case ("and" | "or" as word, left, right):
            return f"({written(left)} {word} {written(right)})"
        case ("null", operand, negated):
            return f"({written(operand)} IS {'NOT ' * negated}NULL)"
        case ("equal", left, right, negated):
            return f"({written(left)} {'<>' if negated else '='} {written(right)})"
        case ("order", left, operator, right):
            return f"({written(left)} {operator} {written(right)})"
        case ("between", operand, low, high, negated):
            bounds = f"{written(low)} AND {written(high)}"
            return f"({written(operand)} {'NOT ' * negated}BETWEEN {bounds})"
        case ("in", operand, texts, negated):
            return f"({written(operand)} {'not ' * negated}in ({', '.join(map(quoted, texts))}))"
        case ("search", operand, word, text, negated):
            return f"({written(operand)} {'NOT ' * negated}{word} {quoted(text)})"
    raise AssertionError(tree)


NAMES = st.sampled_from(PROPERTY_NAMES).map(lambda name: ("property", name))
LEAVES = st.tuples(st.just("null"), NAMES, st.booleans())


@settings(max_examples=600, deadline=None)
@given(
    tree=st.recursive(extended(LEAVES), extended, max_leaves=10),
    properties=st.dictionaries(st.sampled_from(PROPERTY_NAMES), VALUES),
)
def test_what_the_interpreter_says(tree: Tree, properties: dict[str, str]) -> None:
    expression = written(tree)
    found = Expression(compile_expression(expression)).matches(properties)
    assert found == Interpreter(properties).answer(tree), expression
