import pytest

from storage.version_names import VersionReference, number_of


@pytest.mark.parametrize(
    ("text", "algorithm", "name", "written"),
    [
        ("3", "dreamshard", "3", "3"),
        ("champion", "dreamshard", "champion", "champion"),
        ("models:/dreamshard-a100-8x8/3", "dreamshard", "3", "models:/dreamshard-a100-8x8/3"),
        ("models:/paper-a100-8@previous", "paper", "previous", "models:/paper-a100-8@previous"),
        ("models:/paper-a100-8/previous", "paper", "previous", "models:/paper-a100-8@previous"),
    ],
)
def test_a_reference_is_read_and_written(text: str, algorithm: str, name: str, written: str):
    reference = VersionReference.of(text)
    assert (reference.algorithm, reference.name, str(reference)) == (algorithm, name, written)
    assert reference.is_valid


@pytest.mark.parametrize("text", ["", "frog", "paper", "models:/frog", "models:/a/b/1", "lookup_greedy", "-1", "²"])
def test_anything_else_names_no_version(text: str):
    assert not VersionReference.of(text).is_valid
    with pytest.raises(ValueError, match="has no number"):
        number_of(text)
