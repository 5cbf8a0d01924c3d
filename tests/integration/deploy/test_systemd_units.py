"""The units of deploy/systemd: checked by systemd, and started by a systemd that is PID 1."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.integration.deploy.container import UNITS, Container
from tests.support.metaq import Metaq
from tests.support.processes import ToolMissing, find_tool

EXPOSURE_MAX = 2.0
"""systemd rates the hardening of a unit from 0 (none can harm) to 10."""
FUNCTIONS = '''"""Filter functions of the test."""

from metaq.filters import FilterMessage, function


@function
def is_long(message: FilterMessage) -> bool:
    return len(message.body) > 1
'''
WAIT = """
wait_until() { for _ in $(seq 300); do "$@" && return 0; sleep 0.1; done; echo "not in time: $*"; return 1; }
has_restarted() { [ "$(systemctl show -P NRestarts "$1")" = 1 ] && systemctl is-active --quiet "$1"; }
"""
DRIVE_ROLES = f"""{WAIT}
broker=metaq-broker@broker-a
systemctl start metaq-nameserver $broker; echo "start: $?"
echo "status: $(systemctl show -P StatusText $broker)"
echo "files: $(systemctl show -P LimitNOFILE $broker)"
echo "account: $(stat -c '%U %a' /var/lib/metaq/broker-a)"
metaq send Hello kept
kill -KILL "$(systemctl show -P MainPID $broker)"
wait_until has_restarted $broker; echo "restarted: $?"
echo "read: $(metaq tail Hello --from earliest --count 1)"
systemctl stop $broker metaq-nameserver
echo "ended: $(systemctl show -P Result $broker) $(systemctl show -P ExecMainStatus $broker)"
systemd-analyze verify --man=no metaq.service metaq-nameserver.service $broker.service; echo "verify: $?"
for unit in metaq.service metaq-nameserver.service $broker.service; do
    systemd-analyze security --no-pager $unit | tail -n 1
done
echo 'broker_prt = 1' >> /etc/metaq/metaq.toml
systemctl start metaq; echo "bad start: $?"
echo "bad result: $(systemctl show -P NRestarts metaq) $(systemctl show -P ExecMainStatus metaq)"
sed -i '$d' /etc/metaq/metaq.toml
echo 'filter_functions = "/etc/metaq/functions"' >> /etc/metaq/metaq.toml
systemctl reset-failed metaq
systemctl start metaq; echo "serve: $?"
metaq send Hello again
journalctl --no-pager --output=cat --unit=metaq | grep 'not kept from'
"""


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    try:
        made = Container(tmp_path_factory.mktemp("container"))
    except ToolMissing as missing:
        pytest.skip(str(missing))
    if (reason := made.works()) is not None:
        pytest.skip(f"this machine cannot run a container: {reason}")
    return made


def test_units_start_restart_and_stop_under_systemd(container: Container) -> None:
    functions = container.root / "etc" / "metaq" / "functions"
    functions.mkdir()
    (functions / "lengths.py").write_text(FUNCTIONS)
    printed = container.run(DRIVE_ROLES)
    found = dict(re.findall(r"^([a-z ]+): (.*)$", printed, flags=re.MULTILINE))
    assert found["start"] == "0", printed
    assert found["status"] == "serves as broker"
    assert found["files"] == "1000000"
    assert found["account"] == "metaq 700"
    assert found["restarted"] == "0", printed
    assert found["read"].endswith("kept"), printed
    assert found["ended"] == "success 0"
    assert found["verify"] == "0", printed
    exposures = [float(text) for text in re.findall(r"exposure level for \S+: ([\d.]+)", printed)]
    assert len(exposures) == 3 and max(exposures) < EXPOSURE_MAX, printed
    # A wrong setting is not tried again and again.
    assert (found["bad start"], found["bad result"]) == ("1", "0 2"), printed
    # The calls with which workers of filter functions give up rights pass the unit's own filter.
    assert found["serve"] == "0", printed
    assert "seccomp" not in printed and printed.count("SEND_OK") == 2, printed


def test_verify_finds_nothing(tmp_path: Path) -> None:
    """Needs no root: the path of the program is the only thing that is replaced."""
    analyze = find_tool("systemd-analyze", "systemd")
    program = shutil.which("true")
    units = []
    for unit in sorted(UNITS.glob("*.service")):
        copy = tmp_path / unit.name.replace("@", "@broker-a")
        copy.write_text(unit.read_text().replace("/opt/metaq/bin/metaq", str(program)))
        units.append(str(copy))
    assert len(units) == 3
    checked = subprocess.run(
        [analyze, "verify", "--man=no", *units], capture_output=True, text=True, timeout=120, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_a_role_reports_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(60)
        supervisor.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        role = Metaq("nameserver", "--listen", "127.0.0.1:0", home=tmp_path)
        assert supervisor.recv(1024) == b"READY=1\nSTATUS=serves as nameserver"
        assert role.stop() == 0
        assert supervisor.recv(1024) == b"STOPPING=1"
