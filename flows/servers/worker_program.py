"""Prefect's worker as `prefect worker start` runs it, but retries of ending runs and cancellations after an outage go well.

Prefect's worker holds a slot for each run until the run's process is gone and its hooks have run. If the run is scheduled
again before that (Retry on Prefect's page, seconds after a crash), the worker asks for the slot once more, which is an error
that ends the worker with all its runs. Here such a run stays scheduled until its slot is free.

A run whose process ended badly is reported as crashed twice: at once, by the part of the worker that waits for the process
(`prefect.runner._flow_run_executor`); and after the hooks, some 20 s later, by the worker itself (`BaseWorker`). A run that
was scheduled again between the two would be crashed anew, without having been started. Here the second report is left out.

A worker whose server is away for half a minute looks for cancelled runs no more: whoever cancels one after that sees it
`Cancelling` for ever. Here the worker looks again as soon as its server is back.
"""

import asyncio
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


def report_no_crash_of_a_run_that_begins_again() -> None:
    """Let workers of this process say nothing of an attempt's end once the run is scheduled again, or started elsewhere."""
    from prefect.client.schemas.objects import StateType
    from prefect.workers.base import BaseWorker

    propose = BaseWorker._propose_crashed_state

    async def propose_unless_newer(self: Any, flow_run: Any, message: str, client: Any = None) -> None:
        try:
            now = await (client or self.client).read_flow_run(flow_run.id)
        except Exception:  # noqa: BLE001 - whatever it is, Prefect's own report meets it too and says so
            now = flow_run
        starts = flow_run.run_count + (now.state_type != StateType.PENDING)  # the attempt's own, once it runs
        if now.state_type == StateType.SCHEDULED or now.run_count > starts:
            self._logger.info("Flow run '%s' begins again, so this is not reported: %s", flow_run.id, message)
            return
        await propose(self, flow_run, message, client=client)

    setattr(BaseWorker, "_propose_crashed_state", propose_unless_newer)  # noqa: B010 - a method of Prefect's


def look_for_cancelled_runs_to_the_end() -> None:
    """Let workers of this process go on looking for cancelled runs after their server was away, however long that was."""
    from prefect._internal.observers import FlowRunCancellingObserver

    def look_again(self: Any, ended: asyncio.Task[None]) -> None:
        if not self._is_shutting_down:
            self._start_polling_task(ended)  # unless it was cancelled

    setattr(FlowRunCancellingObserver, "_handle_polling_task_done", look_again)  # noqa: B010 - a method of Prefect's


def main() -> None:
    """Run `prefect worker start` with this process's arguments until it is ended."""
    from prefect.cli import app

    keep_to_one_slot_per_run()
    report_no_crash_of_a_run_that_begins_again()
    look_for_cancelled_runs_to_the_end()
    sys.argv = ["prefect", "worker", "start", *sys.argv[1:]]
    app()


if __name__ == "__main__":
    main()
