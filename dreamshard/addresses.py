"""Addresses that hold a secret: refused where somebody gives one, since runs and versions keep what they were given.

A user or a password stands before the host, and a signature in the query. Which names of a query are secret is not to be
known, so none is taken; no reader of tables needs one.
"""

import re

_START = r"(^|[^\w+.\-])"
_SCHEME = r"[A-Za-z][\w+.\-]*:\/{1,2}"  # one slash where pathlib read the address
_USER = rf"{_START}(?!github:|abfss?:|wasbs?:){_SCHEME}[^\/?#\s]*@"  # these write a repository or a container before @
_PASSWORD = rf"{_START}(?!github:){_SCHEME}[^\/?#\s\[@]*:(?!\d*([\/?#\s]|$))"  # a colon that no port follows
_QUERY = rf"{_START}{_SCHEME}[^\s?]*\?\S"

WITHOUT_SECRET = rf"^(?![\s\S]*({_USER}|{_PASSWORD}|{_QUERY}))"
"""What a text without such an address matches, as a regular expression of Python's, of JSON Schema and of browsers."""


def check(text: str, where: str) -> None:
    """Check that a text holds no address with a user, a password or a query.

    Args:
        where: the option or variable that has it, for the message, which shows nothing of the address.

    Raises:
        ValueError: it holds one.
    """
    if re.match(WITHOUT_SECRET, text):
        return
    if re.search(_USER, text) or re.search(_PASSWORD, text):
        holds, instead = "a user or password", "leave them out of it"
    else:
        holds, instead = "a query, which may be signed", "give the address of the file alone"
    raise ValueError(
        f"{where} has an address with {holds}, which everyone could read in logs, runs and versions, so nothing was started; "
        f"{instead}, and give credentials in the environment or in files of the libraries that read it (AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY, ~/.aws/credentials, FSSPEC_HTTP, ...; docs/team.md)"
    )
