import pytest

from storage.version_names import algorithm_of, in_words, names_version, number_of


@pytest.mark.parametrize(
    ("text", "algorithm", "words"),
    [
        ("3", "dreamshard", "version 3"),
        ("champion", "dreamshard", "champion"),
        ("models:/dreamshard-a100-8x8/3", "dreamshard", "dreamshard-a100-8x8 version 3"),
        ("models:/paper-a100-8@previous", "paper", "paper-a100-8 previous"),
        ("models:/paper-a100-8/previous", "paper", "paper-a100-8 previous"),
    ],
)
def test_a_reference_is_read_and_put_in_words(text: str, algorithm: str, words: str):
    assert names_version(text)
    assert (algorithm_of(text), in_words(text)) == (algorithm, words)


@pytest.mark.parametrize("text", ["", "frog", "paper", "models:/frog", "models:/a/b/1", "lookup_greedy", "-1", "²"])
def test_anything_else_names_no_version(text: str):
    assert not names_version(text)
    with pytest.raises(ValueError):
        number_of(text)
