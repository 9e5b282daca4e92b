import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "lock").glob("*.txt"))
ENTRY = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", re.MULTILINE)


def versions(path: Path) -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in ENTRY.findall(path.read_text())}


def test_every_constraint_is_locked_at_its_version():
    locked = {name: version for path in LOCKS for name, version in versions(path).items()}
    pinned = versions(ROOT / "constraints.txt")
    assert {name: locked.get(name) for name in pinned} == pinned, "run `make lock`"


def test_a_cpu_installation_has_one_build_of_fbgemm_and_no_cuda():
    names = versions(ROOT / "lock" / "base.txt").keys() | versions(ROOT / "lock" / "cpu.txt").keys()
    assert "fbgemm-gpu-cpu" in names
    assert not [name for name in names if name in ("torch", "triton", "fbgemm-gpu") or name.startswith("nvidia-")]
