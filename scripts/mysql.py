"""Gets a MySQL server for the tests, of which Debian's stable releases have none:  scripts/mysql.py

It comes from Debian unstable, with the libraries it was built for, through apt itself, which checks the
signatures. apt works on directories of its own below build/ here, with the mirror that the machine uses, and
the packages are unpacked there: nothing is installed, and nobody need be root. The server is started through
the loader that came with it (see tests/support/mysql.py), so the machine's own libraries do not matter.

A machine that has MySQL 9.0 or newer on its PATH uses that one: the tests have types and GTIDs of that time.
"""

from __future__ import annotations

import fcntl
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build"
HOME = BUILD / "mysql"
SERVER = "usr/sbin/mysqld"
MESSAGES = "usr/share/mysql"
PACKAGE = "mysql-server-core"
# If unstable lacks the package for a while, the next release may have it.
SUITES = ("sid", "testing")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Scripts of the package that are not run here need it.
LEFT_OUT = re.compile(r"(lib)?perl")
OLDEST = (9, 0, 0)
TRIES = 4
PAUSE_S = 5
TIMEOUT_S = 900
# scripts/require.sh locks itself while it uses the machine's package manager.
LOCK = Path(__file__).resolve().parent / "require.sh"
ADVICE = "install MySQL 9.0 or newer, so that mysqld is on the PATH"


class Failed(Exception):
    """An error with a message for the person who runs this."""


def command(home: Path = HOME) -> list[str] | None:
    """Returns the command that starts the server, without options; None if there is no server."""
    if (home / SERVER).is_file():
        loader = _loader(home)
        return [
            *(str(loader), "--library-path", str(loader.parent), str(home / SERVER)),
            *("--no-defaults", f"--lc-messages-dir={home / MESSAGES}"),
            f"--character-sets-dir={home / MESSAGES / 'charsets'}",
        ]
    found = shutil.which("mysqld") or shutil.which("mysqld", path="/usr/sbin")
    if found is not None and _is_suitable(_output([found, "--no-defaults", "--version"])):
        return [found, "--no-defaults"]
    return None


def _is_suitable(told: str) -> bool:
    """Returns whether this is a new enough MySQL; MariaDB uses the same command name."""
    found = re.search(r"Ver (\d+)\.(\d+)\.(\d+)", told)
    return found is not None and "MariaDB" not in told and tuple(map(int, found.groups())) >= OLDEST


