"""What the command does not import before it is needed: each of these takes a second or more."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

SLOW = ("mlflow", "prefect", "pandas", "matplotlib", "torchrec", "fbgemm_gpu", "scipy.stats")


@pytest.mark.parametrize(
    ("options", "lacking"),
    [
        (["--help"], (*SLOW, "torch")),
        (["TABLES", "--devices", "2", "--memory-gb", "1", "--placer", "size_greedy"], SLOW),
    ],
    ids=["help", "a rule of thumb"],
)
def test_place_starts_without_what_it_does_not_need(tmp_path, options, lacking):
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling_factor\nusers,100,16,1\n")
    arguments = [str(tmp_path / "tables.csv") if option == "TABLES" else option for option in options]
    program = (
        "import sys\nfrom flows.cli.app import main\n"
        f"sys.argv = ['dreamshard', 'place', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('imported:', *[name for name in {lacking!r} if name in sys.modules], file=sys.stderr)"
    )
    environment = {"DREAMSHARD_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].strip() == "imported:"
