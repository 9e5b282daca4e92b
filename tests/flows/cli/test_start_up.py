"""What the command does not import before it is needed: each of these takes a second or more."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flows.cli import explanation, place, what_if
from flows.cli.app import app, sentence

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


@pytest.mark.parametrize("command", ["place", "explain", "what-if"])
def test_a_list_that_is_missing_is_noticed_before_the_home_is_opened(tmp_path, monkeypatch, command):
    opened: list[object] = []
    for module in (place, explanation, what_if):
        monkeypatch.setattr(module, "enter", lambda *_, **__: opened.append(1))
    missing = str(tmp_path / "missing.csv")
    given = {
        "place": [missing, "--devices", "2", "--memory-gb", "1"],
        "explain": ["plan.json", missing],
        "what-if": [missing, "--hardware", "a100:2"],
    }
    refused = CliRunner().invoke(app, [command, *given[command]])
    assert "missing.csv, so there are no tables to read; check the path" in sentence(refused.exception)
    assert opened == []
