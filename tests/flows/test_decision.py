from dreamshard.evaluation import PairedComparison
from flows.decision import decide

BETTER = PairedComparison(0.05, 0.01, 0.09, 10)
UNCLEAR = PairedComparison(0.02, -0.01, 0.05, 10)
WORSE = PairedComparison(-0.05, -0.09, -0.01, 10)


def test_a_candidate_that_beats_the_champion_beyond_doubt_becomes_champion():
    assert decide("3", BETTER, "dim_greedy", UNCLEAR).alias == "champion"


def test_a_candidate_whose_interval_holds_zero_stays_challenger():
    assert decide("3", UNCLEAR, "dim_greedy", BETTER).alias == "challenger"


def test_the_first_version_becomes_champion_unless_a_rule_of_thumb_is_clearly_better():
    assert decide(None, None, "dim_greedy", BETTER).alias == "champion"
    assert decide(None, None, "dim_greedy", UNCLEAR).alias == "champion"
    assert decide(None, None, "dim_greedy", WORSE).alias == "challenger"


def test_the_reason_names_the_rival_and_the_figures():
    reason = decide("3", BETTER, "dim_greedy", BETTER).reason
    assert "version 3" in reason
    assert "+5.0%" in reason
    assert "+1.0% to +9.0%" in reason
    assert "10 held-out tasks" in reason
