from flows.forms.flat import flattened
from flows.forms.options import StageOptions


def test_an_empty_text_leaves_an_optional_field_empty_and_is_no_recipe():
    def body(options: StageOptions) -> StageOptions:
        return options

    call = flattened(body, lambda parameter: parameter)
    assert call(testbed="") == StageOptions()
    assert call(recipe="") == StageOptions(recipe="")
