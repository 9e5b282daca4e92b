"""What people see: the form, the run and its report in Prefect's pages, two versions side by side in MLflow's.

With `DREAMSHARD_PICTURES` naming a folder (`make pictures`) it takes the pictures of the docs on the way.
"""

import json
import os
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from dreamshard.recipes import RECIPES
from storage.mlflow_store.runs import MODEL_TRAINING
from tests.flows.servers_up import api, deployment, servers_up

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PICTURES = os.environ.get("DREAMSHARD_PICTURES")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs chromium (as root: apt-get install chromium), to open the pages"
    ),
]

QUIET = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
QUIET += ("--disable-component-update", "--disable-sync")
PATIENCE_MS = 240_000
RUN_MS = 600_000
expect.set_options(timeout=60_000)  # its own 5 s say how busy the machine is

RECIPE, FIELDS = "smoke", {"seed": "0", "testbed": "simulated", "tables_per_task": "8", "iterations": "3"}
if PICTURES:  # something to judge by, and more to wait for
    RECIPE, FIELDS = "default", FIELDS | {"tables_per_task": "20", "iterations": "10"}


@pytest.fixture(scope="module")
def servers(finished):
    with servers_up(finished) as running:
        yield running


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)  # with a profile of its own
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def first_run(servers, chromium, tmp_path_factory):
    """The address of a run that was started from the form, when its page says Completed."""
    with opened(chromium, f"{servers.prefect}/v2/deployments", tmp_path_factory.mktemp("first_run")) as page:
        page.get_by_role("link", name="meta-dlrm-2021", exact=True).first.click()
        page.get_by_role("button", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Custom run").click()
        choose_recipe(page, RECIPE)
        for label, value in FIELDS.items():
            entry(page, label).fill(value)
        page.get_by_label("Run Name").fill("from-the-form")
        page.get_by_role("button", name="Submit").click()
        page.wait_for_url(f"{servers.prefect}/v2/deployments/deployment/*")
        page.get_by_role("link", name="from-the-form", exact=True).first.click()
        wait_for_completed(page)
        return page.url.partition("?")[0]


@contextmanager
def opened(chromium, address: str, folder: Path):
    """A page of a fresh profile; a test that fails leaves a screenshot in `folder` and says where."""
    context = chromium.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    try:
        page.goto(address)
        yield page
    except BaseException as error:
        page.screenshot(path=folder / "failed.png", full_page=True)
        error.add_note(f"{page.url} as it was: {folder / 'failed.png'}")
        raise
    finally:
        context.close()


def entry(page, label: str):
    """Where a field's value is typed or chosen."""
    return page.get_by_label(f"{label} (Optional)", exact=True)


def complaint(page, label: str):
    """What the form says under a field after the server looked at its value."""
    return page.get_by_text(f"{label} (Optional)", exact=True).locator("xpath=../../..").locator("p.text-destructive")


def choose_recipe(page, name: str) -> None:
    """From the list of those that there are."""
    page.get_by_role("button", name="Select recipe").click()
    assert sorted(page.get_by_role("option").all_inner_texts()) == sorted(RECIPES)
    page.get_by_role("option", name=name, exact=True).click()


def wait_for_completed(page) -> None:
    """Until the run's page says how it ended."""
    final = page.get_by_text(re.compile("^(Completed|Failed|Crashed|Cancelled)$")).first
    expect(final).to_be_visible(timeout=RUN_MS)
    assert final.inner_text() == "Completed"


def photograph(page, name: str) -> None:
    """For `docs/pictures`, if requested."""
    if PICTURES:
        page.mouse.move(0, 0)  # a toast stays as long as the pointer is over it
        expect(page.locator("[data-sonner-toast]")).to_have_count(0)
        page.screenshot(path=Path(PICTURES).absolute() / f"{name}.png")


def test_wrong_values_are_refused_in_the_form_with_what_is_wrong(servers, chromium, tmp_path):
    retrain = deployment(servers, "retrain")["id"]
    before = started_by_hand(servers)
    asked = quote(json.dumps({"recipe": "none such", "seed": 0}))  # as in an address that somebody passed on
    with opened(
        chromium, f"{servers.prefect}/v2/deployments/deployment/{retrain}/run?parameters={asked}", tmp_path
    ) as page:
        wrong = {"seed": "-1", "memory_gb": "0", "devices": "4097"}
        for label, value in wrong.items():
            entry(page, label).fill(value)
        page.get_by_role("button", name="Submit").click()
        said = {label: entry(page, label).evaluate("field => field.validationMessage") for label in ("seed", "devices")}
        assert "greater than or equal to 0" in said["seed"], "the browser holds the form back"
        assert "less than or equal to 4096" in said["devices"]
        for label in said:
            entry(page, label).fill("2")
        page.get_by_role("button", name="Submit").click()
        expect(complaint(page, "recipe")).to_contain_text("'none such' is not one of ['default'")
        expect(complaint(page, "memory_gb")).to_contain_text("0 is less than or equal to the minimum of 0")
        expect(complaint(page, "seed")).to_have_count(0)
        complaint(page, "recipe").scroll_into_view_if_needed()
        photograph(page, "form")
    assert started_by_hand(servers) == before


def test_a_run_from_the_form_completes_and_shows_its_report(servers, chromium, first_run, tmp_path):
    flow_run = api(servers, "flow_runs/filter", flow_runs={"id": {"any_": [first_run.rpartition("/")[2]]}})[0]
    asked = flow_run["parameters"]
    assert (asked["recipe"], asked["tables_per_task"]) == (RECIPE, int(FIELDS["tables_per_task"]))
    assert asked.get("memory_gb") is None, "it was left empty"
    report = next(one for one in api(servers, "artifacts/filter") if one["key"] == "report-meta-dlrm-2021")
    with opened(chromium, first_run, tmp_path) as page:
        page.get_by_role("tab", name="Artifacts", exact=True).click()
        expect(page.get_by_role("link", name="dreamshard-progress")).to_be_visible()
        photograph(page, "run")
        page.get_by_role("link", name="report-meta-dlrm-2021").click()
        page.get_by_role("link", name=report["id"][:8]).click()
        expect(page.get_by_role("heading", name="Cost of each placer")).to_be_visible()
        expect(page.get_by_text(report["description"]).filter(visible=True).first).to_be_visible()
        for placer in ("dreamshard", "random", "size_greedy", "lookup_greedy"):
            measured = re.search(rf"^\| {placer} \| ([\d.]+) ", report["data"], re.MULTILINE).group(1)
            expect(page.get_by_role("row", name=f"{placer} {measured}").first).to_be_visible()
        expect(page.get_by_role("link", name="MLflow run")).to_have_attribute(
            "href", re.compile(re.escape(servers.mlflow))
        )
        photograph(page, "report")


def test_two_versions_are_compared_side_by_side_in_mlflow(servers, chromium, first_run, tmp_path):
    models = httpx.get(f"{servers.mlflow}/api/2.0/mlflow/registered-models/search", timeout=30).json()
    (name,) = (model["name"] for model in models["registered_models"])
    wanted = [metrics(servers, name, version) for version in ("1", "2")]
    with opened(chromium, f"{servers.mlflow}/#/experiments?{MODEL_TRAINING}", tmp_path) as page:
        page.get_by_role("button", name="Close", exact=True).click()  # a chat that it opens beside the page
        page.get_by_role("link", name="Model registry").click()
        page.get_by_role("button", name="Try it now").click()  # its news
        page.get_by_role("link", name=name, exact=True).click()
        for version in ("1", "2"):
            named = page.get_by_role("link", name=f"Version {version}", exact=True)
            page.get_by_role("row").filter(has=named).get_by_role("checkbox").click()
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page.get_by_role("heading", name="Comparing 2 Versions")).to_be_visible()
        expect(page.get_by_role("row", name="Model Version: 1 2")).to_be_visible()
        photograph(page, "compare")
        different_only = page.get_by_role("row", name="Metrics").get_by_role("switch")
        different_only.click()
        expect(different_only).not_to_be_checked()
        expect(page.get_by_role("row", name=re.compile("cost_ms")).first).to_be_visible()
        shown = page.get_by_role("row").evaluate_all(
            "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))"
        )
    columns = {cells[0]: cells[1:] for cells in shown if len(cells) == 3}
    for name in wanted[0] | wanted[1]:
        for value, text in zip((metrics_of.get(name) for metrics_of in wanted), columns[name], strict=True):
            assert (text == "-") if value is None else float(text) == pytest.approx(value, rel=6e-3, abs=6e-4), name
    assert PICTURES or wanted[0].keys() <= wanted[1].keys()  # the same held-out tasks


def started_by_hand(servers) -> list[str]:
    """The runs that no schedule made, by their ids."""
    return [run["id"] for run in api(servers, "flow_runs/filter") if not run["auto_scheduled"]]


def metrics(servers, model: str, version: str) -> dict[str, float]:
    """The metrics of a version's run, as MLflow's API has them."""
    base, asked = f"{servers.mlflow}/api/2.0/mlflow", {"name": model, "version": version}
    run = httpx.get(f"{base}/model-versions/get", params=asked, timeout=30).json()["model_version"]["run_id"]
    data = httpx.get(f"{base}/runs/get", params={"run_id": run}, timeout=30).json()["run"]["data"]
    return {metric["key"]: metric["value"] for metric in data["metrics"]}
