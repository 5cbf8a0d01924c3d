"""One client program in another language, spoken to in JSON lines.

The program (java/ or go/) does what it is asked with the unmodified Apache client and tells what happened.
Here are its process, its answers and its events; what they mean is decided in the tests.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.support.processes import LOG_TAIL_LINES

CALL_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0

T = TypeVar("T")
Event = dict[str, Any]


class ClientError(Exception):
    """An exception of the client: the class its caller would catch, and the codes it carries."""

    def __init__(self, details: Mapping[str, Any]) -> None:
        super().__init__(f"{details['class']} {details['code']}: {details['message']}")
        self.kind: str = details["class"]
        self.code: int | None = details["code"]
        self.broker_code: int | None = details.get("broker_code")
        self.message: str = details["message"]


class Driver:
    """A running client program: `call` asks, `events` are its unasked reports."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        client_logs: Path | None = None,
    ) -> None:
        self.log = log
        self._client_logs = client_logs
        self._numbers = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._events: list[Event] = []
        self._write_lock = threading.Lock()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=log.parent,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_for(
            lambda events: any(e["event"] == "ready" for e in events), START_TIMEOUT_S, "ready line"
        )

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._changed:
                if "id" in told and "event" not in told:
                    self._answers[told["id"]] = told
                else:
                    self._events.append(told)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def ask(self, do: str, **arguments: Any) -> int:
        """Asks for one operation without waiting for it."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        line = json.dumps({"id": number, "do": do, **arguments}) + "\n"
        with self._write_lock:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        return number

    def call(self, do: str, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: Any) -> Any:
        """Asks for one operation and returns its result, or raises what the client raised."""
        number = self.ask(do, **arguments)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while number not in self._answers:
                left_s = deadline - time.monotonic()
                if self._ended or left_s <= 0:
                    raise TimeoutError(
                        f"no answer to {do!r} ({'process ended' if self._ended else timeout_s})"
                    )
                self._changed.wait(left_s)
            answer = self._answers.pop(number)
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer.get("result")

    def events(self, kind: str | None = None, handle: str | None = None) -> list[Event]:
        """All events so far, in order."""
        with self._changed:
            return [
                event
                for event in self._events
                if kind in (None, event["event"]) and handle in (None, event.get("handle"))
            ]

    def wait_for(self, condition: Callable[[list[Event]], bool], timeout_s: float, what: str) -> None:
        """Waits until the events fulfil a condition; looks again at every new one, not by the clock."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition(self._events):
                left_s = deadline - time.monotonic()
                if self._ended:
                    raise RuntimeError(f"the client program ended before {what}\n{self.tail()}")
                if left_s <= 0:
                    raise TimeoutError(f"no {what} within {timeout_s} s")
                self._changed.wait(left_s)

    def forget_events(self) -> None:
        """Drops all events; a test that reads only its own handles may start from nothing."""
        with self._changed:
            self._events.clear()

    def kill(self) -> None:
        """Ends the program as a crash does, and reads what it had told before."""
        self._process.kill()
        self._finish()

    def close(self) -> None:
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._finish()

    def _finish(self) -> None:
        self._process.wait()
        self._reader.join(60)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def tail(self) -> str:
        """The end of what the program printed, and of what the client itself logged."""
        shown = []
        for log in (self.log, *(sorted(self._client_logs.glob("*.log")) if self._client_logs else ())):
            lines = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            shown += [f"--- {log} ---", *lines]
        return "\n".join(shown)


def eventually(ask: Callable[[], T], good: Callable[[T], bool], timeout_s: float, what: str) -> T:
    """Asks again until the answer is good; for state that tells nobody when it changes."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if good(answer):
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not {what} within {timeout_s} s; last seen: {answer!r}")
        time.sleep(0.05)
