"""Tokens of statements, in the modes of a session and with the comments of both servers."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.pipelines.binlog_sync.reading.sql_tokens import (
    CHARACTERS_MAX,
    USUAL,
    Dialect,
    Shape,
    Token,
    Unreadable,
    dialect_of,
    groups_as_one,
    tokens_of,
)

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
ANSI = dialect_of(ANSI_QUOTES, is_mariadb=True)
NO_ESCAPES = dialect_of(NO_BACKSLASH_ESCAPES, is_mariadb=True)
MYSQL = dialect_of(0, is_mariadb=False)
UNKNOWN_MODE = dialect_of(None, is_mariadb=True)


def shown(statement: str, dialect: Dialect = USUAL) -> str:
    """Returns the tokens in one line: names in backticks, texts in single quotes."""
    quotes = {Shape.NAME: "`", Shape.TEXT: "'"}
    return " ".join(
        f"{quotes.get(token.shape, '')}{token.text}{quotes.get(token.shape, '')}"
        for token in tokens_of(statement, dialect)
    )


@pytest.mark.parametrize(
    ("statement", "dialect", "tokens"),
    [
        ("a.b,c", USUAL, "a . b , c"),
        ("`a``b` 'it''s' \"x\"", USUAL, "`a`b` 'it's' 'x'"),
        ('"a""b" \'x"\'', ANSI, "`a\"b` 'x\"'"),
        (r"'a\'b' c", USUAL, r"'a\'b' c"),
        (r"'a\' b", NO_ESCAPES, r"'a\' b"),
        (r"`a\` b", USUAL, r"`a\` b"),
        (r"'C:\', ADD x", NO_ESCAPES, r"'C:\' , ADD x"),
        ("a /* b ' */ c", USUAL, "a c"),
        ("a /*! b */ c", USUAL, "a b c"),
        ("a /*!50100 b */ c /*!100100 d*/", USUAL, "a b c d"),
        ("a /*M! b */ /*M!100100 c */", USUAL, "a b c"),
        ("a /*M! b */ c", MYSQL, "a c"),
        ("a /*! b /* c */ d */ e", USUAL, "a b d e"),
        ("a /*m! b */ c", USUAL, "a c"),
        ("a -- b\nc --d\n-- ", USUAL, "a c - - d"),
        ("a # b '\nc #", USUAL, "a c"),
        ("a--\tb", USUAL, "a"),
        ("größe 表", USUAL, "größe 表"),
        ("a 'b", USUAL, None),
        ('a "b', ANSI, None),
        ("a `b", USUAL, None),
        (r"a 'b\'", USUAL, None),
        ("a ``", USUAL, None),
        ("a /* b", USUAL, None),
        ("a /*! b", USUAL, None),
        ("a /* b /* c */ d", USUAL, "a d"),
        ("a /* 99999 b */ d", USUAL, "a d"),
        ("a /* 99999 b /* c */ d */", USUAL, None),
        ("a /*M 999999 b /* c */ d */", USUAL, None),
        ("a /*! b /*! c */ d */", USUAL, None),
        ('a "b"', UNKNOWN_MODE, None),
        (r"a 'b\c'", UNKNOWN_MODE, None),
        ("a 'b' `c`", UNKNOWN_MODE, "a 'b' `c`"),
        ("é", Dialect(is_decoded=False), None),
        ("a 'é' -- é", Dialect(has_sure_names=False), "a 'é'"),
        ("a `é`", Dialect(has_sure_names=False), None),
    ],
)
def test_tokens(statement: str, dialect: Dialect, tokens: str | None) -> None:
    if tokens is None:
        with pytest.raises(Unreadable):
            shown(statement, dialect)
    else:
        assert shown(statement, dialect) == tokens


def test_the_bits_of_a_mode() -> None:
    both = dialect_of(ANSI_QUOTES | NO_BACKSLASH_ESCAPES | 1 << 21, is_mariadb=False)
    assert (both.has_ansi_quotes, both.has_backslash_escapes, both.is_mode_known) == (True, False, True)


def test_the_first_tokens_need_not_wait_for_the_rest() -> None:
    tokens = tokens_of("CREATE PROCEDURE p() 'does not end")
    assert next(tokens).text == "CREATE"


def test_a_statement_without_end_is_read_up_to_a_limit() -> None:
    with pytest.raises(Unreadable, match="characters"):
        list(tokens_of("'x' " * (CHARACTERS_MAX // 4 + 1)))


def test_groups() -> None:
    tokens = list(tokens_of("a (b, (c)) d ()"))
    assert [token.text for token in groups_as_one(tokens)] == ["a", "()", "d", "()"]
    with pytest.raises(Unreadable):
        groups_as_one([Token(Shape.SYMBOL, "(")])


NAMES = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=8)
DIALECTS = st.builds(dialect_of, st.integers(0, 2**22), is_mariadb=st.booleans())


@given(st.text(max_size=60), DIALECTS)
def test_any_text_is_split_or_refused(text: str, dialect: Dialect) -> None:
    try:
        found = list(tokens_of(text, dialect))
    except Unreadable:
        return
    # Nothing comes from outside the text, and everything outside of comments and gaps is there.
    kept = "".join(token.text for token in found)
    rest = iter(re.sub(r"[`\"']", "", text))
    assert all(any(sign == other for other in rest) for sign in re.sub(r"[`\"']", "", kept))


@given(st.lists(st.tuples(st.sampled_from("nt"), NAMES), min_size=1, max_size=6), DIALECTS, st.data())
def test_quoted_texts_and_names_survive(
    pieces: list[tuple[str, str]], dialect: Dialect, data: st.DataObject
) -> None:
    words, expected = [], []
    for kind, text in pieces:
        if kind == "n":
            quote = data.draw(st.sampled_from('`"' if dialect.has_ansi_quotes else "`"))
            words.append(quote + text.replace(quote, quote * 2) + quote)
            expected.append(Token(Shape.NAME, text))
        else:
            quote = data.draw(st.sampled_from("'" if dialect.has_ansi_quotes else "'\""))
            escaped = text.replace("\\", "\\\\") if dialect.has_backslash_escapes else text
            words.append(quote + escaped.replace(quote, quote * 2) + quote)
            expected.append(Token(Shape.TEXT, escaped))
    gaps = st.sampled_from([" ", "\n", "/* ' */", "-- `\n", '#"\n', "\t/**/"])
    statement = "".join(data.draw(gaps) + word for word in words)
    assert list(tokens_of(statement, dialect)) == expected


@pytest.mark.parametrize(
    "part", ["'", '"', "`", "\\", "/*", "*/", "/*!", "#", "-- ", "''", "\\'", "a", "\n", "("]
)
@pytest.mark.parametrize("head", ["", "'", '"', "`", "/*", "/*!"])
def test_the_work_grows_with_the_length(head: str, part: str) -> None:
    def work_s(size: int) -> float:
        begun_s = time.thread_time()
        try:
            for _ in tokens_of(head + part * (size // len(part))):
                pass
        except Unreadable:
            pass
        return time.thread_time() - begun_s

    # Quadratic work takes 256 times as long. A busy machine may disturb a try.
    assert any(work_s(64_000) < 80 * max(work_s(4_000), 1e-4) for _ in range(3))
