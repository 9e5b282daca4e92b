from dataclasses import replace

from dreamshard.evaluation import PairedComparison
from flows.rules.promotion import Decision, decide

BETTER = PairedComparison(fits=True, mean_gain=0.05, low=0.01, high=0.09, num_tasks=10)
UNCLEAR = replace(BETTER, mean_gain=0.02, low=-0.01, high=0.05)
EQUAL = replace(BETTER, mean_gain=0.0, low=0.0, high=0.0)
UNCLEAR_LOSS = replace(BETTER, mean_gain=-0.01, low=-0.03, high=0.01)
WORSE = replace(BETTER, mean_gain=-0.05, low=-0.09, high=-0.01)
NEVER = PairedComparison(fits=False, mean_gain=None, low=None, high=None, num_tasks=10)


def outcome(decision: Decision) -> tuple[str, str]:
    return decision.alias, decision.code


def test_a_candidate_that_beats_the_champion_beyond_doubt_becomes_champion():
    assert outcome(decide(3, BETTER, "dim_greedy", UNCLEAR)) == ("champion", "beats_champion")


def test_the_first_version_becomes_champion_unless_a_rule_of_thumb_is_cheaper_on_the_mean():
    for gain in (BETTER, UNCLEAR, EQUAL):
        assert outcome(decide(None, None, "dim_greedy", gain)) == ("champion", "better_than_baseline")
    for gain in (UNCLEAR_LOSS, WORSE):
        assert outcome(decide(None, None, "dim_greedy", gain)) == ("challenger", "worse_than_baseline")


def test_a_champion_is_provisional_until_its_gain_over_a_rule_of_thumb_is_beyond_doubt():
    assert decide(None, None, "dim_greedy", BETTER).provisional == ""
    unclear = decide(None, None, "dim_greedy", UNCLEAR)
    assert unclear.provisional == (
        "+2.0% measured cost saved (95 % interval -1.0% to +5.0%, 10 held-out tasks) against dim_greedy, the best rule of "
        "thumb"
    )
    assert unclear.reason.startswith(
        "first champion, provisional until shown to be cheaper than a rule of thumb: +2.0%"
    )
    assert decide(3, BETTER, "dim_greedy", UNCLEAR).provisional == ""
    assert decide(3, BETTER, "dim_greedy", UNCLEAR, is_rival_provisional=True).provisional
    assert not decide(3, BETTER, "dim_greedy", BETTER, is_rival_provisional=True).provisional


def test_a_provisional_champion_gives_way_to_a_candidate_that_is_shown_to_beat_a_rule_of_thumb():
    assert outcome(decide(3, UNCLEAR, "dim_greedy", BETTER)) == ("challenger", "not_beyond_doubt")
    decision = decide(3, UNCLEAR, "dim_greedy", BETTER, is_rival_provisional=True)
    assert outcome(decision) == ("champion", "replaces_provisional")
    assert decision.reason.startswith(
        "replaces version 3, a provisional champion, without costing more: +5.0% measured cost saved"
    )
    for against_rival, against_rule in ((UNCLEAR, UNCLEAR), (UNCLEAR_LOSS, BETTER)):
        decision = decide(3, against_rival, "dim_greedy", against_rule, is_rival_provisional=True)
        assert outcome(decision) == ("challenger", "not_beyond_doubt")


def test_a_candidate_that_did_not_fit_its_devices_does_not_become_champion():
    assert decide(3, NEVER, "dim_greedy", BETTER).alias == "challenger"
    assert decide(None, None, "dim_greedy", NEVER).alias == "challenger"
    assert "did not fit" in decide(None, None, "dim_greedy", NEVER).reason


def test_a_candidate_that_fits_where_the_champion_does_not_becomes_champion():
    decision = decide(3, replace(NEVER, fits=True), "dim_greedy", BETTER)
    assert decision.alias == "champion"
    assert decision.reason == "beats the champion: champion version 3 did not fit its devices when measured"


def test_the_reason_names_the_rival_and_the_figures():
    decision = decide(3, BETTER, "dim_greedy", BETTER)
    assert decision.gain == BETTER
    assert decision.reason == (
        "beats the champion: +5.0% measured cost saved (95 % interval +1.0% to +9.0%, 10 held-out tasks) against champion "
        "version 3"
    )


def test_a_candidate_that_beat_a_champion_which_is_no_longer_in_use_stays_challenger():
    decision = decide(3, BETTER, "dim_greedy", BETTER, in_use=4)
    assert outcome(decision) == ("challenger", "champion_changed")
    assert "not compared with version 4" in decision.reason
    assert decide(3, BETTER, "dim_greedy", BETTER, in_use=3).alias == "champion"


def test_the_reason_of_a_version_that_is_champion_already_or_vetoed_keeps_the_figures():
    decision = decide(3, BETTER, "dim_greedy", BETTER)
    assert replace(decision, already_champion=True).reason == f"already the champion: {decision.reason}"
    first = decide(None, None, "dim_greedy", BETTER)
    assert replace(first, already_champion=True).reason.startswith("already the champion: +5.0%")
    vetoed = replace(decision, alias="challenger", veto="taken out of use by hand").reason
    assert vetoed == f"taken out of use by hand; its figures: {decision.reason}"


MODEL = replace(BETTER, num_tasks=1, over="repeats", num_repeats=10)
VARIANTS = replace(BETTER, over="variants", num_tasks=9)
EXACT = replace(MODEL, low=None, high=None)


def test_of_a_fixed_model_the_sentence_says_what_each_interval_is_over():
    reason = decide(3, MODEL, "dim_greedy", MODEL, variants_of_rival=VARIANTS).reason
    assert "+1.0% to +9.0%, over 10 interleaved repeats of this model" in reason
    assert "+5.0% over 9 drifted variants of it (95 % interval +1.0% to +9.0%)" in reason


def test_where_every_repeat_measured_the_same_the_variants_must_be_beyond_doubt_too():
    sure, unsure = (
        decide(3, EXACT, "dim_greedy", EXACT, variants_of_rival=v) for v in (VARIANTS, replace(VARIANTS, low=-0.1))
    )
    assert (sure.alias, unsure.alias) == ("champion", "challenger")
    assert "every repeat measured the same" in sure.reason
    assert decide(3, EXACT, "dim_greedy", EXACT).alias == "challenger"


def test_the_champions_own_placement_does_not_beat_it():
    same = replace(EXACT, mean_gain=0.0, is_same_placement=True)
    decision = decide(3, same, "dim_greedy", MODEL)
    assert decision.alias == "challenger"
    assert "the same placement of this model as champion version 3" in decision.reason
