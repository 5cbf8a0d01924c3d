"""Runs name server and broker as a process: starts them in order, announces them, stops them on a signal."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shlex
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from metaq._core import Clock, StoreFailure
from metaq.config import Config
from metaq.config.derive import (
    broker_options,
    console_folder,
    key_values_file,
    metrics_address,
    nameserver_limits,
    nameserver_settings,
)
from metaq.errors import CommandError
from metaq.held_file import holder, named_process
from metaq.private_files import whose
from metaq.systemd import READY, STOPPING, notify

if TYPE_CHECKING:
    from metaq.broker import Broker
    from metaq.console.place import Announcement, FirstLinks
    from metaq.console.process import ConsoleProcess
    from metaq.nameserver import NameServer

_log = logging.getLogger(__name__)

Role = Literal["serve", "nameserver", "broker"]
LOCK: Final = "lock"
"""The lock file of a store, in its folder."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The addresses of everything that is up; None for a part that this process does not run."""

    role: Role
    nameserver: str | None = None
    broker: str | None = None
    broker_old: str | None = None
    data: str | None = None
    replication: str | None = None
    apache_master: str | None = None
    """The Apache master that the broker copies, until it takes over."""
    metrics: str | None = None
    """The address of /metrics, /livez and /readyz."""
    console: str | None = None
    """The address of the console."""
    console_links_file: str | None = None
    """The file with one link for an operator and one for a viewer. Each signs in one person, once."""
    console_links: FirstLinks | None = None
    """The links themselves. They are for a terminal only, and never for a log."""
    silent_nameservers: tuple[str, ...] | None = None
    """The name servers with which the broker could not register yet. Only people read this: it may change at
    any moment."""


async def run(role: Role, config: Config, announce: Callable[[Ready], None]) -> None:
    """Starts the parts of the role, announces them and runs until SIGINT or SIGTERM."""
    # Everything that this process writes is its own, such as files that a filter function leaves.
    os.umask(0o077)
    if role != "nameserver":
        _check_folder(config["data"])
    stop = _stop_on_signal()
    clock = Clock()
    nameserver: NameServer | None = None
    broker: Broker | None = None
    metrics: str | None = None
    console: Announcement | None = None
    async with AsyncExitStack() as stack:
        # The port first: if it is taken, nothing has to be stopped again.
        console_process = await _bind_console(config, stack) if role == "serve" else None
        if role != "broker":
            nameserver = await _start_nameserver(config, clock, stack, alone=role == "nameserver")
        if role != "nameserver":
            own = (nameserver.address,) if nameserver else ()
            broker = await _start_broker(config, clock, stack, (*own, *config["namesrv"]), alone=not own)
            metrics = await _start_monitoring(config, broker, stack)
        if console_process is not None and nameserver is not None:
            console = await _start_console(config, console_process, nameserver.address, stack)
        announce(
            Ready(
                role,
                nameserver=nameserver.address if nameserver else None,
                broker=broker.address if broker else None,
                broker_old=broker.old_address if broker else None,
                data=config["data"] if broker else None,
                replication=broker.group.replication_address if broker and broker.group else None,
                apache_master=broker.apache.master_address if broker and broker.apache else None,
                metrics=metrics,
                console=console.address if console else None,
                console_links_file=str(console.links_file) if console else None,
                console_links=console.links if console else None,
                silent_nameservers=_silent_nameservers(broker),
            )
        )
        notify(READY, f"STATUS=serves as {role}")
        try:
            await _wait(stop, broker)
        finally:
            notify(STOPPING)


async def _wait(stop: asyncio.Event, broker: Broker | None) -> None:
    """Returns at a signal, or when a broker that was drained is done.

    Raises the error of a broker that can no longer take part in its group, or copy its Apache master.
    """
    asked = asyncio.create_task(stop.wait())
    waits: list[asyncio.Future[Any]] = [asked]
    if broker is not None and broker.ended is not None:
        waits.append(broker.ended)
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asked.cancel()
    for ended in done:
        ended.result()


