"""Requests that wait for a slot."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Line(Generic[_Item]):
    """Requests of one kind. The address that holds the fewest slots is next, and its oldest request."""

    def __init__(self, held: Callable[[str], int]) -> None:
        """`held` returns how many slots an address has."""
        self._held = held
        self._of: dict[str, OrderedDict[_Item, int]] = {}
        """Address → its requests, with the number of their arrival. One in the middle can be taken out as
        fast as the first one."""
        self._rank: dict[str, int] = {}
        """Address → the slots that it held when it was ranked last."""
        self._ranked: dict[int, OrderedDict[str, None]] = {}
        """Number of slots → the addresses that hold this number. There are few different numbers, because
        their sum is bounded by the number of slots."""

    def __bool__(self) -> bool:
        return bool(self._of)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, source: str, item: _Item, arrival: int) -> None:
        if source not in self._of:
            self._of[source] = OrderedDict()
            self._enter(source)
        self._of[source][item] = arrival

    def remove(self, source: str, item: _Item) -> None:
        items = self._of[source]
        del items[item]
        if not items:
            del self._of[source]
            self._leave(source)

    def first(self) -> tuple[str, _Item, int]:
        """The address that is next, its request, and the number of its arrival. Something must wait."""
        source = next(iter(self._ranked[min(self._ranked)]))
        item, arrival = next(iter(self._of[source].items()))
        return source, item, arrival

    def rank(self, source: str) -> None:
        """Looks again at how many slots an address has."""
        if source in self._rank and self._rank[source] != self._held(source):
            self._leave(source)
            self._enter(source)

    def _enter(self, source: str) -> None:
        rank = self._rank[source] = self._held(source)
        self._ranked.setdefault(rank, OrderedDict())[source] = None

    def _leave(self, source: str) -> None:
        rank = self._rank.pop(source)
        sources = self._ranked[rank]
        del sources[source]
        if not sources:
            del self._ranked[rank]
