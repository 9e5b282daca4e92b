"""The devices of this machine, and the versions of the libraries that run on them."""

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def device_model(device_type: str) -> str:
    """Model of the first GPU, or of the processor."""
    if device_type == "cuda":
        return str(torch.cuda.get_device_name(0))
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def library_versions() -> dict[str, str]:
    """Versions of torch, of CUDA if torch is built for it, and of the installed build of fbgemm."""
    versions = {"torch": str(torch.__version__)}
    if torch.version.cuda is not None:
        versions["cuda"] = str(torch.version.cuda)
    for package in ("fbgemm-gpu", "fbgemm-gpu-cpu"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
