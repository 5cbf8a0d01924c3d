"""Runs `make run` and `make test` on a bare Debian 12, in a folder made by debootstrap.

    scripts/bare.py [run|test|all] [--folder DIR] [--keep]

The folder holds python3, python3-venv, make, git and ca-certificates, and nothing else: the two commands must
install everything beyond that themselves. For the tests that includes Java, Maven, Go, MariaDB, PostgreSQL,
etcd, Prometheus and systemd-nspawn. This needs root, for debootstrap, mounts and chroot. The folder uses the
same package mirrors, proxies and certificates as this machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,make,git,ca-certificates"
READY = "METAQ_READY "
READY_TIMEOUT_S = 1800
STOP_TIMEOUT_S = 60
# These say how this machine reaches its package registries; the bare system reaches them in the same way.
NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/apt/apt.conf.d",
    "/usr/local/share/ca-certificates",
)
# The same for Maven and Cargo, in the home of whoever runs this.
HOME_FILES = (".m2/settings.xml", ".cargo/config.toml")
NETWORK_VARIABLES = re.compile(
    r"https?_proxy|no_proxy|ssl_cert_(file|dir)|pip_(cert|index_url|default_timeout)|goproxy", re.IGNORECASE
)
# Several tests make the mounts below `/` private, so `/` has to be a mount point in the bare system too.
ENTER = """
set -e
mount --bind "$0" "$0"
for name in dev proc sys; do mount --rbind "/$name" "$0/$name"; done
exec chroot "$0" "$@"
"""


def mirror() -> str:
    """Returns the first Debian mirror that this machine's apt uses."""
    sources = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for path in sources:
        if path.suffix in (".list", ".sources") and path.is_file():
            for line in path.read_text().splitlines():
                found = re.match(r"(?:URIs:|deb (?:\[[^]]*\] )?)\s*(\S+)", line.strip())
                if found and "debian" in found[1] and "security" not in found[1]:
                    return found[1]
    sys.exit("bare: no Debian mirror found in /etc/apt; this command needs a Debian machine")


def make_folder(folder: Path) -> None:
    if shutil.which("debootstrap") is None:
        subprocess.run(["apt-get", "install", "-qq", "-y", "debootstrap"], check=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(folder), mirror()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # Servers that refuse to run as root must reach their libraries; a temporary folder is closed to them.
    folder.chmod(0o755)
    copies = [(Path(name), folder / name.lstrip("/")) for name in NETWORK_FILES]
    copies += [(Path.home() / name, folder / "root" / name) for name in HOME_FILES]
    for source, target in copies:
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        elif source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    subprocess.run(["chroot", str(folder), "update-ca-certificates"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "metaq")], check=True)


def remove(folder: Path) -> None:
    """Deletes the folder, unless an interrupted debootstrap left a mount in it: that would be deleted too."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    if any(Path(mount).is_relative_to(folder) for mount in mounts):
        print(f"bare: {folder} stays, because something is still mounted in it", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def command_in(folder: Path, command: str) -> list[str]:
    """Returns what runs a shell command in the folder. Its mounts are seen by it and its children alone.

    Whatever they mount and leave behind is gone when the last of them ends.
    """
    network = [f"{name}={value}" for name, value in os.environ.items() if NETWORK_VARIABLES.fullmatch(name)]
    home = ["HOME=/root", "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    inside = ["/usr/bin/env", "-i", *home, *network, "bash", "-c", f"cd /metaq && {command}"]
    return ["unshare", "--mount", "sh", "-c", ENTER, str(folder), *inside]


def check_run(folder: Path) -> bool:
    """Starts `make run`, waits until it is ready and stops it with Ctrl-C."""
    started = time.monotonic()
    command = command_in(folder, 'exec make run ARGS="--namesrv-port 0 --broker-port 0"')
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        ready = False
        try:
            for line in process.stdout:
                print(f"  {line}", end="", flush=True)
                ready = line.startswith(READY)
                if ready or time.monotonic() - started > READY_TIMEOUT_S:
                    break
            took = time.monotonic() - started
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(STOP_TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    outcome = "ready" if ready else "not ready"
    print(f"bare: make run was {outcome} after {took:.0f} s, exit code {code}", flush=True)
    return ready


def check_test(folder: Path) -> bool:
    started = time.monotonic()
    code = subprocess.run(command_in(folder, "make test"), check=False).returncode
    print(f"bare: make test took {time.monotonic() - started:.0f} s, exit code {code}", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("run", "test", "all"), default="all")
    parser.add_argument("--folder", type=Path, help="make the bare system here, not in a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the folder afterwards")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bare: needs root, for debootstrap and chroot")
    folder = arguments.folder.resolve() if arguments.folder else Path(tempfile.mkdtemp(prefix="metaq-bare-"))
    checks = {"run": [check_run], "test": [check_test], "all": [check_run, check_test]}[arguments.what]
    try:
        print(f"bare: installing {SUITE} …", flush=True)
        make_folder(folder)
        outcomes = [check(folder) for check in checks]
    finally:
        if not arguments.keep:
            remove(folder)
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
