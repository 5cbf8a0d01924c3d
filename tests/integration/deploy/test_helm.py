"""The Helm chart: linted and rendered by Helm, and read into the types of Kubernetes."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from metaq.config.options import OPTIONS
from tests.integration.deploy.command_lines import KNOWN_VARIABLES, parse
from tests.integration.deploy.programs import helm, read

CHART = Path(__file__).resolve().parents[3] / "deploy" / "helm" / "metaq"
KUBERNETES = "--kube-version=1.30.0"
SETTINGS = {
    "defaults": (),
    "replicated": (
        *("--set", "broker.groups={broker-a,broker-b}", "--set", "broker.replicas=3"),
        *(
            "--set",
            "register=etcd://etcd-0:2379\\,etcd-1:2379",
            "--set",
            "clusterKey.existingSecret=metaq-key",
        ),
        *("--set", "serviceMonitor.enabled=true", "--set", "serviceMonitor.labels.release=prometheus"),
        *("--set", "image.pullSecrets={one,two}", "--set", "broker.antiAffinity=required"),
        *("--set", "broker.storage.className=fast", "--set", "broker.options.file_reserved_hours=48"),
    ),
    "small": (
        *("--set", "nameserver.replicas=1", "--set", "podDisruptionBudget.enabled=false"),
        *("--set", "broker.antiAffinity=none", "--set", "broker.nodeSelector.disk=ssd"),
    ),
}
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
Objects = list[dict[str, Any]]


@pytest.fixture(scope="module", params=SETTINGS)
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Objects:
    rendered = helm("template", "shop", str(CHART), KUBERNETES, *SETTINGS[request.param])
    assert rendered.returncode == 0, rendered.stderr
    file = tmp_path_factory.mktemp("chart") / "rendered.yaml"
    file.write_text(rendered.stdout)
    found: Objects = read("kubernetes", file)
    return found


def of_kind(objects: Objects, kind: str) -> Objects:
    return [one for one in objects if one["kind"] == kind]


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def container(stateful_set: dict[str, Any]) -> dict[str, Any]:
    (only,) = stateful_set["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def ports(stateful_set: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(stateful_set)["ports"]}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_lint_finds_nothing(settings: tuple[str, ...]) -> None:
    done = helm("lint", "--strict", str(CHART), *settings)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("broker.replcas=3", "replcas is not allowed"),
        ("broker.replicas=3", "needs register"),
        ("register=etcd://etcd:2379", "needs clusterKey.existingSecret"),
        ("broker.groups={Broker_A}", "pattern"),
        ("broker.groups={nameserver}", "not"),
        ("broker.groups={a-name-of-21-letters-x}", "pattern"),
        ("broker.storage.size=20GB", "pattern"),
    ],
)
def test_wrong_values_are_refused(setting: str, reason: str) -> None:
    done = helm("template", "shop", str(CHART), KUBERNETES, "--set", setting)
    assert done.returncode != 0
    assert reason in done.stderr


def test_long_names_leave_room_for_what_kubernetes_adds() -> None:
    """A label of each pod holds the name of its set and 11 characters more, 63 at most."""
    groups = "--set=broker.groups={" + "g" * 20 + "}"
    rendered = helm("template", "r" * 53, str(CHART), KUBERNETES, groups)
    assert rendered.returncode == 0, rendered.stderr
    names = [
        one["metadata"]["name"] for one in yaml.safe_load_all(rendered.stdout) if one["kind"] == "StatefulSet"
    ]
    assert len(names) == 2 and max(map(len, names)) <= 52


def test_names_are_valid_and_different(objects: Objects) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    assert [name for _, name in names if not NAME.fullmatch(name)] == []


def test_selectors_match_the_pods_of_their_set_only(objects: Objects) -> None:
    sets = of_kind(objects, "StatefulSet")
    services = {one["metadata"]["name"]: one for one in of_kind(objects, "Service")}
    for one in sets:
        labels = one["spec"]["template"]["metadata"]["labels"]
        selector = one["spec"]["selector"]["matchLabels"]
        assert matches(selector, labels)
        assert [
            other for other in sets if matches(selector, other["spec"]["template"]["metadata"]["labels"])
        ] == [one]
        headless = services[one["spec"]["serviceName"]]
        assert headless["spec"]["clusterIP"] == "None"
        assert matches(headless["spec"]["selector"], labels)
    for budget in of_kind(objects, "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"]
        assert (
            len([one for one in sets if matches(selector, one["spec"]["template"]["metadata"]["labels"])])
            == 1
        )


def test_services_and_probes_use_ports_that_exist(objects: Objects) -> None:
    sets = of_kind(objects, "StatefulSet")
    for service in of_kind(objects, "Service"):
        selected = [
            one
            for one in sets
            if matches(service["spec"]["selector"], one["spec"]["template"]["metadata"]["labels"])
        ]
        assert selected
        for port in service["spec"]["ports"]:
            assert all(ports(one)[port["targetPort"]] == port["port"] for one in selected)
    for one in sets:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container(one).get(name)
            if probe is not None:
                asked = probe.get("httpGet") or probe["tcpSocket"]
                assert asked["port"] in ports(one)
                assert asked.get("path", "/livez") == (
                    "/readyz" if "httpGet" in probe and name[0] == "r" else "/livez"
                )
    for monitor in of_kind(objects, "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        selector = monitor["spec"]["selector"]["matchLabels"]
        (service,) = [
            one for one in of_kind(objects, "Service") if matches(selector, one["metadata"]["labels"])
        ]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
        assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "metaq-brokers"


def test_mounts_have_volumes(objects: Objects) -> None:
    for one in of_kind(objects, "StatefulSet"):
        pod = one["spec"]["template"]["spec"]
        claims = [claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates") or []]
        volumes = {*claims, *(volume["name"] for volume in pod.get("volumes") or [])}
        assert {mount["name"] for mount in container(one).get("volumeMounts") or []} == volumes
        assert pod["securityContext"]["runAsNonRoot"]
        assert container(one)["securityContext"]["readOnlyRootFilesystem"]


def test_every_pod_runs_a_command_line_of_metaq(objects: Objects, tmp_path: Path) -> None:
    program = tmp_path / "metaq"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    for one in of_kind(objects, "StatefulSet"):
        box = container(one)
        words = box["args"]
        if "command" in box:
            # A real shell expands the line, for the last pod of the set.
            name = f"{one['metadata']['name']}-{one['spec']['replicas'] - 1}"
            environment = {"PATH": str(tmp_path), "HOSTNAME": name}
            done = subprocess.run([*box["command"], *words], env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            words = done.stdout.splitlines()
            assert words[words.index("--id") + 1] == str(one["spec"]["replicas"])
        assert parse(words) == one["metadata"]["labels"]["app.kubernetes.io/component"], shlex.join(words)
        assert {variable["name"] for variable in box.get("env") or []} <= KNOWN_VARIABLES


def test_brokers_know_every_name_server_by_its_pod(objects: Objects) -> None:
    (names,) = [one for one in of_kind(objects, "StatefulSet") if "nameserver" in ports(one)]
    expected = [
        f"{names['metadata']['name']}-{number}.{names['spec']['serviceName']}:9876"
        for number in range(names["spec"]["replicas"])
    ]
    brokers = [one for one in of_kind(objects, "StatefulSet") if one is not names]
    assert brokers
    for one in brokers:
        variables = {variable["name"]: variable for variable in container(one)["env"]}
        assert variables["METAQ_NAMESRV"]["value"].split(";") == expected


def test_the_options_are_a_file_that_metaq_reads(objects: Objects) -> None:
    (config,) = of_kind(objects, "ConfigMap")
    options = tomllib.loads(config["data"]["metaq.toml"])
    assert options.keys() <= OPTIONS.keys()
    for name, value in options.items():
        OPTIONS[name].kind.parse(value)
