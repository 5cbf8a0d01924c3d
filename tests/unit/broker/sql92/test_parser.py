"""SQL92 expressions: their meaning, errors that name the position, and limits of size."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaq._core import Expression
from metaq.broker.sql92 import BadExpression, compile_expression
from metaq.broker.sql92.cache import Compiled
from metaq.broker.sql92.parser import EXPRESSION_CHARACTERS_MAX, NESTING_MAX, TOKENS_MAX, parse
from metaq.broker.sql92.program import compile_tree


def matches(expression: str, **properties: str) -> bool:
    return Expression(compile_expression(expression)).matches(properties)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 1",
        "1 = a",
        "a <> 2",
        "a < 2 AND a <= 1 AND a > 0 AND a >= 1",
        "a = 1L AND a = 1l AND a = +1 AND a = --1 AND a <> -1",
        "a = 1.0 AND a = 1. AND a = 1e0 AND a > .5 AND a < 1.5E+1 AND a > 1e-1",
        "a between 1 and 3 AND a NOT BETWEEN 2 AND 3 AND a BETWEEN -1 AND +1",
        "a NOT BETWEEN 3 AND 2",
        "s = 'it''s' AND s <> 'its'",
        "s IN ('x', 'it''s') AND s NOT IN ('x', 'y')",
        "(s) IN ('it''s') AND +s IN ('it''s')",
        "s CONTAINS 't''' AND s STARTSWITH 'it' AND s ENDSWITH 's'",
        "s not contains 'x' AND s not startswith 's' AND s not endswith 'i'",
        "a IS NOT NULL AND missing IS NULL AND missing = other",
        "t = TRUE AND t <> FALSE AND f = FALSE AND a = FALSE",
        "TRUE OR a",
        "NOT FALSE AND NOT a",
        "(a = 1) = TRUE AND (a = 2) = FALSE AND (missing > 1) IS NULL",
        "a = 2 OR a = 1 AND s = 'it''s'",
        "NOT (a = 2 OR a = 3)",
        "big = 3000000000 AND big > 2999999999 AND big > 1.5",
        "a /* a comment * / **/ = /**/ 1 -- and the rest of the line\n",
        "a\n=\r\n1\t\f",
        "$a = 2 AND _b = 3 AND NOTa = 4 AND null_ = 5 AND AND$ = 6",
        "u = 'ü𝄞'",
        "price > other_price",
    ],
)
def test_what_is_true(expression: str) -> None:
    properties = {"a": "1", "s": "it's", "t": "True", "f": "no", "big": "3000000000", "u": "ü𝄞"}
    properties |= {"$a": "2", "_b": "3", "NOTa": "4", "null_": "5", "AND$": "6"}
    properties |= {"price": "10", "other_price": "9.5"}
    assert matches(expression, **properties)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 2",
        "A = 1",
        "missing = 1",
        "missing <> 1",
        "NOT (missing = 1)",
        "missing IN ('x')",
        "missing NOT IN ('x')",
        "missing CONTAINS 'x' OR missing NOT CONTAINS 'x'",
        "a CONTAINS '' OR a NOT CONTAINS ''",
        "missing BETWEEN 1 AND 2 OR missing NOT BETWEEN 1 AND 2",
        # A property is a text: as a condition it is never true, and it has no sign.
        "t",
        "-a = 1 OR -a = -1 OR -a > -5",
        # A value that is not a number does not compare with one, in any sense.
        "s = 1 OR a = 1",
        "s <> 1",
        "NOT (s > 1)",
        "s > a OR s <= a",
        "decimal = 1 OR decimal <> 1",
        "big = 1 OR big <> 1",
        "TRUE = t",
        "NOT a = 1",
    ],
)
def test_what_is_not(expression: str) -> None:
    assert not matches(expression, a="1", s="x", t="true", decimal="1.5", big="3000000000")


@pytest.mark.parametrize(
    ("expression", "line", "column", "says"),
    [
        ("a = ", 1, 4, "ends too early"),
        ("(a = 1", 1, 7, "ends too early"),
        ("a = 1 b = 2", 1, 7, "'b' was not expected"),
        ("a = 1)", 1, 6, "')' was not expected"),
        ("a == 1", 1, 4, "'=' was not expected"),
        ("a != 1", 1, 3, "'!' means nothing"),
        ("a = AND", 1, 5, "'AND' was not expected"),
        ("a = 007", 1, 6, "'0' was not expected"),
        ("a = 0x10", 1, 6, "'x10' was not expected"),
        ('a = "x"', 1, 5, "means nothing"),
        ("é = 1", 1, 1, "means nothing"),
        ("a = 'x", 1, 5, "this string has no end"),
        ("a = 1 /* b", 1, 7, "this comment has no end"),
        ("a IN ()", 1, 7, "was not expected"),
        ("a IN (1)", 1, 7, "was not expected"),
        ("a LIKE 'x'", 1, 3, "was not expected"),
        ("a + 1 = 2", 1, 3, "was not expected"),
        ("a IS TRUE", 1, 6, "was not expected"),
        ("a CONTAINS b", 1, 12, "was not expected"),
        ("1", 1, 1, "condition"),
        ("a = 1 AND\n 'x'", 2, 2, "condition"),
        ("NOT 1", 1, 5, "condition"),
        ("-a", 1, 2, "condition"),
        ("a > 'x'", 1, 5, "by order"),
        ("a < TRUE", 1, 5, "by order"),
        ("a >= NULL", 1, 6, "by order"),
        ("(a = 1) > 2", 1, 2, "by order"),
        ("a BETWEEN 'a' AND 'b'", 1, 11, "by order"),
        ("a BETWEEN 1 AND NULL", 1, 17, "by order"),
        ("a BETWEEN 2 AND 1", 1, 11, "lower bound"),
        ("a BETWEEN 1.5 AND 1", 1, 11, "lower bound"),
        ("a = NULL", 1, 5, "IS NULL"),
        ("NULL <> a", 1, 1, "IS NULL"),
        ("TRUE = 1", 1, 8, "with each other only"),
        ("NOT a IN ('x')", 1, 1, "IN needs a property"),
        ("'x' IN ('x')", 1, 1, "IN needs a property"),
        ("a = 9223372036854775808", 1, 5, "9223372036854775807 at most"),
        ("a = " + "9" * 5000, 1, 5, "9223372036854775807 at most"),
        ("a = 1e309", 1, 5, "too large"),
        ("a = 0.0", 1, 5, "write 0"),
        ("a = 1\r\n\n  AND b >\t;", 3, 11, "means nothing"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(expression: str, line: int, column: int, says: str) -> None:
    with pytest.raises(BadExpression) as raised:
        compile_expression(expression)
    assert raised.value.code == 23
    told, shown, caret = raised.value.remark.split("\n")
    assert told.startswith(f"SQL92, line {line}, column {column}: ") and says in told
    text = expression.split("\n")[line - 1]
    at = len(caret) - 1
    assert (
        caret.strip() == "^"
        and shown[at:].strip()
        == "".join(character if character.isprintable() else " " for character in text[column - 1 :])[
            : len(shown) - at
        ].strip()
    )


def test_the_examples_of_the_page_are_right() -> None:
    page = (Path(__file__).parents[4] / "docs" / "filters.md").read_text("utf-8")
    examples = page.partition("```sql\n")[2].partition("```")[0]
    assert [bool(compile_expression(f"{line}\n")) for line in examples.splitlines()] == [True, True]
    with pytest.raises(BadExpression) as raised:
        compile_expression("a > 'x'")
    assert raised.value.remark in page


def test_what_is_empty_or_no_text_is_refused() -> None:
    for expression in ("", "  \n"):
        with pytest.raises(BadExpression, match="empty"):
            compile_expression(expression)
    with pytest.raises(BadExpression, match="ends too early"):
        compile_expression("/* nothing */")
    with pytest.raises(BadExpression, match="Unicode"):
        compile_expression("a = '\ud800'")


def at_most(limit: int, make: object) -> None:
    """The limit is taken, one more is refused; both at once."""
    assert callable(make)
    began = time.thread_time()
    parse(make(limit))
    with pytest.raises(BadExpression, match=f"{limit}"):
        parse(make(limit + 1))
    assert time.thread_time() - began < 5


def test_size_and_nesting_have_limits() -> None:
    at_most(EXPRESSION_CHARACTERS_MAX, lambda length: "a = 1".ljust(length))
    at_most(NESTING_MAX, lambda depth: "(" * depth + "a = 1" + ")" * depth)
    at_most(NESTING_MAX, lambda depth: "NOT " * depth + "TRUE")
    at_most(NESTING_MAX, lambda depth: "a = " + "-" * depth + "1")
    at_most(TOKENS_MAX, lambda tokens: "NOT " * (tokens - 4095) + "a" + " OR a" * 2047)
    with pytest.raises(BadExpression, match="128 values"):
        compile_tree(parse("a OR b AND c = (" * 62 + "a = 1" + ")" * 62))
    with pytest.raises(BadExpression, match="128 properties"):
        compile_tree(parse(" OR ".join(f"p{number} = 1" for number in range(129))))


@pytest.mark.parametrize(
    "expression",
    [
        "-" * EXPRESSION_CHARACTERS_MAX,
        "(" * EXPRESSION_CHARACTERS_MAX,
        "a=-- 1 or " * (EXPRESSION_CHARACTERS_MAX // 10),
        "/*" * (EXPRESSION_CHARACTERS_MAX // 2),
        "'" * (EXPRESSION_CHARACTERS_MAX - 1),
        "a=1" + " or a=1" * ((EXPRESSION_CHARACTERS_MAX - 3) // 7),
        "9" * EXPRESSION_CHARACTERS_MAX,
        "a" * EXPRESSION_CHARACTERS_MAX,
    ],
)
def test_nothing_takes_long(expression: str) -> None:
    began = time.thread_time()
    try:
        compile_tree(parse(expression))
    except BadExpression as bad:
        assert len(bad.remark) < 400
    assert time.thread_time() - began < 3


@given(st.text(st.sampled_from("ab 10.'()<>=-+/*\n,eEL$_é") | st.characters(), max_size=40))
@example("a = 1")
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        program = compile_tree(parse(text))
    except BadExpression:
        return
    Expression(program).matches({"a": "1", "b": ""})


def test_results_are_remembered_and_the_oldest_forgotten() -> None:
    compiled = Compiled(weight_max=100)
    first = compiled.find("a = 1")
    assert compiled.find("a = 1") is first
    for _ in range(2):
        with pytest.raises(BadExpression, match="column 4"):
            compiled.find("a =")
    assert len(compiled) == 2
    for number in range(100):
        compiled.find("a = 1")
        compiled.find(f"b = {number}")
    assert len(compiled) == 25, "each weighs four"
    assert compiled.find("a = 1") is first, "used all the time"
    large = " OR ".join(["a = 1"] * 100)
    assert compiled.find(large) and len(compiled) == 0, "larger than all that is remembered"


def test_equal_operations_of_a_program_are_one_object() -> None:
    program = compile_tree(parse(" OR ".join(f"a = 'x{number}'" for number in range(300))))
    assert len(program) == 4 * 300 - 1
    assert len({id(operation) for operation in program}) == 300 + len({"a", "=", "OR"})


def test_lists_that_are_no_programs_are_refused_by_the_data_plane() -> None:
    wrong = [("and", None), ("integer", 2**40), ("property", None), ("double", 1), ("nonsense", None)]
    for program in ((), *((operation,) for operation in wrong)):
        with pytest.raises(ValueError):
            Expression(program)
