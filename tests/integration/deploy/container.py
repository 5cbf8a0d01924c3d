"""A machine for units: systemd as PID 1 in a container whose root is a folder of the test.

The container sees nothing of the host but /usr, Python and this checkout, all of them read-only. It has a
network, a /tmp and a /run of its own. This matters: systemd empties /tmp when it starts.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

from tests.support.processes import find_tool

ROOT = Path(__file__).resolve().parents[3]
UNITS = ROOT / "deploy" / "systemd"
RUN_TIMEOUT_S = 300
COMMAND = """#!/bin/sh
export PYTHONPATH={python}:{packages} LD_LIBRARY_PATH={base}/lib PYTHONDONTWRITEBYTECODE=1
exec {base}/bin/python{version} -m metaq "$@"
"""
DRIVER = """[Unit]
Description=The test
SuccessAction=exit-force
FailureAction=exit-force

[Service]
Type=oneshot
ExecStart=/bin/sh /results/driver.sh
"""


class Container:
    """Runs a shell script beside the units of deploy/systemd. Needs root and systemd-nspawn."""

    def __init__(self, home: Path) -> None:
        self.root = home / f"metaq-{os.getpid()}"
        self.results = home / "results"
        for folder in ("usr", "proc", "sys", "dev", "run", "tmp", "root", "var", "results"):
            (self.root / folder).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (self.root / name).symlink_to(f"usr/{name}")
        self.results.mkdir()
        self._nspawn = find_tool("systemd-nspawn", "systemd-container")
        self._install()

    def _install(self) -> None:
        """Does what docs/deploy.md tells an operator to do."""
        etc, opt = self.root / "etc", self.root / "opt" / "metaq"
        shutil.copytree(UNITS / "etc", etc / "metaq")
        for unit in UNITS.glob("*.service"):
            (etc / "systemd" / "system").mkdir(parents=True, exist_ok=True)
            shutil.copy(unit, etc / "systemd" / "system")
        (etc / "sysusers.d").mkdir()
        shutil.copy(UNITS / "metaq.sysusers", etc / "sysusers.d" / "metaq.conf")
        shutil.copy("/usr/lib/os-release", etc / "os-release")
        (etc / "machine-id").touch()
        (etc / "systemd" / "system" / "driver.service").write_text(DRIVER)
        for folder in ("bin", "base", "packages", "python"):
            (opt / folder).mkdir(parents=True)
        command = opt / "bin" / "metaq"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        command.write_text(
            COMMAND.format(
                base="/opt/metaq/base",
                packages="/opt/metaq/packages",
                python="/opt/metaq/python",
                version=version,
            )
        )
        command.chmod(0o755)

    def _start(self, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        packages = next(path for path in site.getsitepackages() if Path(path, "msgspec").is_dir())
        seen = {
            "/usr": "/usr",
            sys.base_prefix: "/opt/metaq/base",
            packages: "/opt/metaq/packages",
            str(ROOT / "python"): "/opt/metaq/python",
        }
        return subprocess.run(
            [
                *(self._nspawn, "--quiet", f"--directory={self.root}", "--register=no", "--keep-unit"),
                *("--private-network", "--console=pipe", f"--bind={self.results}:/results"),
                *(f"--bind-ro={source}:{target}" for source, target in seen.items()),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def works(self) -> str | None:
        """Returns why this machine cannot start a container; None if it can."""
        if os.geteuid() != 0:
            return "containers need root"
        tried = self._start("--", "/usr/bin/true", timeout_s=60)
        return None if tried.returncode == 0 else tried.stdout.strip()

    def run(self, script: str) -> str:
        """Boots systemd, runs the script beside it, and returns what the script printed."""
        (self.results / "driver.sh").write_text(
            f"export PATH=/opt/metaq/bin:/usr/bin:/usr/sbin\nexec >/results/printed 2>&1\n{script}"
        )
        booted = self._start(
            "--boot", "--", "--unit=driver.service", "--show-status=no", timeout_s=RUN_TIMEOUT_S
        )
        printed = self.results / "printed"
        assert printed.exists(), booted.stdout
        return printed.read_text(errors="replace")
