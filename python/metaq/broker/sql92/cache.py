"""A cache of compiled filters: clients send theirs again with every heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from metaq.broker.sql92.errors import BadExpression
from metaq.settings import Program

WEIGHT_MAX = 100_000
"""The weight limit of the whole cache, in operations; at worst some 10 megabytes. Nothing empties it when the
clients leave."""
WEIGHT_OF_TEXT = 64
"""This many characters of text weigh as much as one operation."""

_Result = TypeVar("_Result")


class Cache(Generic[_Result]):
    """Remembers the results of the texts used last, errors included."""

    def __init__(
        self,
        compile_text: Callable[[str], _Result],
        weight_of: Callable[[str, _Result | BadExpression], int],
        weight_max: int,
    ) -> None:
        """`compile_text` raises BadExpression."""
        self._compile = compile_text
        self._weight_of = weight_of
        self._weight_max = weight_max
        self._changing = threading.Lock()
        self._results: dict[str, _Result | BadExpression] = {}
        self._weight = 0

    def find(self, text: str) -> _Result:
        """The result for the text. Raises BadExpression."""
        result = self._results.get(text)
        if result is None:
            try:
                result = self._compile(text)
            except BadExpression as bad:
                result = BadExpression(bad.remark)  # Without a traceback, which holds much memory.
        result = self._put(text, result)
        if isinstance(result, BadExpression):
            raise BadExpression(result.remark)
        return result

    def knows(self, text: str) -> bool:
        """Whether `find` has the result at hand."""
        return text in self._results

    def _put(self, text: str, result: _Result | BadExpression) -> _Result | BadExpression:
        """Makes this the newest result. Another thread may have compiled the same text meanwhile."""
        with self._changing:
            known = self._results.pop(text, None)
            if known is None:
                self._weight += self._weight_of(text, result)
            else:
                result = known
            self._results[text] = result
            while self._weight > self._weight_max:
                oldest = next(iter(self._results))
                self._weight -= self._weight_of(oldest, self._results.pop(oldest))
        return result

    def __len__(self) -> int:
        return len(self._results)


class Compiled(Cache[Program]):
    """Remembers the programs of expressions."""

    def __init__(self, weight_max: int = WEIGHT_MAX) -> None:
        super().__init__(_compile, _weight, weight_max)


def _compile(text: str) -> Program:
    # Many brokers never see an expression, and to load the parser takes a tenth of the CPU of a start.
    from metaq.broker.sql92.parser import parse
    from metaq.broker.sql92.program import compile_tree

    return compile_tree(parse(text))


def _weight(text: str, result: Program | BadExpression) -> int:
    return 1 + len(text) // WEIGHT_OF_TEXT + (0 if isinstance(result, BadExpression) else len(result))
