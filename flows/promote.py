"""The newest placer of the home into the registry, champion if its evaluation says so; or any version, by hand."""

from typing import Any

from flows.forms.form import deployed
from flows.forms.options import PromoteOptions
from flows.tasks import evaluation, promotion, reference
from flows.tasks.stage_inputs import open_for, stage
from storage.run_records import checkpoints, report_store
from storage.store import open_store


@deployed("promote")
def promote(options: PromoteOptions) -> dict[str, Any]:
    """Newest evaluation -> registered version -> alias champion or challenger; or the version named -> champion."""
    if options.version is not None:
        return promotion.make_champion(open_store(), options.version, options.reason or "")
    store = open_for(options)
    with stage(store, "promote", options) as inputs:
        training, last = inputs.training, inputs.last_iteration()
        checkpoints.require_trained(training, last)
        report = report_store.newest(store, training)
        report_store.require_iteration(report, last)
        rival = evaluation.champion_to_beat(store, training, last)
        if rival != report.rival:
            raise ValueError(
                f"the champion of this hardware is now version {rival}, but the evaluation compared with {report.rival}; run "
                "`dreamshard evaluate` again, then promote"
            )
        budget_ms = inputs.config.evaluation.budget_ms
        version = promotion.register(store, inputs.parent, training, report.key, budget_ms)
        outcome = promotion.promote(store, inputs.parent, version, training, report.key, tryout=options.no_promote)
        missing = reference.score_version(store, inputs.parent, version, inputs.config, inputs.bench)
        return promotion.with_note(outcome, missing)
