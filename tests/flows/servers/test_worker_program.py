"""A worker survives a run that is scheduled again while it ends, does not undo that, and cancels after an outage too."""

import asyncio
import logging
import time
from types import SimpleNamespace
from uuid import uuid4

import anyio
import httpx
import pytest
from prefect import flow
from prefect._internal.observers import FlowRunCancellingObserver
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed, Pending, Running, Scheduled
from prefect.workers.base import BaseWorker

from flows.cli.in_process import in_process
from flows.servers.worker_program import (
    keep_to_one_slot_per_run,
    look_for_cancelled_runs_to_the_end,
    report_no_crash_of_a_run_that_begins_again,
)


def scheduled(run):
    return [SimpleNamespace(flow_run=SimpleNamespace(id=run))]


class Ending:
    """What `BaseWorker` uses of itself when it submits runs, with a slot taken by one that is ending."""

    def __init__(self, ending):
        self._limiter = anyio.CapacityLimiter(2)
        self._limiter.acquire_on_behalf_of_nowait(ending)
        self._submitting_flow_run_ids = set()


def submit(run):
    async def tried():
        return await BaseWorker._submit_scheduled_flow_runs(Ending(run), scheduled(run))

    return asyncio.run(tried())


def test_a_run_that_is_scheduled_again_while_it_ends_waits_for_its_slot(monkeypatch):
    monkeypatch.setattr(BaseWorker, "_submit_scheduled_flow_runs", BaseWorker._submit_scheduled_flow_runs)
    with pytest.raises(RuntimeError, match="already holding"):
        submit(uuid4())  # as Prefect does; once it does not, `worker_program` is of no use any more
    keep_to_one_slot_per_run()
    assert submit(uuid4()) == []


ATTEMPT = [Scheduled(), Pending(), Running()]
AGAIN = [*ATTEMPT, Crashed(), Scheduled(name="AwaitingRetry")]
STATES = {
    "begun": (ATTEMPT[:2], StateType.CRASHED),
    "running": (ATTEMPT, StateType.CRASHED),
    "scheduled again": (AGAIN, StateType.SCHEDULED),
    "taken by another worker": ([*AGAIN, Pending()], StateType.PENDING),
    "running elsewhere": ([*AGAIN, Pending(), Running()], StateType.RUNNING),
}


@pytest.mark.server
def test_a_crash_is_reported_unless_the_run_begins_again(monkeypatch):
    monkeypatch.setattr(BaseWorker, "_propose_crashed_state", BaseWorker._propose_crashed_state)

    async def reported() -> dict[str, dict[str, StateType]]:
        found = {}
        async with get_client() as client:
            for kind in ("by Prefect", "here"):
                found[kind] = {name: await after_report(client, states) for name, (states, _) in STATES.items()}
                report_no_crash_of_a_run_that_begins_again()
        return found

    with in_process():
        found = asyncio.run(reported())
    assert set(found["by Prefect"].values()) == {StateType.CRASHED}  # once it is not, this is of no use any more
    assert found["here"] == {name: expected for name, (_, expected) in STATES.items()}


async def after_report(client, states) -> StateType:
    """The state of a run after its worker's report on the first attempt, which it began when the run was scheduled."""
    run = await client.create_flow_run(flow(lambda: None, name="retried"))
    for state in states:
        await client.set_flow_run_state(run.id, state, force=True)
    logger = logging.getLogger("worker")
    worker = SimpleNamespace(client=client, _logger=logger, get_flow_run_logger=lambda _: logger)
    await BaseWorker._propose_crashed_state(worker, run, "exited with status code -9")
    return (await client.read_flow_run(run.id)).state_type


class Away:
    """A client of a server that does not answer the first few times, and then has a run that somebody cancelled."""

    def __init__(self, times):
        self._times, self.run = times, uuid4()

    async def read_flow_runs(self, **_):
        self._times -= 1
        if self._times >= 0:
            raise httpx.ConnectError("All connection attempts failed")
        return [SimpleNamespace(id=self.run)]


def cancelled_after_an_outage(*, seconds):
    """Whether an observer whose connection for events broke finds the run in this time."""

    async def observed():
        found = []
        observer = FlowRunCancellingObserver(found.append, polling_interval=0.01)
        observer._client = away = Away(times=20)
        observer.add_in_flight_flow_run_id(away.run)
        broken = asyncio.create_task(away.read_flow_runs())
        broken.add_done_callback(observer._start_polling_task)
        deadline = time.monotonic() + seconds
        while away.run not in found and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        observer._is_shutting_down = True
        return away.run in found

    return asyncio.run(observed())


def test_runs_are_cancelled_after_the_server_was_away(monkeypatch):
    ending = FlowRunCancellingObserver._handle_polling_task_done
    monkeypatch.setattr(FlowRunCancellingObserver, "_handle_polling_task_done", ending)
    assert not cancelled_after_an_outage(seconds=2)  # as Prefect does; once it does, this is of no use any more
    look_for_cancelled_runs_to_the_end()
    assert cancelled_after_an_outage(seconds=60)
