"""SQL92 message filters: what a consumer writes, turned into a program for the data plane.

Reading order: `sql92.lark` is the language, `parser` makes a tree (`nodes`) of a text, `program` makes a flat
list of operations of the tree. crates/store/src/expression.rs carries them out, once per message.
"""

from __future__ import annotations

from metaq.broker.sql92.cache import Compiled
from metaq.broker.sql92.errors import BadExpression

__all__ = ["BadExpression", "compile_expression"]

compile_expression = Compiled().find
