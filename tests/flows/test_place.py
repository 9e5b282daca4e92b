from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.logging import disable_run_logger

from dreamshard.plan import read_plan
from flows.place import place, place_tables

TABLES = "name,rows,dim,pooling_factor\n" + "".join(f"t{t},100000,64,{5 + t}\n" for t in range(6))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tables.csv").write_text(TABLES)
    monkeypatch.setenv("DREAMSHARD_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def placed(home: Path, monkeypatch: pytest.MonkeyPatch):
    """The outcome of the flow's body for four A100s, its task called as a function."""
    monkeypatch.setattr("flows.place.place_tables", place_tables.fn)

    def run(**options):
        given = {"tables": str(home / "tables.csv"), "devices": 4, "hardware": "a100", **options}
        with disable_run_logger():
            return place.fn(**given)

    return run


def held(outcome: dict) -> dict[str, set[int]]:
    """Devices of each table in the plan on disk."""
    return {name: {*sharding.where} for name, sharding in read_plan(outcome["plan"]).tables.items()}


def test_constraints_of_the_form_hold_in_the_plan(placed, home):
    outcome = placed(constraints="pin: {t0: 2}\nexclude_devices: [3]\n", sharding="whole")
    assert Path(outcome["plan"]).parent == home / "plans"
    assert (page := Path(outcome["page"])) == Path(outcome["plan"]).with_suffix(".html")
    assert all(shown in page.read_text() for shown in ("<html", f"{outcome['overall_ms']:.3f} ms", ">t5<"))
    assert held(outcome)["t0"] == {2}
    assert not any(3 in where for where in held(outcome).values())
    assert "a100" in outcome["costs_of"].lower()
    assert Path(placed(format="csv")["plan"]).read_text().startswith("table,")


def test_a_path_is_read_and_a_repeated_request_keeps_its_file(placed, tmp_path):
    (tmp_path / "rules.yaml").write_text("pin: {t5: 1}")
    by_path = placed(constraints=str(tmp_path / "rules.yaml"), placer="size_greedy")
    assert held(by_path)["t5"] == {1}
    assert placed(constraints="pin: {t5: 1}", placer="size_greedy")["plan"] == by_path["plan"]


def test_a_run_publishes_a_page_with_costs_and_moves(home):
    given = {"tables": str(home / "tables.csv"), "devices": 2, "hardware": "a100"}
    first = place(**given)
    again = place(**dict(given, current=first["plan"], constraints="pin: {t0: [0, 1]}", steps_until_next=1))
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=["placed-tables"]))
        pages = [artifact.data for artifact in client.read_artifacts(artifact_filter=wanted)]
        assert {run.name for run in client.read_flow_runs()} >= {"tables"}
    assert again["moved_bytes"] == 0
    (page,) = [text for text in pages if "From the current plan" in text and again["plan"] in text]
    assert all(said in page for said in (again["page"], "Costs of", "no gain pays for its moves", "pin: {t0: [0, 1]}"))
