"""Identities on disk: the digits must never change."""

from dreamshard.files.digests import digest, json_digest
from dreamshard.testbeds.shard_cache import ShardKey
from storage.lake.parquet_files import content_id


def test_a_digest_is_the_start_of_the_sha_256():
    assert digest("") == digest(b"") == "e3b0c44298fc1c14"
    assert digest("", 12) == "e3b0c44298fc"


def test_the_fingerprint_of_a_workload_table_is_that_of_the_first_release():
    assert json_digest(["zipf", 1.05, "t_0", 1000, 16, 2.5, 64, 0, None, ["é", 1]]) == "d7d9c4d9c8f3c568"
    assert json_digest([{"b": 1, "a": 2}]) == "433b779502ff6587"


def test_the_key_of_a_measured_shard_is_that_of_the_first_release():
    key = ShardKey(
        tables="0123456789ab",
        hardware="Intel Xeon",
        versions={"torch": "2.13.0", "fbgemm": "1.8.0"},
        precision="fp32",
        optimizer="sgd",
        batch_size=64,
    )
    assert key.content == "e3e073a99ad2ad05"


def test_the_identity_of_a_row_in_the_lake_is_that_of_the_first_release():
    assert content_id({"b": [1, 2.5], "a": "é"}) == "1d5aa48ef9cd2b6b"
