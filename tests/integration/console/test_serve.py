"""The console as a process: beside `metaq serve`, and alone with `metaq console`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaq.console.access.sessions import csrf_token
from tests.support.console_links import console_links
from tests.support.etcd import Certificates
from tests.support.metaq import Metaq, run
from tests.support.visitor import Answer, Visitor
from tests.support.waiting import eventually, wait_until

FREE = ("--console", "--console-port", "0")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metaq]:
    started = Metaq.serve(tmp_path_factory.mktemp("console"), *FREE)
    yield started
    assert started.stop() == 0


def data_of(metaq: Metaq) -> str:
    return metaq.ready["data"]


def signed_in(metaq: Metaq, *flags: str) -> Visitor:
    """Returns somebody who came with a new link."""
    made = run("console", "link", "--data", data_of(metaq), *flags)
    assert made.returncode == 0, made.stderr
    visitor = Visitor(metaq.ready["console"])
    assert visitor.follow(made.stdout.strip()).status == 200
    return visitor


def csrf_of(visitor: Visitor) -> str:
    (cookie,) = [value for name, value in visitor.cookies.items() if not name.endswith("-form")]
    return csrf_token(cookie.partition(".")[2])


def console_child(metaq: Metaq) -> int | None:
    """Returns the process id of the console beside a broker."""
    for pid in Path(f"/proc/{metaq.pid}/task/{metaq.pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"metaq.console.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return None


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def test_the_links_of_the_start_work_once(shared: Metaq) -> None:
    address = shared.ready["console"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
    links = console_links(shared.ready)
    for link in (links.operator, links.viewer):
        assert link.startswith(f"{address}?token=")
        first = Visitor(address)
        assert first.follow(link).status == 200
        assert first.get("/").status == 200
        second = Visitor(address).follow(link)
        assert second.status == 403
        assert "This link was used already" in second.text and "metaq console link" in second.text


def test_nothing_is_shown_to_strangers(shared: Metaq) -> None:
    stranger = Visitor(shared.ready["console"])
    assert stranger.get("/").location == "/login"
    assert stranger.get("/topics/secret").location == "/login?next=%2Ftopics%2Fsecret"
    assert stranger.get("/events").status == 401
    assert stranger.post("/topics").status == 401
    assert stranger.get("/login").status == 200
    # The name of another site that points to this machine.
    assert stranger.get("/login", Host="rebound.example").status == 400


def test_new_links_for_a_console_that_runs(shared: Metaq, tmp_path: Path) -> None:
    operator, viewer = signed_in(shared), signed_in(shared, "--viewer")
    assert operator.post("/no-such-page").status == 403
    assert "X-CSRF-Token" in operator.post("/no-such-page").text
    assert operator.post("/no-such-page", X_CSRF_Token=csrf_of(operator)).status in (404, 405)
    refused = viewer.post("/no-such-page", X_CSRF_Token=csrf_of(viewer))
    assert (refused.status, "only an operator can do this" in refused.text) == (403, True)
    shown = run("console", "link", "--data", data_of(shared), "--viewer", "-o", "json")
    assert json.loads(shown.stdout)["role"] == "viewer"
    nobody = run("console", "link", "--data", str(tmp_path))
    assert nobody.returncode == 1
    assert nobody.stderr.startswith(f"metaq: no console runs with {tmp_path}/console; start one with ")


def test_the_log_has_no_token_of_a_request(shared: Metaq) -> None:
    visitor = Visitor(shared.ready["console"])
    token = f"{'0' * 16}.{'Z' * 43}"
    assert visitor.get(f"/?token={token}").status == 403
    wait_until(lambda: "came with a link that is not valid" in shared.child.log.read_text(), what="logged")
    assert token not in shared.child.log.read_text()


def test_sessions_survive_a_killed_console_which_ends_with_its_broker(tmp_path: Path) -> None:
    metaq = Metaq.serve(tmp_path, *FREE)
    try:
        anna = signed_in(metaq)
        first = console_child(metaq)
        assert first is not None
        # The broker comes first, for CPU time and for memory.
        assert os.getpriority(os.PRIO_PROCESS, first) > os.getpriority(os.PRIO_PROCESS, metaq.pid)
        assert Path(f"/proc/{first}/oom_score_adj").read_text() == "500\n"
        os.kill(first, signal.SIGKILL)
        second = eventually(
            lambda: console_child(metaq), lambda pid: pid not in (None, first), 60, "restarted"
        )
        assert second is not None
        # The request waits in the queue of the socket until the new process is up.
        assert anna.get("/").status == 200
        assert "the console was killed by SIGKILL; it starts again in 0.5 s" in metaq.child.log.read_text()
    finally:
        metaq.kill()
    wait_until(lambda: not is_running(second), what="ended with its parent")


def test_a_stop_ends_open_streams(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Somebody else may have the port already, which is as good.
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        metaq = Metaq.serve(tmp_path, "--console")
    try:
        assert not metaq.ready["console"].endswith(":8080/")
        anna = signed_in(metaq)
        child = console_child(metaq)
        assert child is not None
        connection = anna.connect()
        cookie = "; ".join(f"{name}={value}" for name, value in anna.cookies.items())
        connection.request("GET", "/events", headers={"Cookie": cookie})
        stream = connection.getresponse()
        assert stream.status == 200 and stream.readline()
        metaq.child.process.send_signal(signal.SIGINT)
        # The broker gives its console five seconds, and kills it then.
        assert metaq.child.process.wait(60) == 0
        assert not is_running(child)
        connection.close()
        log = metaq.child.log.read_text()
        assert "Traceback" not in log and "it starts again" not in log, log
    finally:
        metaq.kill()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ("serve", "--data", str(tmp_path), "--console-port", port, "--namesrv-port", port)
        outcome = run(*arguments)
        assert outcome.returncode == 1
        assert "choose another port with --console-port; 0 takes a free one" in outcome.stderr
        without = run(*arguments, "--no-console")
        assert without.returncode == 1
        assert "choose another port with --namesrv-port" in without.stderr


def test_a_console_alone_with_tls_and_passwords(tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path)
    (tmp_path / "operator").write_text("open sesame!\n")
    metaq = Metaq(
        *(
            "console",
            "--namesrv",
            "127.0.0.1:1",
            "--listen",
            "127.0.0.1:0",
            "--state",
            str(tmp_path / "state"),
        ),
        *("--tls-cert", str(certificates.cert), "--tls-key", str(certificates.key)),
        *("--operator-password-file", str(tmp_path / "operator")),
        home=tmp_path,
    )
    try:
        assert metaq.ready["role"] == "console" and metaq.ready["nameserver"] == "127.0.0.1:1"
        address = metaq.ready["console"]
        assert address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        anna = Visitor(address, context=context)
        assert sign_in(anna, "wrong").status == 403
        answer = sign_in(anna, "open sesame!")
        assert (answer.status, answer.location) == (303, "/settings")
        cookie = str(answer.headers)
        assert "__Secure-metaq-" in cookie and "Secure" in cookie and "HttpOnly" in cookie
        # A cluster that does not answer does not keep the console from answering.
        assert anna.get("/").status == 200
        link = run("console", "link", "--state", str(tmp_path / "state"), "--viewer").stdout.strip()
        assert Visitor(address, context=context).follow(link).status == 200
        second = run("console", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"))
        assert second.returncode == 1
        assert second.stderr.startswith(f"metaq: another console uses {tmp_path / 'state'}; ")
        assert metaq.stop() == 0
        assert "Traceback" not in metaq.child.log.read_text()
    finally:
        metaq.kill()


def test_a_console_behind_a_proxy_with_tls(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    metaq = Metaq(
        *("console", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--state", state),
        *("--public-url", "https://tools.example.com/metaq/"),
        home=tmp_path,
    )
    try:
        public = "https://tools.example.com/metaq/"
        made = run("console", "link", "--state", state).stdout.strip()
        assert metaq.ready["console"] == public
        links = console_links(metaq.ready)
        for link in (links.operator, links.viewer, made):
            assert link.startswith(f"{public}?token=")
        # The proxy speaks plain HTTP with the console, and passes the name on.
        (port,) = listening_ports(metaq.pid)
        proxy = Visitor(f"http://127.0.0.1:{port}/")
        answer = proxy.get(made.removeprefix("https://tools.example.com"), Host="tools.example.com")
        assert (answer.status, answer.location) == (303, "/metaq/")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Secure-metaq-") and "Secure" in cookie.split("; ")
        assert proxy.get("/metaq/settings", Host="tools.example.com").status == 200
        assert metaq.stop() == 0
    finally:
        metaq.kill()


def listening_ports(pid: int) -> set[int]:
    """Returns the ports of IPv4 on which a process listens."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(descriptor.readlink()))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = "0A"
    return {
        int(row[1].partition(":")[2], 16)
        for row in rows
        if row[3] == listening and f"socket:[{row[9]}]" in sockets
    }


def sign_in(visitor: Visitor, password: str) -> Answer:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', visitor.get("/login?next=/settings").text)
    assert found
    form = {"name": "operator", "password": password, "csrf": found[1], "next": "/settings"}
    return visitor.post("/login", form)
