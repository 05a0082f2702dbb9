"""The manifests of deploy/: valid, closed by default, without values of secrets, and what the program understands.

No cluster is asked for anything.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import kubernetes_validate as validator
import pytest
import yaml
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.instance.ref import InstanceRef
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster_k8s import job as jobs
from dagster_k8s import launcher as launchers
from kubernetes import client

from finops_pipeline.commands.runner import INSTANCE_SETTINGS
from finops_pipeline.definitions import HOURLY, MONTHLY, PREFIX, under_prefix
from finops_pipeline.errors import UsageError
from finops_pipeline.settings import VARIABLES, Settings, load_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
EXAMPLE = KUBERNETES / "example"
LOCATIONS = ("dc1-gpu", "dc2-gpu")
KUBECTL = shutil.which("kubectl")
DAGSTER = {
    "DAGSTER_CONTAINER_CONTEXT",
    "DAGSTER_CONTAINER_IMAGE",
    "DAGSTER_DISABLE_TELEMETRY",
    "DAGSTER_HOME",
    "DAGSTER_POSTGRES_URL",
}
AWS = {"AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_SECRET_ACCESS_KEY"}
"""Of the AWS SDK's own chain, which the lake's bucket leaves to it."""
SHARED = ("telemetry", "nux", "run_retries", "run_monitoring", "retention")
"""Parts of the instance that do not depend on where it runs."""

Document = dict[str, Any]


def documents() -> list[tuple[Path, Document]]:
    files = sorted(KUBERNETES.rglob("*.yaml"))
    assert files
    return [(path, document) for path in files for document in yaml.safe_load_all(path.read_text())]


MANIFESTS = [(path, document) for path, document in documents() if path.name != "kustomization.yaml"]


def named(kind: str, name: str) -> Document:
    (found,) = (
        document for _, document in MANIFESTS if document["kind"] == kind and document["metadata"]["name"] == name
    )
    return found


def pods(document: Document) -> Iterator[Document]:
    """The pod specs in a manifest."""
    match document["kind"]:
        case "Deployment" | "Job":
            yield document["spec"]["template"]["spec"]
        case "CronJob":
            yield document["spec"]["jobTemplate"]["spec"]["template"]["spec"]


PODS = [(document["metadata"]["name"], pod) for _, document in MANIFESTS for pod in pods(document)]


def settings_of(location: str) -> Document:
    (found,) = (d for p, d in MANIFESTS if p.parent.name == location and d["kind"] == "ConfigMap")
    return dict(found["data"])


def secrets() -> dict[str, set[str]]:
    """Secret -> the variables in it, from the example; none has a value."""
    found: dict[str, set[str]] = {}
    names: list[str] = []
    for line in (DEPLOY / "secrets.example.env").read_text().splitlines():
        if line.startswith("#"):
            names = re.findall(r"Secret ([a-z0-9-]+)", line)
        elif line:
            variable, _, value = line.partition("=")
            assert not value, f"{variable} has a value"
            for name in names:
                found.setdefault(name, set()).add(variable)
    return found


def check_pod(pod: Document) -> None:
    """What the `restricted` Pod Security Standard asks, a root file system that cannot be written, and limits."""
    assert pod["automountServiceAccountToken"] is (pod["serviceAccountName"] == "dagster")
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for volume in pod["volumes"]:
        assert not {"hostPath"} & volume.keys()
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= container["resources"][kind].keys()
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(("name", "pod"), PODS, ids=[name for name, _ in PODS])
def test_pods_are_restricted_and_bounded(name: str, pod: Document) -> None:
    check_pod(pod)


@pytest.mark.parametrize("name", ["webserver", "daemon", "code"])
def test_what_stays_up_is_probed(name: str) -> None:
    (container,) = named("Deployment", name)["spec"]["template"]["spec"]["containers"]
    assert {"startupProbe", "livenessProbe"} <= container.keys()


def test_no_secret_is_written_down() -> None:
    assert not [path for path, document in MANIFESTS if document["kind"] == "Secret"]
    secret = {name for name, field in VARIABLES.items() if "SecretStr" in str(Settings.model_fields[field].annotation)}
    secret |= {"AWS_SECRET_ACCESS_KEY", "DAGSTER_POSTGRES_URL"}
    assert {"EAI_DATABASE_URL", "FINOPS_PROMETHEUS_PASSWORD"} <= secret
    for path, document in MANIFESTS:
        assert not secret & document.get("data", {}).keys(), path
        for pod in pods(document):
            for container in pod["containers"]:
                assert not [v for v in container.get("env", ()) if v["name"] in secret and "value" in v], path
        assert not re.search(r"://[^/\s]*:[^/\s]*@", path.read_text()), path
    assert secrets()


def test_every_secret_that_is_named_is_in_the_example_and_every_config_map_is_there() -> None:
    maps = {document["metadata"]["name"] for _, document in MANIFESTS if document["kind"] == "ConfigMap"}
    wanted_secrets, wanted_maps = set(), set()
    for _, pod in PODS:
        for container in pod["containers"]:
            for source in container.get("envFrom", ()):
                wanted_maps |= {source["configMapRef"]["name"]} if "configMapRef" in source else set()
                wanted_secrets |= {source["secretRef"]["name"]} if "secretRef" in source else set()
            for variable in container.get("env", ()):
                key = variable.get("valueFrom", {}).get("secretKeyRef")
                if key:
                    assert key["key"] in secrets()[key["name"]]
        wanted_maps |= {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    launcher = instance_yaml()["run_launcher"]["config"]
    wanted_secrets |= {*launcher["env_secrets"]}
    wanted_maps |= {*launcher["env_config_maps"], launcher["instance_config_map"]}
    for location in LOCATIONS:
        own = json.loads(settings_of(location)["DAGSTER_CONTAINER_CONTEXT"])["k8s"]
        assert own["env_config_maps"] == [f"settings-location-{location}"], "the name that kustomize gives it"
        wanted_secrets |= {*own["env_secrets"]}
    assert wanted_secrets == secrets().keys()
    assert wanted_maps <= maps


def test_every_variable_is_known() -> None:
    written = {name for location in LOCATIONS for name in settings_of(location)} | {
        *named("ConfigMap", "settings")["data"]
    }
    for _, pod in PODS:
        written |= {variable["name"] for container in pod["containers"] for variable in container.get("env", ())}
    written |= set().union(*secrets().values())
    assert written - DAGSTER - AWS - {PREFIX} <= VARIABLES.keys()


@pytest.mark.parametrize("location", LOCATIONS)
def test_the_settings_of_a_location_are_valid(location: str) -> None:
    given = {**named("ConfigMap", "settings")["data"], **settings_of(location)}
    settings = load_settings({**given, "EAI_DATABASE_URL": "postgresql://someone@postgres:5432/eai"})
    assert list(settings.prometheus_urls) == [location]
    assert settings.production
    settings.accounting()
    assert given[PREFIX] == location


def test_a_prefix_goes_before_what_is_computed_and_not_before_the_sources() -> None:
    hourly, monthly = under_prefix("dc1-gpu", HOURLY, MONTHLY)
    assert [asset.key.path for asset in hourly] == [["dc1-gpu", *asset.key.path] for asset in HOURLY]
    upstream = {
        dep.asset_key.to_user_string() for asset in (*hourly, *monthly) for dep in asset.specs_by_key[asset.key].deps
    }
    assert {"prometheus", "workload_events", "dc1-gpu/gpu_cost_allocation"} <= upstream
    assert "gpu_cost_allocation" not in upstream
    with pytest.raises(UsageError, match=PREFIX):
        list(under_prefix("not a name", HOURLY))


def test_the_workspace_names_the_services_and_locations() -> None:
    (workspace,) = (d for p, d in MANIFESTS if p == EXAMPLE / "workspace.yaml")
    port = named("Service", "code")["spec"]["ports"][0]["port"]
    loaded = yaml.safe_load(workspace["data"]["workspace.yaml"])["load_from"]
    assert [entry["grpc_server"] for entry in loaded] == [
        {"host": f"code-{location}", "port": port, "location_name": location} for location in LOCATIONS
    ]


def test_the_role_is_no_more_than_the_launcher_calls() -> None:
    granted = {
        (resource, verb)
        for rule in named("Role", "run-launcher")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        *(("jobs", verb) for verb in ("create", "get", "list", "delete")),
        ("jobs/status", "get"),
        *(("pods", verb) for verb in ("get", "list", "delete")),
        ("pods/log", "get"),
        ("events", "list"),
    }
    (subject,) = named("RoleBinding", "run-launcher")["subjects"]
    assert subject["name"] == "dagster"


def test_network_is_closed_but_for_what_is_listed() -> None:
    policies = {d["metadata"]["name"]: d["spec"] for _, d in MANIFESTS if d["kind"] == "NetworkPolicy"}
    assert policies.pop("nothing") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for spec in policies.values():
        for rule in [*spec.get("ingress", ()), *spec.get("egress", ())]:
            assert rule.get("from") or rule.get("to"), "a rule without peers allows everybody"
            assert rule["ports"]
            for peer in [*rule.get("from", ()), *rule.get("to", ())]:
                assert peer.get("ipBlock", {}).get("cidr", "192.0.2.0/32").endswith("/32")


def test_the_instance_is_the_one_of_a_single_machine_where_that_does_not_matter() -> None:
    local = yaml.safe_load(INSTANCE_SETTINGS.read_text())
    assert {name: instance_yaml()[name] for name in SHARED} == {name: local[name] for name in SHARED}


def test_manifests_are_valid_kubernetes() -> None:
    for _, document in MANIFESTS:
        validator.validate(document, validator.latest_version(), strict=True)


def test_kustomizations_name_what_is_there() -> None:
    for path in KUBERNETES.rglob("kustomization.yaml"):
        kustomization = yaml.safe_load(path.read_text())
        named = [
            *kustomization.get("resources", ()),
            *(patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch),
        ]
        assert all((path.parent / name).exists() for name in named), path
        beside = {other.name for other in path.parent.glob("*.yaml")} - {path.name}
        assert beside <= {*named, *re.findall(r"[\w.-]+\.yaml", path.read_text())}, path


if KUBECTL:  # Debian has no package of it: what it would say is checked above as far as we can

    def test_kustomize_builds_the_example() -> None:
        made = subprocess.run([str(KUBECTL), "kustomize", str(EXAMPLE)], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        built = list(yaml.safe_load_all(made.stdout))
        names = {(document["kind"], document["metadata"]["name"]) for document in built}
        for location in LOCATIONS:
            assert {("Deployment", f"code-{location}"), ("Service", f"code-{location}")} <= names
            assert ("ConfigMap", f"settings-location-{location}") in names
            (code,) = (d for d in built if d["metadata"]["name"] == f"code-{location}" and d["kind"] == "Deployment")
            (container,) = code["spec"]["template"]["spec"]["containers"]
            assert {"configMapRef": {"name": f"settings-location-{location}"}} in container["envFrom"]
            assert {"name": "DAGSTER_CONTAINER_IMAGE", "value": container["image"]} in container["env"]
            assert code["spec"]["selector"]["matchLabels"] == {"finops-role": "code", "finops-location": location}
        assert {document["metadata"].get("namespace") for document in built if document["kind"] != "Namespace"} == {
            "finops"
        }


def instance_yaml() -> Document:
    return dict(yaml.safe_load(named("ConfigMap", "dagster-instance")["data"]["dagster.yaml"]))


@pytest.fixture
def instance_ref(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstanceRef:
    """The instance of the ConfigMap as Dagster reads it."""
    (tmp_path / "dagster.yaml").write_text(named("ConfigMap", "dagster-instance")["data"]["dagster.yaml"])
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", "postgresql+psycopg2://someone:word@127.0.0.1:1/dagster")
    return InstanceRef.from_dir(str(tmp_path))


def test_dagster_takes_the_instance(instance_ref: InstanceRef) -> None:
    assert instance_ref.storage_data is not None
    assert instance_ref.storage_data.class_name == "DagsterPostgresStorage"
    assert instance_ref.settings["telemetry"] == {"enabled": False}
    assert dict(instance_ref.settings)["concurrency"] == instance_yaml()["concurrency"]
    assert type(instance_ref.compute_log_manager).__name__ == "NoOpComputeLogManager"


@pytest.mark.parametrize("location", LOCATIONS)
def test_the_job_of_a_run_is_valid_restricted_and_has_its_location_s_settings(
    location: str, instance_ref: InstanceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of_a_run(instance_ref, json.loads(settings_of(location)["DAGSTER_CONTAINER_CONTEXT"]), monkeypatch)
    pod = job["spec"]["template"]["spec"]
    check_pod(pod)
    assert job["spec"]["template"]["metadata"]["labels"]["finops-role"] == "run", "the network policies go by it"
    assert pod["serviceAccountName"] == "pipeline"
    (container,) = pod["containers"]
    assert container["image"] == "finops-pipeline:0.1.0"
    sources = [source[kind]["name"] for source in container["envFrom"] for kind in source]
    assert {"settings", f"settings-location-{location}", "finops-database", "finops-dagster"} <= {*sources}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"instance": "/opt/dagster", "tmp": "/tmp", "anchor": "/anchor"}
    validator.validate(job, validator.latest_version(), strict=True)


def job_of_a_run(ref: InstanceRef, context: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> Document:
    """The Job that the launcher would create for a run of a code location, without asking a cluster."""
    monkeypatch.setattr(launchers, "load_kubernetes_config", lambda **_: None)
    launcher: Any = ref.run_launcher
    origin = RepositoryPythonOrigin(
        executable_path="python",
        code_pointer=ModuleCodePointer("finops_pipeline.definitions", "definitions"),
        container_image="finops-pipeline:0.1.0",
        entry_point=["dagster"],
        container_context=context,
    )
    run = dg.DagsterRun(job_name="hourly", run_id="0" * 8, job_code_origin=JobPythonOrigin("hourly", origin))
    chosen = launcher.get_container_context_for_run(run)
    built = jobs.construct_dagster_k8s_job(
        job_config=chosen.get_k8s_job_config(job_image=origin.container_image, run_launcher=launcher),
        args=["dagster", "api", "execute_run"],
        job_name="dagster-run-0",
        component="run_worker",
        user_defined_k8s_config=chosen.run_k8s_config,
    )
    return dict(client.ApiClient().sanitize_for_serialization(built))


def test_the_image_is_installed_by_hash_and_does_not_run_as_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["python:3.11-slim-bookworm"] * 2
    assert re.findall(r"^USER (\S+)", text, re.MULTILINE) == ["10001:10001"]
    for installed in re.findall(r"pip install(.*?)(?:\n[A-Z]|\Z)", text.replace("\\\n", ""), re.DOTALL):
        assert "--require-hashes" in installed or "dist/*.whl" in installed
    for user in (pod["securityContext"]["runAsUser"] for _, pod in PODS):
        assert user == 10001
