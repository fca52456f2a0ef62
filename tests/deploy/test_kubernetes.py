"""The chart as Helm renders and lints it, and what KEDA and Dapr ask of a broker, by their Go modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has no types
import pytest
import yaml

from peeklock.cli.sources import read_settings_file
from peeklock.demo.broker import BrokerProcess

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/peeklock"
KUBERNETES = ("1.29", "1.37")
REFUSED = ("wrong mode", "cluster without a key")

CASES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "development": {"auth": {"modes": ["development"]}, "config": {"UserConfig": {"Namespaces": []}}},
    "given": {
        "auth": {"keys": {"existingSecret": "our-keys"}},
        "tls": {"existingSecret": "our-tls"},
        "settings": {"tier": "premium", "enforce-quotas": True},
        "podMonitor": {"enabled": True, "basicAuthSecret": "monitoring"},
    },
    "tokens": {"auth": {"modes": ["sas", "jwt"], "jwt": 'issuer = "https://id.example.com"'}},
    "database": {"store": {"urlSecret": "our-database", "urlKey": "url"}},
    "cluster": yaml.safe_load((ROOT / "deploy/helm/cloudnativepg-values.yaml").read_text()),
    "cluster without a key": {"store": {"urlSecret": "our-database"}, "cluster": {"enabled": True}},
    "wrong mode": {"auth": {"modes": ["nothing"]}},
}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the compiled programs."""
    folder = tmp_path_factory.mktemp("programs")
    built = subprocess.run(
        ["sh", "build.sh", str(folder)],
        cwd=ROOT / "tests/deploy/go",
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def rendered(programs: Path) -> dict[str, Any]:
    done = subprocess.run(
        [programs / "chart", CHART],
        input=json.dumps(CASES),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def every_object(rendered: dict[str, Any], case: str) -> list[dict[str, Any]]:
    texts = [text for path, text in rendered[case]["files"].items() if path.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def objects(rendered: dict[str, Any], case: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a case by kind; of two, the later one."""
    return {one["kind"]: one for one in every_object(rendered, case)}


def test_helm_finds_nothing_to_mend(rendered: dict[str, Any]) -> None:
    for case in CASES:
        assert rendered[case]["lint"] == [], case
        assert ("error" in rendered[case]) == (case in REFUSED), rendered[case]
    assert "auth/modes" in rendered["wrong mode"]["error"]
    assert "cluster.keySecret" in rendered["cluster without a key"]["error"]


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_objects_are_as_kubernetes_wants_them(rendered: dict[str, Any], version: str) -> None:
    for case in CASES:
        if "error" in rendered[case]:
            continue
        for found in every_object(rendered, case):
            if found["kind"] != "PodMonitor":  # of the Prometheus operator
                kubernetes_validate.validate(found, version, strict=True)


def test_a_pod_is_one_broker_that_is_hardened_and_gets_no_service_links(rendered: dict[str, Any]) -> None:
    spec = objects(rendered, "default")["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    assert spec["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    pod = spec["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container["livenessProbe"]["httpGet"]["path"] == "/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_a_database_comes_from_a_secret_and_one_broker_uses_it(rendered: dict[str, Any]) -> None:
    found = objects(rendered, "database")
    assert found["StatefulSet"]["spec"]["replicas"] == 1
    store = {"secretKeyRef": {"name": "our-database", "key": "url"}}
    assert _variables(found)["PEEKLOCK_STORE"]["valueFrom"] == store
    assert "PEEKLOCK_NODE" not in _variables(found)
    assert "PodDisruptionBudget" not in found


def test_a_node_has_the_name_of_its_pod_and_an_address_of_the_headless_service(
    rendered: dict[str, Any],
) -> None:
    found = objects(rendered, "cluster")
    spec = found["StatefulSet"]["spec"]
    nodes = found["Service"]
    assert spec["replicas"] == 3
    assert nodes["metadata"]["name"] == spec["serviceName"]
    assert nodes["spec"]["clusterIP"] == "None"
    assert nodes["spec"]["publishNotReadyAddresses"] is True
    variables = _variables(found)
    assert variables["PEEKLOCK_NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    address = f"$(PEEKLOCK_NODE).{spec['serviceName']}.messaging.svc:5673"
    assert variables["PEEKLOCK_NODE_ADDRESS"]["value"] == address
    names = list(variables)  # Kubernetes expands what stands before
    assert names.index("PEEKLOCK_NODE") < names.index("PEEKLOCK_NODE_ADDRESS")
    (volume,) = [one for one in spec["template"]["spec"]["volumes"] if one["name"] == "cluster"]
    assert volume["secret"]["secretName"] == "peeklock-cluster-key"
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def _variables(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one for one in container["env"]}


@pytest.mark.parametrize("case", [case for case in CASES if case not in REFUSED])
def test_the_settings_file_is_one(rendered: dict[str, Any], tmp_path: Path, case: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(objects(rendered, case)["ConfigMap"]["data"]["settings.toml"])
    values, _ = read_settings_file(file)
    assert values["auth"] == CASES[case].get("auth", {}).get("modes", ["sas"])
    assert values["data"] == "/data/peeklock"


# A broker as KEDA and Dapr use it


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    config = folder / "Config.json"
    topic = {"Name": "t", "Subscriptions": [{"Name": "s"}]}
    namespace = {"Name": "ns", "Queues": [{"Name": "q"}], "Topics": [topic]}
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    with BrokerProcess(folder, ["--durability=os", f"--config={config}"]) as process:
        yield process


def run(program: Path, broker: BrokerProcess, *arguments: str) -> str:
    done = subprocess.run(
        [program, broker.connection_string, *arguments],
        env={**os.environ, "SSL_CERT_FILE": str(broker.authority())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_keda_sees_the_numbers_of_waiting_messages(programs: Path, broker: BrokerProcess) -> None:
    counts = json.loads(run(programs / "keda", broker, "q", "t", "s"))
    assert counts == {"queue": 0, "queue q": 0, "subscription": 0, "subscription s": 0}


def test_dapr_s_components_publish_and_receive(programs: Path, broker: BrokerProcess) -> None:
    """They ask for the administration at the port of AMQP, where the emulator has none."""
    told = run(programs / "dapr", broker).split()
    assert told == [
        "pubsub.azure.servicebus.topics",
        "pubsub.azure.servicebus.queues",
        "bindings.azure.servicebusqueues",
    ]