def _stop_on_signal() -> asyncio.Event:
    """An event that the first signal sets; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def ask() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    return stop


async def _start_nameserver(
    config: Config, clock: Clock, stack: AsyncExitStack, *, alone: bool
) -> NameServer:
    from metaq.nameserver import NameServer

    settings = nameserver_settings(config, alone=alone)
    with _explained("--listen" if alone else "--namesrv-port"):
        nameserver = NameServer(
            settings,
            clock,
            key_values_file=key_values_file(config, alone=alone),
            broker_expiry_s=config["broker_expiry_s"],
            limits=nameserver_limits(config),
        )
        await nameserver.start()
    stack.push_async_callback(nameserver.stop)
    return nameserver


async def _start_broker(
    config: Config, clock: Clock, stack: AsyncExitStack, nameservers: tuple[str, ...], *, alone: bool
) -> Broker:
    from metaq.broker import Broker

    options = broker_options(config, nameservers, alone=alone)
    with _explained("--listen" if alone else "--broker-port", config["data"]):
        broker = Broker(options, clock)
        await broker.start()
    stack.push_async_callback(broker.stop)
    return broker


def _silent_nameservers(broker: Broker | None) -> tuple[str, ...] | None:
    """Returns the name servers that the broker has not reached. A broker in a group does not wait for any of
    them, so it cannot know this yet."""
    if broker is None or broker.options.replication is not None or not broker.is_master:
        return None
    registered = broker.master.registration.registered
    return tuple(address for address in broker.options.nameservers if address not in registered) or None


def _check_folder(data: str) -> None:
    """Raises CommandError if there is a file in place of the data folder, or of a folder above it.

    Also raises it if every account may change the data folder.
    """
    folder = Path(data).expanduser()
    _check_mode(folder)
    for path in (folder, *folder.parents):
        if path.exists():
            if not path.is_dir():
                raise CommandError(f"{path} is a file, not a folder", hint="choose a folder with --data")
            return


def _check_mode(folder: Path) -> None:
    """Refuses a folder in which every account may replace files, and warns if its group may."""
    if not folder.is_dir():
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise CommandError(
            f"every account of this machine may replace files in the data folder {folder} (mode {mode:04o})",
            hint=f"run: chmod o-w {shlex.quote(str(folder))}",
        )
    if mode & (stat.S_IWOTH | stat.S_IWGRP):
        # Kubernetes gives such modes to volumes with fsGroup.
        _log.warning(
            "other accounts may write to the data folder %s (mode %04o); if they should not: chmod go-w %s",
            folder,
            mode,
            shlex.quote(str(folder)),
        )


async def _start_monitoring(config: Config, broker: Broker, stack: AsyncExitStack) -> str | None:
    """Serves the pages for monitoring and returns their address; None if they are switched off."""
    address = metrics_address(config)
    if address is None:
        return None
    from metaq.monitoring.broker_metrics import BrokerMetrics
    from metaq.monitoring.endpoints import broker_endpoints

    metrics = BrokerMetrics(broker, config["metrics_series_max"], config["metrics_detail"])
    pages = broker_endpoints(broker, metrics)
    with _explained("--set metrics_listen"):
        await pages.start(*address)
    stack.push_async_callback(pages.stop)
    broker.node.metrics_address = pages.address
    return pages.address


async def _bind_console(config: Config, stack: AsyncExitStack) -> ConsoleProcess | None:
    """Takes the port of the console; None if the console is switched off."""
    if not config["console"]:
        return None
    from metaq.console.process import ConsoleProcess

    with _explained("--console-port"):
        bound = ConsoleProcess.bind(config["console_port"], may_move=config.is_default("console_port"))
    stack.push_async_callback(bound.stop)
    return bound


async def _start_console(
    config: Config, process: ConsoleProcess, nameserver: str, stack: AsyncExitStack
) -> Announcement:
    from metaq.console.child import Start
    from metaq.console.settings import ConsoleSettings

    settings = ConsoleSettings(
        nameservers=nameserver,
        state_folder=console_folder(config),
        cluster_label=config["cluster"],
        poll_interval_s=config["console_poll_interval_s"],
    )
    with _explained("--console-port"):
        announcement = await process.start(Start(settings, config["log_level"], config["log_format"]))
    # It stops before the broker that it asks.
    stack.push_async_callback(process.stop)
    return announcement


@contextmanager
def _explained(flag: str, data: str = "") -> Iterator[None]:
    """Explains what to do if a port is taken or the store cannot be opened."""
    try:
        yield
    except StoreFailure as error:
        raise CommandError(f"the store cannot be opened: {error}", hint=_store_hint(error, data)) from None
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        hint = f"choose another port with {flag}; 0 takes a free one" if is_taken else ""
        if error.filename:
            hint = whose(error.filename, error) or hint
        what = error.strerror or str(error)
        if error.errno == errno.ELOOP and error.filename:
            what = f"{error.filename} {what}"
        raise CommandError(what, hint=hint) from None


def _store_hint(error: StoreFailure, data: str) -> str:
    """Names the owner of a private store, or the process that holds the lock of one that is in use."""
    if "ermission denied" in str(error):
        return whose(data, PermissionError())
    if "is in use by another process" not in str(error):
        return ""
    pid = holder(Path(data).expanduser() / LOCK)
    return (
        ""
        if pid is None
        else f"{named_process(pid)} uses it: stop that, or choose another folder with --data"
    )
