"""The pickle in a file of `torch.save`, interpreted rather than obeyed.

A pickle is a program: even one that may run no code may ask for any amount of memory. Only the opcodes of plain values and
containers are known here, and one call, that of a plain tensor. A value takes at most some hundred times the bytes that
describe it.
"""

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

_DTYPES = {
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "BoolStorage": torch.bool,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
_MOST_AXES = 64
_END = 2**63


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """What a pickle says of a tensor: the storage that it is on, and how; numbers are from 0 to 2**63."""

    key: str
    dtype: torch.dtype
    storage_values: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def interpreted(pickled: bytes) -> Any:
    """The value of a pickle, with a `StoredTensor` for each tensor.

    Raises:
        TypeError: it has an opcode, a name or a call that plain tensors do not need.
        Exception: it is no pickle.
    """
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(pickled):
        step = _STEPS.get(opcode.name)
        if step is None:
            raise TypeError(f"its pickle has the opcode {opcode.name}")
        step(machine, argument)
    [value] = machine.stack
    return value


class _Call:
    """What a pickle may call."""


_REBUILD, _NO_HOOKS = _Call(), _Call()
_CALLS = {"torch._utils _rebuild_tensor_v2": _REBUILD, "collections OrderedDict": _NO_HOOKS}


@dataclass(frozen=True, eq=False)
class _Storage:
    dtype: torch.dtype
    key: str
    values: int


@dataclass
class _Machine:
    """A stack of values, where the sequences on it begin, and values that are used again."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def popped(self, count: int | None = None) -> list[Any]:
        """The last values, or those since the last mark, taken off the stack."""
        at = self.marks.pop() if count is None else len(self.stack) - count
        if not 0 <= at <= len(self.stack):
            raise TypeError("its pickle takes what is not there")
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def fill(self, values: list[Any]) -> None:
        """Add values to the list, or keys and values to the dictionary, that is last."""
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, dict) and all(isinstance(key, str | int | float) for key in values[::2]):
            target.update(zip(values[::2], values[1::2], strict=True))  # hashing nested tuples could take for ever
        else:
            raise TypeError("its pickle fills something other than a list or dictionary")


def _named(name: str) -> Any:
    module, _, member = name.partition(" ")
    if module == "torch" and member in _DTYPES:
        return _DTYPES[member]
    if name not in _CALLS:
        raise TypeError(f"its pickle names {name[:80]!r}")
    return _CALLS[name]


def _storage(identity: Any) -> _Storage:
    """What the pickle refers to; where the storage was when it was saved does not matter."""
    if isinstance(identity, tuple) and len(identity) == 5:
        kind, dtype, key, _, values = identity
        if kind == "storage" and isinstance(dtype, torch.dtype) and isinstance(key, str) and _is_count(values):
            return _Storage(dtype, key, values)
    raise TypeError("its pickle refers to something other than a storage")


def _called(call: Any, arguments: Any) -> Any:
    if call is _NO_HOOKS and arguments == ():
        return {}
    if call is _REBUILD and isinstance(arguments, tuple) and len(arguments) == 6:
        storage, offset, shape, stride, _, _ = arguments
        axes = isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride) <= _MOST_AXES
        if isinstance(storage, _Storage) and axes and all(map(_is_count, (offset, *shape, *stride))):
            return StoredTensor(storage.key, storage.dtype, storage.values, offset, shape, stride)
    raise TypeError("its pickle calls something that makes no plain tensor")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _END


_Step = Callable[[_Machine, Any], None]


def _pushed(value: Callable[[_Machine, Any], Any]) -> _Step:
    return lambda machine, argument: machine.stack.append(value(machine, argument))


def _remember(machine: _Machine, number: int) -> None:
    machine.memo[number] = machine.stack[-1]


def _nothing(_machine: _Machine, _argument: Any) -> None:
    """Protocol and end."""


_GIVEN = _pushed(lambda _, argument: argument)
_REMEMBERED = _pushed(lambda machine, number: machine.memo[number])
_STEPS: Mapping[str, _Step] = {
    "PROTO": _nothing,
    "STOP": _nothing,
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "NONE": _pushed(lambda *_: None),
    "NEWTRUE": _pushed(lambda *_: True),
    "NEWFALSE": _pushed(lambda *_: False),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), _GIVEN),
    "EMPTY_TUPLE": _pushed(lambda *_: ()),
    "EMPTY_LIST": _pushed(lambda *_: []),
    "EMPTY_DICT": _pushed(lambda *_: {}),
    "TUPLE1": _pushed(lambda machine, _: tuple(machine.popped(1))),
    "TUPLE2": _pushed(lambda machine, _: tuple(machine.popped(2))),
    "TUPLE3": _pushed(lambda machine, _: tuple(machine.popped(3))),
    "TUPLE": _pushed(lambda machine, _: tuple(machine.popped())),
    "APPEND": lambda machine, _: machine.fill(machine.popped(1)),
    "APPENDS": lambda machine, _: machine.fill(machine.popped()),
    "SETITEM": lambda machine, _: machine.fill(machine.popped(2)),
    "SETITEMS": lambda machine, _: machine.fill(machine.popped()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _REMEMBERED),
    "GLOBAL": _pushed(lambda _, name: _named(name)),
    "BINPERSID": _pushed(lambda machine, _: _storage(*machine.popped(1))),
    "REDUCE": _pushed(lambda machine, _: _called(*machine.popped(2))),
}
