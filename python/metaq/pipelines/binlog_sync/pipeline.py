"""binlog-sync: the pipeline as the command runs it."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

from metaq.client.sync import Client
from metaq.errors import CommandError, NotDelivered
from metaq.pipelines import Plan, Progress, Report
from metaq.pipelines.binlog_sync.config import BinlogConfig, read_config
from metaq.pipelines.binlog_sync.database import Server, Source, Table
from metaq.pipelines.binlog_sync.outbox import Outbox, Stopped
from metaq.pipelines.binlog_sync.sequence import NOWHERE
from metaq.pipelines.binlog_sync.snapshot import Chunks
from metaq.pipelines.binlog_sync.state import State, StateFile
from metaq.pipelines.binlog_sync.stream import Stream, StreamLost
from metaq.pipelines.binlog_sync.sync import Sync, require_flavour
from metaq.pipelines.binlog_sync.topic import find_queues, queues_for

log = logging.getLogger(__name__)

GROUP: Final = "metaq-binlog-sync"
CLOSE_TIMEOUT_S: Final = 15.0
SEND_BUFFER_BYTES_MIN: Final = 32 * 1024 * 1024
PAUSE_FIRST_S: Final = 0.2
PAUSE_MAX_S: Final = 10.0
_CASCADES: Final = (
    "what these foreign keys change by themselves never comes into the binlog, and so not into the topic: "
)


class BinlogSync:
    """The tables of a MariaDB or MySQL server, and every change of them, into an ordered topic."""

    def __init__(self, config: BinlogConfig) -> None:
        self._config = config
        self._source = Source(config)
        self._state_file = StateFile(config.state_file)

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Raises ConfigError."""
        return cls(read_config(path))

    # What it would do

    def plan(self) -> Plan:
        """Looks at the database, the topic and the state; raises MetaqError."""
        config = self._config
        state = self._state_file.load()
        with self._source.connect() as connection, self._source.errors():
            server = self._source.server(connection)
            tables, faults = self._source.tables(connection)
            cascades = self._source.cascades(connection)
        self._check_tables(tables)
        if state is not None:
            self._check_state(state, server)
        queues = find_queues(config.nameservers, config.topic)
        facts: dict[str, object] = {
            "source": f"{config.source} as {config.user}",
            "server": f"{server.flavour.product} {server.version}",
            "topic": f"{config.topic} at {config.nameservers}",
            "queues": f"{config.queues} on every broker, the topic is made"
            if queues is None
            else len(queues),
            "state": str(config.state_file),
            "begins": "with a new state" if state is None else f"at {state.place}, GTID {state.gtid}",
        }
        warnings = [f"{name}: {reason}; it is skipped" for name, reason in faults.items()]
        if cascades:
            warnings.append(_CASCADES + ", ".join(cascades))
        if state is not None and state.server != server.identity:
            warnings.append(f"another server answers: {server.identity}, it was {state.server}")
        return Plan(facts, [self._planned(table, state) for table in tables], warnings)

    def _planned(self, table: Table, state: State | None) -> dict[str, object]:
        known = None if state is None else state.tables.get(str(table))
        if known is not None and (known.cursor is None or known.cursor.done):
            snapshot = "done"
        elif not self._config.snapshot:
            snapshot = "off"
        else:
            snapshot = "whole" if known is None or not known.cursor or not known.cursor.last else "goes on"
        return {
            "table": str(table),
            "key": ", ".join(table.definition.key),
            "columns": len(table.definition.columns),
            "rows": table.rows,
            "snapshot": snapshot,
        }

    def _check_tables(self, tables: list[Table]) -> None:
        if not tables:
            raise CommandError(
                f"source.tables selects no table at {self._config.source}: {', '.join(self._config.tables)}",
                hint="it lists DATABASE.TABLE, where * stands for anything; is SELECT granted on them?",
            )

    def _check_state(self, state: State, server: Server) -> None:
        require_flavour(state, server, self._config.state_file)
        if state.topic != self._config.topic:
            raise CommandError(
                f"{self._config.state_file} is of topic {state.topic}, not {self._config.topic}",
                hint="name another state.file for another topic",
            )

    # What it does

    def run(self, report: Report, stop: threading.Event) -> Progress:
        """Until `stop` is set; raises MetaqError."""
        self._state_file.lock()
        try:
            return self._run(report, stop)
        finally:
            self._state_file.unlock()

    def _run(self, report: Report, stop: threading.Event) -> Progress:
        config = self._config
        with self._source.connect() as connection, self._source.errors():
            server = self._source.server(connection)
            state, tables, skipped, added = self._begin(connection, server)
        self._source.expected = server.identity
        client = Client(config.nameservers)
        client.start()
        producer = client.producer(
            GROUP,
            compression=config.compression,
            linger=0.0,
            timeout=10.0,
            # The outbox says how much is held, and sends under the lock that its callbacks take: a buffer
            # that is full of messages whose callbacks wait for that lock would wait for itself.
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
            chunks = Chunks(self._source, config.chunk_rows, config.chunk_bytes)
            sync = Sync(
                config,
                state,
                self._state_file,
                outbox,
                chunks,
                report,
                stop,
                skipped,
                lowers_names=server.lowers_names,
            )
            try:
                if added:
                    sync.queues_changed()
                sync.register(tables)
                self._follow(sync, stop)
            except Stopped:
                pass
            finally:
                chunks.close()
                sync.finish(CLOSE_TIMEOUT_S)
            return sync.progress
        finally:
            try:
                client.close(CLOSE_TIMEOUT_S)
            except NotDelivered as error:
                log.info("%s; the next run sends it again", error)

    def _begin(self, connection: Any, server: Server) -> tuple[State, list[Table], set[str], bool]:
        """The state to go on from, tables, those to skip, and whether the topic has more queues now."""
        config = self._config
        tables, faults = self._source.tables(connection)
        self._check_tables(tables)
        for name, reason in faults.items():
            log.warning("%s: %s; it is skipped", name, reason)
        state = self._state_file.load()
        if state is None:
            state = self._new_state(connection, server)
            state.queues = queues_for(config.nameservers, config.topic, config.queues, None)
            self._state_file.save(state)
            return state, tables, set(faults), False
        self._check_state(state, server)
        if state.server != server.identity:
            # Files and positions begin anew there; what the server goes by is the GTID.
            server.flavour.require_known(connection, config.source, state.gtid)
            log.warning("another server answers: %s, it was %s", server.identity, state.server)
            state.server = server.identity
            state.era = max(state.era + 1, int(time.time()))
            state.place = NOWHERE
            self._state_file.save(state)
        queues = queues_for(config.nameservers, config.topic, config.queues, state.queues)
        added = queues != state.queues
        state.queues = queues
        return state, tables, set(faults), added

    def _new_state(self, connection: Any, server: Server) -> State:
        place, gtid = server.flavour.position(connection)
        return State(
            topic=self._config.topic,
            server=server.identity,
            era=int(time.time()),
            place=place,
            gtid=gtid,
            queues=[],
            flavour=server.flavour.name,
        )

    def _follow(self, sync: Sync, stop: threading.Event) -> None:
        """Reads the binlog, and connects again for as long as it takes."""
        pause_s = PAUSE_FIRST_S
        while not stop.is_set():
            position = sync.position
            stream = Stream(
                self._source,
                self._config.server_id,
                position,
                flavour=sync.flavour,
                selects=sync.selects,
                refuse=sync.refuse,
            )
            try:
                sync.follow(stream)
                return
            except (StreamLost, CommandError) as error:
                if isinstance(error, CommandError) and not error.retriable:
                    raise
                if sync.position != position:
                    pause_s = PAUSE_FIRST_S
                log.warning("%s; trying again in %.1f s", error, pause_s)
                sync.lost()
                stop.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
                self._check_server(sync)
            finally:
                stream.close()

    def _check_server(self, sync: Sync) -> None:
        """After a lost connection another server may answer."""
        try:
            with self._source.connect() as connection, self._source.errors():
                server = self._source.server(connection)
                if server.identity != self._source.expected:
                    server.flavour.require_known(connection, self._config.source, sync.position.gtid)
                sync.require_era(server)
                self._source.expected = server.identity
        except CommandError as error:
            if not error.retriable:
                raise
