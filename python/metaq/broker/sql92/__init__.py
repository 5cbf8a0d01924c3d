"""SQL92 message filters: expressions of consumers, compiled into programs for the data plane.

Reading order: `sql92.lark` is the language, `parser` turns a text into a tree (`nodes`), `program` turns the
tree into a flat list of operations, `cache` remembers compiled expressions, `errors` shows the place of a
mistake. crates/store/src/expression.rs runs the operations, once per message.

The grammar and its meaning are Apache's; a change here needs the same change there. `state.filters` calls
this room.
"""

from __future__ import annotations

from metaq.broker.sql92.cache import Compiled
from metaq.broker.sql92.errors import BadExpression

__all__ = ["BadExpression", "compile_expression", "is_compiled"]

_compiled = Compiled()
compile_expression = _compiled.find
is_compiled = _compiled.knows
