"""What people read of errors: one sentence, and no password."""

import pytest

from dreamshard.formatting import error_sentence, without_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ada:s%40cret@db:5432/mlflow is away", "postgresql://ada:...@db:5432/mlflow is away"),
        ("'https://:s3cret@host/x' and mailtos://a:b@c?d=e", "'https://:...@host/x' and mailtos://a:...@c?d=e"),
        ("http://host:4200/api?at=10:30@noon", "http://host:4200/api?at=10:30@noon"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("sqlite:////home/ada@home/mlflow.db", "sqlite:////home/ada@home/mlflow.db"),
    ],
)
def test_a_password_in_an_address_is_not_shown(text: str, shown: str):
    assert without_passwords(text) == shown
    assert error_sentence(ValueError(text)) == shown
