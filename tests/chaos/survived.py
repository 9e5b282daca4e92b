"""What a trial found."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Survived:
    """One row of the table of what was survived.

    Attributes:
        what: what was done, in words.
        tried: how often.
        survived: how often all held that must hold.
        note: figures or seeds worth a reader's time.
    """

    what: str
    tried: int
    survived: int
    note: str = ""
