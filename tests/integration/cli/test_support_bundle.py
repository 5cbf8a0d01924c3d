"""metaq cluster support-bundle: complete, bounded, and without secrets wherever they were planted."""

from __future__ import annotations

import json
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from metaq.admin.health import support_documents
from metaq.cli.work import support_bundle
from metaq.errors import CommandError
from tests.support.metaq import Metaq
from tests.support.processes import free_port

Run = Callable[..., Result]

SECRETS = {
    name: f"planted-{name}-4f7a91"
    for name in ("variable", "access", "secret", "register", "config", "log", "password", "body")
}


def contents(file: Path) -> dict[str, str]:
    with tarfile.open(file) as bundle:
        return {
            entry.name.partition("/")[2]: bundle.extractfile(entry).read().decode()  # type: ignore[union-attr]
            for entry in bundle
        }


@pytest.fixture
def planted(served: Metaq, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Puts secrets into every place that a bundle reads. Returns a log file that holds some."""
    contexts = tmp_path / "contexts.toml"
    contexts.write_text(
        f'current = "prod"\n[contexts.prod]\nnamesrv = "{served.nameserver}"\n'
        f'access_key = "{SECRETS["access"]}"\nsecret_key = "{SECRETS["secret"]}"\n'
        f'[contexts.other]\nnamesrv = "h:1"\nregister = "etcd://me:{SECRETS["register"]}@h:2379"\n'
    )
    contexts.chmod(0o600)
    config = tmp_path / "metaq.toml"
    config.write_text(f'cluster_key = "{SECRETS["config"]}"\n')
    log = tmp_path / "broker.log"
    log.write_text(
        f"INFO started\nERROR cannot log in: password={SECRETS['log']}\n"
        f"WARN client gave {SECRETS['secret']} and {SECRETS['variable']}\n"
    )
    monkeypatch.setenv("METAQ_CONTEXTS", str(contexts))
    monkeypatch.setenv("METAQ_CONFIG", str(config))
    monkeypatch.setenv("METAQ_SECRET_KEY", SECRETS["variable"])
    monkeypatch.setenv("DATABASE_PASSWORD", SECRETS["password"])
    return log


def test_a_bundle_has_everything_but_secrets(
    served: Metaq, metaq: Run, planted: Path, tmp_path: Path
) -> None:
    assert metaq("send", "Bundled", SECRETS["body"]).exit_code == 0
    file = tmp_path / "bundle.tar.gz"
    outcome = metaq("cluster", "support-bundle", str(file), "--log", str(planted), "-o", "json")
    assert outcome.exit_code == 0, (outcome.output, outcome.exception)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = contents(file)
    assert {
        *("README.txt", "versions.json", "environment.json", "local-settings.json", "contexts.json"),
        *("health.json", "settings/broker-a-0.json", "figures/broker-a-0.json", "clients.json"),
        *("metrics/broker-a-0.txt", "readyz/broker-a-0.txt", "topics.json", "groups.json"),
        *("progress.json", "logs/broker.log"),
    } == set(found)
    everything = "\n".join(found.values()) + outcome.output
    assert [name for name, secret in SECRETS.items() if secret in everything] == []
    assert "INFO started" in found["logs/broker.log"]
    assert "Bundled" in found["topics.json"]
    assert "rocketmq_messages_in_total" in found["metrics/broker-a-0.txt"]
    assert "writable: ok" in found["readyz/broker-a-0.txt"]
    assert json.loads(found["settings/broker-a-0.json"])["brokerName"] == "broker-a"
    assert json.loads(found["health.json"])["healthy"] is True
    assert json.loads(found["local-settings.json"])["cluster_key"]["value"] == "(removed)"
    assert json.loads(found["contexts.json"])["contexts"]["prod"]["signs_requests"] is True
    for name, text in found.items():
        assert name in found["README.txt"] or name == "README.txt"
        if name.endswith(".json"):
            json.loads(text)
    record = json.loads(outcome.stdout)
    assert {listed["name"] for listed in record["documents"]} == set(found)


def test_a_bundle_is_never_overwritten(metaq: Run, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    file.write_text("mine")
    assert isinstance(metaq("cluster", "support-bundle", str(file)).exception, CommandError)
    assert file.read_text() == "mine"
    missing = metaq("cluster", "support-bundle", str(tmp_path / "none" / "b.tar.gz"))
    assert "No such file or directory" in str(missing.exception)
    no_log = metaq("cluster", "support-bundle", str(tmp_path / "b.tar.gz"), "--log", str(tmp_path / "no.log"))
    assert "there is no such file" in str(no_log.exception)


def test_a_bundle_of_a_cluster_that_is_down(metaq: Run, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    nobody = f"127.0.0.1:{free_port()}"
    outcome = metaq("cluster", "support-bundle", str(file), "--namesrv", nobody)
    assert outcome.exit_code == 0, outcome.output
    found = contents(file)
    assert json.loads(found["health.json"])["healthy"] is False
    assert "versions.json" in found and "topics.json" not in found


def test_a_bundle_is_bounded(metaq: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(support_documents, "DOCUMENT_BYTES_MAX", 2_000)
    monkeypatch.setattr(support_bundle, "BUNDLE_BYTES_MAX", 5_000)
    file = tmp_path / "bundle.tar.gz"
    record = json.loads(metaq("cluster", "support-bundle", str(file), "-o", "json").stdout)
    assert record["left_out"], "not everything fits"
    found = contents(file)
    assert sum(len(text) for name, text in found.items() if name != "README.txt") <= 5_000
    assert "the bundle would become too large" in found["README.txt"]
