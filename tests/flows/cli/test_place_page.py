"""`dreamshard place --html`: the page that a person opens, in a real browser."""

import re
import shutil

import pytest

from dreamshard.plan import Plan, PlannedTable

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HEADER = "name,rows,dim,pooling_factor\n"
LISTED = HEADER + "".join(f"<b>t{t}</b>,{(t + 1) * 50_000},64,{5 * (t + 1)}\n" for t in range(6))
NETWORK = ("file:", "data:", "blob:")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (as root: apt-get install chromium), to open the page")
def test_the_page_compares_with_the_current_plan_offline(place_tables, tmp_path):
    from playwright.sync_api import expect, sync_playwright

    path, current = tmp_path / "plan.html", tmp_path / "current.json"
    sizes = {
        f"<b>t{t}</b>": PlannedTable("table_wise", where=(int(t == 0),), rows=50_000 * (t + 1), dim=64)
        for t in range(6)
    }
    current.write_text(Plan(num_devices=2, placer="old", tables=sizes).to_json())
    options = ("--devices", "2", "--hardware", "a100", "--memory-gb", "0.5", "--steps-until-next", "1e9")
    done, plan = place_tables(LISTED, *options, "--current", current, "--html", path)
    assert done.returncode == 0, done.sentence
    assert path.stat().st_size < 1e5
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--disable-gpu"])
        for scheme, background in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 23, 28)")):
            page = browser.new_context(color_scheme=scheme, viewport={"width": 1400, "height": 1000}).new_page()
            asked: list[str] = []
            errors: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.goto(path.as_uri())
            assert [url for url in asked if not url.startswith(NETWORK)] == []
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
            assert page.locator("h1").inner_text() == "tables.csv: 6 tables on 2 devices"
            said = re.match(
                r"new plan: ([\d.]+) ms predicted .+\ndevice \d is the slow", page.locator(".sub").inner_text()
            )
            assert float(said[1]) == pytest.approx(plan["predicted"]["overall_ms"], abs=1e-3)
            assert page.get_by_text(f"Moves: {len({step['table'] for step in plan['moves']})} tables").count() == 1
            assert page.get_by_text("<b>t5</b>").count() >= 2  # as text, in both lists
            totals = page.locator(".cost .sum0").all_inner_texts()
            phases = [
                sum(ms for key, ms in figure.items() if key.endswith("_ms")) for figure in plan["predicted"]["devices"]
            ]
            assert [float(text.split()[0]) for text in totals[::2]] == pytest.approx(phases, rel=6e-3)
            assert sum("slowest" in text for text in totals) == 2  # of the new plan and of the one in use
            parts = page.locator(".cost .bar:first-child > i").all()
            assert "<b>t5</b>" in [part.inner_text() for part in parts]
            bars = [page.locator(".cost").first.locator(".bar").nth(n).locator("i").all() for n in (0, 1)]
            new, old = (sum(part.bounding_box()["width"] for part in bar) for bar in bars)
            new_ms, old_ms = (float(text.split()[0]) for text in totals[:2])
            assert new / old == pytest.approx(new_ms / old_ms, rel=0.02)
            assert page.locator(".memory").first.get_attribute("style") == "--capacity:100.0%"
            rows = page.locator("table.list").last.locator("tbody tr:visible")
            for _ in range(2):
                page.get_by_text("pooling factor", exact=True).click()
            expect(rows.first).to_contain_text("<b>t0</b>")  # ascending: the fewest lookups first
            page.get_by_placeholder("filter tables by name").fill("T3")
            expect(rows).to_have_count(1)
            page.get_by_text("backward compute", exact=True).click()
            shown = [float(text) for text in page.locator(".cost .sum4:visible").all_inner_texts()]
            ms = [device["backward_compute_ms"] for device in plan["predicted"]["devices"]]
            assert (shown[::2], page.locator(".cost .sum0:visible").count()) == (pytest.approx(ms, rel=6e-3), 0)
            assert errors == []
        browser.close()
