"""The twenty most frequent errors: the command that a person typed, and the sentence that it ends with."""

import shlex

import pytest

FILES = {
    "tables.csv": "name,rows,dim,pooling_factor\nusers,1000000,64,1\nitems,200000,64,12.5\n",
    "colours.csv": "colour\nred\n",
    "empty.csv": "",
    "empty.json": "{}",
}
A100 = "place tables.csv --devices 2 --hardware a100"
SENTENCES = {
    "place tables.csv --devices 2 --memory-gb 1": "there is no champion yet at sqlite:///HOME/mlflow.db; train one with "
    "`dreamshard run`; to place without a version, give --hardware (for example h100), or --placer with a heuristic, e.g. "
    "lookup_greedy",
    "place tables.csv --devices 2 --memory-gb 1 --placer magic": "there is no placer 'magic'; give a version (champion, "
    "challenger, previous, a number, or a URI such as models:/dreamshard.ads.a100-x8/3), or one of cost_greedy, dim_greedy, "
    "dreamshard_policy, lookup_greedy, prior, random, size_greedy, size_lookup_greedy, torchrec_planner, "
    "torchrec_planner_columns",
    "place tables.csv --devices 2 --memory-gb 0.13 --placer size_greedy": "found no placement of whole tables of tables.csv: "
    "'users' needs 0.238 GiB, 2 devices have up to 0.13 GiB; allow more memory or more sharding types (--sharding auto, "
    "--cache)",
    "place tables.csv --devices 2 --hardware a1000": "there is no hardware 'a1000' (did you mean 'a100'?); give a preset of "
    "docs/hardware.md, or a .yaml file",
    "place tables.csv --hardware a100": "the number of devices is unknown; give --devices",
    "place missing.csv --devices 2 --hardware a100": "there is no file missing.csv; check the path",
    "place colours.csv --devices 2 --hardware a100": "colours.csv, line 2 has no name, rows, dim (it has ['colour']); add "
    "what is missing",
    "place empty.csv --devices 2 --hardware a100": "empty.csv is not a readable list of tables (ArrowInvalid: Empty CSV "
    "file); check its format",
    f"{A100} --current empty.json": "empty.json is not a plan (tables: field required); give JSON of `dreamshard place`",
    f"{A100} --out none/plan.json": "none/plan.json is in no folder; give another file",
    f"{A100} --sharding diagonal": "'diagonal' is not a sharding type; list some of auto, columns, whole, table_wise, "
    "column_wise, row_wise, table_row_wise, grid_shard, data_parallel",
    f"{A100} --constraints 'pin: {{userz: 0}}'": "the constraint text names a table 'userz', but there is none (did you mean "
    "'users'?); correct the name",
    f"{A100} --constraints 'pin: {{users: 7}}'": "the constraint text names devices [7], but there are only devices 0..1; "
    "correct them",
    "explain missing.json tables.csv": "there is no plan at missing.json; check the path",
    "what-if tables.csv --hardware a100": "'a100' is not a cluster; give hardware, 1 to 4096 devices and, if you like, equal "
    "groups: a100:8, my_cluster.yaml:64 or a100:64/16",
    "run --recipe big": "there is no recipe 'big'; choose one of ['default', 'dlrm_50x4', 'paper_50x4', 'smoke']",
    "run --recipe smoke --testbed mainframe": "there is no testbed 'mainframe'; choose auto, cluster, emulated, "
    "simulated:a100 or another of docs/gpus.md",
    "train": "nothing has been ingested; run `dreamshard ingest`",
    "sql 'select * from tabels'": 'DuckDB: Catalog Error: Table with name tabels does not exist! Did you mean "tables"?; '
    "`show tables` lists views, `describe VIEW` columns",
    "models --home misspelt": "there is no home FOLDER/misspelt; check --home or DREAMSHARD_HOME, or make it with "
    "`dreamshard run`",
}


@pytest.mark.parametrize("command", SENTENCES)
def test_an_error_is_one_sentence_and_leaves_nothing(in_home, new_home, tmp_path, monkeypatch, command):
    pytest.importorskip("torchrec")  # whose planner is among the placers
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    done = in_home(*shlex.split(command))
    said = done.sentence.replace(str(new_home), "HOME").replace(str(tmp_path), "FOLDER")
    assert (done.returncode, said) == (1, SENTENCES[command])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    assert not list((new_home / "lake").rglob("*.parquet"))
