"""Write the lock files of this folder anew from `pyproject.toml` and `constraints.txt`: `make lock`.

`base.txt` has what every `make install` needs, the extra `pipeline` included, each other file what one extra needs besides,
with the hashes of all files that PyPI has of each release. They are installed with `pip install --require-hashes --no-deps`.

torch and, for CPUs, what it would bring of CUDA are left out of `base.txt`: builds of torch differ by the index that pip is
pointed at, and so do their hashes. Those of PyPI, for CUDA, are in `cuda.txt`. torchrec asks for any version of `fbgemm-gpu`,
which would be installed over `fbgemm-gpu-cpu`, so what it needs is listed here.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
TORCHREC = ("torchrec", "tensordict", "torchmetrics", "pyre-extensions")
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")
BUILD = ("pip", "setuptools==80.9.0")  # as in pyproject.toml: the package is built without fetching anything
BASE = "pipeline"
NOWHERE = 'python_version < "3"'  # a marker that leaves a package out


def main() -> None:
    """Needs uv on the path, and PyPI."""
    base = locked("--extra", BASE)
    write("base", base)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in (each for each in project["optional-dependencies"] if each != BASE):
        everything = locked("--extra", BASE, "--extra", extra, torch=extra == "cuda")
        write(extra, {name: entry for name, entry in everything.items() if name not in base})


def locked(*options: str, torch: bool = False) -> dict[str, str]:
    """Entry by package, of what is needed with these options of uv; with or without torch and its libraries."""
    with tempfile.TemporaryDirectory() as folder:
        roots, pins, overrides = (Path(folder) / name for name in ("roots.in", "pins.txt", "overrides.txt"))
        roots.write_text("\n".join([*TORCHREC, *TORCH_NEEDS, *BUILD]))
        left_out = [] if torch else ["fbgemm-gpu", "torch"]
        pins.write_text("\n".join(line for line in pinned() if line.partition("==")[0] not in left_out))
        overrides.write_text("\n".join(f"{name} ; {NOWHERE}" for name in left_out))
        command = [
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--generate-hashes",
            "--universal",
        ]
        command += ["--python-version", "3.11", "--constraint", str(pins), "--override", str(overrides), *options]
        done = subprocess.run(
            [*command, str(ROOT / "pyproject.toml"), str(roots)], capture_output=True, text=True, check=False, cwd=ROOT
        )
    if done.returncode:
        sys.exit(f"uv could not resolve {' '.join(options) or 'the base'}, so no lock file was changed:\n{done.stderr}")
    return {match["name"].lower(): match[0] for match in ENTRY.finditer(done.stdout)}


ENTRY = re.compile(r"^(?P<name>[\w.-]+)(?:\[[\w,-]+\])?==[^\n]*\n(?:    --hash=[^\n]*\n?)*", re.MULTILINE)


def pinned() -> list[str]:
    """Lines of `constraints.txt`."""
    return (ROOT / "constraints.txt").read_text().splitlines()


def write(name: str, entries: dict[str, str]) -> None:
    """One lock file."""
    text = "".join(f"{entry.rstrip()}\n" for _, entry in sorted(entries.items()))
    (HERE / f"{name}.txt").write_text(text)
    sys.stdout.write(f"lock/{name}.txt: {len(entries)} packages\n")


if __name__ == "__main__":
    main()
