"""What stores raise, by the kinds of the libraries that reach them."""

import subprocess
import sys

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError

from dreamshard.files.store_errors import failures, may_pass

ADDRESS = "http://127.0.0.1:1/team"


def answered(status: int) -> ClientError:
    return ClientError({"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (EndpointConnectionError(endpoint_url=ADDRESS), True),
        (ReadTimeoutError(endpoint_url=ADDRESS), True),
        (answered(503), True),
        (answered(429), True),
        (answered(404), False),
        (answered(403), False),
        (NoCredentialsError(), False),
        (ConnectionResetError("by peer"), True),
        (FileNotFoundError("a table"), False),
        (ValueError("a table"), False),
    ],
)
def test_a_store_that_is_away_may_be_back_and_one_that_refuses_will_go_on_refusing(error: Exception, passes: bool):
    assert may_pass(error) is passes


def test_all_that_a_store_raises_is_its_failure_and_wrong_input_is_not():
    assert issubclass(EndpointConnectionError, failures())
    assert issubclass(ClientError, failures())
    assert issubclass(PermissionError, failures())
    assert not issubclass(ValueError, failures())


def test_a_library_that_is_not_loaded_is_not_loaded_for_this():
    code = """
import sys
from dreamshard.files.store_errors import failures, may_pass
assert failures() == (OSError,) and may_pass(TimeoutError()) and not may_pass(ValueError())
assert not {"botocore", "azure.core", "google.auth"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
