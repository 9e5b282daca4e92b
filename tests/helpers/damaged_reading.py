"""A way in for files that others write, damaged inputs for it, and what counts as survived."""

import dis
import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import CodeType, FrameType

from dreamshard.files.foreign import InputError
from tests.helpers.damage import damaged, damaged_json, nested

OWN = ("dreamshard", "storage", "flows")
LONGEST_SENTENCE = 4000
NO_MEMORY = "it asks for more memory than there is"
PATIENCE_S = 10
_BUSY = 30  # times as long until an input counts as one that waits for ever


@dataclass(frozen=True)
class Reader:
    """One way in.

    Attributes:
        name: what is read.
        ending: of the file's name.
        valid: files that can be read.
        read: reads the file, and what follows from it before anything is placed.
        share: of the inputs of a trial that it gets.
    """

    name: str
    ending: str
    valid: tuple[bytes, ...]
    read: Callable[[Path], object]
    share: float = 1.0

    def inputs_of(self, most: int, scale: float) -> int:
        """How many of a trial's inputs it gets, at a scale of the trial."""
        return max(20, round(most * scale * self.share))

    def kept_by(self, trial: str) -> Path:
        """Where a trial keeps an input that is not survived."""
        name = self.name.replace(" ", "-").replace(":", "")
        return Path(tempfile.gettempdir()) / f"dreamshard-{trial}-{name}{self.ending}"

    def inputs(self, seed: int | str) -> Iterator[bytes]:
        """The valid files, then damaged ones without end; values of JSON files are also changed as such."""
        yield from self.valid
        draw = Random(seed)
        trees = [json.loads(each) for each in self.valid] if self.ending == ".json" else []
        while True:
            kind = draw.random()
            if trees and kind < 0.6:
                yield damaged_json(draw.choice(trees), draw)
            elif trees and kind < 0.62:
                yield json.dumps(nested(draw)).encode()
            else:
                yield damaged(draw.choice(self.valid), draw, self.valid)


class _TooLongError(BaseException):
    """No library catches it."""


@contextmanager
def _patience(seconds: int) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooLongError

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of processor time, which a busy machine does not change
    signal.alarm(_BUSY * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def problem(reader: Reader, file: Path) -> str | None:
    """What is wrong with how the file is read: None if it is read, or refused in one sentence of this project's."""
    try:
        with _patience(PATIENCE_S):
            reader.read(file)
    except _TooLongError:
        return f"takes more than {PATIENCE_S} s"
    except Exception as error:  # noqa: BLE001 - which errors come out is what is tried
        return _fault(error)
    return None


def _fault(error: Exception) -> str | None:
    """What keeps an error from being one sentence: None for what a `raise` of this project raises for people."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    module = str(trace.tb_frame.f_globals.get("__name__", ""))
    named = f"{type(error).__name__} in {module}:{trace.tb_lineno}: {str(error)[:150]!r}"
    if type(error) not in (ValueError, InputError) or module.split(".")[0] not in OWN:
        return named
    if not _raises(trace.tb_frame.f_code, trace.tb_lasti):
        return f"a library's {named}"
    if NO_MEMORY in str(error):  # only a limit of the trial's kept it from taking what the machine has
        return named
    return f"{len(str(error))} characters in {named}" if len(str(error)) > LONGEST_SENTENCE else None


def _raises(code: CodeType, at: int) -> bool:
    """Whether the instruction is a `raise`, rather than a call of something written in C."""
    return dis.opname[code.co_code[at]] == "RAISE_VARARGS"


def json_bytes(content: object) -> bytes:
    """A value as a valid file of JSON."""
    return json.dumps(content, indent=1).encode()
