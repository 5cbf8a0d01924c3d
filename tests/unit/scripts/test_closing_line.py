"""The closing line of scripts/test.py counts every suite and every failure."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tests.support.scripts import SCRIPTS, load_script

SCRIPT = SCRIPTS / "test.py"


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return load_script("test")


@pytest.mark.parametrize(
    ("exit_code", "lines", "counts"),
    [
        (
            0,
            [
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured",
                "test result: ok. 4 passed; 0 failed; 0 ignored;",
            ],
            (7, 0, 1),
        ),
        (101, ["test result: FAILED. 3 passed; 2 failed; 0 ignored;"], (3, 2, 0)),
        (101, ["test result: ok. 3 passed; 0 failed; 0 ignored;", "error: could not compile"], (3, 1, 0)),
        (101, ["error: could not compile"], (0, 1, 0)),
    ],
)
def test_cargo(runner: ModuleType, exit_code: int, lines: list[str], counts: tuple[int, int, int]) -> None:
    assert runner.read_cargo(exit_code, lines) == runner.Outcome(*counts)


@pytest.mark.parametrize(
    ("exit_code", "lines", "counts"),
    [
        (0, ["===== 12 passed in 0.31s ====="], (12, 0, 0)),
        (0, ["===== 12 passed, 2 skipped, 1 warning in 65.31s (0:01:05) ====="], (12, 0, 2)),
        (1, ["===== 2 failed, 3 passed, 2 errors in 1.00s ====="], (3, 4, 0)),
        (
            2,
            ["!!!!! Interrupted: 1 error during collection !!!!!", "===== 1 error in 0.24s ====="],
            (0, 1, 0),
        ),
        (4, ["ERROR: file or directory not found: x"], (0, 1, 0)),
        (5, ["===== no tests ran in 0.01s ====="], (0, 1, 0)),
        (-9, ["tests/unit/test_x.py ...."], (0, 1, 0)),
        (3, ["it said: waited in 3s", "===== 5 passed in 9s ====="], (5, 1, 0)),
    ],
)
def test_pytest(runner: ModuleType, exit_code: int, lines: list[str], counts: tuple[int, int, int]) -> None:
    assert runner.read_pytest(exit_code, lines) == runner.Outcome(*counts)


def test_a_failing_suite_does_not_stop_the_next(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = [
        [
            runner.Suite("missing", ("no-such-program",), runner.read_check),
            runner.Suite("bad", (sys.executable, "-c", "raise SystemExit(1)"), runner.read_check),
        ],
        [runner.Suite("good", (sys.executable, "-c", "print('= 4 passed in 1s =')"), runner.read_pytest)],
        [runner.Suite("last", (sys.executable, "-c", "print('= 3 passed in 1s =')"), runner.read_pytest)],
    ]
    monkeypatch.setattr(runner, "plan", lambda what, arguments: suites)
    monkeypatch.setattr(sys, "argv", ["test.py", "all"])
    assert runner.main() == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "7 passed, 2 failed"
    assert [line.split()[0] for line in printed[-5:-1]] == ["missing", "bad", "good", "last"]
    assert printed.count("= 4 passed in 1s =") == 1


def test_failures_are_repeated_at_the_end(runner: ModuleType) -> None:
    script = "import sys; print('test it_holds ... FAILED'); print('(signal: 7, SIGBUS)'); sys.exit(101)"
    outcome = runner.run(
        runner.Suite("cargo", (sys.executable, "-c", script), runner.read_cargo), lambda text: None
    )
    assert outcome.complaints == ("test it_holds ... FAILED", "(signal: 7, SIGBUS)")


ORPHAN = """
import os, time
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    while time.process_time() < 0.3:
        pass
    os._exit(0)
"""


def test_the_cpu_time_of_orphans_counts(runner: ModuleType) -> None:
    suite = runner.Suite("left", (sys.executable, "-c", ORPHAN), runner.read_check)
    outcome = runner.run(suite, lambda text: None)
    assert outcome.passed == 1
    assert outcome.cpu_s > 0.3


@pytest.mark.parametrize(
    ("script", "code"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + 9)],
)
def test_the_exit_code_of_a_suite(runner: ModuleType, script: str, code: int) -> None:
    codes: list[int] = []

    def read(exit_code: int, lines: list[str]) -> object:
        codes.append(exit_code)
        return runner.Outcome(0, 1)

    runner.run(runner.Suite("ends", (sys.executable, "-c", script), read), lambda text: None)
    assert codes == [code]


def test_every_test_runs_in_one_suite(runner: ModuleType) -> None:
    root = SCRIPTS.parent
    suites = [suite for line in runner.plan("all", []) for suite in line if suite.name.startswith("pytest")]
    runs: dict[str, list[tuple[str, str]]] = {}
    for suite in suites:
        arguments = suite.command[3:]
        ignored = [argument.removeprefix("--ignore=") for argument in arguments if "--ignore=" in argument]
        named = [argument for argument in arguments if argument.startswith("tests")]
        chosen = arguments[arguments.index("-k") + 1] if "-k" in arguments else ""
        assert [path for path in (*named, *ignored) if not (root / path).exists()] == []
        for path in named:
            files = [root / path] if path.endswith(".py") else (root / path).rglob("test_*.py")
            for file in (str(file.relative_to(root)) for file in files):
                if not any(file == path or file.startswith(f"{path}/") for path in ignored):
                    runs.setdefault(file, []).append((suite.name, chosen))
    every = {str(file.relative_to(root)) for file in (root / "tests").rglob("test_*.py")}
    assert every == runs.keys()
    halves = [("pytest interop 5.5.0", "5.5.0"), ("pytest interop", "not 5.5.0")]
    strange = {file: ran for file, ran in runs.items() if len(ran) != 1 and ran != halves}
    assert strange == {}
