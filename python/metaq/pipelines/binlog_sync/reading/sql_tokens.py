"""Splits the statements of MariaDB and MySQL into tokens, as the server did that logged them.

What a quote or a backslash means depends on the `sql_mode` of the session, and which comments are executed
depends on the server. The binlog tells the first with each statement. Every character is looked at once, and
tokens are made one at a time, so a reader that needs only the first words never looks at the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Statements are read up to here. What comes after it counts as unreadable."""


class Shape(IntEnum):
    """The kinds of tokens."""

    WORD = 1
    """A keyword, a name without quotes, or a number."""
    NAME = 2
    """A name in quotes."""
    TEXT = 3
    SYMBOL = 4
    """Any other character."""
    GROUP = 5
    """Everything between two parentheses. `groups_as_one` makes it."""


class Token(NamedTuple):
    """One token. Names and texts come without their quotes; a text keeps its escapes."""

    shape: Shape
    text: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server reads the quotes and comments of one statement."""

    has_ansi_quotes: bool = False
    """Double quotes enclose names, not texts."""
    has_backslash_escapes: bool = True
    is_mode_known: bool = True
    """Whether the two above are known. If not, a statement in which they matter is unreadable."""
    is_mariadb: bool = True
    """Whether comments that begin with /*M! are executed."""
    is_decoded: bool = True
    """Whether the characters beyond ASCII are known. If not, a statement that has any is unreadable."""
    has_sure_names: bool = True
    """Whether these characters are known in names. If not, a name that has any is unreadable."""

    def with_unknown_mode(self) -> Dialect:
        return replace(self, is_mode_known=False)


USUAL: Final = Dialect()


class Unreadable(Exception):
    """A statement cannot be split into tokens; the text says why."""


_ANSI_QUOTES: Final = 1 << 2
_NO_BACKSLASH_ESCAPES: Final = 1 << 20


def dialect_of(sql_mode: int | None, *, is_mariadb: bool) -> Dialect:
    """Returns the dialect for the bits of a session's sql_mode; None if they are unknown."""
    if sql_mode is None:
        return Dialect(is_mode_known=False, is_mariadb=is_mariadb)
    return Dialect(
        has_ansi_quotes=bool(sql_mode & _ANSI_QUOTES),
        has_backslash_escapes=not sql_mode & _NO_BACKSLASH_ESCAPES,
        is_mariadb=is_mariadb,
    )


_SPACE: Final = re.compile(r"[ \t\n\v\f\r]+")
# Servers allow every character beyond ASCII in names, but spaces and signs of an 8-bit character set.
_WORD: Final = re.compile(r"[0-9A-Za-z_$\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\uffff]+")
_VERSION: Final = re.compile(r"\d{5,6}")
_NOT_EXECUTED: Final = re.compile(r"/\*M? \d{5}")
"""The begin of a comment that was not executed because of its version."""
_QUOTE_OR_ESCAPE: Final = {quote: re.compile(rf"[{quote}\\]") for quote in "'\""}
_LINE_COMMENT: Final = re.compile(r"#|--(?=[\x00-\x20\x7f]|\Z)")


def tokens_of(statement: str, dialect: Dialect = USUAL) -> Iterator[Token]:
    """Yields the tokens of a statement; raises Unreadable at the first place that nobody can read."""
    if not statement.isascii() and not dialect.is_decoded:
        raise Unreadable("its character set is unknown")
    at, end = 0, min(len(statement), CHARACTERS_MAX)
    is_in_executed = False
    while at < end:
        if (found := _SPACE.match(statement, at)) is not None:
            at = found.end()
            continue
        if (found := _WORD.match(statement, at)) is not None:
            at = found.end()
            _require_sure_name(found[0], dialect)
            yield Token(Shape.WORD, found[0])
            continue
        sign = statement[at]
        if sign in "'\"`":
            token, at = _quoted(statement, at, dialect)
            yield token
        elif sign == "/" and statement.startswith("/*", at):
            begin = _executed_from(statement, at, dialect)
            if begin is None:
                at = _after_comment(statement, at)
            elif is_in_executed:
                raise Unreadable("it has an executed comment in another one")
            else:
                at, is_in_executed = begin, True
        elif is_in_executed and statement.startswith("*/", at):
            at, is_in_executed = at + 2, False
        elif _LINE_COMMENT.match(statement, at) is not None:
            line_end = statement.find("\n", at)
            at = end if line_end < 0 else line_end + 1
        else:
            at += 1
            yield Token(Shape.SYMBOL, sign)
    if at < len(statement):
        raise Unreadable(f"it has more than {CHARACTERS_MAX} characters")
    if is_in_executed:
        raise Unreadable("a comment does not end")


