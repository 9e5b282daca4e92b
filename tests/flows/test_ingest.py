"""What `dreamshard ingest` reads again, and what it says it has kept."""

import json
from pathlib import Path

import torch
from commands import Dreamshard


def ingested(dreamshard: Dreamshard, source: str, home: Path) -> dict:
    done = dreamshard("ingest", source, "--recipe", "smoke", "--json", home=home)
    assert done.returncode == 0, done.sentence
    return json.loads(done.stdout)


def save(path: Path, samples: int) -> Path:
    """Two tables of one lookup per sample, both of row 3."""
    lookups = torch.full((2 * samples,), 3)
    offsets = torch.arange(2 * samples + 1)
    torch.save((lookups, offsets, torch.ones(2, samples, dtype=torch.int64)), path)
    return path


def test_a_changed_list_beside_the_file_is_read_again_and_an_unchanged_one_is_not(
    dreamshard: Dreamshard, tmp_path: Path
):
    source, listed = save(tmp_path / "d.pt", samples=4), tmp_path / "d.tables.csv"
    listed.write_text("name,rows,dim\nuser,100,32\nitem,10,64\n")
    first = ingested(dreamshard, str(source), tmp_path / "home")
    assert ingested(dreamshard, str(source), tmp_path / "home")["dataset"] == first["dataset"]
    listed.write_text("name,rows,dim\nuser,100,32\nitem,20,64\n")
    again = ingested(dreamshard, str(source), tmp_path / "home")
    assert again["dataset"] != first["dataset"]
    assert again["gib_fp32"] >= first["gib_fp32"]


def test_a_source_that_is_cut_to_the_recipes_batch_is_said_and_one_taken_whole_is_not(
    dreamshard: Dreamshard, tmp_path: Path
):
    whole = ingested(dreamshard, str(save(tmp_path / "whole.pt", samples=4)), tmp_path / "home")
    assert whole["samples"] == 4
    assert "note" not in whole
    cut = ingested(dreamshard, str(save(tmp_path / "cut.pt", samples=600)), tmp_path / "home")
    assert (cut["samples"], cut["lookups"]) == (512, 2 * 512)
    assert cut["note"] == "recipe smoke takes no more than the first 512 samples of a source"
