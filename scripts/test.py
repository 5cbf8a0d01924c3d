"""Runs the suites, shows what each prints, and closes with one line `N passed, N failed`.

    scripts/test.py all|unit|rust|lint [pytest arguments]

A suite that fails does not stop the next one. A suite that cannot run at all counts as one failure,
and so does each lint check that finds something.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Use the tools of the environment that this script runs in, activated or not.
TOOLS = Path(sys.executable).parent
# Counts the CPU time of every process that a suite starts.
REAPING = (sys.executable, str(ROOT / "scripts" / "reaping.py"))
# Repeat these lines at the end, so that a reader knows where to look.
COMPLAINT = re.compile(r"^(FAILED|ERROR) |^test .* FAILED$|panicked at|\(signal: |^error\b|: error: |^E  ")
MAX_COMPLAINTS = 40
# Tests of mirrors have a Spark session of their own, and all other tests of Spark share one. To warm up a
# session takes as long as a dozen tests.
SPARK_MIRRORS = tuple(f"tests/spark/test_{name}.py" for name in ("mirror", "mirror_delta", "mirror_jdbc"))
# Suites that run side by side and share nothing, the longest first. All other tests are a suite of their own.
APART = {
    "pytest spark": ("tests/spark", *(f"--ignore={path}" for path in SPARK_MIRRORS)),
    "pytest spark mirrors": SPARK_MIRRORS,
    "pytest faults": ("tests/faults",),
    "pytest interop 5.5.0": ("tests/interop", "-k", "5.5.0"),
    "pytest interop": ("tests/interop", "-k", "not 5.5.0"),
    "pytest browser": ("tests/browser",),
    "pytest client": ("tests/integration/client", "tests/integration/admin"),
    "pytest pipelines": ("tests/integration/pipelines",),
}
APART_FOLDERS = (
    "tests/browser",
    "tests/faults",
    "tests/integration/admin",
    "tests/integration/client",
    "tests/integration/pipelines",
    "tests/interop",
    "tests/spark",
)
"""Folders whose tests run in the suites above."""
AT_ONCE = 6
"""Most suites wait more than they compute, so more of them run at once than there are cores. With too many,
each takes longer, and its idle servers and open pages cost CPU time all the while."""


@dataclass(frozen=True)
class Outcome:
    """The result of one suite, and the lines that say what failed."""

    passed: int
    failed: int
    skipped: int = 0
    complaints: tuple[str, ...] = ()
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Suite:
    """One command and how to read its result from its exit code and its output."""

    name: str
    command: tuple[str, ...]
    read: Callable[[int, Iterable[str]], Outcome]


def read_check(exit_code: int, lines: Iterable[str]) -> Outcome:
    """A linter: it passes or it does not."""
    return Outcome(1, 0) if exit_code == 0 else Outcome(0, 1)


def read_cargo(exit_code: int, lines: Iterable[str]) -> Outcome:
    """Cargo prints one result line per test binary."""
    passed = failed = skipped = 0
    for line in lines:
        if found := re.match(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line):
            passed += int(found[1])
            failed += int(found[2])
            skipped += int(found[3])
    return with_silent_failure(exit_code, Outcome(passed, failed, skipped))


def read_pytest(exit_code: int, lines: Iterable[str]) -> Outcome:
    """pytest closes with `= 3 failed, 20 passed, 1 error in 2.00s =`."""
    counts = {"passed": 0, "failed": 0, "error": 0, "skipped": 0}
    for line in lines:
        if re.search(r"\bin \d+(\.\d+)?s\b", line):
            found = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+?)s?\b", line)}
            if found.keys() & counts.keys():
                counts = {word: found.get(word, 0) for word in counts}
    failed = counts["failed"] + counts["error"]
    return with_silent_failure(exit_code, Outcome(counts["passed"], failed, counts["skipped"]))


def with_silent_failure(exit_code: int, outcome: Outcome) -> Outcome:
    """Counts one failure if the suite failed without naming a failed test."""
    if exit_code != 0 and outcome.failed == 0:
        return Outcome(outcome.passed, 1, outcome.skipped)
    return outcome


def lint_suites() -> list[Suite]:
    def tool(name: str, *arguments: str) -> tuple[str, ...]:
        return (str(TOOLS / name), *arguments)

    commands = {
        "cargo fmt": ("cargo", "fmt", "--all", "--check"),
        "cargo clippy": (
            # It checks the allocator's Rust code, and need not spend a minute on building its C code, which
            # it does not link. The path is any file that exists.
            "env",
            "JEMALLOC_OVERRIDE=./Cargo.toml",
            "cargo",
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ),
        "ruff check": tool("ruff", "check", "--quiet", "--output-format=concise", "."),
        "ruff format": tool("ruff", "format", "--check", "--output-format=concise", "."),
        "mypy": tool("mypy", "--strict", "python/metaq"),
        "mypy.stubtest": (sys.executable, "-m", "mypy.stubtest", "metaq._core"),
        "prose": (sys.executable, "scripts/prose.py"),
        "let chains": (sys.executable, "scripts/let_chains.py"),
    }
    return [Suite(name, command, read_check) for name, command in commands.items()]


def rust_suite() -> Suite:
    # The PyO3 crate links only into an interpreter; the Python tests exercise it. `--tests` leaves out the
    # examples, which clippy compiles, and code in doc comments, of which no crate has any.
    command = ("cargo", "test", "--workspace", "--exclude", "metaq-python", "--tests", "--no-fail-fast")
    return Suite("cargo test", command, read_cargo)


def pytest_suite(arguments: list[str]) -> Suite:
    return Suite("pytest", (sys.executable, "-m", "pytest", "--durations=10", *arguments), read_pytest)


def plan(what: str, arguments: list[str]) -> list[list[Suite]]:
    """Returns lines of suites. Lines run at the same time, the suites of a line one after the other."""
    if what == "lint":
        return [lint_suites()]
    if what == "rust":
        return [[rust_suite()]]
    if what == "unit":
        return [[pytest_suite(["tests/unit", *arguments])]]
    checks = [*lint_suites(), rust_suite()]
    if arguments:
        return [[*checks, pytest_suite(arguments)]]
    rest = pytest_suite([*(f"--ignore={folder}" for folder in APART_FOLDERS), "tests"])
    apart = [
        replace(pytest_suite(["-p", "no:cacheprovider", *arguments]), name=name)
        for name, arguments in APART.items()
    ]
    # The rest is shown while it runs, so it comes first.
    return [[rest], checks, *([suite] for suite in apart)]


def run(suite: Suite, show: Callable[[str], None]) -> Outcome:
    show(f"\n── {suite.name}: {' '.join(suite.command)}\n")
    lines = []
    try:
        with subprocess.Popen(
            (*REAPING, *suite.command),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                show(line)
                lines.append(line)
            # Unlike Popen.wait, this also tells how much CPU the suite took.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    except OSError as error:
        show(f"cannot run {suite.command[0]}: {error}\n")
        return Outcome(0, 1)
    outcome = replace(suite.read(process.returncode, lines), cpu_s=usage.ru_utime + usage.ru_stime)
    if outcome.failed:
        complaints = [line.strip()[:200] for line in lines if COMPLAINT.search(line)]
        outcome = replace(outcome, complaints=tuple(complaints[:MAX_COMPLAINTS]))
    return outcome


@dataclass(frozen=True)
class Report:
    outcome: Outcome
    text: str


def report(suite: Suite, show: Callable[[str], None]) -> Report:
    started = time.monotonic()
    outcome = run(suite, show)
    skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
    lines = [
        f"  {suite.name:<20} {outcome.passed:>5} passed, {outcome.failed} failed{skipped}"
        f"  ({time.monotonic() - started:.0f} s, {outcome.cpu_s:.0f} s of CPU)"
    ]
    lines.extend(f"      {complaint}" for complaint in outcome.complaints)
    return Report(outcome, "\n".join(lines))


def run_all(plan: list[list[Suite]]) -> list[Report]:
    """Runs the lines side by side, in this order if there are too many to begin at once.

    Prints the first line's output live and the others' when they end.
    """

    def reports(line: list[Suite], show: Callable[[str], None]) -> list[Report]:
        return [report(suite, show) for suite in line]

    first, *others = plan
    held: list[list[str]] = [[] for _ in others]
    with ThreadPoolExecutor(max_workers=AT_ONCE - 1) as pool:
        under_way = [pool.submit(reports, line, told.append) for line, told in zip(others, held, strict=True)]
        done = reports(first, lambda text: print(text, end="", flush=True))
        for future, told in zip(under_way, held, strict=True):
            done += future.result()
            print("".join(told), end="", flush=True)
    return done


def main() -> int:
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what not in ("all", "unit", "rust", "lint"):
        print(__doc__, file=sys.stderr)
        return 2
    os.environ["PATH"] = f"{TOOLS}{os.pathsep}{os.environ.get('PATH', '')}"
    # Otherwise each of the thousand processes that the tests start compiles our modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    reports = run_all(plan(what, sys.argv[2:]))
    failed = sum(report.outcome.failed for report in reports)
    print(f"\nThe suites took {sum(report.outcome.cpu_s for report in reports):.0f} s of CPU:")
    print("\n".join(report.text for report in reports))
    print(f"{sum(report.outcome.passed for report in reports)} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
