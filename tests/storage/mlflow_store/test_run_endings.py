"""Which host a run is of."""

from storage.mlflow_store import run_endings


def test_hosts_of_one_name_are_told_apart(tmp_path):
    hosts = set()
    for identity in ("4a1f", "77c0"):
        (tmp_path / identity).write_text(f"{identity}\n")
        hosts.add(run_endings._host(tmp_path / identity))
    assert len(hosts) == 2
    assert run_endings._host(tmp_path / "absent") not in hosts
