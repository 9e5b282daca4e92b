"""One line of `dreamshard doctor`."""

Check = dict[str, str]
"""`what` was checked, its `state` (ok, other, optional, missing), what was `found`, and what `to do`."""


def check(what: str, state: str, found: str, advice: str = "") -> Check:
    """The line as a row of the table."""
    return {"what": what, "state": state, "found": found, "to do": advice}
