"""`dreamshard deploy`: the work pool, which says how a run is started and in which environment, and all deployments.

The pool's template is that of the installed Prefect integration with our values as defaults, so that `prefect.yaml` and
the deployments are the same for processes, Docker containers and Kubernetes jobs.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

PROJECT = Path(__file__).resolve().parents[2]
POOL = "dreamshard"
SECRET = "dreamshard"
"""The Kubernetes secret whose keys every run gets as environment, e.g. the store's credentials."""

Kind = Literal["process", "docker", "kubernetes"]

PASSED_ON = (
    "MLFLOW_TRACKING_URI",
    "DREAMSHARD_STORE",
    "DREAMSHARD_ARTIFACTS",
    "DREAMSHARD_TASK_RUNNER",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_DEFAULT_REGION",
)
"""Settings that a run has from whoever deploys; never passwords, which everybody would read in Prefect's UI."""

_IN_CONTAINER = {"DREAMSHARD_HOME": "/data", "DREAMSHARD_MEASURING_LOCK": "/host-tmp/dreamshard.measuring.lock"}


def deploy(kind: Kind | None, image: str | None, gpus: int) -> None:
    """Make the work pool and all deployments on the server that `PREFECT_API_URL` names.

    Args:
        kind: how runs are started. None leaves a pool that exists as it is, and makes one of processes where there is none.
        image: of `deploy/Dockerfile`, for containers; None for processes.
        gpus: of each Kubernetes job; a Docker container has all of its host if this is not 0.

    Raises:
        ValueError: containers without an image, an image or GPUs without a kind, or the pool is of another kind.
        RuntimeError: Prefect refused; its own words are above.
    """
    if kind is None and (image is not None or gpus):
        raise ValueError(
            f"--image ({image or 'none'}) and --gpus ({gpus}) are settings of a pool of containers, and without --type the "
            "pool is left as it is; add --type docker or --type kubernetes"
        )
    template = job_template(kind or "process", image, gpus, os.environ)
    there = _kind_of_the_pool()
    if kind is not None and there not in (None, kind):
        raise ValueError(
            f"the work pool {POOL} is of type {there}, and Prefect cannot change that to {kind}; end its workers, run "
            f"`prefect work-pool delete {POOL}`, then this again"
        )
    if kind is not None or there is None:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "template.json"
            file.write_text(json.dumps(template))
            make = ("work-pool", "create", POOL, "--type", kind or "process", "--overwrite")
            _prefect(*make, "--base-job-template", str(file))
    _prefect("--no-prompt", "deploy", "--all")


def settings_of_deployments(environ: Mapping[str, str]) -> dict[str, str]:
    """What `prefect.yaml` reads of the environment: empty where it is not set, a path in full, as runs have other folders."""
    source = environ.get("DREAMSHARD_SOURCE", "")
    return {"DREAMSHARD_SOURCE": str(Path(source).absolute()) if source and Path(source).exists() else source}


def job_template(kind: Kind, image: str | None, gpus: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """The base job template of a pool.

    Args:
        kind: how runs are started.
        image: for containers.
        gpus: see `deploy`.
        environ: whose `PASSED_ON` a run in a container gets; a process has its worker's.

    Raises:
        ValueError: containers without an image, or without the extra `containers`.
    """
    if kind == "process":
        from prefect.workers.process import ProcessWorker

        return ProcessWorker.get_default_base_job_template()
    if image is None:
        raise ValueError(
            f"a {kind} run needs an image, and none was given; build deploy/Dockerfile and name it with --image"
        )
    env = _IN_CONTAINER | {name: environ[name] for name in PASSED_ON if name in environ}
    try:
        return _docker(image, gpus, env) if kind == "docker" else _kubernetes(image, gpus, env)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"a {kind} pool needs the package {error.name}, which is not installed; install the extra: "
            'pip install "dreamshard[containers]"'
        ) from error


def _docker(image: str, gpus: int, env: Mapping[str, str]) -> dict[str, Any]:
    from prefect_docker.worker import DockerWorker

    template: dict[str, Any] = DockerWorker.get_default_base_job_template()
    create: dict[str, Any] = {"shm_size": "1g", "uts_mode": "host"}  # the name of a host that has no other
    if gpus:
        create["device_requests"] = [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]
    # the store's credentials as a file of the host, where AWS's libraries look for it
    volumes = ["dreamshard:/data", "/tmp:/host-tmp", "/etc/dreamshard/aws:/home/dreamshard/.aws:ro"]
    # filled in by each worker, so that the limit on measuring is called alike; empty where its host has no name of its own
    env = {**env, "DREAMSHARD_HOST": "{{ $DREAMSHARD_HOST }}"}
    defaults = {"image": image, "env": env, "volumes": volumes, "auto_remove": True}
    for name, value in (defaults | {"container_create_kwargs": create}).items():
        template["variables"]["properties"][name]["default"] = value
    return template


def _kubernetes(image: str, gpus: int, env: Mapping[str, str]) -> dict[str, Any]:
    from prefect_kubernetes.worker import KubernetesWorker

    template: dict[str, Any] = KubernetesWorker.get_default_base_job_template()
    for name, value in {"image": image, "env": dict(env)}.items():
        template["variables"]["properties"][name]["default"] = value
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # a list, so that the worker puts its own before these; the node's name is what the limit on measuring is called
    container["env"] = [{"name": "DREAMSHARD_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    container["envFrom"] = [{"secretRef": {"name": SECRET, "optional": True}}]
    mounts: dict[str, tuple[str, dict[str, Any]]]
    mounts = {"home": ("/data", {"emptyDir": {}}), "tmp": ("/host-tmp", {"hostPath": {"path": "/tmp"}})}
    mounts["shm"] = ("/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}})
    container["volumeMounts"] = [{"name": name, "mountPath": path} for name, (path, _) in mounts.items()]
    pod["volumes"] = [{"name": name, **source} for name, (_, source) in mounts.items()]
    pod["securityContext"] = {"fsGroup": 1000}
    if gpus:
        container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    return template


def _kind_of_the_pool() -> str | None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            return client.read_work_pool(POOL).type
        except ObjectNotFound:
            return None


def _prefect(*arguments: str) -> None:
    command = [sys.executable, "-m", "prefect", *arguments]
    done = subprocess.run(command, cwd=PROJECT, env={**os.environ, **settings_of_deployments(os.environ)}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`prefect {' '.join(arguments)}` failed, so no flow can be started; what it said is above")
