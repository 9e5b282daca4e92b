"""`dreamshard run` and `watch`: the whole chain in this process, and a look whether retraining is due."""

import time
from pathlib import Path

from flows.cli import outcomes, terminal
from flows.cli.command_options import HomeOption, JsonOption, enter, with_options
from flows.forms.options import RetrainingOptions, RetrainOptions, WatchOptions


@with_options
def run(options: RetrainOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Run the whole chain in this process: ingest, measure, learn, evaluate, promote. Needs no server."""
    store = enter(home)
    from dreamshard.workloads import is_function, list_file
    from flows.forms.configuration import configure
    from flows.reports import report_tables
    from flows.retrain import retrain
    from storage.run_records import report_store

    configure(options)  # fail before the server starts
    started = time.monotonic()
    outcome = terminal.run_flow(retrain, options, quiet=as_json)
    report = report_store.load(store.evaluations, outcome["evaluation"])
    if as_json:
        summary = report_tables.summary_json(report)
        terminal.print_json({**outcome, "summary": summary, "best_baseline": report.reference})
        return
    terminal.print_table(report_tables.evaluation_table(report), title=report_tables.title(report))
    outcomes.show_promotion(outcome)
    folders = " and ".join(dict.fromkeys(map(str, (store.settings.home, store.settings.store_root))))
    terminal.say(f"Done in {time.monotonic() - started:.0f} s. Everything is in {folders}:")
    outcomes.show_fields(outcome["where"])
    query = 'sql "select hardware, avg(overall_ms) from cost_samples group by 1"'
    own = options.source or ""
    learnt = Path(own) if is_function(own) else list_file(own) if own else None
    task = store.lake.read_tasks(report.dataset, "test", report.tasks)[0] if learnt else None
    outcomes.show_next("models", query, outcomes.place_example(outcome, learnt, task))


@with_options
def watch(options: RetrainingOptions, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show whether tables changed since the last training, and which retraining that would start."""
    enter(home)
    from flows.watch import watch

    once = WatchOptions(**options.given(), start=False)
    outcome = terminal.run_flow(watch, once, quiet=as_json, numbered=False)
    table = outcome.pop("table")
    if as_json:
        terminal.print_json(outcome)
        return
    terminal.say(f"{outcome['source']}: {outcome['sentence']}")
    if table:
        terminal.print_table(table)
    terminal.say(outcome["in_use"])
    terminal.say(f"{outcome['retraining']} Nothing was started; the deployment `watch` of `dreamshard up` does that.")
