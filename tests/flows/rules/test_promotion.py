from dataclasses import replace

import pytest

from dreamshard.evaluation import PairedComparison
from flows.rules.promotion import FALSE_ALARMS, Gain, decide

BETTER = PairedComparison.of(0.05, 0.015, num_tasks=10)
UNCLEAR = PairedComparison.of(0.02, 0.015, num_tasks=10)
EQUAL = PairedComparison.of(0.0, 0.015, num_tasks=10)
LOSS = PairedComparison.of(-0.01, 0.015, num_tasks=10)
WORSE = PairedComparison.of(-0.05, 0.015, num_tasks=10)
NEVER = PairedComparison(fits=False, num_tasks=10)


def decided(over_heuristic, over_rival=None, *, attempt=1, **options):
    """The decision on these gains over dim_greedy and over version 3, if that is champion."""
    rival = None if over_rival is None else 3
    over_rival = None if over_rival is None else Gain(over="version 3", measured=over_rival, attempt=attempt)
    return decide(
        Gain(over="dim_greedy", measured=over_heuristic), over_rival, **{"rival": rival, "champion": rival} | options
    )


def test_each_attempt_against_a_champion_needs_a_clearer_gain():
    codes = [decided(BETTER, BETTER, attempt=attempt).code for attempt in (1, 2, 3, 30)]
    assert codes == ["beats_champion", "not_significant", "not_significant", "not_significant"]
    assert sum(Gain(over="", measured=BETTER, attempt=k).false_alarms for k in range(1, 1000)) < FALSE_ALARMS
    assert decided(BETTER, WORSE).gain.measured.is_worse


@pytest.mark.parametrize(
    ("over_heuristic", "over_rival", "options", "alias", "code"),
    [
        (BETTER, None, {}, "champion", "first_champion"),
        (UNCLEAR, None, {}, "champion", "first_champion"),
        (EQUAL, None, {}, "champion", "first_champion"),
        (UNCLEAR, BETTER, {"is_rival_provisional": True}, "champion", "beats_champion"),
        (LOSS, None, {}, "champion", "first_champion"),
        (WORSE, None, {}, "champion", "first_champion"),
        (NEVER, None, {}, "challenger", "did_not_fit"),
        (BETTER, None, {"champion": 4}, "challenger", "champion_not_compared"),
        (UNCLEAR, BETTER, {}, "champion", "beats_champion"),
        (BETTER, replace(NEVER, fits=True), {}, "champion", "beats_champion"),  # the champion does not fit
        (BETTER, BETTER, {"champion": 4}, "challenger", "champion_not_compared"),
        (BETTER, UNCLEAR, {}, "challenger", "not_significant"),
        (BETTER, NEVER, {}, "challenger", "not_significant"),
        (BETTER, UNCLEAR, {"is_rival_provisional": True}, "champion", "replaces_provisional"),
        (UNCLEAR, UNCLEAR, {"is_rival_provisional": True}, "challenger", "not_significant"),
        (BETTER, LOSS, {"is_rival_provisional": True}, "challenger", "not_significant"),
    ],
)
def test_a_candidate_becomes_champion_if_its_gain_is_shown(over_heuristic, over_rival, options, alias, code):
    decision = decided(over_heuristic, over_rival, **options)
    assert (decision.alias, decision.code) == (alias, code)
    if alias == "champion":  # provisional until it, or the champion that it beats, is shown to beat a heuristic
        is_open = over_rival is None or options.get("is_rival_provisional", False)
        assert bool(decision.provisional) is (over_heuristic in (UNCLEAR, EQUAL, LOSS, WORSE) and is_open)
