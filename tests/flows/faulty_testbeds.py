"""Testbeds that fail on purpose: simulated costs, and one fault each."""

import os
import signal
import time
from pathlib import Path

from dreamshard.testbeds import MeasurementError, Testbed, open_testbed


class Faulty(Testbed):
    """Measures like `simulated`; calls `fault(count, task)` before each measurement."""

    def __init__(self, setup, fault):
        self._inner = open_testbed("simulated", setup)
        self._fault = fault
        self._count = 0
        self.name = "faulty"
        self.hardware = "simulated faults"

    def measure(self, task, placement):
        self._count += 1
        self._fault(self._count, task)
        return self._inner.measure(task, placement)


def killed_once(setup):
    """Kills the whole process at the 8th measurement of the first run in this home."""
    mark = Path(os.environ["DREAMSHARD_HOME"]) / "killed"

    def fault(count, task):
        if count == 8 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return Faulty(setup, fault)


def interrupted(setup):
    """Sends Ctrl-C to all of the process's group at the 8th measurement, as a terminal does."""

    def fault(count, task):
        if count == 8:
            os.killpg(0, signal.SIGINT)

    return Faulty(setup, fault)


def interrupted_once(setup):
    """Raises what a Ctrl-C raises, at the 8th measurement of the first run in this home."""
    mark = Path(os.environ["DREAMSHARD_HOME"]) / "interrupted"

    def fault(count, task):
        if count == 8 and not mark.exists():
            mark.touch()
            raise KeyboardInterrupt

    return Faulty(setup, fault)


def undisturbed(setup):
    """The same without a fault."""
    return Faulty(setup, lambda count, task: None)


def dying(setup):
    """Loses a rank at the 4th measurement, and at every one after a restart."""
    mark = Path(os.environ["DREAMSHARD_HOME"]) / "died"

    def fault(count, task):
        if count >= 4 or mark.exists():
            mark.touch()
            raise MeasurementError("rank 1 died while measuring train-000; look at its traceback")

    return Faulty(setup, fault)


def hanging(setup):
    """Never answers, and writes an x into the home whenever it is closed."""

    def fault(count, task):
        while True:
            time.sleep(0.05)

    class Hanging(Faulty):
        def close(self):
            with (Path(os.environ["DREAMSHARD_HOME"]) / "closed").open("a") as file:
                file.write("x" if self._count else "")

    return Hanging(setup, fault)
