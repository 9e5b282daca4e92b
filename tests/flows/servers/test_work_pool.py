"""What a run gets as environment, volumes and GPUs, made by the workers of Prefect themselves."""

import asyncio
import json
from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect.client.schemas.objects import FlowRun

from flows.runtime import run_locks
from flows.servers import work_pool

WORKERS = {"docker": "prefect_docker.worker", "kubernetes": "prefect_kubernetes.worker"}

ENVIRON = {
    "DREAMSHARD_STORE": "s3://bucket/dreamshard",
    "MLFLOW_TRACKING_URI": "http://mlflow:5000",
    "DREAMSHARD_TASK_RUNNER": "ray:ray://ray:10001",
    "AWS_ENDPOINT_URL_S3": "http://store:9000",
    "AWS_SECRET_ACCESS_KEY": "hidden",
}
RUN = FlowRun(id=UUID(int=1), flow_id=UUID(int=2), name="a-run")


def made(kind, gpus):
    """A run's job as the worker would start it, with nothing but the pool's defaults."""
    worker = pytest.importorskip(WORKERS[kind], reason='needs the extra: pip install "dreamshard[containers]"')
    configuration = getattr(worker, f"{kind.title()}WorkerJobConfiguration")
    template = work_pool.job_template(kind, "dreamshard:0.1.0-cuda", gpus, ENVIRON)
    assert "hidden" not in json.dumps(template), "everybody who sees the UI would read it"
    job = asyncio.run(configuration.from_template_and_values(template, {}, client=SimpleNamespace()))
    job.prepare_for_flow_run(RUN)
    return job


def test_a_docker_run_has_the_image_the_settings_the_hosts_lock_and_its_gpus():
    from docker.types import HostConfig

    job = made("docker", gpus=1)
    assert job.image == "dreamshard:0.1.0-cuda"
    passed_on = {name: value for name, value in ENVIRON.items() if value != "hidden"}
    assert job.env.items() >= passed_on.items()
    assert job.env["PREFECT__FLOW_RUN_ID"] == str(RUN.id)
    folder = job.env["DREAMSHARD_MEASURING_LOCK"].rpartition("/")[0]
    assert f"/tmp:{folder}" in job.volumes
    host = HostConfig(version="1.47", **job.container_create_kwargs)
    assert host["DeviceRequests"] == [
        {"Driver": "nvidia", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}
    ]
    assert host["UTSMode"] == "host", "or each container would be a host of its own"
    assert "device_requests" not in made("docker", gpus=0).container_create_kwargs


@pytest.mark.parametrize("host", ["gpu-7", ""])
def test_a_docker_run_calls_its_host_as_the_worker_that_starts_it_does(monkeypatch, host):
    monkeypatch.setenv("DREAMSHARD_HOST", host)
    monkeypatch.setattr(run_locks.socket, "gethostname", lambda: "the-hosts-own-name")
    of_worker = run_locks.host_limit()
    monkeypatch.setenv("DREAMSHARD_HOST", made("docker", gpus=0).env["DREAMSHARD_HOST"])
    assert run_locks.host_limit() == of_worker == f"dreamshard-measures-{host or 'the-hosts-own-name'}"


def test_a_kubernetes_run_has_the_image_the_settings_its_nodes_name_the_secret_and_its_gpus():
    job = made("kubernetes", gpus=2)
    pod = job.job_manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {each["name"]: each for each in container["env"]}
    assert container["image"] == "dreamshard:0.1.0-cuda"
    assert env["MLFLOW_TRACKING_URI"]["value"] == "http://mlflow:5000"
    assert env["PREFECT__FLOW_RUN_ID"]["value"] == str(RUN.id)
    assert env["DREAMSHARD_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert container["envFrom"] == [{"secretRef": {"name": "dreamshard", "optional": True}}]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    cpu = made("kubernetes", gpus=0)
    limits = cpu.job_manifest["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {})
    assert "nvidia.com/gpu" not in limits


def test_containers_without_an_image_are_refused():
    with pytest.raises(ValueError, match=r"a docker run needs an image.*build deploy/Dockerfile"):
        work_pool.job_template("docker", None, 0, {})


def test_an_address_with_a_password_is_not_put_where_everyone_reads_it():
    environ = ENVIRON | {"MLFLOW_TRACKING_URI": "postgresql://ada:hidden@db/mlflow"}
    with pytest.raises(
        ValueError, match=r"MLFLOW_TRACKING_URI is postgresql://ada:\.\.\.@db/mlflow, and everyone could"
    ):
        work_pool.job_template("docker", "dreamshard:0.1.0-cuda", 0, environ)


def test_a_process_has_its_workers_environment():
    assert work_pool.job_template("process", None, 0, ENVIRON)["variables"]["properties"]["env"].get("default") is None


@pytest.mark.parametrize(
    ("asked", "there", "makes"),
    [(None, None, "process"), (None, "docker", None), (None, "process", None), ("process", "process", "process")],
)
def test_deploying_without_a_type_leaves_a_pool_that_exists_as_it_is(monkeypatch, asked, there, makes):
    made = []
    monkeypatch.setattr(work_pool, "_pool_kind", lambda: there)
    monkeypatch.setattr(work_pool, "_make_pool", lambda kind, template: made.append(kind))
    work_pool.ensure_pool(asked, None, 0, {})
    assert made == ([makes] if makes else [])


def test_the_type_of_a_pool_cannot_be_changed_and_settings_of_containers_need_one(monkeypatch):
    monkeypatch.setattr(work_pool, "_pool_kind", lambda: "docker")
    with pytest.raises(ValueError, match="is of type docker, and Prefect cannot change that to process"):
        work_pool.ensure_pool("process", None, 0, {})
    with pytest.raises(ValueError, match="add --type docker"):
        work_pool.ensure_pool(None, "dreamshard:0.1.0-cuda", 0, {})
