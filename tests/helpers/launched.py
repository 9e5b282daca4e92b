"""A program for the tests of ranks on many hosts: rank 0 measures what it reads, line by line, and answers in JSON.

    torchrun ... -m tests.helpers.launched DEVICES TIMEOUT_S

Each line is the table of the last device, which may be a fault of `FaultyLookups`, or `exchange`, or `shardings`. After an
error rank 0 exits with 1, as a flow that failed.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import psutil
import torch

from dreamshard.constraints import ANY_SHARDING
from dreamshard.costs import Exchange
from dreamshard.tables import Placement, TableSharding
from dreamshard.testbeds import MeasurementError, TestbedSetup, open_testbed
from dreamshard.testbeds.ranks import Ranks, launched_ranks
from tests.helpers.lookups import FaultyLookups
from tests.helpers.tables import roomy_task, tables_of_dims

BATCH = 64
HALF = ((0, 4), (4, 8))
SHARDINGS = (
    TableSharding("row_wise"),
    TableSharding("table_row_wise", where=(1,)),
    TableSharding("grid_shard", columns=HALF, where=(0, 1)),
    TableSharding("data_parallel"),
)
"""A table by rows, one by rows on the second host, one by columns and rows on both hosts, and copies of one."""


class Host:
    """The processes of one host, as seen from the test."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(
            [sys.executable, *command], text=True, env={**os.environ, **environment}, **pipes
        )

    def ask(self, line: str) -> dict:
        """What rank 0 on this host answers to a line."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def end(self) -> tuple[int, str]:
        """Exit code and stderr, after no more lines."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors

    def close(self) -> None:
        """End what is left."""
        if self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
            self.process.kill()
        self.process.communicate()


def main(num_devices: int, timeout_s: float) -> None:
    with launched_ranks() as ranks:
        print(json.dumps({"ranks": len(ranks.layout.ranks), "pattern": ranks.layout.pattern}), flush=True)
        for line in sys.stdin:
            said = answer(line.strip(), num_devices, timeout_s, ranks)
            print(json.dumps(said), flush=True)
            if "error" in said:
                sys.exit(1)


def answer(line: str, num_devices: int, timeout_s: float, ranks: Ranks) -> dict:
    usual = {"batch_size": BATCH, "lookups": FaultyLookups(BATCH)}
    bed = open_testbed("cluster:cpu", TestbedSetup(num_devices=num_devices, timeout_s=timeout_s, **usual), ranks)
    names = [f"healthy-{d}" for d in range(num_devices - 1)] + [line]
    task = roomy_task(tables_of_dims([8] * num_devices, rows=500, names=names), num_devices)
    placement = Placement.whole(torch.arange(num_devices), num_devices)
    if line == "shardings":
        task, placement = replace(task, constraints=ANY_SHARDING), Placement(SHARDINGS, 4, 2)
    try:
        if line == "exchange":
            exchange = bed.measure_exchange(Exchange(sent_bytes=torch.tensor([2**16, 2**16]), devices_per_host=1))
            return {"ms": exchange.forward_ms.tolist(), "devices_per_host": exchange.exchange.devices_per_host}
        sample = bed.measure(task, placement)
    except (MeasurementError, ValueError) as error:
        return {"error": str(error)}
    finally:
        bed.close()
    all_positive = bool((sample.costs.phases_ms > 0).all())
    return {"hardware": sample.hardware, "devices_per_host": sample.task.devices_per_host, "all_positive": all_positive}


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
