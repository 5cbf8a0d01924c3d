"""The name server's small table of values by namespace and key; ordered topics are configured in it.

A name server keeps no other state. Without a file, the table lives as long as the process and must be set
again after a restart. With a file, a change counts once it is in the journal beside the file. It costs what
it changes, whatever the table holds, and changes that come together share one sync. The file itself has
Apache's format; `metaq.journal.file_journal` says when it is read and written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from metaq.errors import CommandError
from metaq.held_file import HeldFile, lock_beside
from metaq.journal import FileJournal
from metaq.metadata import MetadataFile
from metaq.protocol.bodies import Body, KVTable, always
from metaq.protocol.codes import ResponseCode
from metaq.protocol.commands.routes import (
    DeleteKeyValue,
    GetKeyValue,
    GetKeyValuesByNamespace,
    PutKeyValue,
    ValueOfKey,
)
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import ProtocolError, Refused
from metaq.protocol.ranges import Entries, ShortText, Text
from metaq.settings import NameServerSettings

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
KEY_CHARACTERS_MAX: Final = 255
VALUE_CHARACTERS_MAX: Final = 64 * 1024


class KeyValueFile(Body):
    """The content of kvConfig.json."""

    config_table: Entries[ShortText, Entries[ShortText, Text]] = always(factory=dict)


class KeyValues:
    """Values by namespace and key."""

    def __init__(self, path: Path | None = None, limits: NameServerSettings | None = None) -> None:
        """Raises MetadataDamaged if the file or its journal cannot be read, CommandError if another process
        uses them, and OSError."""
        self._limits = limits or NameServerSettings()
        self._table: dict[str, dict[str, str]] = {}
        self._encoded: dict[str, bytes] = {}
        """Namespaces as they were last asked for."""
        self._size_bytes = 0
        self._growing_bytes = 0
        """The size that changes under way may add."""
        self._file = None if path is None else MetadataFile(path)
        self._journal: FileJournal | None = None
        self._held: HeldFile | None = None
        if path is not None:
            self._journal = self._open(path)

    def _open(self, path: Path) -> FileJournal:
        try:
            self._held = HeldFile(lock_beside(path))
        except BlockingIOError:
            raise CommandError(
                f"another name server keeps its values in {path}",
                hint="stop it, or choose another file with kv_file",
            ) from None
        try:
            journal = FileJournal(path, self._read_file, self._on_change)
        except BaseException:
            self._held.close()
            raise
        for key, value in journal.values.items():
            self._on_change(key, value)
        return journal

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def all_of(self, namespace: str) -> dict[str, str] | None:
        return self._table.get(namespace)

    def encoded(self, namespace: str) -> bytes:
        """The values of a namespace as a KVTable; empty if there are none."""
        values = self._table.get(namespace)
        if values is None:
            return b""
        body = self._encoded.get(namespace)
        if body is None:
            body = self._encoded[namespace] = KVTable(values).encode()
        return body

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Returns when the value is durable. Raises ProtocolError beyond a limit, NotWritten if the disk
        refuses it, and then nothing has changed."""
        for what, text, limit in (
            ("namespace", namespace, KEY_CHARACTERS_MAX),
            ("key", key, KEY_CHARACTERS_MAX),
            ("value", value, VALUE_CHARACTERS_MAX),
        ):
            if len(text) > limit or (not text and what != "value"):
                raise ProtocolError(f"the {what} must have 1 to {limit} characters, not {len(text)}")
        grown_bytes = _size_bytes(namespace, key, value)
        former = self.get(namespace, key)
        if former is not None:
            grown_bytes -= _size_bytes(namespace, key, former)
        limit_bytes = self._limits.nameserver_values_bytes_max
        if grown_bytes > 0 and self._size_bytes + self._growing_bytes + grown_bytes > limit_bytes:
            raise ProtocolError(
                f"the table is full: its values may have {limit_bytes} bytes (nameserver_values_bytes_max)"
            )
        self._growing_bytes += max(grown_bytes, 0)
        try:
            await self._change(namespace, key, value)
        finally:
            self._growing_bytes -= max(grown_bytes, 0)

    async def delete(self, namespace: str, key: str) -> None:
        """Returns when the value is gone for good. Raises NotWritten."""
        if self.get(namespace, key) is not None:
            await self._change(namespace, key, None)

    async def close(self) -> None:
        """Writes the file, if values have changed. Safe to call twice."""
        if self._journal is not None and self._file is not None:
            journal, self._journal = self._journal, None
            try:
                await journal.close(self._content, self._file.write)
            finally:
                if self._held is not None:
                    self._held.close()

    @handles(PutKeyValue)
    async def put_key_value(self, command: PutKeyValue, request: Request) -> None:
        await self.put(command.namespace, command.key, command.value)

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
    async def delete_key_value(self, command: DeleteKeyValue, request: Request) -> None:
        await self.delete(command.namespace, command.key)

    @handles(GetKeyValuesByNamespace)
    def get_key_values_by_namespace(self, command: GetKeyValuesByNamespace, request: Request) -> Response:
        if self.all_of(command.namespace) is None:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"there is no namespace {command.namespace[:64]!r}")
        return Response(body=self.encoded(command.namespace))

    async def _change(self, namespace: str, key: str, value: str | None) -> None:
        place = _place(namespace, key)
        content = None if value is None else value.encode()
        if self._journal is not None:
            await self._journal.write([(place, content)])
        elif self._file is not None:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this name server stops: ask again")
        else:
            self._on_change(place, content)

    def _on_change(self, place: str, content: bytes | None) -> None:
        """Takes one change into the table, once it is on disk."""
        namespace, key = msgspec.json.decode(place, type=tuple[str, str])
        self._encoded.pop(namespace, None)
        values = self._table.setdefault(namespace, {})
        former = values.pop(key, None)
        if former is not None:
            self._size_bytes -= _size_bytes(namespace, key, former)
        if content is not None:
            values[key] = content.decode()
            self._size_bytes += _size_bytes(namespace, key, values[key])
        elif not values:
            del self._table[namespace]

    def _read_file(self) -> dict[str, bytes]:
        kept = None if self._file is None else self._file.load(KeyValueFile.decode)
        return {
            _place(namespace, key): value.encode()
            for namespace, values in ({} if kept is None else kept.config_table).items()
            for key, value in values.items()
        }

    def _content(self) -> bytes:
        return msgspec.json.format(KeyValueFile(self._table).encode(), indent=2)


def _place(namespace: str, key: str) -> str:
    return msgspec.json.encode((namespace, key)).decode()


def _size_bytes(namespace: str, key: str, value: str) -> int:
    """The size of a value in an answer, and about its size in memory."""
    return len(msgspec.json.encode((namespace, key, value)))
