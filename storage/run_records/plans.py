"""The plans of a model: numbered files, one of which is current, for a trainer to read.

<store>/plans/<model>/<number>.json  a plan, written once; its page of HTML is beside it
<store>/plans/<model>/current.json   a copy of the current plan
"""

from datetime import datetime

from pydantic import computed_field

from dreamshard.plan import Name, Plan
from storage.filesystem import AnyPath, list_files, write_text
from storage.store import Store

PREVIOUS = "previous"
"""Names the plan that the current one has replaced."""


class ModelPlan(Plan):
    """A numbered plan, and the reason to use it.

    Attributes:
        version: URI of the version that placed the tables.
        dataset: version of the tables.
        evidence: its measured or predicted gain, with an interval if one is known.
        replaces: number of the plan that was current before; None for the first.
        current_since: when it became current; None before.
        current_because: why it became current, and who decided.
    """

    model: Name
    number: int
    made_at: datetime
    version: Name
    dataset: Name
    evidence: str
    replaces: int | None = None
    current_since: datetime | None = None
    current_because: str = ""

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def roll_back(self) -> str:
        """The command that brings the plan before back; empty for the first."""
        return "" if self.replaces is None else f"dreamshard promote --model {self.model} --plan {self.replaces}"


def path(store: Store, model: str, name: int | str = "current") -> AnyPath:
    """File of a plan by its number, or of the current one."""
    return store.plans / model / f"{name}.json"


def numbers(store: Store, model: str) -> list[int]:
    """Numbers of all plans of a model, in order."""
    names = (path.stem for path in list_files(store.plans / model, "*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def current(store: Store, model: str) -> ModelPlan | None:
    """The current plan; None before the first."""
    file = path(store, model)
    return ModelPlan.model_validate_json(file.read_bytes()) if file.exists() else None


def read(store: Store, model: str, name: str) -> ModelPlan:
    """A plan by its number, or `previous`.

    Raises:
        ValueError: there is no such plan; the message lists the existing ones.
    """
    now, known = current(store, model), numbers(store, model)
    wanted = str(now.replaces) if now and name == PREVIOUS else name
    if wanted not in map(str, known):
        raise ValueError(f"there is no plan {name!r} of model {model!r} in {store.plans}; it has {known or 'none'}")
    return ModelPlan.model_validate_json(path(store, model, wanted).read_bytes())


def write(store: Store, plan: ModelPlan, name: int | str) -> AnyPath:
    """Write a plan under its number, or as the current one; a reader sees all of it or the one before."""
    file = path(store, plan.model, name)
    write_text(file, plan.to_json())
    return file
