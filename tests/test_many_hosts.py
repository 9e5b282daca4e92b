import re
import subprocess

import yaml

from tests.helpers.compose import DEPLOY


def many_hosts() -> dict[str, str]:
    """The examples of ranks on many hosts, by file name."""
    return {path.name: path.read_text() for path in (DEPLOY / "many-hosts").iterdir()}


def test_each_launchers_example_is_read_by_its_shell():
    assert set(many_hosts()) == {"torchrun.sh", "slurm.sbatch", "kubernetes.yaml", "ray.sh"}
    for path in (DEPLOY / "many-hosts").glob("*.s*"):
        shell = path.read_text().partition("\n")[0].removeprefix("#!")
        done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_examples_start_commands_on_as_many_ranks_as_devices():
    from flows.cli.app import app

    known = {option for argument in app["run"].assemble_argument_collection() for option in argument.names}
    slurm = many_hosts()["slurm.sbatch"]
    words = re.search(r"flows\.cli\.ranks \\\n *(.*)", slurm)[1].split()
    assert words[0] == "run"
    assert {word for word in words if word.startswith("--")} <= known
    nodes, ranks = (int(re.search(rf"--{name}[= ](\d+)", slurm)[1]) for name in ("nodes", "nproc-per-node"))
    assert words[words.index("--devices") + 1] == str(nodes * ranks)

    service, job = yaml.safe_load_all(many_hosts()["kubernetes.yaml"])
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    ranks = command[command.index("flows.cli.ranks") + 1 :]
    assert ranks[0] == "run"
    assert {word.partition("=")[0] for word in ranks[1:]} <= known
    options = dict(word[2:].split("=") for word in command if word.startswith("--"))
    hosts, gpus = int(options["nnodes"]), int(options["nproc-per-node"])
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (hosts, hosts)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert options["devices"] == str(hosts * gpus)
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert options["master-addr"] == first
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
