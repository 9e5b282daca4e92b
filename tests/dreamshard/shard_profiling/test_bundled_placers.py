"""A placer for `--placer ACCELERATOR` and what it was learnt from appear together."""

from pathlib import Path

from dreamshard.shard_profiling.bundled_placers import load_bundled, save_bundled
from dreamshard.training import TrainingConfig, make_placer, start_training
from tests.helpers.shards import meta_tables

MEASURED = {
    **{"hardware": "NVIDIA H200", "shards": 1, "measured": ["2026-01-02", "2026-01-02"], "batch_size": 1024},
    **{"precision": "fp32", "optimizer": "sgd", "versions": {"torch": "2.13.0"}},
}


def test_the_placer_and_its_measurements_are_put_in_place_by_one_rename(tmp_path, monkeypatch):
    placer = make_placer(start_training(meta_tables(), TrainingConfig(), seed=0))
    moved = {}
    rename = Path.rename

    def watched(self, target):
        moved[Path(target).name] = {file.name for file in self.iterdir()}
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", watched)
    target = save_bundled(tmp_path, "h200", placer, MEASURED)
    assert moved == {"h200": {"config.json", "digests.json", "measurements.json", "weights.safetensors"}}
    assert {file.name for file in target.iterdir()} == moved["h200"]
    assert load_bundled("h200", [tmp_path]).measurements == MEASURED
    save_bundled(tmp_path, "h200", placer, MEASURED | {"shards": 2})
    assert load_bundled("h200", [tmp_path]).measurements["shards"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["h200"]
