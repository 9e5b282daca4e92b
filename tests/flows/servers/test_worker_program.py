"""A worker does not end because a run that it is still ending is scheduled again."""

import asyncio
from types import SimpleNamespace
from uuid import uuid4

import anyio
import pytest
from prefect.workers.base import BaseWorker

from flows.servers.worker_program import keep_to_one_slot_per_run


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
