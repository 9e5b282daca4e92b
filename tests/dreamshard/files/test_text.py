import pytest

from dreamshard.files.text import error_sentence, without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:s%40cret@db:5432/mlflow is away", "postgresql://...@db:5432/mlflow is away"),
        ("'https://:s3cret@host/x' and mailtos://a:b@c?d=e", "'https://...@host/x' and mailtos://...@c?..."),
        ("http://host:4200/api?at=10:30@noon", "http://host:4200/api?..."),
        ("s3://AKIA:s3cr@et@bucket/x.csv", "s3://...@bucket/x.csv"),
        ("get https://s3cret@host/x.csv", "get https://...@host/x.csv"),
        ("'https://host/x.csv?X-Amz-Signature=s3cret&sig=s3cret', so", "'https://host/x.csv?...', so"),
        ("http://host:5000/#/runs/1?workflowType=training", "http://host:5000/#/runs/1?workflowType=training"),
        ("did you mean http://host/x.csv?", "did you mean http://host/x.csv?"),
        ("sqlite:////home/ada@home/mlflow.db", "sqlite:////home/ada@home/mlflow.db"),
    ],
)
def test_a_password_in_an_address_is_not_shown(text: str, shown: str):
    assert without_passwords(text) == shown
    assert error_sentence(ValueError(text)) == shown
