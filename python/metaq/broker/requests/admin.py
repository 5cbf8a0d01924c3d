"""The configuration and the figures of a broker, for tools."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metaq._core import BrokerPlane, Clock, Listener, Store
from metaq.broker.options import BrokerOptions
from metaq.broker.requests.runtime_info import Sources, runtime_info
from metaq.broker.state.groups import Groups
from metaq.broker.state.run_time_options import APACHE_NAMES, NOW, RunTimeOptions
from metaq.broker.state.stats import Statistics
from metaq.broker.state.topics import Topics
from metaq.config.option import written
from metaq.config.options import OPTIONS
from metaq.protocol import names
from metaq.protocol.bodies import WRITE, DataVersion, KVTable
from metaq.protocol.codes import ResponseCode
from metaq.protocol.command import Command
from metaq.protocol.commands.admin import (
    CleanExpiredConsumeQueue,
    ConfigVersion,
    DeleteExpiredCommitLog,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    TriggerDeleteFiles,
    UpdateBrokerConfig,
)
from metaq.protocol.commands.options import ChangeOptions, GetOptions, OptionChanges, OptionStates
from metaq.protocol.dispatch import Request, Response, handles
from metaq.protocol.errors import Refused
from metaq.protocol.handling.peer_log import peer_log
from metaq.work_pools import WorkPools

_log = logging.getLogger(__name__)

CONFIG_BYTES_MAX = 64 * 1024


@dataclass(slots=True)
class AdminParts:
    """The parts that administration reads and changes."""

    options: BrokerOptions
    broker_id: int
    clock: Clock
    listener: Listener
    plane: BrokerPlane
    store: Store
    topics: Topics
    groups: Groups
    statistics: Statistics
    run_time: RunTimeOptions
    address: str
    started_ms: int
    pools: WorkPools
    filter_figures: Callable[[], Mapping[str, str]] = dict
    """Returns a line for each filter function that has been called."""


class Admin:
    """Configuration and figures of the running broker."""

    def __init__(self, parts: AdminParts) -> None:
        self._parts = parts
        self._config_version = DataVersion(timestamp=parts.clock.now_ms())
        self.permission = parts.options.permission

    # Configuration

    def config(self) -> dict[str, str]:
        """The settings under Apache's names, so that its tools show them."""
        options = self._parts.options
        broker, server, store = options.broker, options.server, options.store
        values: dict[str, str | int | bool] = {
            "brokerName": broker.name,
            "brokerClusterName": broker.cluster,
            "brokerId": self._parts.broker_id,
            "brokerIP1": self._parts.address.rpartition(":")[0],
            "listenPort": self._parts.listener.port,
            "namesrvAddr": ";".join(options.nameservers),
            "regionId": broker.region,
            "defaultTopicQueueNums": options.default_topic_queues,
            "longPollingEnable": broker.long_polling,
            "shortPollingTimeMills": broker.short_polling_ms,
            "flushConsumerOffsetInterval": int(options.offsets_persist_interval_s * 1000),
            "registerNameServerPeriod": int(options.register_interval_clamped_s * 1000),
            "channelExpiredTimeout": int(options.client_expiry_s * 1000),
            "flushDiskType": "SYNC_FLUSH" if store.flush == "sync" else "ASYNC_FLUSH",
            "brokerRole": "ASYNC_MASTER",
            "mappedFileSizeCommitLog": store.commit_log_file_bytes,
            "maxMessageSize": store.message_size_bytes_max,
            "serverChannelMaxIdleTimeSeconds": server.idle_timeout_ms // 1000,
            "enablePropertyFilter": options.enable_property_filter,
            **{
                APACHE_NAMES.get(name, name): written(self._parts.run_time.value(name))
                for name, option in OPTIONS.items()
                if option.at_run_time
            },
        }
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
        }

    @handles(GetBrokerConfig)
    def get_broker_config(self, command: GetBrokerConfig, request: Request) -> Response:
        text = "".join(f"{key}={value}\n" for key, value in sorted(self.config().items()))
        version = ConfigVersion(version=self._config_version.encode().decode())
        return Response(fields=version, body=text.encode())

    @handles(UpdateBrokerConfig)
    async def update_broker_config(self, command: UpdateBrokerConfig, request: Request) -> None:
        await self._change(OptionChanges(parse_properties(request.body)), request)

    @handles(GetOptions)
    def get_options(self, command: GetOptions, request: Request) -> Response:
        return Response(body=OptionStates(tuple(self._parts.run_time.states())).encode())

    @handles(ChangeOptions)
    async def change_options(self, command: ChangeOptions, request: Request) -> Response:
        changed = await self._change(OptionChanges.decode(request.body), request)
        states = tuple(self._parts.run_time.state(name) for name in changed)
        return Response(body=OptionStates(states).encode())

    async def _change(self, wanted: OptionChanges, request: Request) -> list[str]:
        """Checks everything before it changes anything. Returns the names of the options."""
        run_time = self._parts.run_time
        async with run_time.one_at_a_time:
            changes = run_time.check(wanted.values, wanted.forget, persist=wanted.persist)
            before = {name: written(run_time.value(name)) for name in changes.values}
            await run_time.keep(changes)
            for name, value in changes.values.items():
                how_long = "for later starts too" if name in changes.kept else NOW.partition(", ")[2]
                peer_log.write(
                    _log,
                    logging.WARNING,
                    request.remote,
                    "configuration %s=%s (was %s) set by %s %s",
                    name,
                    written(value),
                    before[name],
                    request.remote,
                    how_long,
                )
            await run_time.apply(changes)
            await self._apply(changes.of_master)
            if changes.values:
                self._config_version = self._config_version.next(self._parts.clock.now_ms())
        return list(changes.values)

    async def stop_writes(self) -> None:
        """Refuses messages until the next start, and tells the name servers."""
        run_time = self._parts.run_time
        async with run_time.one_at_a_time:
            changes = run_time.check({"permission": str(self.permission & ~WRITE)})
            await run_time.apply(changes)
            await self._apply(changes.of_master)

    async def _apply(self, values: Mapping[str, Any]) -> None:
        """Passes changed options on to the parts of this role."""
        topics = self._parts.topics
        permission, touched = self.permission, []
        if (enabled := values.get("auto_create_topic")) is not None:
            # Also adds or removes the template topic.
            topics.set_auto_create(enabled)
            touched = [names.TEMPLATE_TOPIC]
        if (enabled := values.get("auto_create_group")) is not None:
            self._parts.groups.auto_create = enabled
        if (wanted := values.get("permission")) is not None:
            self.permission = wanted
            self._parts.plane.set_permission(wanted)
        if self.permission != permission:
            # Name servers show it with all topics, none of which has changed.
            topics.version_changed()
        if touched or self.permission != permission:
            await topics.publish(touched)

    # Figures

    @handles(GetBrokerRuntimeInfo)
    async def get_broker_runtime_info(self, command: GetBrokerRuntimeInfo, request: Request) -> Response:
        table = await self._parts.pools.look_ups.run(request, self._runtime_info)
        return Response(body=KVTable(table=table).encode())

    def _runtime_info(self) -> dict[str, str]:
        parts = self._parts
        sources = Sources(parts.listener, parts.plane, parts.store, parts.statistics)
        return {**runtime_info(parts.options, sources, parts.started_ms), **parts.filter_figures()}

    @handles(TriggerDeleteFiles, CleanExpiredConsumeQueue, DeleteExpiredCommitLog)
    async def clean(self, command: Command, request: Request) -> None:
        # An administrator may clean at any hour, but files that are not old enough stay.
        deleted = await self._parts.pools.administration.run(
            request, lambda: self._parts.store.clean(force=True)
        )
        peer_log.write(
            _log,
            logging.WARNING,
            request.remote,
            "retention applied for %s: %d commit-log files deleted",
            request.remote,
            deleted,
        )


def parse_properties(body: bytes) -> dict[str, str]:
    """Reads `key=value` lines. Raises Refused for anything else."""
    if len(body) > CONFIG_BYTES_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the configuration has {len(body)} bytes, the limit is {CONFIG_BYTES_MAX}",
        )
    values: dict[str, str] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"{text[:64]!a} is not of the form key=value")
        values[key.strip()] = value.strip()
    return values
