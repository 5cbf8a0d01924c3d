"""A cache of compiled expressions: clients send theirs again with every heartbeat."""

from __future__ import annotations

import threading

from metaq.broker.sql92.errors import BadExpression
from metaq.settings import Program

WEIGHT_MAX = 100_000
"""The weight limit of the whole cache, in operations; at worst some 10 megabytes. Nothing empties it when the
clients leave."""
WEIGHT_OF_TEXT = 64
"""This many characters of text weigh as much as one operation."""


class Compiled:
    """Remembers the results of the expressions used last, errors included."""

    def __init__(self, weight_max: int = WEIGHT_MAX) -> None:
        self._weight_max = weight_max
        self._changing = threading.Lock()
        self._results: dict[str, Program | str] = {}
        self._weight = 0

    def find(self, text: str) -> Program:
        """The program of an expression. Raises BadExpression."""
        result = self._results.get(text)
        result = self._put(text, _compile(text) if result is None else result)
        if isinstance(result, str):
            raise BadExpression(result)
        return result

    def knows(self, text: str) -> bool:
        """Whether `find` has the result at hand."""
        return text in self._results

    def _put(self, text: str, result: Program | str) -> Program | str:
        """Makes this the newest result. Another thread may have compiled the same text meanwhile."""
        with self._changing:
            known = self._results.pop(text, None)
            if known is None:
                self._weight += _weight(text, result)
            else:
                result = known
            self._results[text] = result
            while self._weight > self._weight_max:
                oldest = next(iter(self._results))
                self._weight -= _weight(oldest, self._results.pop(oldest))
        return result

    def __len__(self) -> int:
        return len(self._results)


def _compile(text: str) -> Program | str:
    # Many brokers never see an expression, and to load the parser takes a tenth of the CPU of a start.
    from metaq.broker.sql92.parser import parse
    from metaq.broker.sql92.program import compile_tree

    try:
        return compile_tree(parse(text))
    except BadExpression as bad:
        return bad.remark


def _weight(text: str, result: Program | str) -> int:
    return 1 + len(text) // WEIGHT_OF_TEXT + (0 if isinstance(result, str) else len(result))
