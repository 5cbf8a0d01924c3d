"""Compiles a tree into a program: operations in postfix order, which is the order in which they run."""

from __future__ import annotations

from metaq._core import Expression
from metaq.broker.sql92.errors import BadExpression
from metaq.broker.sql92.nodes import (
    Between,
    Constant,
    Equal,
    IsNull,
    Logic,
    Member,
    Negative,
    Node,
    Not,
    Order,
    Property,
    Search,
    Truth,
)
from metaq.settings import Operation, Program

INTEGER_MAX = 2**31 - 1


def compile_tree(tree: Node) -> Program:
    """Raises BadExpression for a tree that is too large for the data plane."""
    operations: list[Operation] = []
    shared: dict[Operation, Operation] = {}
    # A loop, because a chain of a thousand ORs is a tree a thousand levels deep.
    work: list[Node | Operation] = [tree]
    while work:
        item = work.pop()
        if isinstance(item, tuple):
            # Most operations of a long expression are equal, and the program is remembered.
            operations.append(shared.setdefault(item, item))
        else:
            operands, operation = _taken_apart(item)
            work.append(operation)
            work.extend(reversed(operands))
    program = tuple(operations)
    try:
        Expression(program)
    except ValueError as error:
        raise BadExpression(f"SQL92: {error}") from None
    return program


def _taken_apart(node: Node) -> tuple[tuple[Node, ...], Operation]:
    """The operands of a node, and the operation that combines them."""
    match node:
        case Constant(value=value):
            return (), _constant(value)
        case Property(name=name):
            return (), ("property", name)
        case Negative(operand=Constant(value=value)) if not isinstance(value, bool | str | None):
            kind, _ = _constant(value)
            return (), (kind, -value)
        case Negative(operand=operand):
            return (operand,), ("negate", None)
        case Truth(operand=operand):
            return (operand,), ("truth", None)
        case Not(operand=operand):
            return (operand,), ("not", None)
        case IsNull(operand=operand):
            return (operand,), ("is_null", None)
        case Logic(operator=operator, left=left, right=right):
            return (left, right), (operator, None)
        case Equal(left=left, right=right):
            return (left, right), ("equal", None)
        case Order(operator=order, left=left, right=right):
            return (left, right), (order, None)
        case Between(negated=negated, operand=operand, low=low, high=high):
            return (operand, low, high), (_named("between", negated), None)
        case Member(negated=negated, operand=operand, texts=texts):
            return (operand,), (_named("in", negated), texts)
        case Search(negated=negated, operator=search, operand=operand, text=text):
            return (operand,), (_named(search, negated), text)


def _named(operation: str, negated: bool) -> str:
    return f"not_{operation}" if negated else operation


def _constant(value: bool | int | float | str | None) -> Operation:
    match value:
        case None:
            return ("null", None)
        case bool():
            return ("true" if value else "false", None)
        case int():
            # The kind decides how a property is read beside it: next to 32 bits, no larger number is
            # accepted.
            return ("integer" if value <= INTEGER_MAX else "long", value)
        case float():
            return ("double", value)
        case str():
            return ("string", value)
