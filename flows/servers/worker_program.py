"""Prefect's worker as `prefect worker start` runs it, but one that survives the retry of a run that it is still ending.

Prefect's worker holds a slot for each run until the run's process is gone and its hooks have run. If the run is scheduled
again before that (Retry on Prefect's page, seconds after a crash), the worker asks for the slot once more, which is an error
that ends the worker with all its runs. Here such a run stays scheduled until its slot is free.
"""

import sys
from typing import Any


def keep_to_one_slot_per_run() -> None:
    """Let workers of this process leave a run alone while they hold a slot for it."""
    from prefect.workers.base import BaseWorker

    submit = BaseWorker._submit_scheduled_flow_runs

    async def submit_others(self: Any, flow_run_response: list[Any]) -> list[Any]:
        held = self._limiter.statistics().borrowers if self._limiter else ()
        found: list[Any] = await submit(self, [each for each in flow_run_response if each.flow_run.id not in held])
        return found

    setattr(BaseWorker, "_submit_scheduled_flow_runs", submit_others)  # noqa: B010 - a method of Prefect's


def main() -> None:
    """Run `prefect worker start` with this process's arguments until it is ended."""
    from prefect.cli import app

    keep_to_one_slot_per_run()
    sys.argv = ["prefect", "worker", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
