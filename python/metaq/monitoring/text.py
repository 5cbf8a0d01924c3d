"""Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[Labels, float]


class Page:
    """A page under construction. Every series has the `common` labels."""

    def __init__(self, common: Labels) -> None:
        self._common = common
        self._lines: list[str] = []

    def gauge(self, name: str, value: float, labels: Labels | None = None) -> None:
        self.family(name, "gauge", [(labels or {}, value)])

    def counter(self, name: str, value: float, labels: Labels | None = None) -> None:
        self.family(name, "counter", [(labels or {}, value)])

    def family(self, name: str, kind: Literal["gauge", "counter"], samples: Iterable[Sample]) -> None:
        """Adds the series of one name. One without samples is left out."""
        lines = [
            f"{name}{{{_labels({**self._common, **labels})}}} {_number(value)}" for labels, value in samples
        ]
        if lines:
            self._lines += [f"# TYPE {name} {kind}", *lines]

    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self._lines).encode()


def _labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
