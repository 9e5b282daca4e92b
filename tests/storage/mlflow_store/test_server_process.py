"""MLflow's server makes its database whole before a signal ends it."""

import os
import signal

import pytest

from storage.mlflow_store import server_process


def test_a_signal_ends_the_server_only_after_its_database_is_made():
    done = []
    former = signal.getsignal(signal.SIGTERM)

    def make():
        with server_process._uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("tables")

    with pytest.raises(SystemExit):
        make()
    assert done == ["tables"]
    assert signal.getsignal(signal.SIGTERM) == former
    with server_process._uninterrupted():
        done.append("again")
    assert done == ["tables", "again"]
