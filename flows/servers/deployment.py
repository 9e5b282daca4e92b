"""One deployment, as `dreamshard up` and `deploy` make it: checked, pool, deployments, automations, champion's setting."""

from collections.abc import Collection, Mapping
from itertools import chain

import httpx

from dreamshard.files.text import without_passwords
from dreamshard.recipes import recipe
from flows.servers import deployments, notifications
from flows.servers.fitting import check_fit
from flows.servers.names import NOTIFY
from flows.servers.scheduled_setting import complete
from flows.servers.work_pool import Kind, ensure_pool
from storage.mlflow_store.champions import set_home_setting
from storage.schedule import Schedule
from storage.settings import Settings
from storage.store import open_store

_TOPOLOGY = {"recipe", "testbed", "num_devices"}


def check(schedule: Schedule, *, measures_here: bool, environ: Mapping[str, str]) -> list[str]:
    """Check a setting before anything starts; returns notes.

    Raises:
        ValueError: the scheduled flows could not run with it, or nothing can be sent to `DREAMSHARD_NOTIFY`.
    """
    if asked := environ.get(NOTIFY):
        notifications.check(asked)
    return check_fit(schedule, open_store, measures_here=measures_here)


def deploy(
    schedule: Schedule,
    environ: Mapping[str, str],
    *,
    kind: Kind | None = None,
    image: str | None = None,
    gpus: int = 0,
    given: Collection[str] = (),
    measures_here: bool = False,
) -> list[str]:
    """Deploy everything on the servers that the environment names; returns notes for the person who deploys.

    Args:
        schedule: what the scheduled flows train for.
        kind: with image and gpus, of the work pool; see `ensure_pool`.
        given: fields of the schedule that somebody typed just now; they win over what was edited in Prefect.
        measures_here: as for `check`.

    Raises:
        ValueError: a setting cannot be deployed.
        RuntimeError: a server does not answer.
    """
    check_answers(f"{environ['PREFECT_API_URL']}/health")
    ensure_pool(kind, image, gpus, environ)
    recipient = notifications.find(environ.get(NOTIFY))
    deployed = deployments.deploy_all(schedule, None if recipient is None else recipient.block, given)
    if environ.get("MLFLOW_TRACKING_URI"):  # otherwise whoever deploys has no registry, and should not make one
        tracking = Settings.from_environment(environ)
        topology = _testbed_and_devices(deployed.schedules["retrain"])
        if topology != (None, None) or _TOPOLOGY & set(given):  # else it is what somebody else set
            set_home_setting(tracking, *topology)
    reported = notifications.HOW if recipient is None else f"failed retrainings are reported to {recipient.name}"
    edited = [each for each in deployed.schedules.values() if complete(each) != complete(schedule)]
    fits = [_fit_as_edited(each, measures_here) for each in dict.fromkeys(edited)]
    return [*filter(None, [deployments.edited_sentence(deployed.edits), *chain(*fits)]), reported]


def _fit_as_edited(schedule: Schedule, measures_here: bool) -> list[str]:
    """Notes on a setting that was edited in Prefect, which is there already: a warning if the flows cannot run with it."""
    try:
        notes = check_fit(schedule, open_store, measures_here=measures_here)
    except ValueError as error:
        return [f"warning: as edited in Prefect, runs will fail: {error}"]
    return [f"as edited in Prefect: {note}" for note in notes]


def check_answers(url: str) -> None:
    """Check that a server answers.

    Raises:
        RuntimeError: it does not.
    """
    try:
        httpx.get(url, timeout=10.0).raise_for_status()
    except httpx.HTTPError as error:
        raise RuntimeError(
            f"the server at {without_passwords(url)} does not answer ({error}), so nothing can be deployed; start it first"
        ) from error


def _testbed_and_devices(schedule: Schedule) -> tuple[str | None, int | None]:
    """What the alias `champion` belongs to: as set, else of a recipe that was named; None if neither is."""
    if schedule.recipe is None:
        return schedule.testbed, schedule.num_devices
    named = recipe(schedule.recipe)
    return schedule.testbed or named.testbed, schedule.num_devices or named.tasks.num_devices
