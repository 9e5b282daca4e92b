import pytest

from storage.version_names import in_words, names_version, number_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3", "version 3"),
        ("champion", "champion"),
        ("models:/dreamshard.ads.a100-2x8/3", "dreamshard.ads.a100-2x8 version 3"),
        ("models:/dreamshard.ads.a100-x8@previous", "dreamshard.ads.a100-x8 previous"),
        ("models:/dreamshard.ads.a100-x8/previous", "dreamshard.ads.a100-x8 previous"),
    ],
)
def test_a_reference_is_read_and_put_in_words(text: str, words: str):
    assert names_version(text)
    assert in_words(text) == words


@pytest.mark.parametrize("text", ["", "frog", "paper", "models:/frog", "models:/a/b/1", "lookup_greedy", "-1", "²"])
def test_anything_else_names_no_version(text: str):
    assert not names_version(text)
    with pytest.raises(ValueError):
        number_of(text)
