"""The name server's small table of values by namespace and key; ordered topics are configured in it.

A name server keeps no other state. Without a file, the table lives as long as the process and must be set
again after a restart. With a file, which has Apache's format, a change counts once it is written; it is read
at the start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from metaq.metadata import MetadataFile
from metaq.protocol.bodies import Body, KVTable, always
from metaq.protocol.codes import ResponseCode
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.routes import (
    DeleteKeyValue,
    GetKeyValue,
    GetKeyValuesByNamespace,
    PutKeyValue,
    ValueOfKey,
)

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
KEY_CHARACTERS_MAX: Final = 255
VALUE_CHARACTERS_MAX: Final = 64 * 1024
TABLE_CHARACTERS_MAX: Final = 16 * 1024 * 1024


class KeyValueFile(Body):
    """The content of kvConfig.json."""

    config_table: dict[str, dict[str, str]] = always(factory=dict)


class KeyValues:
    """Values by namespace and key."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises MetadataDamaged if the file cannot be read."""
        self._file = None if path is None else MetadataFile(path)
        kept = None if self._file is None else self._file.load(KeyValueFile.decode)
        self._table: dict[str, dict[str, str]] = {} if kept is None else kept.config_table
        self._characters = sum(
            len(namespace) + len(key) + len(value)
            for namespace, values in self._table.items()
            for key, value in values.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def all_of(self, namespace: str) -> dict[str, str] | None:
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises ProtocolError beyond a limit, OSError if the file cannot be written."""
        for what, text, limit in (
            ("namespace", namespace, KEY_CHARACTERS_MAX),
            ("key", key, KEY_CHARACTERS_MAX),
            ("value", value, VALUE_CHARACTERS_MAX),
        ):
            if len(text) > limit or (not text and what != "value"):
                raise ProtocolError(f"the {what} must have 1 to {limit} characters, not {len(text)}")
        former = self.get(namespace, key)
        size = len(namespace) + len(key)
        grown = self._characters + len(value) + size - (0 if former is None else len(former) + size)
        if grown > TABLE_CHARACTERS_MAX:
            raise ProtocolError(f"the table is full ({TABLE_CHARACTERS_MAX} characters)")
        table = self._copy()
        table.setdefault(namespace, {})[key] = value
        self._change(table)
        self._characters = grown

    def delete(self, namespace: str, key: str) -> None:
        """Raises OSError if the file cannot be written."""
        former = self.get(namespace, key)
        if former is None:
            return
        table = self._copy()
        del table[namespace][key]
        if not table[namespace]:
            del table[namespace]
        self._change(table)
        self._characters -= len(namespace) + len(key) + len(former)

    @handles(PutKeyValue)
    def put_key_value(self, command: PutKeyValue, request: Request) -> None:
        self.put(command.namespace, command.key, command.value)

    @handles(GetKeyValue)
    def get_key_value(self, command: GetKeyValue, request: Request) -> Response:
        value = self.get(command.namespace, command.key)
        if value is None:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"namespace {command.namespace[:64]!r} has no value for {command.key[:64]!r}",
            )
        return Response(fields=ValueOfKey(value))

    @handles(DeleteKeyValue)
    def delete_key_value(self, command: DeleteKeyValue, request: Request) -> None:
        self.delete(command.namespace, command.key)

    @handles(GetKeyValuesByNamespace)
    def get_key_values_by_namespace(self, command: GetKeyValuesByNamespace, request: Request) -> Response:
        values = self.all_of(command.namespace)
        if values is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"there is no namespace {command.namespace[:64]!r}")
        return Response(body=KVTable(values).encode())

    def _copy(self) -> dict[str, dict[str, str]]:
        return {namespace: dict(values) for namespace, values in self._table.items()}

    def _change(self, table: dict[str, dict[str, str]]) -> None:
        """Takes the new table once it is in the file, so a change that the disk refuses does not happen."""
        if self._file is not None:
            self._file.write(msgspec.json.format(KeyValueFile(table).encode(), indent=2))
        self._table = table
