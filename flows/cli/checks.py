"""One line of `dreamshard doctor`."""

from dreamshard.files.text import without_passwords

Check = dict[str, str]
"""`what` was checked, its `state` (ok, other, optional, missing), what was `found`, and what `to do`."""


def check(what: str, state: str, found: str, advice: str = "") -> Check:
    """The line as a row of the table, without passwords."""
    return {"what": what, "state": state, "found": without_passwords(found), "to do": without_passwords(advice)}
