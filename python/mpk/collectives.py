"""Collectives of torch.distributed as operators of a program: all_reduce by sum, all_gather_into_tensor and
reduce_scatter_tensor by sum, over all processes, on the CPU.

Each is a `post` and a `collect` or `collect_sum` (src/op/posted.h), in the order of the graph: a post reads what the
exchange before it has collected.  All other collectives stay with PyTorch (order.py).
"""

from __future__ import annotations

import ctypes
import math
import zlib
from typing import Any

import torch
import torch.distributed as dist

from mpk import graph as mg
from mpk._library import Error
from mpk.emit import DTYPES, Emitter, Slot, Unsupported, Val, unfolded
from mpk.lowering import lower
from mpk.order import is_wait
from mpk.rooms import FLAGS, KIND_BITS, SIDE_BYTES, Room, join, rows_of

EXCHANGED = {torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64}
ops = torch.ops._c10d_functional if dist.is_available() else None
TARGETS = (
    {ops.all_reduce.default, ops.all_gather_into_tensor.default, ops.reduce_scatter_tensor.default} if ops else set()
)


class Exchanges:
    """Those of one program, and the slots that say where they lie in the room."""

    def __init__(self, room: Room) -> None:
        self.room, self.last = room, None
        self.rows: list[tuple] = []  # of each: kind, rows, words, numbers of its slots, bytes of one rank
        self.number = ctypes.c_int64()
        self.inputs: dict[str, tuple[mg.Tensor, int]] = {}
        self.placed: int | None = None  # the side on which self.rows[0] lies

    def finish(self, e: Emitter) -> None:
        """The last exchange is waited for even if nothing reads it."""
        e.graph.output(self.last)

    def place(self, addresses: Any) -> None:
        """Where each exchange lies from the room's number on."""
        room, number = self.room, self.room.number
        self.number.value = number
        if self.placed == number % 2:
            return
        self.placed = number % 2
        addresses[self.inputs["number"][1]] = ctypes.addressof(self.number)
        addresses[self.inputs["trouble"][1]] = room.trouble_at(room.rank)
        for j, (_, _, _, (mine, flags, everything, every_flag), n_bytes) in enumerate(self.rows):
            addresses[everything] = room.data_at(number + j)
            addresses[mine] = room.data_at(number + j) + room.rank * n_bytes
            addresses[every_flag] = room.flags_at(number + j)
            addresses[flags] = room.flags_at(number + j, room.rank)

    def run(self, program: mg.Program) -> None:
        room = self.room
        with room.lock:
            room.begin([(room.number + j, *row[:3]) for j, row in enumerate(self.rows)])
            self.place(program.addresses)
            try:
                program.call()
            except Error as problem:
                room.give_up(str(problem))
                raise
            room.end()


# ---- which ones ----


def whole_group(name: Any) -> bool:
    """Are all processes in this group?"""
    group = dist.distributed_c10d._resolve_process_group(name) if isinstance(name, str) else name
    return dist.get_process_group_ranks(group) == list(range(dist.get_world_size()))


def can_be_exchanged(node: torch.fx.Node) -> bool:
    """Is it one that a program can run?  The answer is the same in all processes."""
    if node.target not in TARGETS or not dist.is_initialized() or dist.get_world_size() < 2:
        return False
    given, fake = node.args[0].meta.get("val"), node.meta.get("val")
    if not all(isinstance(v, torch.Tensor) and v.device.type == "cpu" and v.numel() for v in (given, fake)):
        return False
    if any(isinstance(n, torch.SymInt) for n in given.shape) or given.dtype not in EXCHANGED or not given.dim():
        return False
    adds = node.target is not ops.all_gather_into_tensor.default
    if adds and node.args[1] != "sum" or len(given.shape) > mg.MAX_RANK or len(fake.shape) > mg.MAX_RANK:
        return False
    fits = given.numel() * given.element_size() * dist.get_world_size() <= SIDE_BYTES
    return fits and whole_group(node.args[-1])


def exchanged_nodes(gm: torch.fx.GraphModule) -> tuple[set[torch.fx.Node], Room | str | None]:
    """The collectives that programs run, with the waits for them, and the room; or the reason why there is none."""
    nodes = {n for n in gm.graph.nodes if n.op == "call_function" and can_be_exchanged(n)}
    room = join() if nodes else None
    if not isinstance(room, Room):
        return set(), room
    return nodes | {n for n in gm.graph.nodes if n.op == "call_function" and is_wait(n) and n.args[0] in nodes}, room


# ---- as operators ----


def _slot(e: Emitter, name: str) -> int:
    e.slots.append(Slot(name, "shared", len(e.slots)))
    return len(e.slots) - 1


def _input(e: Emitter, name: str, dtype: int, shape: list[int]) -> tuple[mg.Tensor, int]:
    return e.graph.input(name, dtype, shape), _slot(e, name)


def exchange(e: Emitter, x: Val, kind: str, parts: int, words: str, **attributes: int) -> Val:
    """Post x and collect what all have posted, by operator `kind`.  parts: of the rows, for as many processes."""
    exchanges = e.exchanges
    if exchanges is None:
        raise Unsupported("other processes take part")
    room, j = exchanges.room, len(exchanges.rows)
    for name in () if exchanges.inputs else ("number", "trouble"):
        exchanges.inputs[name] = _input(e, name, mg.I64, [])
    number, trouble = (exchanges.inputs[name][0] for name in ("number", "trouble"))
    rows, columns = rows_of(x.shape, parts)
    words = f"{words} of {DTYPES[x.dtype][1]}{list(x.shape)}"
    same = {"index": j, "kind": zlib.crc32(words.encode()) & ((1 << KIND_BITS) - 1)}
    after = [exchanges.last] if exchanges.last is not None else []
    given = e.tensor(e.reshape(x, (rows, columns)))
    mine, flags = e.graph.operator("post", [given, number, *after], f"post{j}", **same)
    for t in mine, flags:
        e.graph.output(t)
    slots = _slot(e, f"post{j}"), _slot(e, f"post{j}.1")
    every, at = _input(e, f"all{j}", DTYPES[x.dtype][0], [room.world, rows, columns])
    every_flag, flags_at = _input(e, f"flags{j}", mg.I64, [room.world, FLAGS])
    if kind == "collect_sum":
        each = rows // parts
        attributes = {"first": room.rank * each if parts > 1 else 0, "rows": each}
    (y,) = e.graph.operator(kind, [mine, every, every_flag, number, trouble], None, **same, **attributes)
    exchanges.rows.append((same["kind"], rows, words, (*slots, at, flags_at), math.prod(x.shape) * x.dtype.itemsize))
    exchanges.last = y
    return Val(y.shape, x.dtype, y)


if ops:
    unfolded.update(TARGETS | {ops.wait_tensor.default})

    @lower(ops.all_reduce.default)
    def all_reduce(e, x, op, group):
        return e.reshape(exchange(e, x, "collect_sum", 1, "all_reduce"), x.shape)

    @lower(ops.all_gather_into_tensor.default)
    def all_gather(e, x, n, group):
        y = exchange(e, x, "collect", 1, "all_gather_into_tensor")
        return e.reshape(y, (n * x.shape[0], *x.shape[1:]))

    @lower(ops.reduce_scatter_tensor.default)
    def reduce_scatter(e, x, op, n, group):
        y = exchange(e, x, "collect_sum", n, "reduce_scatter_tensor")
        return e.reshape(y, (x.shape[0] // n, *x.shape[1:]))

    @lower(ops.wait_tensor.default)
    def wait(e, x):
        return x
