"""Which server scripts/mysql.py chooses, and what it says if there is none."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import SCRIPTS, load_script

SCRIPT = SCRIPTS / "mysql.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("mysql")


@pytest.mark.parametrize(
    ("told", "suitable"),
    [
        ("mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))", True),
        ("/usr/sbin/mysqld  Ver 9.0.0 for Linux on x86_64 (MySQL Community Server - GPL)", True),
        ("mysqld  Ver 8.4.6 for Linux on x86_64", False),
        ("mysqld  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu on x86_64 (Debian 12)", False),
        ("mysqld: error while loading shared libraries: libaio.so.1", False),
    ],
)
def test_which_server_is_suitable(script: ModuleType, told: str, suitable: bool) -> None:
    assert script._is_suitable(told) is suitable


def test_without_apt_it_says_what_to_install(script: ModuleType, tmp_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(SCRIPT)!r})['fetch']()"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode != 0
    assert script.ADVICE in outcome.stderr


def test_an_update_of_the_package_lists_waits_for_an_installation(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some machines delete all fetched packages after every update, also those that are being installed."""
    lock = tmp_path / "lock"
    lock.touch()
    monkeypatch.setattr(script, "LOCK", lock)
    locked_during: dict[str, bool] = {}

    def run(_: object, command: str, *__: str) -> None:
        with lock.open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked_during[command] = False
            except BlockingIOError:
                locked_during[command] = True

    monkeypatch.setattr(script.Apt, "run", run)
    script.Apt(tmp_path / "apt", "mirror", "sid").packages("mysql-server-core")
    assert locked_during == {"update": True, "install": False}
