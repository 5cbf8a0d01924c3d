"""Runs a development cluster: starts its processes, restarts nodes, stops everything."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Coroutine
from typing import Final

import msgspec

from metaq.dev.child import Child, described_end
from metaq.dev.plan import Plan, Planned, environment
from metaq.dev.readiness import Readiness, Report, register_answers
from metaq.durable import replace_file
from metaq.errors import CommandError
from metaq.ha.register import Register, open_register
from metaq.held_file import HeldFile
from metaq.private_files import make_private_directory, whose

START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 15.0
_KEY_MODE: Final = 0o600


class NodeProcess(msgspec.Struct, frozen=True):
    """One broker of the cluster."""

    group: str
    id: int
    pid: int
    """The process, or the last one of a node that has died and not been started again."""
    address: str


class State(msgspec.Struct, frozen=True):
    """The addresses and processes of the cluster, as `METAQ_READY` and `cluster.json` have them."""

    nameservers: list[str]
    register: list[str]
    nodes: list[NodeProcess]


class DevCluster:
    """All processes of one plan, from `run` until a signal comes."""

    def __init__(self, plan: Plan, restart_after_s: float | None, report: Report) -> None:
        self._plan = plan
        self._restart_after_s = restart_after_s
        self._report = report
        self._environment = environment()
        self._etcd = self._child(plan.etcd_process())
        self._nameservers = [self._child(planned) for planned in plan.nameserver_processes()]
        self._nodes = [self._child(planned) for planned in plan.node_processes()]
        self._watching: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """The state of now."""
        return State(
            nameservers=self._plan.nameserver_addresses,
            register=[self._plan.register_endpoint],
            nodes=[
                NodeProcess(node.planned.group, node.planned.id, node.pid, node.planned.address)
                for node in self._nodes
            ],
        )

    async def run(self, announce: Callable[[State], None]) -> None:
        """Starts everything, announces it, and runs until SIGINT, SIGTERM or SIGHUP.

        Raises CommandError if it cannot be started; then nothing is left running.
        """
        lock = self._claim()
        stop = _stop_on_signal()
        try:
            if await _unless_set(stop, self._start()):
                announce(self.state)
                await stop.wait()
        finally:
            await self._stop()
            lock.close()

    async def _start(self) -> None:
        # The processes of an earlier run are gone, and others may have their ids by now.
        self._plan.state_file.unlink(missing_ok=True)
        self._write_key()
        register = open_register(self._plan.register)
        readiness = Readiness(self._plan, register, self._report)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._start_all(register, readiness)
        except TimeoutError:
            raise self._late(readiness) from None
        finally:
            await readiness.close()
            await register.close()

    async def _start_all(self, register: Register, readiness: Readiness) -> None:
        await self._begin(self._etcd)
        self._report(f"etcd starts at {self._etcd.planned.address}")
        await register_answers(register, self._check)
        for nameserver in self._nameservers:
            await self._begin(nameserver)
            self._report(f"{nameserver.name} starts at {nameserver.planned.address}")
        for node in self._nodes:
            await self._begin(node)
            self._report(f"{node.name} starts at {node.planned.address}")
        self._write_state()
        await readiness.wait(self._check)
        self._watching = [asyncio.create_task(self._watch(child)) for child in self._children()]

    def _late(self, readiness: Readiness) -> CommandError:
        """Returns the error that says what is missing, with the logs of those that are to blame."""
        if self._nodes[0].pid == 0:
            return CommandError(f"etcd did not answer within {START_TIMEOUT_S:.0f} s\n{self._etcd.tail()}")
        reasons = "; ".join(f"{name}: {reason}" for name, reason in readiness.missing.items())
        tails = "\n".join(node.tail() for node in self._nodes if node.planned.group in readiness.missing)
        return CommandError(f"the cluster is not ready after {START_TIMEOUT_S:.0f} s: {reasons}\n{tails}")

    def _check(self) -> None:
        """Raises CommandError if a process has ended during the start."""
        for child in self._children():
            if child.ended_with is not None:
                raise CommandError(
                    f"{child.name} {described_end(child.ended_with)} during the start\n{child.tail()}"
                )

    async def _watch(self, child: Child) -> None:
        """Reports the end of a process, and starts it again if that is wanted."""
        while True:
            code = await child.wait()
            if self._restart_after_s is None:
                self._report(
                    f"{child.name} {described_end(code)} and stays dead; --restart-after would start it again"
                )
                return
            self._report(
                f"{child.name} {described_end(code)}; it starts again in {self._restart_after_s:g} s"
            )
            await asyncio.sleep(self._restart_after_s)
            try:
                await self._begin(child)
                self._write_state()
            except (CommandError, OSError) as error:
                self._report(f"{child.name} was not started again, or not noted in cluster.json: {error}")
            else:
                self._report(f"{child.name} starts again at {child.planned.address}, pid {child.pid}")

    async def _begin(self, child: Child) -> None:
        try:
            await child.start()
        except OSError as error:
            raise CommandError(f"{child.name} cannot be started: {error}") from None

    async def _stop(self) -> None:
        """Stops the brokers first and the register last, so that nobody misses what it needs."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for children in (self._nodes, self._nameservers, [self._etcd]):
            stopped = await asyncio.gather(*(child.stop(_STOP_TIMEOUT_S) for child in children))
            for child, in_time in zip(children, stopped, strict=True):
                if not in_time:
                    self._report(f"{child.name} did not stop within {_STOP_TIMEOUT_S:.0f} s and was killed")

    def _children(self) -> list[Child]:
        return [self._etcd, *self._nameservers, *self._nodes]

    def _child(self, planned: Planned) -> Child:
        return Child(planned, self._plan.logs, self._environment)

    def _claim(self) -> HeldFile:
        """Makes the directory and takes it for this process. Raises CommandError."""
        data = self._plan.data
        try:
            make_private_directory(self._plan.logs)
            return HeldFile(data / "cluster.lock")
        except BlockingIOError:
            raise CommandError(
                f"another `metaq dev cluster` runs in {data}", hint="stop it, or choose another --data"
            ) from None
        except OSError as error:
            raise CommandError(
                f"--data {data} cannot be used: {error.strerror or error}", hint=whose(data, error)
            ) from None

    def _write_key(self) -> None:
        """Makes the key of the cluster, unless an earlier run did."""
        try:
            descriptor = os.open(self._plan.key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _KEY_MODE)
        except FileExistsError:
            return
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")

    def _write_state(self) -> None:
        replace_file(self._plan.state_file, msgspec.json.encode(self.state) + b"\n")


async def _unless_set(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Does the work, unless the event is set first. Returns whether the work was done."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def _stop_on_signal() -> asyncio.Event:
    """An event that the first signal sets; a second one ends the process and its children at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def ask() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, ask)
    return stop
