"""A part of a snapshot: its last value, its age, and why the newest look failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """The last value that is known. If a look fails, the value stays and `error` says why."""

    value: T | None = None
    taken_ms: int | None = None
    """When the value was true; None if there has been none."""
    error: str | None = None
    failing_since_ms: int | None = None

    @property
    def is_stale(self) -> bool:
        """Whether there is a value that newer looks could not confirm."""
        return self.value is not None and self.error is not None

    def renewed(self, value: T, now_ms: int) -> Part[T]:
        return Part(value, now_ms)

    def failed(self, error: str, now_ms: int) -> Part[T]:
        since_ms = now_ms if self.failing_since_ms is None else self.failing_since_ms
        return Part(self.value, self.taken_ms, error, since_ms)
