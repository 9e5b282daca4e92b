"""The lock files: every pinned package with its hashes, and nothing else, so that an installation takes no other file."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "lock").glob("*.txt"))
ENTRY = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(path: Path) -> dict[str, str]:
    return {normal(name): version for name, version in ENTRY.findall(path.read_text())}


def pinned() -> dict[str, str]:
    return {normal(name): version for name, version in ENTRY.findall((ROOT / "constraints.txt").read_text())}


def test_every_entry_has_hashes_and_no_other_option():
    for path in LOCKS:
        for entry in re.split(r"\n(?=\S)", path.read_text().strip()):
            first, *hashes = entry.splitlines()
            assert ENTRY.match(first), f"{path.name}: {first}"
            assert hashes, f"{path.name}: {first} has no hash, so pip would refuse it"
            assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes)


def test_versions_are_those_of_the_constraints_and_all_of_them_are_locked():
    everything = {name: version for path in LOCKS for name, version in locked(path).items()}
    different = {
        name: (everything.get(name), version) for name, version in pinned().items() if everything.get(name) != version
    }
    assert different == {}, "run `make lock`"


def test_what_an_extra_asks_for_is_in_its_file_or_in_the_base():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = locked(ROOT / "lock" / "base.txt")
    wanted = {"base": project["dependencies"], **project["optional-dependencies"]}
    wanted["base"] = [each for each in wanted["base"] if not each.startswith("torch==")]  # its builds differ by index
    for extra, requirements in wanted.items():
        known = base | locked(ROOT / "lock" / f"{extra}.txt")
        for requirement in requirements:
            name, _, version = requirement.partition("==")
            name = normal(name.partition("[")[0])
            assert name == "dreamshard" or known.get(name) == version, f"{requirement} of {extra}: run `make lock`"


def test_a_cpu_installation_has_one_build_of_fbgemm_and_no_cuda():
    names = locked(ROOT / "lock" / "base.txt").keys() | locked(ROOT / "lock" / "cpu.txt").keys()
    assert "fbgemm-gpu-cpu" in names
    assert not [name for name in names if name in ("torch", "triton", "fbgemm-gpu") or name.startswith("nvidia-")]
