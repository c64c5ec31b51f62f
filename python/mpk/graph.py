"""Tensor programs by hand: include/mpk/graph.h in Python, without PyTorch.

    g = Graph("two")
    x = g.input("x", F32, [4, 64])
    y, = g.operator("softmax", [x])
    g.output(y)
    program = g.compile({})

A tensor is its number in the graph.  Shapes and dtypes of results are inferred by the library.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from typing import Union

from mpk import _library as c

F32, F16, BF16, F64, I32, I64, BOOL = range(7)
U8, I8, I16 = 17, 18, 19
INPUT, CONSTANT, STATE = range(3)
MODE_KERNEL, MODE_CALLS = 0, 3
MAX_RANK, MAX_INPUTS = 6, 20
MAX_JOINED = 14  # inputs of an operator with one result that a body of a GPU takes; RT_PACKED in src/rt/rt_lane.h
ABSENT = 0xFFFFFFFF

AttributeValue = Union[bool, int, float, str, Sequence[int]]


class Tensor:
    """A tensor of a graph: its number, shape and dtype."""

    __slots__ = ("id", "shape", "dtype")

    def __init__(self, id: int, shape: tuple[int, ...], dtype: int) -> None:
        self.id, self.shape, self.dtype = id, shape, dtype


class Graph:
    """A tensor program that is being built."""

    def __init__(self, name: str) -> None:
        self._handle = ctypes.c_void_p()
        c.call(c.lib.mpk_graph_create, name.encode(), ctypes.byref(self._handle))
        self._free = c.lib.mpk_graph_free
        self.n_operators = 0

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and hasattr(self, "_free"):
            self._free(self._handle)

    def _add(self, kind: int, name: str, dtype: int, shape: Sequence[int]) -> Tensor:
        out = c.TensorId()
        c.call(
            c.lib.mpk_graph_tensor,
            self._handle,
            kind,
            name.encode(),
            dtype,
            len(shape),
            _ints(shape),
            ctypes.byref(out),
        )
        return Tensor(out.id, tuple(shape), dtype)

    def input(self, name: str, dtype: int, shape: Sequence[int]) -> Tensor:
        """May differ in each run."""
        return self._add(INPUT, name, dtype, shape)

    def constant(self, name: str, dtype: int, shape: Sequence[int]) -> Tensor:
        """Bound when the program is compiled, and never written."""
        return self._add(CONSTANT, name, dtype, shape)

    def state(self, name: str, dtype: int, shape: Sequence[int]) -> Tensor:
        """Kept from run to run; operators write it in place."""
        return self._add(STATE, name, dtype, shape)

    def operator(
        self, kind: str, operands: Sequence[Tensor | None], name: str | None = None, /, **attributes: AttributeValue
    ) -> list[Tensor]:
        """Add an operator; None is an absent operand.  Its results, described."""
        if len(operands) > MAX_INPUTS:
            raise c.LimitError(f"{kind} has {len(operands)} operands, at most {MAX_INPUTS} are possible")
        operand_ids = (c.TensorId * len(operands))(*((ABSENT if t is None else t.id,) for t in operands))
        records, kept = (c.Attribute * len(attributes))(), []
        for record, (key, value) in zip(records, attributes.items()):
            _set_attribute(record, key, value, kept)
        out = (c.TensorId * 4)(*((ABSENT,),) * 4)
        c.call(
            c.lib.mpk_graph_operator,
            self._handle,
            kind.encode(),
            name.encode() if name else None,
            len(operands),
            operand_ids,
            len(attributes),
            records,
            out,
        )
        self.n_operators += 1
        return [self.describe(t.id) for t in out if t.id != ABSENT]

    def output(self, tensor: Tensor) -> None:
        """The tensor can be read after a run."""
        c.call(c.lib.mpk_graph_output, self._handle, c.TensorId(tensor.id))

    def describe(self, tensor: int) -> Tensor:
        dtype, rank, dims = ctypes.c_int(), ctypes.c_uint32(), (ctypes.c_int64 * MAX_RANK)()
        c.call(
            c.lib.mpk_graph_describe, self._handle, c.TensorId(tensor), ctypes.byref(dtype), ctypes.byref(rank), dims
        )
        return Tensor(tensor, tuple(dims[: rank.value]), dtype.value)

    def text(self) -> str:
        """The text form (docs/text-form.md)."""
        return c.text_of(c.lib.mpk_graph_print, self._handle)

    def compile(
        self,
        constants: Mapping[str, tuple[int, int]],
        threads: int = 0,
        gpu: int | None = None,
        profile: bool = False,
    ) -> Program:
        """constants: name -> (address, bytes), which must stay as long as the program.  gpu: None: the CPU; else the
        number of a GPU: all addresses, also those of `launch`, are of its memory.  profile: let the program note where
        its time goes, which costs some."""
        return Program(self._handle, constants, threads, gpu, profile)


class Program:
    """A compiled tensor program with its workers.  One thread at a time may call it."""

    def __init__(
        self,
        graph: ctypes.c_void_p,
        constants: Mapping[str, tuple[int, int]],
        threads: int,
        gpu: int | None = None,
        profile: bool = False,
    ) -> None:
        bindings = (c.Binding * len(constants))(*((n.encode(), at, size) for n, (at, size) in constants.items()))
        options = c.EngineOptions(size=ctypes.sizeof(c.EngineOptions), threads=threads, profile=profile)
        if gpu is not None:
            options.device, options.mode = f"cuda:{gpu}".encode(), MODE_CALLS
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        self._close, self._process, self._forks = c.lib.mpk_program_close, c.Process, c.Process.forks
        c.call(
            c.lib.mpk_program_compile,
            graph,
            len(constants),
            bindings,
            ctypes.byref(options),
            ctypes.byref(self._handle),
        )
        self.n_slots, self.addresses = ctypes.c_uint32(0), (ctypes.c_uint64 * 0)()
        self._stream = ctypes.c_void_p()

    def name_slots(self, names: Sequence[str]) -> None:
        """Name the tensors whose addresses `call` and `launch` read from self.addresses, in this order."""
        texts = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        c.call(c.lib.mpk_program_name_slots, self._handle, len(names), texts)
        self.n_slots, self.addresses = ctypes.c_uint32(len(names)), (ctypes.c_uint64 * len(names))()

    def call(self) -> None:
        """Run once; each of self.addresses is that of the bytes of its slot, dense and row-major, of the right size."""
        if self._forks != c.Process.forks:
            c.Process.check(self._forks)
        status = c.lib.mpk_program_call(c.context.handle, self._handle, self.n_slots, self.addresses)
        if status:
            c.fail(status)

    def launch(self, stream: int, after: Program | None = None) -> None:
        """Of a GPU: put one run with the tensors at self.addresses on a stream (CUstream; 0: the default one), after
        the last run of `after`, and return."""
        if self._forks != c.Process.forks:
            c.Process.check(self._forks)
        self._stream.value = stream
        status = c.lib.mpk_program_launch(
            c.context.handle, self._handle, after and after._handle, self._stream, self.n_slots, self.addresses
        )
        if status:
            c.fail(status)

    def wait(self) -> None:
        """Of a GPU: until the last run has ended; raises what it failed with."""
        c.call(c.lib.mpk_program_wait, self._handle)

    def touch(self, slot: int) -> None:
        """Of a GPU: the constant in this slot has got new values where it is."""
        c.call(c.lib.mpk_program_touch, self._handle, slot)

    def describe(self) -> dict:
        """Operators, tasks, events, how many operators of each kind, the code that runs them, the device, names of
        constants of which the program keeps a copy in another order."""
        return json.loads(c.text_of(c.lib.mpk_program_describe, self._handle))

    def profile(self) -> dict:
        """Compiled with a profile: where the time of the last run went, by kind of operator (the fields are those of
        mpk_engine_profile in mpk.h); waits for it."""
        return json.loads(c.text_of(c.lib.mpk_program_profile, self._handle))

    def close(self) -> None:
        """Stop the workers and free all memory.  It is also called when Python ends and has emptied its modules."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle and self._forks == self._process.forks:
            self._close(handle)

    def __del__(self) -> None:
        if hasattr(self, "_close"):
            self.close()


def _ints(values: Sequence[int]):
    return (ctypes.c_int64 * len(values))(*values)


def _set_attribute(record: c.Attribute, name: str, value: AttributeValue, kept: list) -> None:
    record.name = name.encode()
    if isinstance(value, str):
        record.s = value.encode()
    elif isinstance(value, float):
        record.f, record.i = value, int(value) if value == value and abs(value) < 2**62 else 0
    elif isinstance(value, int):
        record.i, record.f = value, value
    else:
        array = _ints([int(v) for v in value])
        kept.append(array)
        record.ints, record.n_ints = array, len(array)
