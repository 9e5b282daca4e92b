"""One champion per topology, and the topology that the alias `champion` belongs to.

A version is champion of its topology by the tag `champion_of`; the alias `champion` names the one of this home's setting.
Each algorithm has champions of its own. The setting is one for all of them: the registered model `dreamshard` keeps it in its
tags, so that a team shares it. The rules are in `standings`.
"""

import time

from mlflow.exceptions import MlflowException

from storage.mlflow_store import registry
from storage.mlflow_store.runs import client
from storage.mlflow_store.standings import HomeSetting, champions_among
from storage.settings import REGISTERED_MODELS, Settings

_KEEPS_SETTING = REGISTERED_MODELS["dreamshard"]


def champions(settings: Settings) -> dict[str, str]:
    """The algorithm's champion of every topology: topology in words to version; empty before the first."""
    return champions_among(registry.tags_by_version(settings))


def champion_of(settings: Settings, topology: str | None) -> str | None:
    """The champion of a topology, or None before the first.

    A version that has the alias `champion` and does not say of which topology it is counts for all that have no champion.

    Args:
        topology: in words (`Topology`); None for an unknown one, whose champion is the version with the alias.
    """
    in_use = registry.champion(settings)
    known = champions_among(registry.tags_by_version(settings))
    if topology in known:
        return known[topology]
    return in_use if topology is None or in_use not in known.values() else None


def home_setting(settings: Settings) -> HomeSetting | None:
    """The testbed and devices that the alias `champion` belongs to; None if nobody set them."""
    try:
        model = client(settings).get_registered_model(_KEEPS_SETTING)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return HomeSetting.of_tags(model.tags)


def set_home_setting(settings: Settings, testbed: str | None, num_devices: int | None) -> None:
    """Set the testbed and devices that the alias `champion` belongs to; both None to leave that to the versions.

    The alias itself moves with the next promotion, or by `dreamshard promote VERSION`.

    Args:
        testbed: its name on the command line.
        num_devices: number of devices; None for any.
    """
    former = home_setting(settings)
    if (testbed or None, num_devices) == ((former.testbed, former.num_devices) if former else (None, None)):
        return
    registry.ensure_model(settings.of("dreamshard"))
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    for name, value in HomeSetting(testbed=testbed, num_devices=num_devices, since=now).tags().items():
        client(settings).set_registered_model_tag(_KEEPS_SETTING, name, value)
