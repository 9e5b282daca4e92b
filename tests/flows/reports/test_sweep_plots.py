"""Plots of a sweep: one for each experiment that there is, and the same bytes for the same figures."""

from dataclasses import replace

from dreamshard.sweep import summarise
from flows.reports.sweep_plots import plots, svg
from tests.dreamshard.sweep.test_verdicts import results


def test_each_experiment_has_a_plot_whose_file_is_always_the_same():
    rows = results(dreamshard=8.0, paper=9.0, autoshard=None)
    rows = [replace(each, predicted_ms=7.0, learning_s=2.0, place_ms=3.0) for each in rows]
    other = [replace(each, experiment="transfer", placed="12x4") for each in rows]
    few = [replace(each, experiment="measurements", budget=1) for each in rows]
    figures = summarise([*rows, *other, *few])
    once, again = ({name: svg(picture) for name, picture in plots(figures).items()} for _ in range(2))
    assert set(once) == {"sizes", "times", "transfer", "measurements"}
    assert once == again
    assert b"dreamshard" in once["sizes"]
    assert all(b"<dc:date>" not in each for each in once.values())


def test_only_experiments_that_there_are_have_plots():
    assert set(plots(summarise(results()))) == {"sizes", "times"}
