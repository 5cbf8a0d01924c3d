"""An expression as a tree; `at` is the position in the text at which it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Constant:
    at: int
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Property:
    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Negative:
    """A minus sign: the result is neither a constant nor a truth value."""

    at: int
    operand: Node


@dataclass(frozen=True, slots=True)
class Truth:
    """A property in the place of a truth value."""

    at: int
    operand: Property


@dataclass(frozen=True, slots=True)
class Not:
    at: int
    operand: Node


@dataclass(frozen=True, slots=True)
class Logic:
    at: int
    operator: Literal["and", "or"]
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Equal:
    at: int
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class IsNull:
    at: int
    operand: Node


@dataclass(frozen=True, slots=True)
class Order:
    at: int
    operator: Literal["greater", "greater_or_equal", "less", "less_or_equal"]
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between:
    at: int
    negated: bool
    operand: Node
    low: Node
    high: Node


@dataclass(frozen=True, slots=True)
class Member:
    at: int
    negated: bool
    operand: Property
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Search:
    at: int
    negated: bool
    operator: Literal["contains", "starts_with", "ends_with"]
    operand: Node
    text: str


Node: TypeAlias = (
    Constant | Property | Negative | Truth | Not | Logic | Equal | IsNull | Order | Between | Member | Search
)


def is_truth(node: Node) -> bool:
    """Whether its value is always true, false or unknown."""
    match node:
        case Property() | Negative():
            return False
        case Constant(value=value):
            return value is None or isinstance(value, bool)
    return True
