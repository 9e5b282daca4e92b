"""Places the tables of a list or a model under constraints, as the command `place` does."""

from pathlib import Path
from typing import Any

from flows.forms.form import deployed
from flows.forms.options import PlaceOptions
from flows.placing.given_limits import file_or_text
from flows.placing.request import PlaceRequest
from flows.tasks.requested_plan import place_tables
from storage.store import open_store


@deployed("place")
def place(options: PlaceOptions) -> dict[str, Any]:
    """Tables and constraints -> plan in the store, and a page on what it costs and moves."""
    given = {
        "tables": Path(options.tables),
        "constraints": file_or_text(options.constraints),
        "current": Path(options.current) if options.current else None,
        "current_tables": Path(options.current_tables) if options.current_tables else None,
    }
    return place_tables(open_store(), PlaceRequest(**{**vars(options), **given}))
