import pytest

from dreamshard.constraints import parse_constraints
from dreamshard.files.foreign import InputError, reading


@pytest.mark.parametrize(
    "error", [KeyError("x"), OverflowError("y"), AssertionError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "z")]
)
def test_an_error_of_a_library_is_one_sentence_with_its_cause(error: Exception):
    with pytest.raises(ValueError) as raised, reading("f", "is not a plan", "write it again"):
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("text", ["- " * 10_000, "&a [*b]", "!!python/object/apply:os.system [id]"])
def test_yaml_that_is_damaged_or_would_run_code_is_refused(text: str):
    with pytest.raises(InputError):
        parse_constraints(text, (), 1)
