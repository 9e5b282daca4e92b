import httpx
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from mlflow.exceptions import MlflowException, RestException
from prefect.states import Failed

from dreamshard.tasks import NoPlacementError
from dreamshard.testbeds.base import MeasurementError
from flows.runtime.tasks import may_pass


def state(error: BaseException, cause: BaseException | None = None):
    error.__cause__ = cause
    return Failed(data=error)


SERVER_IS_DOWN = RestException({"error_code": "TEMPORARILY_UNAVAILABLE", "message": "try later"})
STORE_IS_DOWN = EndpointConnectionError(endpoint_url="http://127.0.0.1:1/team")


def answered(status: int) -> ClientError:
    return ClientError({"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")


@pytest.mark.parametrize(
    ("error", "cause", "again"),
    [
        (SERVER_IS_DOWN, None, True),
        (MeasurementError("rank 1 died"), None, True),
        (MlflowException("database is locked"), None, True),
        (ValueError("the files of version 3 cannot be read"), SERVER_IS_DOWN, True),
        (ValueError("s3://team/tables cannot be read"), STORE_IS_DOWN, True),
        (answered(503), None, True),
        (NoCredentialsError(), None, False),
        (httpx.ConnectError("Prefect's server is away"), None, True),
        (ValueError("there is no version '7'"), None, False),
        (NoPlacementError("no room"), None, False),
        (MlflowException.invalid_parameter_value("no such metric"), None, False),
        (PermissionError("mlflow.db"), None, False),
    ],
)
def test_failures_of_servers_are_tried_again_and_wrong_input_not(error, cause, again):
    assert may_pass(None, None, state(error, cause)) is again