def _executed_from(statement: str, at: int, dialect: Dialect) -> int | None:
    """Returns where the tokens of an executed comment begin; None if the comment is not executed.

    Servers remove the exclamation mark of those that they did not execute from the text in the binlog, except
    that MySQL does not know the form with an M.
    """
    if statement.startswith("!", at + 2):
        begin = at + 3
    elif dialect.is_mariadb and statement.startswith("M!", at + 2):
        begin = at + 4
    else:
        return None
    version = _VERSION.match(statement, begin)
    return begin if version is None else version.end()


def _after_comment(statement: str, at: int) -> int:
    """Returns where the text after a comment begins."""
    end = statement.find("*/", at + 2)
    if end < 0:
        raise Unreadable("a comment does not end")
    # A comment may hold others if its exclamation mark was removed.
    if _NOT_EXECUTED.match(statement, at) is not None and statement.find("/*", at + 2, end) >= 0:
        raise Unreadable("it has a comment in another one")
    return end + 2


def _quoted(statement: str, at: int, dialect: Dialect) -> tuple[Token, int]:
    """Returns the quoted token and where the text after it begins."""
    quote = statement[at]
    if quote == '"' and not dialect.is_mode_known:
        raise Unreadable("it has double quotes, and its sql_mode is unknown")
    is_name = quote == "`" or (quote == '"' and dialect.has_ansi_quotes)
    begin = at + 1
    at = begin
    has_doubled = False
    while True:
        if is_name:
            at = statement.find(quote, at)
        else:
            found = _QUOTE_OR_ESCAPE[quote].search(statement, at)
            at = -1 if found is None else found.start()
        if at < 0:
            raise Unreadable(f"a quote {quote} does not end")
        if statement[at] == "\\":
            if not dialect.is_mode_known:
                raise Unreadable("it has a backslash in a text, and its sql_mode is unknown")
            at += 2 if dialect.has_backslash_escapes else 1
        elif statement.startswith(quote, at + 1):
            at += 2
            has_doubled = True
        else:
            break
    text = statement[begin:at]
    if has_doubled:
        text = text.replace(quote * 2, quote)
    if is_name:
        if not text:
            raise Unreadable("a name is empty")
        _require_sure_name(text, dialect)
    return Token(Shape.NAME if is_name else Shape.TEXT, text), at + 1


def _require_sure_name(name: str, dialect: Dialect) -> None:
    if not dialect.has_sure_names and not name.isascii():
        raise Unreadable("the character set of a name is not known")


def groups_as_one(tokens: list[Token]) -> list[Token]:
    """Returns the tokens with one in place of everything between two parentheses; raises Unreadable."""
    found: list[Token] = []
    depth = 0
    for token in tokens:
        if token.shape is Shape.SYMBOL and token.text == "(":
            depth += 1
        elif token.shape is Shape.SYMBOL and token.text == ")":
            depth -= 1
            if depth < 0:
                break
            if depth == 0:
                found.append(Token(Shape.GROUP, "()"))
        elif depth == 0:
            found.append(token)
    if depth:
        raise Unreadable("its parentheses do not match")
    return found
