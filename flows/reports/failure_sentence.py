"""The sentence in a flow run's message: Prefect writes `Flow run encountered an exception: ValueError: <sentence>`.

The rule stands here twice, since Prefect's server renders messages from templates: without the prefix a message stays whole.
"""

_PREFIX = "encountered an exception: "

TEMPLATE = (
    "{% set parts = (flow_run.state.message or '').split('" + _PREFIX + "', 1) %}"
    "{% set words = parts[-1].split(': ', 1) %}"
    "{{ words[1] if parts | length == 2 and words | length == 2 and ' ' not in words[0] else parts[-1] }}"
)
"""The sentence of `flow_run`, in Jinja."""


def failure_sentence(message: str) -> str:
    """The sentence without Prefect's words and the name of the exception."""
    _, prefix, said = message.partition(_PREFIX)
    if not prefix:
        return message
    kind, colon, sentence = said.partition(": ")
    return sentence if colon and " " not in kind else said
