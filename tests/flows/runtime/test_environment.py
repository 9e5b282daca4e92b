import os

import pytest
from prefect.settings.models.server.ephemeral import ServerEphemeralSettings

from flows.runtime.environment import prepare

LIMIT = "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"


@pytest.mark.parametrize(("environ", "seconds"), [({}, 300), ({LIMIT: "45"}, 45)])
def test_prefects_temporary_server_has_minutes_to_start_unless_the_caller_sets_a_limit(
    monkeypatch, tmp_path, environ, seconds
):
    monkeypatch.setattr(os, "environ", environ)
    prepare(tmp_path)
    assert ServerEphemeralSettings().startup_timeout_seconds == seconds
