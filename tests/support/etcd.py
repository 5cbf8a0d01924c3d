"""A real etcd of one or more members on loopback, each of which a test can kill and start again."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import Child, find_tool, free_port
from tests.support.waiting import eventually, wait_until

_START_TIMEOUT_S = 60
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Certificates:
    """A certificate authority, and one certificate for loopback that it signed, for servers and clients."""

    ca: Path
    cert: Path
    key: Path

    @classmethod
    def make(cls, home: Path, name: str = "test") -> Certificates:
        openssl = find_tool("openssl", "openssl")
        made = cls(home / f"{name}-ca.pem", home / f"{name}.pem", home / f"{name}-key.pem")
        ca_key = home / f"{name}-ca-key.pem"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        for command in (
            [
                *("req", "-x509", *key, "-subj", f"/CN={name} authority"),
                *("-keyout", str(ca_key), "-out", str(made.ca)),
            ],
            # No common name: etcd's gateway ignores it, and warns.
            [
                *("req", "-x509", *key, "-CA", str(made.ca), "-CAkey", str(ca_key), "-subj", f"/O={name}"),
                *("-addext", f"subjectAltName=IP:{_HOST},DNS:localhost"),
                *("-addext", "basicConstraints=critical,CA:false"),
                *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
                *("-keyout", str(made.key), "-out", str(made.cert)),
            ],
        ):
            done = subprocess.run([openssl, *command], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
        return made


class Member:
    """One process of etcd. Its address stays the same over a restart."""

    def __init__(self, home: Path, name: str, certificates: Certificates | None, host: str = _HOST) -> None:
        self.name = name
        self._host = host
        self._home = home
        self._certificates = certificates
        self._scheme = "https" if certificates else "http"
        self.port, self._peer_port = free_port(), free_port()
        self._context = ssl.create_default_context(cafile=certificates.ca) if certificates else None
        if self._context is not None and certificates is not None:
            self._context.load_cert_chain(certificates.cert, certificates.key)
        self._flags: list[str] = []
        self._starts = 0

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://{self._host}:{self._peer_port}"

    @property
    def directory(self) -> Path:
        """Its data directory."""
        return self._home / self.name

    def start(self, flags: list[str] | None = None) -> None:
        """Starts it, or starts it again; `flags` are kept."""
        self._flags = self._flags if flags is None else flags
        self._starts += 1
        url = f"{self._scheme}://{self.address}"
        certificates = self._certificates
        tls = (
            [
                *("--cert-file", str(certificates.cert), "--key-file", str(certificates.key)),
                *("--trusted-ca-file", str(certificates.ca), "--client-cert-auth"),
            ]
            if certificates
            else []
        )
        self.child = Child(
            [
                *(find_tool("etcd", "etcd-server, or run make setup-etcd"), "--name", self.name),
                *("--data-dir", str(self.directory), "--logger", "zap"),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
                *(*tls, *self._flags),
            ],
            self._home / f"{self.name}-{self._starts}.log",
            # Settings for another etcd may be in the environment of whoever runs the tests.
            {**{name: "" for name in os.environ if name.startswith("ETCD_")}, **_architecture()},
        )

    def call(
        self, path: str, body: dict[str, Any], token: str = "", timeout_s: float = 10.0
    ) -> dict[str, Any]:
        """Calls the gateway without the product's client."""
        request = urllib.request.Request(
            f"{self._scheme}://{self.address}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **({"Authorization": token} if token else {})},
        )
        # Whatever proxy the machine uses, loopback needs none.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._context))
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def serves(self) -> bool:
        """Whether it answers a linearizable read; without the right to read that counts as well."""
        if not self.child.alive:
            raise RuntimeError(f"etcd ended with {self.child.process.returncode}\n{self.child.tail()}")
        try:
            self.call("/v3/kv/range", {"key": encoded("health")}, timeout_s=2.0)
        except urllib.error.HTTPError as error:
            return error.code == 400
        except OSError:
            return False
        return True

    def is_leader(self) -> bool:
        status = self.call("/v3/maintenance/status", {})
        return status.get("leader") == status["header"]["member_id"]


class Etcd:
    """A cluster of members. Every call waits until it serves."""

    def __init__(
        self,
        home: Path,
        members: int = 1,
        *,
        tls: Certificates | None = None,
        name: str = "m",
        host: str = _HOST,
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.members = [Member(home, f"{name}{number}", tls, host) for number in range(members)]
        peers = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in self.members:
            member.start(["--initial-cluster", peers, "--initial-cluster-token", home.name])
        self._tls = tls
        self.wait()

    def wait(self) -> None:
        """Waits until every member that runs serves."""
        for member in self.members:
            if member.child.alive:
                wait_until(member.serves, _START_TIMEOUT_S, f"{member.name} serves\n{member.child.tail()}")

    @property
    def register(self) -> str:
        """Returns the value for `--register`."""
        addresses = ",".join(member.address for member in self.members)
        if self._tls is None:
            return f"etcd://{addresses}"
        tls = self._tls
        return f"etcds://{addresses}/?ca_file={tls.ca}&cert_file={tls.cert}&key_file={tls.key}"

    def leader(self) -> Member:
        def find() -> Member | None:
            alive = [member for member in self.members if member.child.alive]
            return next((member for member in alive if member.is_leader()), None)

        found = eventually(find, lambda member: member is not None, _START_TIMEOUT_S, "a leader")
        assert found is not None
        return found

    def kill(self, member: Member) -> None:
        member.child.kill()

    def restart(self, member: Member) -> None:
        """Starts a member that was killed, at the same address with the same data."""
        member.start()
        wait_until(member.serves, _START_TIMEOUT_S, f"{member.name} serves")

    def stop(self) -> None:
        for member in self.members:
            if member.child.alive:
                member.child.kill()

    def call(self, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
        """Calls the first member that runs."""
        return next(member for member in self.members if member.child.alive).call(path, body, token)

    def compact(self) -> None:
        """Forgets all revisions before the newest."""
        revision = self.call("/v3/kv/range", {"key": encoded("any")})["header"]["revision"]
        self.call("/v3/kv/compaction", {"revision": revision, "physical": True})

    def enable_authentication(self, user: str, password: str) -> None:
        """Adds a user who may use the keys of MetaQ, and `root` with the same password."""
        for name in ("root", user):
            self.call("/v3/auth/user/add", {"name": name, "password": password})
            self.call("/v3/auth/role/add", {"name": name})
            self.call("/v3/auth/user/grant", {"user": name, "role": name})
        right = {"permType": "READWRITE", "key": encoded("metaq/"), "range_end": encoded("metaq0")}
        self.call("/v3/auth/role/grant", {"name": user, "perm": right})
        self.call("/v3/auth/enable", {})

    def token(self, user: str, password: str) -> str:
        answer = self.call("/v3/auth/authenticate", {"name": user, "password": password})
        return str(answer["token"])


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _architecture() -> dict[str, str]:
    """Returns the variable without which etcd 3.4 refuses to run on arm64."""
    return {"ETCD_UNSUPPORTED_ARCH": "arm64"} if os.uname().machine == "aarch64" else {}
