"""What a run gets as environment, volumes and GPUs, made by the workers of Prefect themselves."""

import asyncio
import json
from types import SimpleNamespace
from uuid import UUID

import pytest
from docker.types import HostConfig
from prefect.client.schemas.objects import FlowRun

from flows import pools

try:
    from prefect_docker.worker import DockerWorkerJobConfiguration
    from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration
except ImportError:
    pytest.skip('needs the extra: pip install "dreamshard[containers]"', allow_module_level=True)

ENVIRON = {
    "DREAMSHARD_STORE": "s3://bucket/dreamshard",
    "MLFLOW_TRACKING_URI": "http://mlflow:5000",
    "AWS_SECRET_ACCESS_KEY": "hidden",
}
RUN = FlowRun(id=UUID(int=1), flow_id=UUID(int=2), name="a-run")


def made(configuration, kind, gpus):
    """A run's job as the worker would start it, with nothing but the pool's defaults."""
    template = pools.job_template(kind, "dreamshard:0.1.0-cuda", gpus, ENVIRON)
    assert "hidden" not in json.dumps(template), "everybody who sees the UI would read it"
    job = asyncio.run(configuration.from_template_and_values(template, {}, client=SimpleNamespace()))
    job.prepare_for_flow_run(RUN)
    return job


def test_a_docker_run_has_the_image_the_settings_the_hosts_lock_and_its_gpus():
    job = made(DockerWorkerJobConfiguration, "docker", gpus=1)
    assert job.image == "dreamshard:0.1.0-cuda"
    assert job.env["DREAMSHARD_STORE"] == ENVIRON["DREAMSHARD_STORE"]
    assert job.env["PREFECT__FLOW_RUN_ID"] == str(RUN.id)
    folder = job.env["DREAMSHARD_MEASURING_LOCK"].rpartition("/")[0]
    assert f"/tmp:{folder}" in job.volumes
    host = HostConfig(version="1.47", **job.container_create_kwargs)
    assert host["DeviceRequests"] == [
        {"Driver": "nvidia", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}
    ]
    assert host["UTSMode"] == "host", "or each container would be a host of its own"
    assert "device_requests" not in made(DockerWorkerJobConfiguration, "docker", gpus=0).container_create_kwargs


def test_a_kubernetes_run_has_the_image_the_settings_its_nodes_name_the_secret_and_its_gpus():
    job = made(KubernetesWorkerJobConfiguration, "kubernetes", gpus=2)
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
    cpu = made(KubernetesWorkerJobConfiguration, "kubernetes", gpus=0)
    limits = cpu.job_manifest["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {})
    assert "nvidia.com/gpu" not in limits


def test_containers_without_an_image_are_refused():
    with pytest.raises(ValueError, match=r"a docker run needs an image.*build deploy/Dockerfile"):
        pools.job_template("docker", None, 0, {})


def test_a_process_has_its_workers_environment():
    assert pools.job_template("process", None, 0, ENVIRON)["variables"]["properties"]["env"].get("default") is None
