"""The newest placer of the home into the registry, champion if its evaluation says so; or any version, by hand."""

from typing import Any

from flows.forms.form import deployed
from flows.forms.options import PromoteOptions
from flows.reports import evaluations
from flows.tasks import evaluation, promotion
from flows.tasks.stage_inputs import stage
from storage.run_records import checkpoints
from storage.store import open_store


@deployed("promote")
def promote(options: PromoteOptions) -> dict[str, Any]:
    """Newest evaluation -> registered version -> alias champion or challenger; or the version named -> champion."""
    if options.version is not None:
        return promotion.make_champion(options.version, options.reason or "")
    store = open_store()
    with stage(store, "promote", options) as inputs:
        training, last = inputs.training, inputs.last_iteration()
        checkpoints.require_trained(training, last)
        figures = evaluations.newest(training)
        evaluations.require_of(figures, last)
        rival = evaluation.champion_to_beat(training, last)
        if rival != figures["rival"]:
            raise ValueError(
                f"the champion is now version {rival}, but the evaluation compared with {figures['rival']}; run "
                "`dreamshard evaluate` again, then promote"
            )
        budget_ms = inputs.config.evaluation.budget_ms
        version = promotion.register(inputs.parent, training, inputs.dataset, figures["key"], budget_ms)
        return promotion.promote(inputs.parent, version, training, figures["key"])
