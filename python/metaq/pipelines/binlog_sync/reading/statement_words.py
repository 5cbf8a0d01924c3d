"""A cursor over the tokens of a statement, for parsers that accept word after word."""

from __future__ import annotations

from collections.abc import Iterator

from metaq.pipelines.binlog_sync.reading.sql_tokens import Shape, Token

Name = tuple[str, str]
"""A database and a table."""


class Misfit(Exception):
    """A statement does not have the grammar that is known for its first words."""


class Words:
    """The tokens that are left. Only those that were looked at have been made."""

    def __init__(self, tokens: Iterator[Token]) -> None:
        self._tokens = tokens
        self._ahead: list[Token] = []

    def peek(self, ahead: int = 0) -> Token | None:
        """Returns a token without taking it; None after the last one."""
        while len(self._ahead) <= ahead:
            token = next(self._tokens, None)
            if token is None:
                return None
            self._ahead.append(token)
        return self._ahead[ahead]

    def take(self) -> Token:
        """Takes the next token; raises Misfit at the end."""
        token = self.peek()
        if token is None:
            raise Misfit
        del self._ahead[0]
        return token

    def rest(self) -> list[Token]:
        """Takes all tokens that are left."""
        found = [*self._ahead, *self._tokens]
        self._ahead.clear()
        return found

    def is_at(self, *words: str) -> bool:
        """Returns whether these words come next."""
        for ahead, word in enumerate(words):
            token = self.peek(ahead)
            if token is None or not is_word(token, word):
                return False
        return True

    def accept(self, *words: str) -> bool:
        """Takes these words if they come next; returns whether they did."""
        if not self.is_at(*words):
            return False
        del self._ahead[: len(words)]
        return True

    def accept_one_of(self, *words: str) -> str | None:
        """Takes one of these words; returns it in upper case, or None."""
        return next((word for word in words if self.accept(word)), None)

    def accept_symbol(self, symbol: str) -> bool:
        token = self.peek()
        if token is None or token != (Shape.SYMBOL, symbol):
            return False
        del self._ahead[0]
        return True

    def accept_exists(self) -> bool:
        return self.accept("IF", "EXISTS") or self.accept("IF", "NOT", "EXISTS")

    def accept_wait(self) -> None:
        """Takes MariaDB's limit for waiting: `WAIT 5` or `NOWAIT`."""
        if self.accept("WAIT"):
            self.take()
        else:
            self.accept("NOWAIT")

    def name(self) -> str:
        token = self.take()
        if token.shape not in (Shape.WORD, Shape.NAME):
            raise Misfit
        return token.text

    def table(self, database: str) -> Name:
        """Takes the name of a table; `database` is the one of a name without a database."""
        if self.accept_symbol("."):
            return database, self.name()
        name = self.name()
        return (name, self.name()) if self.accept_symbol(".") else (database, name)

    def tables(self, database: str) -> list[Name]:
        """Takes a list of tables."""
        found = [self.table(database)]
        while self.accept_symbol(","):
            found.append(self.table(database))
        return found

    def end(self) -> None:
        """Raises Misfit if anything is left."""
        while self.accept_symbol(";"):
            pass
        if self.peek() is not None:
            raise Misfit


def is_word(token: Token, word: str) -> bool:
    """Returns whether a token is this keyword, in whatever case."""
    return token.shape is Shape.WORD and token.text.upper() == word


def keywords(text: str) -> frozenset[str]:
    """Returns the words of a text as a set."""
    return frozenset(text.split())
