"""Sources in stores that do not answer."""

import socket
from collections.abc import Iterator

import pytest
from s3fs import S3FileSystem

from dreamshard.workloads import change_token


@pytest.fixture
def endpoint_that_is_down(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 endpoint at a port of this machine where nobody listens; tried once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # taken, but not listening
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        given = {"ENDPOINT_URL_S3": address, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "MAX_ATTEMPTS": "1"}
        for name, value in given.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setattr(S3FileSystem, "retries", 1)
        S3FileSystem.clear_instance_cache()
        yield address
        S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("source", ["s3://tables/", "s3://tables/list.csv"])
def test_a_bucket_that_cannot_be_reached_is_one_sentence(endpoint_that_is_down: str, source: str):
    with pytest.raises(
        ValueError, match=f"^{source} cannot be read .*{endpoint_that_is_down}.*check the address"
    ) as found:
        change_token(source)
    assert "no tables to ingest" in str(found.value)
    assert "\n" not in str(found.value)
