import pytest

from dreamshard.names import VersionReference


@pytest.mark.parametrize(
    ("text", "algorithm", "name", "written"),
    [
        ("3", "dreamshard", "3", "3"),
        ("dreamshard:3", "dreamshard", "3", "3"),
        ("champion", "dreamshard", "champion", "champion"),
        ("paper:3", "paper", "3", "paper:3"),
        ("paper", "paper", "champion", "paper:champion"),
        ("autoshard:previous", "autoshard", "previous", "autoshard:previous"),
    ],
)
def test_a_reference_is_read_and_written(text: str, algorithm: str, name: str, written: str):
    reference = VersionReference.of(text)
    assert (reference.algorithm, reference.name, str(reference)) == (algorithm, name, written)
    assert reference.is_valid


@pytest.mark.parametrize("text", ["", "frog", "frog:3", "paper:", "paper:frog", "lookup_greedy", "-1", "²"])
def test_anything_else_names_no_version(text: str):
    assert not VersionReference.of(text).is_valid