def _loader(home: Path) -> Path:
    found = sorted(home.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*"))
    if not found:
        raise Failed(f"{home} has no loader for its programs")
    return found[0]


def _output(arguments: list[str]) -> str:
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.stdout


class Apt:
    """apt on directories of its own, where no package is installed."""

    def __init__(self, home: Path, mirror: str, suite: str) -> None:
        self._home = home
        for name in ("state/lists/partial", "cache/archives/partial"):
            (home / name).mkdir(parents=True, exist_ok=True)
        (home / "state/status").touch()
        signed = f"Signed-By: {KEYRING}\n" if KEYRING.is_file() else ""
        (home / "from.sources").write_text(
            f"Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: main\n{signed}", encoding="utf-8"
        )
        self._options = [
            f"Dir::State={home / 'state'}",
            f"Dir::State::status={home / 'state/status'}",
            f"Dir::Cache={home / 'cache'}",
            f"Dir::Etc::sourcelist={home / 'from.sources'}",
            "Dir::Etc::sourceparts=-",
            # apt must read and write there as the user who runs this.
            "APT::Sandbox::User=",
            "APT::Install-Recommends=false",
            "Acquire::Languages=none",
            "Acquire::Retries=3",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
            # A failure in the machine's own apt hooks does not matter here.
            "APT::Update::Post-Invoke-Success::=",
        ]

    def run(self, *arguments: str) -> None:
        """Raises Failed with the end of its output."""
        options = [part for option in self._options for part in ("-o", option)]
        ended = subprocess.run(
            ["apt-get", "-qq", "-y", *options, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
        if ended.returncode:
            raise Failed(f"apt-get {arguments[0]}: {' '.join(ended.stdout.split())[-600:]}")

    def packages(self, name: str) -> list[Path]:
        """The package and all that it depends on, fetched and checked."""
        # After an update, the hooks of some machines delete the packages that another apt is installing.
        with _locked(LOCK):
            self.run("update")
        self.run("install", "--download-only", name)
        return sorted((self._home / "cache/archives").glob("*.deb"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_debian() -> bool:
    try:
        return platform.freedesktop_os_release().get("ID") == "debian"
    except OSError:
        return False


def mirror() -> str:
    """Returns the Debian mirror that the machine's apt uses; raises Failed."""
    if any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb")) or not _is_debian():
        raise Failed(f"only Debian's apt can fetch MySQL; {ADVICE}")
    fields = "$(ORIGIN)\t$(RELEASE)/$(COMPONENT)\t$(REPO_URI)"
    targets = _output(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"])
    own = f"{platform.freedesktop_os_release().get('VERSION_CODENAME')}/main"
    for line in targets.splitlines():
        origin, part, uri = line.split("\t")
        # Without a list that was fetched before, the origin is not known.
        if (origin == "Debian" or part == own) and not uri.rstrip("/").endswith("-security"):
            return uri
    raise Failed(f"apt knows no mirror of Debian; {ADVICE}")


def unpack(packages: list[Path], home: Path) -> None:
    """Unpacks packages and keeps only the files that the server loads. Raises Failed if it does not start."""
    for package in packages:
        if not LEFT_OUT.match(package.name):
            subprocess.run(["dpkg-deb", "-x", str(package), str(home)], check=True)
    loader = _loader(home)
    listed = _output([str(loader), "--library-path", str(loader.parent), "--list", str(home / SERVER)])
    needed = {Path(name).name for name in re.findall(r"=> (\S+)", listed)} | {loader.name}
    for library in loader.parent.iterdir():
        if library.name in needed:
            # Under the name that the loader looks for, without the links.
            whole = library.resolve()
            if whole != library:
                library.unlink()
                shutil.copy2(whole, library)
    for path in sorted(home.rglob("*"), reverse=True):
        kept = path.relative_to(home)
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif not (
            str(kept) == SERVER
            or (path.parent == loader.parent and path.name in needed)
            or kept.is_relative_to(f"{MESSAGES}/charsets")
            or kept.is_relative_to(f"{MESSAGES}/english")
        ):
            path.unlink()
    told = _output([*(command(home) or ["false"]), "--version"])
    if not _is_suitable(told):
        raise Failed(f"the server of {PACKAGE} does not start: {told.strip()[-600:]}")


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory beside the final place, so that the server appears there complete or not at all."""
    place = BUILD / "mysql.new"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def fetch() -> None:
    """Downloads and unpacks the server. Raises Failed after several failed attempts."""
    where = mirror()
    failures = []
    for attempt in range(TRIES):
        suite = SUITES[attempt % len(SUITES)]
        if attempt:
            time.sleep(PAUSE_S)
        try:
            with _scratch() as place:
                packages = Apt(place / "apt", where, suite).packages(PACKAGE)
                unpack(packages, place / "root")
                shutil.rmtree(HOME, ignore_errors=True)
                (place / "root").rename(HOME)
            return
        except (Failed, OSError, subprocess.SubprocessError) as error:
            failures.append(f"{suite}: {error}")
            print(f"MySQL from {failures[-1]}", file=sys.stderr)
    raise Failed("MySQL could not be fetched: " + "; ".join(dict.fromkeys(failures)))


def main() -> int:
    try:
        if command() is None:
            print(f"fetching {PACKAGE} of Debian …", file=sys.stderr)
            fetch()
    except Failed as error:
        print(f"{error}\n  {ADVICE}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
