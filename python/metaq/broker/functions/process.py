"""One worker: a process with a memory limit that runs the operator's functions and may die of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from metaq.errors import ConfigError, MetaqError
from metaq.filters.exchange import (
    ANSWER_BYTES_MAX,
    LENGTH,
    VERDICTS_MAX,
    Answer,
    Ask,
    Description,
    Hello,
    frame,
)
from metaq.settings import MIB

_log = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
"""Time for the interpreter and the imports of the operator's modules. Clients wait 30 s for a pull."""
END_TIMEOUT_S = 3.0
"""Time between its closed pipe and its exit code."""
KEPT_VARIABLES = frozenset(
    "PATH HOME LANG LANGUAGE TZ TMPDIR PYTHONPATH PYTHONHOME VIRTUAL_ENV LD_LIBRARY_PATH".split()  # noqa: SIM905
)
"""The only variables that a worker gets from the broker's environment, besides LC_…; the rest may hold
secrets."""
OUTPUT_CHUNK_BYTES = 4_096

Value = TypeVar("Value", Hello, Answer)


class WorkerLost(MetaqError):
    """The worker has ended, does not answer in time, or sends something that no worker sends."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The functions that workers load, and the limits of each worker."""

    sources: tuple[str, ...] = ()
    """Folders, as absolute paths, and modules."""
    timeout_ms: int = 2_000
    """For one batch."""
    memory_bytes: int = 512 * MIB
    batch_messages_max: int = 256
    batch_bytes_max: int = MIB
    """The limits of one batch. Its first message is sent whatever its size."""
    workers_max: int = 2
    """For one function."""
    idle_s: float = 60.0
    """A worker without work for this long is ended."""
    readable: tuple[str, ...] = ()
    """Folders and files that functions may read besides their own."""
    private: tuple[str, ...] = ()
    """The files of the broker, which functions must not be able to read."""
    network: bool = False
    """Whether functions may open sockets."""


class Worker:
    """One running process, asked one batch at a time."""

    def __init__(
        self, process: asyncio.subprocess.Process, verdicts: mmap.mmap, output: Callable[[bytes], None]
    ) -> None:
        self._process = process
        self._verdicts = verdicts
        self._output = asyncio.create_task(self._drain_output(output))
        self.functions: dict[str, Description] = {}
        self.unprotected: tuple[str, ...] = ()

    @classmethod
    async def start(cls, settings: WorkerSettings, output: Callable[[bytes], None]) -> Worker:
        """Raises WorkerLost, also for errors while the functions load."""
        shared = os.memfd_create("metaq-verdicts")
        try:
            os.ftruncate(shared, VERDICTS_MAX)
            verdicts = mmap.mmap(shared, VERDICTS_MAX)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # No modules from the working directory, and no bytecode that may be older than its file.
                "-PB",
                "-m",
                "metaq.filters.worker",
                f"--parent={os.getpid()}",
                f"--memory-bytes={settings.memory_bytes}",
                f"--verdicts={shared}",
                *(f"--readable={path}" for path in settings.readable),
                *(f"--private={path}" for path in settings.private),
                *(("--network",) if settings.network else ()),
                "--",
                *settings.sources,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(),
                pass_fds=(shared,),
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerLost(f"a process for filter functions cannot be started: {error}") from None
        finally:
            os.close(shared)
        worker = cls(process, verdicts, output)
        try:
            hello = await worker._hear(Hello, START_TIMEOUT_S)
            if hello.error:
                raise WorkerLost(hello.error)
        except BaseException:
            await worker.kill()
            raise
        worker.functions = {known.name: known for known in hello.functions}
        worker.unprotected = hello.unprotected
        return worker

    async def ask(self, ask: Ask, timeout_s: float) -> Answer:
        """Raises WorkerLost; the verdicts that were given before are there all the same."""
        self._verdicts[:] = bytes(VERDICTS_MAX)
        writer = self._process.stdin
        assert writer is not None
        try:
            async with asyncio.timeout(timeout_s):
                writer.write(frame(ask))
                await writer.drain()
                return await self._hear(Answer, timeout_s)
        except TimeoutError:
            raise WorkerLost(f"it took longer than {timeout_s:g} s") from None
        except OSError:
            raise WorkerLost(await self._last_words()) from None

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    def verdicts(self, count: int) -> bytes:
        return self._verdicts[:count]

    async def kill(self) -> None:
        """Ends the process and its children at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._output.cancel()
        await asyncio.gather(self._output, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._verdicts.close()

    async def _hear(self, kind: type[Value], timeout_s: float) -> Value:
        reader = self._process.stdout
        assert reader is not None
        try:
            async with asyncio.timeout(timeout_s):
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                if size > ANSWER_BYTES_MAX:
                    raise WorkerLost(f"it sent {size} bytes, the limit is {ANSWER_BYTES_MAX}")
                return msgspec.msgpack.decode(await reader.readexactly(size), type=kind)
        except TimeoutError:
            raise WorkerLost(f"it took longer than {timeout_s:g} s") from None
        except (asyncio.IncompleteReadError, OSError):
            raise WorkerLost(await self._last_words()) from None
        except msgspec.MsgspecError as error:
            raise WorkerLost(f"it sent something that no worker sends: {error}") from None

    async def _last_words(self) -> str:
        """How the process ended, after its pipe was closed."""
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                code = await self._process.wait()
        except TimeoutError:
            return "it has closed its pipe"
        if code >= 0:
            return f"its process ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"its process was ended by {name}"

    async def _drain_output(self, output: Callable[[bytes], None]) -> None:
        """Reads whatever is printed; otherwise the worker would block on a full pipe."""
        reader = self._process.stderr
        assert reader is not None
        while chunk := await reader.read(OUTPUT_CHUNK_BYTES):
            output(chunk)


def _environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name in KEPT_VARIABLES or name.startswith("LC_")
    }


async def describe_functions(settings: WorkerSettings) -> dict[str, Description]:
    """The functions that a worker finds. Raises ConfigError."""
    if not settings.sources:
        return {}
    printed = bytearray()

    def keep(chunk: bytes) -> None:
        printed.extend(chunk[: max(0, OUTPUT_CHUNK_BYTES - len(printed))])

    try:
        worker = await Worker.start(settings, keep)
    except WorkerLost as lost:
        if printed:
            _log.error("filter functions: %s", printed.decode("utf-8", "replace").strip())
        raise ConfigError(f"filter_functions cannot be loaded: {lost}") from None
    await worker.kill()
    if worker.unprotected:
        _log.warning("filter functions are not kept from: %s", "; ".join(worker.unprotected))
    else:
        _log.info("filter functions have no files but their own, no network and no other processes")
    return worker.functions
