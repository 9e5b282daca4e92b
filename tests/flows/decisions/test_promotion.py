import math

from dreamshard.evaluation import PairedComparison
from flows.decisions.promotion import decide

BETTER = PairedComparison(0.05, 0.01, 0.09, 10)
UNCLEAR = PairedComparison(0.02, -0.01, 0.05, 10)
EQUAL = PairedComparison(0.0, 0.0, 0.0, 10)
UNCLEAR_LOSS = PairedComparison(-0.01, -0.03, 0.01, 10)
WORSE = PairedComparison(-0.05, -0.09, -0.01, 10)


def test_a_candidate_that_beats_the_champion_beyond_doubt_becomes_champion():
    assert decide("3", BETTER, "dim_greedy", UNCLEAR).alias == "champion"


def test_a_candidate_whose_interval_holds_zero_stays_challenger():
    assert decide("3", UNCLEAR, "dim_greedy", BETTER).alias == "challenger"


def test_the_first_version_becomes_champion_unless_a_rule_of_thumb_is_cheaper_on_the_mean():
    assert decide(None, None, "dim_greedy", BETTER).alias == "champion"
    assert decide(None, None, "dim_greedy", UNCLEAR).alias == "champion"
    assert decide(None, None, "dim_greedy", EQUAL).alias == "champion"
    assert decide(None, None, "dim_greedy", UNCLEAR_LOSS).alias == "challenger"
    assert decide(None, None, "dim_greedy", WORSE).alias == "challenger"


def test_a_challenger_without_a_champion_is_told_the_figures():
    reason = decide(None, None, "dim_greedy", UNCLEAR_LOSS).reason
    assert reason == (
        "no champion yet, and dearer than a rule of thumb: costs 1.0% more when measured (95 % interval 1.0% less to "
        "3.0% more, 10 held-out tasks) than dim_greedy, the best rule of thumb"
    )


def test_a_candidate_that_did_not_fit_its_devices_becomes_no_champion():
    never = PairedComparison(-math.inf, -math.inf, -math.inf, 10)
    assert decide("3", never, "dim_greedy", BETTER).alias == "challenger"
    assert decide(None, None, "dim_greedy", never).alias == "challenger"
    assert "did not fit" in decide(None, None, "dim_greedy", never).reason


def test_only_the_first_champion_is_called_so():
    assert decide(None, None, "dim_greedy", BETTER).reason.startswith("first champion: +5.0%")
    later = decide(None, None, "dim_greedy", BETTER, in_use="3")
    assert later.alias == "challenger"
    assert later.reason.startswith("not compared with version 3, the champion in use: +5.0%")


def test_a_champion_that_cannot_be_used_counts_as_beaten_but_not_by_what_is_dearer_than_a_rule_of_thumb():
    why = "the model has another format"
    won = decide("3", None, "dim_greedy", BETTER, in_use="3", unusable=why)
    assert won.alias == "champion"
    assert won.reason.startswith(
        "champion version 3 cannot be used (the model has another format) and counts as beaten"
    )
    assert decide("3", None, "dim_greedy", WORSE, in_use="3", unusable=why).alias == "challenger"


def test_the_reason_names_the_rival_and_the_figures():
    reason = decide("3", BETTER, "dim_greedy", BETTER).reason
    assert "version 3" in reason
    assert "+5.0%" in reason
    assert "+1.0% to +9.0%" in reason
    assert "10 held-out tasks" in reason


def test_a_candidate_that_beat_a_champion_which_is_no_longer_in_use_stays_challenger():
    decision = decide("3", BETTER, "dim_greedy", BETTER, in_use="4")
    assert decision.alias == "challenger"
    assert "not compared with version 4" in decision.reason
    assert decide("3", BETTER, "dim_greedy", BETTER, in_use="3").alias == "champion"
