"""Functions in processes of their own: answers, errors, deaths, and none that outlives its parent."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from flows.runtime.own_processes import OwnProcesses, ProcessDiedError


@pytest.fixture(scope="module")
def processes():
    with OwnProcesses() as running:
        yield running


def test_a_function_runs_in_another_process_with_one_thread(processes):
    assert processes.run(os.getpid) != os.getpid()
    assert processes.run(os.getenv, "OMP_NUM_THREADS") == "1"


def test_an_error_comes_back_with_its_traceback(processes):
    with pytest.raises(ValueError, match="invalid literal for int") as caught:
        processes.run(int, "x")
    assert "in _result" in str(caught.value.__cause__)


def test_a_killed_process_is_an_error_that_says_so(processes):
    with pytest.raises(ProcessDiedError, match="ended with exit code 3 and no result"):
        processes.run(os._exit, 3)
    assert processes.run(len, "ab") == 2, "others are not affected"


def test_leaving_the_block_ends_what_runs_and_starts_nothing_more():
    failures = []

    def sleep():
        try:
            processes.run(time.sleep, 600)
        except ProcessDiedError as error:
            failures.append(error)

    with OwnProcesses() as processes:
        thread = threading.Thread(target=sleep)
        thread.start()
        while not processes._running:
            time.sleep(0.01)
    thread.join(timeout=60)
    assert len(failures) == 1
    with pytest.raises(ProcessDiedError, match="nothing more is started"):
        processes.run(len, "ab")


def test_a_parent_that_is_killed_leaves_no_process():
    program = "import time; from flows.runtime.own_processes import OwnProcesses; OwnProcesses().run(time.sleep, 600)"
    with subprocess.Popen([sys.executable, "-c", program]) as parent:
        children: list[psutil.Process] = []
        while not any("spawn_main" in " ".join(child.cmdline()) for child in children):
            assert parent.poll() is None
            time.sleep(0.05)
            children = psutil.Process(parent.pid).children(recursive=True)
        time.sleep(1)  # until the function runs
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
