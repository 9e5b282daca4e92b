"""The work pool, which defines how and in which environment a run starts.

The pool's template is that of the installed Prefect integration with our values as defaults, so the deployments are the
same for processes, Docker containers and Kubernetes jobs.
"""

from collections.abc import Mapping
from typing import Any, Literal

from dreamshard.files.text import without_passwords

POOL = "dreamshard"
SECRET = "dreamshard"
"""The Kubernetes secret whose keys every run gets as environment, for example the store's credentials."""

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
"""Settings that `deploy` copies into the pool; never passwords, since everyone can read them in Prefect's UI."""

_IN_CONTAINER = {"DREAMSHARD_HOME": "/data", "DREAMSHARD_MEASURING_LOCK": "/host-tmp/dreamshard.measuring.lock"}


def ensure_pool(kind: Kind | None, image: str | None, gpus: int, environ: Mapping[str, str]) -> None:
    """Create the work pool on the server at `PREFECT_API_URL`, or change its template.

    Args:
        kind: how runs start. None leaves an existing pool unchanged, and creates one of processes if there is none.
        image: built from `deploy/Dockerfile`, for containers; None for processes.
        gpus: number per Kubernetes job; a Docker container gets all GPUs of its host unless this is 0.
        environ: containers get its `PASSED_ON`.

    Raises:
        ValueError: containers without an image, an image or GPUs without a kind, or the pool is of another kind.
    """
    template = checked_template(kind, image, gpus, environ)
    existing = _pool_kind()
    if kind is not None and existing not in (None, kind):
        raise ValueError(
            f"the work pool {POOL} is of type {existing}, and Prefect cannot change that to {kind}; end its workers, run "
            f"`prefect work-pool delete {POOL}`, then deploy again"
        )
    if kind is not None or existing is None:
        _make_pool(kind or "process", template)


def checked_template(kind: Kind | None, image: str | None, gpus: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """The template of `ensure_pool`, for the same arguments and with the same errors; asks no server."""
    if kind is None and (image is not None or gpus):
        raise ValueError(
            f"--image ({image or 'none'}) and --gpus ({gpus}) configure a pool of containers, but without --type the pool is "
            "left unchanged; add --type docker or --type kubernetes"
        )
    return job_template(kind or "process", image, gpus, environ)


def job_template(kind: Kind, image: str | None, gpus: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """The base job template of a pool, for the arguments of `deploy`.

    Args:
        environ: containers get its `PASSED_ON`; a process has the environment of its worker.

    Raises:
        ValueError: containers without an image, or without the extra `containers`, or a setting holds a password.
    """
    if kind == "process":
        from prefect.workers.process import ProcessWorker

        return ProcessWorker.get_default_base_job_template()
    if image is None:
        raise ValueError(
            f"a {kind} run needs an image, and none was given; build deploy/Dockerfile and pass its name as --image"
        )
    env = _IN_CONTAINER | {name: environ[name] for name in PASSED_ON if name in environ}
    for name, value in env.items():
        if value != without_passwords(value):
            raise ValueError(
                f"{name} is {without_passwords(value)}, and everyone could read its password in Prefect's UI; give the "
                "address without one, and the login where your containers get their secrets"
            )
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
    create: dict[str, Any] = {"shm_size": "1g", "uts_mode": "host"}  # so that the container has the name of its host
    if gpus:
        create["device_requests"] = [{"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}]
    # the store's credentials: a file of the host where AWS's libraries look for it
    volumes = ["dreamshard:/data", "/tmp:/host-tmp", "/etc/dreamshard/aws:/home/dreamshard/.aws:ro"]
    # each worker fills this in, so that all runs of a host share one measuring limit; empty if it is not set there
    env = {**env, "DREAMSHARD_HOST": "{{ $DREAMSHARD_HOST }}"}
    defaults = {"image": image, "env": env, "volumes": volumes, "auto_remove": True}
    return _with_defaults(template, {**defaults, "container_create_kwargs": create})


def _kubernetes(image: str, gpus: int, env: Mapping[str, str]) -> dict[str, Any]:
    from prefect_kubernetes.worker import KubernetesWorker

    template: dict[str, Any] = KubernetesWorker.get_default_base_job_template()
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # a list, so that the worker puts its own before these; the measuring limit is named after the node
    container["env"] = [{"name": "DREAMSHARD_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    container["envFrom"] = [{"secretRef": {"name": SECRET, "optional": True}}]
    mounts: list[tuple[str, str, dict[str, Any]]] = [
        ("home", "/data", {"emptyDir": {}}),
        ("tmp", "/host-tmp", {"hostPath": {"path": "/tmp"}}),
        ("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}),
    ]
    container["volumeMounts"] = [{"name": name, "mountPath": path} for name, path, _ in mounts]
    pod["volumes"] = [{"name": name, **source} for name, _, source in mounts]
    pod["securityContext"] = {"fsGroup": 1000}
    if gpus:
        container["resources"]["limits"]["nvidia.com/gpu"] = str(gpus)
    return _with_defaults(template, {"image": image, "env": dict(env)})


def _with_defaults(template: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in defaults.items():
        template["variables"]["properties"][name]["default"] = value
    return template


def _pool_kind() -> str | None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            return client.read_work_pool(POOL).type
        except ObjectNotFound:
            return None


def _make_pool(kind: Kind, template: Mapping[str, Any]) -> None:
    """Create the pool, or replace the template of an existing one."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:
        pool = WorkPoolCreate(name=POOL, type=kind, base_job_template=dict(template))
        client.create_work_pool(pool, overwrite=True)
