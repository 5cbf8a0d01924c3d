"""Calls as consumers write them: `name(1, 'text', TRUE)`. Only literals, parsed by the rules below, never
run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from metaq.broker.sql92.cache import Cache
from metaq.broker.sql92.errors import BadExpression, bad_at
from metaq.filters.exchange import Argument, Description

CHARACTERS_MAX = 4_096
ARGUMENTS_MAX = 64
NAMES_TOLD_MAX = 20
WEIGHT_MAX = 1024 * 1024
"""The weight limit of the calls that are remembered, in characters. One client may have a sixteenth of it. A
call takes about eight times the memory of its text."""
CALL_WEIGHT = 64
"""The weight of a call besides its text."""
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

TOKEN = re.compile(
    r"""
      (?P<text> ' (?: [^'] | '' )* ' | " (?: [^"] | "" )* " )
    | (?P<number> [+-]? (?: [0-9]+ (?: \. [0-9]* )? | \. [0-9]+ ) (?: [eE] [+-]? [0-9]+ )? )
    | (?P<word> [A-Za-z_] [A-Za-z0-9_.]* )
    | (?P<sign> [(),] )
    """,
    re.VERBOSE,
)
BLANK = re.compile(r"[ \t\r\n]*")
WORDS: dict[str, Argument] = {"true": True, "false": False, "null": None}
KIND_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "whole number": (int,),
    "number": (int, float),
    "truth value": (bool,),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name and its arguments; `text` is their source."""

    function: str
    arguments: tuple[Argument, ...]
    text: str
    places: tuple[int, ...] = ()
    """The position in the text at which each argument begins."""


def parse_anew(text: str) -> Call:
    """Raises BadExpression, which names the place."""
    if len(text) > CHARACTERS_MAX:
        raise BadExpression(f"the call has {len(text)} characters, the limit is {CHARACTERS_MAX}")
    return _Reader(text).call()


def _weight(text: str, result: Call | BadExpression) -> int:
    return CALL_WEIGHT + len(text)


_parsed = Cache(parse_anew, _weight, WEIGHT_MAX)
parse_call = _parsed.find
"""The same; the calls used last are known."""
is_parsed = _parsed.knows


class _Reader:
    """Goes through the text once, a token at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._kind = ""
        self._token = ""
        self._next = 0
        self._advance()

    def call(self) -> Call:
        if self._kind != "word":
            raise self._bad("the name of a function is expected here")
        function = self._token
        self._advance()
        arguments: list[Argument] = []
        places: list[int] = []
        if self._kind:
            self._expect("(")
            while self._token != ")" or self._kind != "sign" or arguments:
                places.append(self._at)
                arguments.append(self._literal())
                if len(arguments) > ARGUMENTS_MAX:
                    raise self._bad(f"more than {ARGUMENTS_MAX} arguments")
                if self._kind == "sign" and self._token == ")":
                    break
                self._expect(",")
            self._expect(")")
        if self._kind:
            raise self._bad("nothing is expected behind the call")
        return Call(function, tuple(arguments), self._text, tuple(places))

    def _literal(self) -> Argument:
        token = self._token
        value: Argument
        if self._kind == "text":
            value = token[1:-1].replace(token[0] * 2, token[0])
        elif self._kind == "number":
            value = self._number(token)
        elif self._kind == "word" and token.lower() in WORDS:
            value = WORDS[token.lower()]
        else:
            raise self._bad("a text in quotes, a number, TRUE, FALSE or NULL is expected here")
        self._advance()
        return value

    def _number(self, token: str) -> int | float:
        if not token.lstrip("+-").isdigit():
            number = float(token)
            if number in (float("inf"), float("-inf")):
                raise self._bad("the number is too large")
            return number
        # Nobody writes more digits, and reading very many takes time.
        whole = int(token) if len(token) <= 20 else LONG_MAX + 1
        if not LONG_MIN <= whole <= LONG_MAX:
            raise self._bad("the number does not fit 64 bits")
        return whole

    def _expect(self, sign: str) -> None:
        if self._kind != "sign" or self._token != sign:
            raise self._bad(f"'{sign}' is expected here")
        self._advance()

    def _advance(self) -> None:
        blank = BLANK.match(self._text, self._next)
        self._at = blank.end() if blank else self._next
        if self._at == len(self._text):
            self._kind = self._token = ""
            return
        found = TOKEN.match(self._text, self._at)
        if found is None:
            is_text = self._text[self._at] in "'\""
            raise self._bad("this text has no end" if is_text else "this was not expected here")
        self._kind, self._token, self._next = found.lastgroup or "", found.group(), found.end()

    def _bad(self, what: str) -> BadExpression:
        return bad_at(self._text, self._at, what, "function call")


def check_call(call: Call, functions: Mapping[str, Description]) -> None:
    """Raises BadExpression if there is no such function, or if it does not take these arguments."""
    description = functions.get(call.function)
    if description is None:
        names = sorted(functions)
        shown = ", ".join(names[:NAMES_TOLD_MAX]) + (", …" if len(names) > NAMES_TOLD_MAX else "")
        known = f"there are {shown}" if names else "the operator has registered none (filter_functions)"
        raise bad_at(
            call.text,
            call.text.find(call.function),
            f"no function is called {call.function[:128]}: {known}",
            "function call",
        )
    parameters = description.parameters
    least = sum(parameter.required for parameter in parameters)
    is_open = bool(parameters) and parameters[-1].variadic
    given = len(call.arguments)
    if given < least or (given > len(parameters) and not is_open):
        end = call.places[len(parameters)] if given > len(parameters) else len(call.text) - 1
        raise bad_at(call.text, end, f"{description.signature} does not take {given}", "function call")
    for index, argument in enumerate(call.arguments):
        parameter = parameters[min(index, len(parameters) - 1)]
        types = KIND_TYPES.get(parameter.kind, ())
        # Python counts True as a whole number; users do not.
        if types and (not isinstance(argument, types) or (isinstance(argument, bool) and bool not in types)):
            raise bad_at(
                call.text, call.places[index], f"{parameter.name} must be a {parameter.kind}", "function call"
            )
