"""Texts that name a home's old folder."""

import json
from pathlib import Path

import pytest

from storage.relocation.addresses import Relocation

OLD, NEW = Path("/data/home"), Path("/srv/new home's 100%")
QUOTED = "/srv/new%20home%27s%20100%25"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/data/home", f"{NEW}"),
        ("/data/home/lake/x.parquet", f"{NEW}/lake/x.parquet"),
        ("file:///data/home/mlartifacts", f"file://{QUOTED}/mlartifacts"),
        ("sqlite:////data/home/mlflow.db run 1", f"sqlite:///{NEW}/mlflow.db run 1"),
        ("- lake: /data/home/lake\n- home: /data/home\n", f"- lake: {NEW}/lake\n- home: {NEW}\n"),
        ("<a href='/data/home/x'>", f"<a href='{NEW}/x'>"),
        ("/data/home-2/x /data/home.old /data/home 2/x", None),
        ("/mnt/data/home/x s3://data/home/x ../data/home/x", None),
        ("mlflow-artifacts:/1/data/home/x", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_a_text_names_the_new_folder_exactly_where_it_named_the_old_one(before, after):
    assert Relocation([OLD], NEW).rewritten(before) == (before if after is None else after)


def test_json_stays_json_and_json_within_it_is_rewritten_too():
    old, new = Path('/a "b" é'), Path('/c "d"')
    inner = json.dumps({"uri": "file:///a%20%22b%22%20%C3%A9/x", "path": str(old)})
    before = json.dumps({"storage_key": f"{old}/results/1", "data": inner, "number": 1.5, "list": [str(old), None]})
    after = json.loads(Relocation([old], new).rewritten(before))
    assert after["storage_key"] == f"{new}/results/1"
    assert json.loads(after["data"]) == {"uri": "file:///c%20%22d%22/x", "path": str(new)}
    assert after["list"] == [str(new), None]


def test_what_only_looks_like_json_is_rewritten_as_text():
    assert Relocation([OLD], NEW).rewritten("[home] /data/home/x") == f"[home] {NEW}/x"


@pytest.mark.parametrize("new", [OLD / "below", OLD.parent])
def test_doing_it_twice_changes_nothing_more(new):
    relocation = Relocation([OLD], new)
    text = f"{OLD}/lake file://{OLD}/x"
    once = relocation.rewritten(text)
    assert once == f"{new}/lake file://{new}/x"
    assert relocation.rewritten(once) == once


def test_every_name_that_the_folder_had_is_rewritten():
    relocation = Relocation([OLD, Path("/link")], Path("/new"))
    assert relocation.rewritten("/link/a:/data/home/b:/linked/c") == "/new/a:/new/b:/linked/c"
