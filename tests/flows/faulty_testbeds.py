"""Testbeds that fail on purpose: simulated costs, and one fault each."""

import os
import signal
import time
from pathlib import Path

from dreamshard.testbeds import MeasurementError, Testbed, open_testbed


class Faulty(Testbed):
    """Measures like `simulated`; calls `fault(count)` before each measurement."""

    name, hardware = "faulty", "simulated faults"

    def __init__(self, setup, fault=lambda count: None):
        self._inner, self._fault, self._count = open_testbed("simulated", setup), fault, 0

    def measure(self, task, placement):
        self._count += 1
        self._fault(self._count)
        return self._inner.measure(task, placement)


undisturbed = Faulty


def once(setup, name: str, fail) -> Faulty:
    """Fails at the 8th measurement of the first run in this home."""
    mark = Path(os.environ["DREAMSHARD_HOME"]) / name

    def fault(count):
        if count == 8 and not mark.exists():
            mark.touch()
            fail()

    return Faulty(setup, fault)


def killed_once(setup):
    """Kills the whole process."""
    return once(setup, "killed", lambda: os.kill(os.getpid(), signal.SIGKILL))


def interrupted_once(setup):
    """Ends as by Ctrl-C."""
    return once(setup, "interrupted", lambda: signal.default_int_handler(signal.SIGINT, None))


def dying(setup):
    """Loses a rank at the 4th measurement, and at every one after a restart."""
    mark = Path(os.environ["DREAMSHARD_HOME"]) / "died"

    def fault(count):
        if count >= 4 or mark.exists():
            mark.touch()
            raise MeasurementError("rank 1 died while measuring train-000; look at its traceback")

    return Faulty(setup, fault)


def hanging(setup):
    """Never answers, and writes an x into the home whenever it is closed."""

    class Hanging(Faulty):
        def measure(self, task, placement):
            self._count += 1
            while True:
                time.sleep(0.05)

        def close(self):
            with (Path(os.environ["DREAMSHARD_HOME"]) / "closed").open("a") as file:
                file.write("x" if self._count else "")

    return Hanging(setup)
