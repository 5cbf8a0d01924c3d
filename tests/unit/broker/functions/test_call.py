"""Calls of filter functions: parsed strictly, never run, with errors that name the place."""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from metaq.broker.functions.call import Call, check_call, parse_call
from metaq.broker.sql92 import BadExpression
from metaq.broker.state.filters import Filters
from metaq.broker.state.policy import compile_subscription
from metaq.filters.exchange import Argument, Description, Parameter
from metaq.protocol.bodies import FUNCTION, SQL92, SubscriptionData
from metaq.protocol.errors import Refused

KNOWN = {
    "near": Description(
        "near",
        parameters=(
            Parameter("place", "text"),
            Parameter("distance", "number"),
            Parameter("exact", "truth value", required=False),
        ),
    ),
    "any_of": Description("any_of", parameters=(Parameter("values", "", required=False, variadic=True),)),
    "plain": Description("plain"),
}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f", ()),
        ("f()", ()),
        (" f ( ) ", ()),
        ("f(1)", (1,)),
        ("f(-1, +2, 0)", (-1, 2, 0)),
        ("f(1.5, -.5, 2., 1e3)", (1.5, -0.5, 2.0, 1000.0)),
        ('f(\'it\'\'s\', "a ""b""", \'"\')', ("it's", 'a "b"', '"')),
        ("f('f(1)', 'a\nb', '\\n')", ("f(1)", "a\nb", "\\n")),
        ("f(TRUE, false, Null)", (True, False, None)),
        ("f(9223372036854775807)", (2**63 - 1,)),
        ("f(-9223372036854775808)", (-(2**63),)),
        ("f('ü€😀')", ("ü€😀",)),
    ],
)
def test_literals(text: str, arguments: tuple[Argument, ...]) -> None:
    call = parse_call(text)
    assert (call.function, call.arguments) == ("f", arguments)
    assert [type(argument) for argument in call.arguments] == [type(argument) for argument in arguments]


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "the name of a function"),
        ("1(2)", 1, "the name of a function"),
        ("f(", 3, "a text in quotes, a number"),
        ("f(1", 4, "',' is expected"),
        ("f(1,)", 5, "a text in quotes"),
        ("f(1 2)", 5, "',' is expected"),
        ("f(1))", 5, "nothing is expected behind"),
        ("f(1) AND g(2)", 6, "nothing is expected behind"),
        ("f(g(1))", 3, "a text in quotes"),
        ("f(a)", 3, "a text in quotes"),
        ("f(x=1)", 3, "a text in quotes"),
        ("f([1])", 3, "was not expected"),
        ("f('a)", 3, "no end"),
        ("f(0x10)", 4, "',' is expected"),
        ("f(1e999)", 3, "too large"),
        ("f(9223372036854775808)", 3, "64 bits"),
        ("f(" + "9" * 4000 + ")", 3, "64 bits"),
        ("__import__('os').system('x')", 17, "was not expected"),
        ("f(١)", 3, "was not expected"),
        ("f(" + ",".join("1" * 65) + ")", 132, "more than 64 arguments"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, column: int, says: str) -> None:
    with pytest.raises(BadExpression, match=f"function call, line 1, column {column}: .*{says}") as raised:
        parse_call(text)
    assert raised.value.code == 23


def test_a_long_call_is_not_even_read() -> None:
    with pytest.raises(BadExpression, match="4097 characters, the limit is 4096"):
        parse_call("f" * 4097)


ARGUMENTS = st.lists(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40),
    max_size=20,
)


def written(argument: Argument, quote: str) -> str:
    if isinstance(argument, str):
        return quote + argument.replace(quote, quote * 2) + quote
    return {True: "TRUE", False: "FALSE", None: "NULL"}[argument] if _is_word(argument) else repr(argument)


def _is_word(argument: Argument) -> bool:
    return argument is None or isinstance(argument, bool)


@settings(deadline=None)
@given(ARGUMENTS, st.sampled_from("'\""))
def test_every_literal_comes_back(arguments: list[Argument], quote: str) -> None:
    text = f"f({', '.join(written(argument, quote) for argument in arguments)})"
    assert list(parse_call(text).arguments) == arguments


@settings(deadline=None)
@given(st.text(alphabet="f(),'\"1.-eTRUE \n\\x", max_size=60) | st.text(max_size=60))
def test_nothing_else_comes_out_than_a_call_or_its_error(text: str) -> None:
    with contextlib.suppress(BadExpression):
        assert isinstance(parse_call(text), Call)


@pytest.mark.parametrize(
    "text", ["near('x', 1)", "near('x', 1.5, TRUE)", "any_of", "any_of(1, 'a', NULL)", "plain()"]
)
def test_calls_that_fit(text: str) -> None:
    check_call(parse_call(text), KNOWN)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("far(1)", 1, "no function is called far: there are any_of, near, plain"),
        ("near('x')", 9, r"near\(place: text, distance: number, \[exact: truth value\]\) does not take 1"),
        ("near('x', 1, TRUE, 2)", 20, ".* does not take 4"),
        ("plain(1)", 7, r"plain\(\) does not take 1"),
        ("near(1, 1)", 6, "place must be a text"),
        ("near('x', TRUE)", 11, "distance must be a number"),
        ("near('x', 1, 1)", 14, "exact must be a truth value"),
        ("near('x', NULL)", 11, "distance must be a number"),
    ],
)
def test_calls_that_do_not_fit(text: str, column: int, says: str) -> None:
    with pytest.raises(BadExpression, match=f"column {column}: {says}"):
        check_call(parse_call(text), KNOWN)


def test_filters_take_a_call_under_its_own_type_and_where_sql92_stands() -> None:
    filters = Filters(property_filter=False, functions=KNOWN)
    for expression_type, text in ((FUNCTION, "near('x', 1)"), (SQL92, "function:near('x', 1)")):
        call = filters.compile(expression_type, text)
        assert isinstance(call, Call)
        assert (call.function, call.text) == ("near", "near('x', 1)")
        subscription = SubscriptionData(topic="t", sub_string=text, expression_type=expression_type)
        policy = compile_subscription(subscription, filters)
        assert (policy.function, policy.program) == (("near", "near('x', 1)"), None)
        assert (policy.tag_codes, policy.refusal) == ((), None)
    with pytest.raises(BadExpression, match="registered none"):
        Filters().compile(FUNCTION, "near('x', 1)")
    with pytest.raises(Refused, match="does not support"):
        filters.compile(SQL92, "near = 1")
