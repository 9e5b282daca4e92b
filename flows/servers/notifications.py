"""Who is notified of failed retrainings: a notification block of Prefect, found or made from an address.

`DREAMSHARD_NOTIFY` (or `--notify`) is `TYPE/NAME` of a block that exists, such as `slack-webhook/team`, or an address:

    https://host/path                a webhook, which gets a JSON object with `subject`, `body` and `text` (both)
    mailtos://USER:PASSWORD@HOST?... e-mail, as Apprise writes it (https://github.com/caronc/apprise/wiki/Notify_email)

or another address of Apprise. Without it a block named `dreamshard`, of any type, is taken. An address becomes that block, as
one of its secrets: Prefect encrypts it and does not show it.
"""

import re
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from apprise import Apprise
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import BlockDocument
from prefect.exceptions import ObjectNotFound
from prefect.types import SecretDict
from pydantic import SecretStr

from flows.servers.names import NOTIFY

NAME = "dreamshard"
_PAGE = 200
_MADE = ("custom-webhook", "slack-webhook")
"""Types of the blocks that addresses become."""
_WITH_HOST = ("http", "https", "mailto", "mailtos")

_MAKE = (
    f"set {NOTIFY} to an address such as mailtos://USER:PASSWORD@SMTP-HOST?to=team@example.com or https://HOST/WEBHOOK, or "
    f"make a notification block named {NAME} on Prefect's page Blocks, and deploy again"
)
HOW = f"nobody is notified when a retraining fails: {_MAKE}"


@dataclass(frozen=True, kw_only=True)
class Recipient:
    """A notification block: its address without secrets, else its type and name, and its identity on the server."""

    name: str
    block: UUID


def check(asked: str) -> None:
    """Check what can be checked without a server.

    Raises:
        ValueError: `asked` is neither an address that can be sent to nor `TYPE/NAME`.
    """
    if "://" in asked:
        scheme = asked.partition("://")[0]
        if scheme not in ("http", "https") and not Apprise().add(asked):
            raise ValueError(
                f"{NOTIFY} is an address {scheme}://... to which nothing can be sent, so nobody would be notified when a "
                f"retraining fails; {_MAKE}"
            )
    elif asked.count("/") != 1 or not all(asked.split("/")):
        raise ValueError(
            f"{NOTIFY} is {asked!r}, neither an address nor TYPE/NAME of a notification block, so nobody would be notified "
            f"when a retraining fails; {_MAKE}"
        )


def find(asked: str | None) -> Recipient | None:
    """The block that notifies someone, on the server at `PREFECT_API_URL`; None if there is none.

    Args:
        asked: an address, `TYPE/NAME`, or None or empty for a block named `dreamshard`.

    Raises:
        ValueError: there is no such block, it cannot send, or several are named `dreamshard`.
    """
    if not asked:
        return _by_name()
    check(asked)
    if "://" in asked:
        return Recipient(name=_without_secrets(asked), block=_saved(block_for(asked)))
    kind, name = asked.split("/")
    with get_client(sync_client=True) as client:
        try:
            document = client.read_block_document_by_name(name, kind, include_secrets=False)
        except ObjectNotFound as error:
            raise ValueError(
                f"{NOTIFY} is {asked}, but Prefect has no block of this type and name, so nobody would be notified when a "
                f"retraining fails; {_MAKE}"
            ) from error
    if not _can_notify(document):
        raise ValueError(f"{NOTIFY} is {asked}, but this block sends no notifications; {_MAKE}")
    return Recipient(name=asked, block=document.id)


def _by_name() -> Recipient | None:
    recipients = [Recipient(name=f"{_type_of(each)}/{each.name}", block=each.id) for each in _named()]
    if len(recipients) > 1:
        names = ", ".join(each.name for each in recipients)
        raise ValueError(
            f"Prefect has several notification blocks named {NAME} ({names}), so it is unclear who is notified when a "
            f"retraining fails; set {NOTIFY} to one of them"
        )
    return recipients[0] if recipients else None


def _named() -> list[BlockDocument]:
    """All notification blocks named `dreamshard`."""
    with get_client(sync_client=True) as client:
        documents: list[BlockDocument] = []
        while page := client.read_block_documents(offset=len(documents), limit=_PAGE, include_secrets=False):
            documents += page
    return [each for each in documents if each.name == NAME and _can_notify(each)]


def block_for(address: str) -> NotificationBlock:
    """The block that sends to an address."""
    if address.startswith(("http://", "https://")) and "hooks.slack" not in address:
        content = {"subject": "{{subject}}", "body": "{{body}}", "text": "{{subject}}\n{{body}}"}
        secrets = SecretDict({"address": address})
        return CustomWebhookNotificationBlock(
            name=NAME, url="{{address}}", json_data=content, headers=None, cookies=None, secrets=secrets
        )
    return SlackWebhook(url=SecretStr(address), notify_type="failure")  # hands any address to Apprise


def _without_secrets(address: str) -> str:
    """What an address may be called in public; hosts only where the scheme has them, others write tokens there."""
    scheme, _, rest = address.partition("://")
    host = re.split(r"[/?#]", rest)[0].rpartition("@")[2]
    is_host = scheme in _WITH_HOST and re.fullmatch(r"[\w.-]+(:\d+)?", host)
    return f"{scheme}://{host if is_host else '...'}"


def _saved(block: NotificationBlock) -> UUID:
    """Save the block as the one named `dreamshard` on the server; returns its identity there."""
    identity = cast(UUID, block.save(NAME, overwrite=True))  # a coroutine only inside an event loop
    with get_client(sync_client=True) as client:
        for document in _named():
            if document.id != identity and _type_of(document) in _MADE:
                client.delete_block_document(document.id)  # of an earlier address
    return identity


def _can_notify(document: BlockDocument) -> bool:
    return document.block_schema is not None and "notify" in document.block_schema.capabilities


def _type_of(document: BlockDocument) -> str:
    return "block" if document.block_type is None else document.block_type.slug
