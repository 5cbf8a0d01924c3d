"""The messages that a reader of a topic wants: by tag, by a SQL92 expression or by key.

A broker selects by tags and by SQL92, so that other messages do not travel. All that it returns is checked
again here. Brokers compare tags by a hash. With default settings, Apache's broker does not select by SQL92,
and if an expression is wrong, it returns everything without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from metaq.client.message import Message
from metaq.errors import UsageError
from metaq.protocol.bodies import ALL_TAGS, SQL92, TAG
from metaq.protocol.codes import ResponseCode
from metaq.protocol.errors import Refused

_NO_SQL: Final = "does not support consumer to filter message by"
"""Part of the refusal of every broker that selects by tags alone."""


class Selection:
    """Selects messages. Without arguments it selects all."""

    def __init__(
        self, tags: str | Iterable[str] | None = None, sql: str | None = None, key: str | None = None
    ) -> None:
        """Raises UsageError."""
        if tags is not None and sql is not None:
            raise UsageError(
                "tags and sql exclude each other", hint="write TAGS = 'a' AND … in the expression"
            )
        self._tags = _tags_of(tags)
        self._sql = sql
        self._key = key
        self._without_sql: set[str] = set()
        """Brokers that do not select by SQL92."""
        self._evaluate = None if sql is None else _compiled(sql)

    def subscription(self, broker: str) -> tuple[str, str]:
        """Returns the expression that this broker selects by, and its type."""
        if self._sql is not None and broker not in self._without_sql:
            return self._sql, SQL92
        return (" || ".join(sorted(self._tags)) if self._tags else ALL_TAGS), TAG

    def evaluates_instead_of(self, broker: str, error: Refused) -> bool:
        """Returns whether the broker refused because it does not select by SQL92. From now on it returns all
        messages, and the expression is evaluated only here."""
        if self._sql is None or broker in self._without_sql:
            return False
        if error.code != ResponseCode.SYSTEM_ERROR or _NO_SQL not in str(error):
            return False
        self._without_sql.add(broker)
        return True

    def matches(self, message: Message) -> bool:
        """Returns whether a message that a broker has returned is wanted."""
        if self._tags and message.tag not in self._tags:
            return False
        if self._key is not None and self._key not in message.keys:
            return False
        if self._evaluate is None:
            return True
        return self._evaluate({**message.system_properties, **message.properties})


def _tags_of(tags: str | Iterable[str] | None) -> frozenset[str]:
    given = [] if tags is None else [tags] if isinstance(tags, str) else list(tags)
    wanted = frozenset(tag.strip() for text in given for tag in text.split("||")) - {""}
    if tags is not None and not wanted:
        raise UsageError("no tag is given", hint="write a tag, or several as a || b")
    return frozenset() if ALL_TAGS in wanted else wanted


def _compiled(sql: str) -> Callable[[Mapping[str, str]], bool]:
    # Few readers need it, and it loads a part of the broker.
    from metaq._core import Expression
    from metaq.broker.sql92 import BadExpression, compile_expression

    try:
        return Expression(compile_expression(sql)).matches
    except BadExpression as error:
        raise UsageError(error.remark) from None
    except ValueError as error:
        raise UsageError(f"the expression cannot be used: {error}") from None
