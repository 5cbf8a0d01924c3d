"""A `metaq serve` for fault tests, which kill it, starve it and restart it on the same store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.metaq import Metaq
from tests.support.plain_client import PlainClient

KIB, MIB = 1024, 1024 * 1024

# Files so small that a short test fills many of them.
SMALL_FILES: Mapping[str, object] = {
    "commit_log_file_bytes": MIB,
    "consume_queue_file_entries": 1_000,
    "index_slots": 1_000,
    "index_entries": 4_000,
    "allocation_step_bytes": 256 * KIB,
}


class Serving(Metaq):
    """One process. Several may follow each other on the same data, each with its own log under `home`."""

    def __init__(
        self,
        home: Path,
        data: Path,
        *,
        flush: str = "sync",
        settings: Mapping[str, object] = SMALL_FILES,
        prefix: Sequence[str] = (),
        wait: bool = True,
        ports: tuple[int, int] = (0, 0),
    ) -> None:
        """`ports` of the name server and of the broker; processes that follow each other may share them."""
        home.mkdir(parents=True, exist_ok=True)
        self.data = data
        super().__init__(
            "serve",
            *("--host", "127.0.0.1", "--namesrv-port", str(ports[0]), "--broker-port", str(ports[1])),
            *("--data", str(data), "--flush", flush),
            *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
            home=home,
            prefix=prefix,
            wait=wait,
        )

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None:
            exit_code = self.child.process.poll()
            state = "still running" if exit_code is None else f"ended with {exit_code}"
            print(state, self.child.tail(), sep="\n")
        if self.child.alive:
            self.kill()

    def connect(self, timeout_s: float = 60.0) -> PlainClient:
        return PlainClient(self.broker, timeout_s)

    def log(self) -> str:
        return self.child.log.read_text(errors="replace")
