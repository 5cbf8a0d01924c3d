"""The pipeline that `metaq pipeline run binlog-sync` plans and runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

from metaq.client.sync import Client
from metaq.errors import CommandError, NotDelivered
from metaq.pipelines import ClusterUse, Plan, Progress, Report
from metaq.pipelines.binlog_sync.cascades import cascade_warnings
from metaq.pipelines.binlog_sync.config import BinlogConfig, read_config
from metaq.pipelines.binlog_sync.errors import StreamLost
from metaq.pipelines.binlog_sync.follower import Follower
from metaq.pipelines.binlog_sync.reading.binlog_stream import BinlogStream
from metaq.pipelines.binlog_sync.reading.chunks import ChunkReader, KeyRange, range_count
from metaq.pipelines.binlog_sync.reading.database import DatabaseServer, SourceDatabase, SourceTable
from metaq.pipelines.binlog_sync.reading.foreign_keys import ForeignKeys
from metaq.pipelines.binlog_sync.reread_requests import RereadRequests, range_column
from metaq.pipelines.binlog_sync.writing.outbox import Outbox, Stopped
from metaq.pipelines.binlog_sync.writing.state import StateFile, SyncState
from metaq.pipelines.binlog_sync.writing.topic import queues_for
from metaq.pipelines.remarks import REMARK
from metaq.pipelines.topic_check import check_topic
from metaq.retry import Backoff, Retry

_log = logging.getLogger(__name__)

GROUP: Final = "metaq-binlog-sync"
CLOSE_TIMEOUT_S: Final = 15.0
SEND_BUFFER_BYTES_MIN: Final = 32 * 1024 * 1024
BACKOFF: Final = Backoff(first_s=0.2, max_s=10.0)


class BinlogSync:
    """Copies the tables of a MariaDB or MySQL server, and every change of them, into an ordered topic."""

    def __init__(self, config: BinlogConfig) -> None:
        self._config = config
        self._source = SourceDatabase(config)
        self._state_file = StateFile(config.state_file)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Raises ConfigError."""
        return cls(read_config(path))

    def clusters(self) -> list[ClusterUse]:
        return [ClusterUse(self._config.nameservers, (self._config.topic,))]

    # The plan

    def plan(self) -> Plan:
        """Inspects the database, the topic and the state; raises MetaqError."""
        config = self._config
        state = self._state_file.load()
        with self._source.connect() as connection, self._source.errors():
            server = self._source.server(connection)
            tables, faults = self._tables(connection)
            foreign_keys = self._source.foreign_keys(connection)
        if state is not None:
            self._check_state(state, server)
        topic = check_topic(config.nameservers, config.topic)
        facts: dict[str, object] = {
            "source": f"{config.source} as {config.user}",
            "server": f"{server.flavour.product} {server.version}",
            "topic": f"{config.topic} at {config.nameservers}",
            "queues": f"{config.queues} on every broker; the topic will be created"
            if topic.queues is None
            else topic.queues,
            "state": str(config.state_file),
            "begins": "with a new state" if state is None else f"at {state.coordinates}, GTID {state.gtid}",
        }
        warnings = [f"{name} is left out: {reason}" for name, reason in faults.items()]
        warnings += [
            f"{table} has no primary key: equal rows count as one; updates and deletes make it be read again"
            for table in tables
            if table.definition.is_keyless
        ]
        warnings += cascade_warnings(foreign_keys, config.cascades)
        if state is not None and state.server != server.identity:
            warnings.append(f"another server answers: {server.identity}, previously {state.server}")
        checks = [f"source {config.source}: {facts['server']} answers", str(topic)]
        return Plan(facts, [self._planned(table, state) for table in tables], warnings, checks)

    def _planned(self, table: SourceTable, state: SyncState | None) -> dict[str, object]:
        known = None if state is None else state.tables.get(str(table))
        if known is not None and (known.cursor is None or known.cursor.done):
            snapshot = "done"
        elif not self._config.snapshot:
            snapshot = "off"
        else:
            snapshot = "whole" if known is None or not known.cursor or not known.cursor.last else "continues"
        return {
            "table": str(table),
            "key": "the whole row" if table.definition.is_keyless else ", ".join(table.definition.key),
            "columns": len(table.definition.columns),
            "rows": table.rows,
            "snapshot": snapshot,
        }

    def _tables(self, connection: Any) -> tuple[list[SourceTable], dict[str, str]]:
        """Returns the selected tables, and the reasons why others are left out; raises CommandError."""
        tables, faults = self._source.tables(connection)
        if tables:
            return tables, faults
        config = self._config
        if missing := self._source.missing_databases(connection):
            raise CommandError(
                f"{config.source} has no database {', '.join(missing)} that {config.user} may see",
                hint="check the names in source.tables; a user sees a database once it has SELECT on it",
            )
        if faults:
            # Others may come.
            return tables, faults
        raise CommandError(
            f"source.tables matches no table at {config.source}: {', '.join(config.tables)}",
            hint="write DATABASE.TABLE, where * matches anything, and grant SELECT on the tables",
        )

    def _check_state(self, state: SyncState, server: DatabaseServer) -> None:
        state.require_flavour(server.flavour.name, self._config.state_file)
        if state.topic != self._config.topic:
            raise CommandError(
                f"{self._config.state_file} belongs to topic {state.topic}, not {self._config.topic}",
                hint="name another state.file for another topic",
            )

    # Reading again

    def reread(self, table: str, first: int | None, last: int | None, *, dry_run: bool) -> int:
        """Asks the run, or the next one, to read a table again, or a range of its keys; returns how many rows
        that is about. Raises MetaqError."""
        with self._source.connect() as connection, self._source.errors():
            tables, _ = self._tables(connection)
            found = next((one for one in tables if str(one) == table), None)
            if found is None:
                raise CommandError(
                    f"{table} is not synchronised",
                    hint="write DATABASE.TABLE, as the plan prints it (--dry-run)",
                )
            rows = found.rows
            if first is not None or last is not None:
                column = range_column(found.definition)
                if column is None:
                    raise CommandError(
                        f"{table} has no primary key that begins with a whole number, so it has no ranges",
                        hint="omit --from and --to: the whole table is read",
                    )
                rows = range_count(connection, found.database, found.name, KeyRange(column, first, last))
        if not self._config.snapshot:
            raise CommandError("snapshot.enabled is false, so no table is read", hint="set it to true")
        if not dry_run:
            RereadRequests(self._config.state_file).put(table, first, last)
        return rows

    # The run

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Runs until `stop` is set; raises MetaqError."""
        self._state_file.lock()
        try:
            return self._run(report, stop)
        finally:
            self._state_file.unlock()

    def _run(self, report: Report, stop: threading.Event) -> Progress:
        config = self._config
        with self._source.connect() as connection, self._source.errors():
            server = self._source.server(connection)
            state, tables, left_out, has_new_queues = self._begin(connection, server)
        self._source.expected = server.identity
        client = Client(config.nameservers)
        client.start()
        producer = client.producer(
            GROUP,
            compression=config.compression,
            linger=0.0,
            timeout=10.0,
            # The outbox limits how much is held. It sends while it holds the lock that its callbacks need: a
            # send buffer full of messages whose callbacks wait for that lock would deadlock.
            buffer_bytes_max=SEND_BUFFER_BYTES_MIN + 2 * config.buffer_bytes,
        )
        try:
            producer.start()
            outbox = Outbox(
                producer,
                message_bytes=config.message_bytes,
                buffer_bytes=config.buffer_bytes,
                is_stopping=stop.is_set,
            )
            chunks = ChunkReader(self._source, config.chunk_rows, config.chunk_bytes)
            follower = Follower(
                config,
                state,
                self._state_file,
                outbox,
                chunks,
                report,
                stop,
                left_out,
                lowers_names=server.lowers_names,
                foreign_keys=self._foreign_keys,
                source_table=self._table,
                source_tables=self._all_tables,
            )
            try:
                if has_new_queues:
                    follower.announce_queues()
                follower.register(tables)
                self._follow(follower, stop)
            except Stopped:
                pass
            finally:
                chunks.close()
                follower.finish(CLOSE_TIMEOUT_S)
            return follower.progress
        finally:
            try:
                client.close(CLOSE_TIMEOUT_S)
            except NotDelivered as error:
                _log.info("%s; the next run sends them again", error)

    def _begin(
        self, connection: Any, server: DatabaseServer
    ) -> tuple[SyncState, list[SourceTable], dict[str, str], bool]:
        """Returns the state to continue from, the tables, the reasons why others are left out, and whether
        the topic has new queues."""
        config = self._config
        tables, faults = self._tables(connection)
        for name, reason in faults.items():
            _log.warning("%s is left out: %s", name, reason, extra=REMARK)
        state = self._state_file.load()
        if state is None:
            state = self._new_state(connection, server)
            state.queues = queues_for(config.nameservers, config.topic, config.queues, None)
            self._state_file.save(state)
            return state, tables, faults, False
        self._check_state(state, server)
        if state.server != server.identity:
            server.flavour.require_known(connection, config.source, state.gtid)
            state.begin_era(server.identity)
            self._state_file.save(state)
        queues = queues_for(config.nameservers, config.topic, config.queues, state.queues)
        has_new_queues = queues != state.queues
        state.queues = queues
        return state, tables, faults, has_new_queues

    def _foreign_keys(self, tables: Iterable[tuple[str, str]] | None) -> ForeignKeys:
        with self._source.connect() as connection, self._source.errors():
            return self._source.foreign_keys(connection, tables)

    def _table(self, database: str, name: str) -> SourceTable | None:
        with self._source.connect() as connection, self._source.errors():
            return self._source.table(connection, database, name)

    def _all_tables(self) -> tuple[list[SourceTable], dict[str, str]]:
        with self._source.connect() as connection, self._source.errors():
            return self._source.tables(connection)

    def _new_state(self, connection: Any, server: DatabaseServer) -> SyncState:
        coordinates, gtid = server.flavour.position(connection)
        return SyncState(
            topic=self._config.topic,
            server=server.identity,
            era=int(time.time()),
            coordinates=coordinates,
            gtid=gtid,
            queues=[],
            flavour=server.flavour.name,
        )

    def _follow(self, follower: Follower, stop: threading.Event) -> None:
        """Follows the binlog, and reconnects as often as necessary; raises MetaqError, Stopped."""
        tries = Retry(None, BACKOFF)
        while not stop.is_set():
            position = follower.position
            stream = BinlogStream(
                self._source,
                self._config.server_id,
                position,
                flavour=follower.flavour,
                selects=follower.wants,
                refuse=follower.selection.refuse,
            )
            try:
                follower.follow(stream)
                return
            except (StreamLost, CommandError) as error:
                if isinstance(error, CommandError) and not error.retriable:
                    raise
                if follower.position != position:
                    tries.reset()
                _log.warning("%s; trying again", error)
                follower.disconnected()
                if not tries.pause_blocking(stop):
                    return
                self._check_server(follower)
            finally:
                stream.close()

    def _check_server(self, follower: Follower) -> None:
        """Checks which server answers after a lost connection; raises MetaqError, Stopped."""
        try:
            with self._source.connect() as connection, self._source.errors():
                server = self._source.server(connection)
                follower.reconnected(server, connection)
                self._source.expected = server.identity
        except CommandError as error:
            if not error.retriable:
                raise
