"""A person's own function as a source, `model.py:make_model` or `package.model:make_model`: found, imported and called."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from dreamshard.files.text import first_line

_REFERENCE = re.compile(r"(?P<place>.*\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")


def is_function(source: str) -> bool:
    """Whether a source is written as a function in a file or module."""
    return _REFERENCE.fullmatch(source) is not None


def call(source: str, consequence: str) -> Any:
    """The function's result, called without arguments.

    Its folder is added to the import path, as when Python runs the file.

    Args:
        source: `FILE.py:FUNCTION` or `MODULE:FUNCTION`.
        consequence: of an error, for messages: `there is no model`.

    Raises:
        ValueError: there is no such file, module or function, or it raises an error, which the message repeats.
    """
    match = _REFERENCE.fullmatch(source)
    if match is None:
        raise ValueError(f"{source!r} names no function, so {consequence}; give FILE.py:FUNCTION or MODULE:FUNCTION")
    place = match["place"]
    is_file = place.endswith(".py")
    folder = str(Path(place).absolute().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that nothing installed is hidden
    try:
        module = _imported(place) if is_file else importlib.import_module(place)
        if not hasattr(module, name := match["function"]):
            raise NameError(f"there is no function {name}")
        return getattr(module, name)()
    except (Exception, SystemExit) as error:
        kind, text = type(error).__name__, first_line(error)
        detail = kind if text == kind else f"{kind}: {text}"
        raise ValueError(f"{source} raises {detail}, so {consequence}; correct it, --debug shows where") from error


def _imported(place: str) -> ModuleType:
    """A file as a module of its own name, or of another if that is taken."""
    file = Path(place).absolute()
    loaded = sys.modules.get(file.stem)
    is_free = loaded is None or loaded.__file__ == str(file)
    spec = importlib.util.spec_from_file_location(file.stem if is_free else f"{file.stem}_of_{abs(hash(file))}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses and pickles of its own
    spec.loader.exec_module(module)
    return module
