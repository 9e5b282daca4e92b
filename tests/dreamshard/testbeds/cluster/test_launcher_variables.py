"""What each launcher's variables say."""

import pytest

from dreamshard.testbeds.cluster.launched import own_key
from dreamshard.testbeds.cluster.launcher_variables import launched_process, num_launched

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[08-09,12],login",
    "SLURM_JOB_ID": "1234567",
}
MPI = {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
INTEL_MPI = {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1"}


@pytest.mark.parametrize(
    ("variables", "count"),
    [(TORCHRUN, 16), (SLURM, 16), (MPI, 16), (INTEL_MPI, 16), ({"WORLD_SIZE": "16"}, 1), ({}, 1)],
)
def test_the_number_of_processes_is_that_of_any_launcher(variables, count):
    assert num_launched(variables) == count


@pytest.mark.parametrize(
    ("variables", "address", "port"),
    [
        (TORCHRUN, "head", 29400),
        (SLURM, "gpu08", 24567),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu-a,gpu-b"}, "gpu-a", 24567),
        (SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}, "10.0.0.1", 1),
        (MPI | {"MASTER_ADDR": "head"}, "head", 29500),
        (INTEL_MPI | {"MASTER_ADDR": "head"}, "head", 29500),
    ],
)
def test_each_launcher_says_who_a_process_is_and_where_rank_0_is(variables, address, port):
    process = launched_process(variables)
    assert (process.rank, process.num_ranks, process.local_rank) == (9, 16, 1)
    assert (process.address, process.port) == (address, port)


def test_torchruns_own_store_and_attempt_are_used():
    torchrun, slurm = launched_process(TORCHRUN), launched_process(SLURM)
    assert (torchrun.has_store, torchrun.attempt) == (True, "2")
    assert (slurm.has_store, slurm.attempt) == (False, "0")


def test_without_a_launcher_there_is_no_process():
    assert launched_process({"SLURM_JOB_ID": "5"}) is None


def test_a_launcher_that_does_not_say_where_rank_0_is_is_refused():
    with pytest.raises(ValueError, match="MASTER_ADDR does not say where rank 0 is"):
        launched_process(MPI)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"])
def test_a_variable_that_is_no_number_is_named(name):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "head", name: "two"}
    with pytest.raises(ValueError, match=f"{name} is 'two', which is no number"):
        launched_process(variables)


def test_a_key_that_could_be_guessed_is_refused():
    assert own_key("") is None
    assert own_key("x" * 16) == b"x" * 16
    with pytest.raises(ValueError, match="DREAMSHARD_CLUSTER_KEY has 3 characters"):
        own_key("abc")
