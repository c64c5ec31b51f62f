"""torch.compile(backend="mpk"): PyTorch programs as tensor programs, on the CPU or on a GPU.

Dynamo captures, AOTAutograd makes the graph functional and decomposes what no lowering does whole.  Here each graph,
once its shapes are numbers, becomes one tensor program, or several with operators of PyTorch between them where some
are not supported.  Graphs with symbolic shapes are handed to shapes.py.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from mpk import decompositions as own
from mpk import collectives, lowering, lowering_index, lowering_math, whole  # noqa: F401  (they fill the table)
from mpk import recurrences  # noqa: F401
from mpk._library import ArgumentError, Error
from mpk.emit import Emitter, Foreign, Slot, Unsupported, Val, _flat, dense_order, is_permuted, table
from mpk.graph import Program
from mpk.moves import without_moves
from mpk.once import compile_once, made_of_parts, mark_weights, run_as_it_was, weights_of
from mpk.order import ordered_nodes
from mpk.pairs import without_complex
from mpk.results import given, place_results, view_of
from mpk.shapes import (
    STATIC,
    Part,
    compile_between,
    compile_symbolic,
    device_of,
    is_symbolic,
    placeholders,
    return_list,
)
from mpk.statics import Statics, address_of, count_changes_of_parts, pick

MAX_THREADS = 1024  # workers that the library takes
STAND_IN = 1 << 20  # numbers of arguments from here on stand for results of PyTorch
aten = torch.ops.aten


class TrainingError(RuntimeError):
    """The backend runs inference only."""


@dataclasses.dataclass
class Options:
    """threads: workers of a program (0: as many as PyTorch uses); profile: programs note where their time goes;
    collectives: on the CPU programs run collectives that all processes share, where they can; reports: where to note
    what was compiled."""

    threads: int = 0
    profile: bool = False
    collectives: bool = True
    reports: list[Report] | None = None

    def __post_init__(self) -> None:
        is_number = isinstance(self.threads, int) and not isinstance(self.threads, bool)
        if not is_number or not 0 <= self.threads <= MAX_THREADS:
            raise ArgumentError(
                f"option threads is {self.threads!r}, expected a whole number from 1 to {MAX_THREADS}, "
                "or 0 for as many as PyTorch uses"
            )
        for name in "profile", "collectives":
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"option {name} is {getattr(self, name)!r}, expected True or False")


def options_of(given: Any) -> Options:
    """What torch.compile was given as options."""
    if isinstance(given, Options):
        return given
    if not isinstance(given, (Mapping, type(None))):
        raise ArgumentError(f'options is {given!r}, expected a dictionary, as {{"threads": 4}}')
    names = [field.name for field in dataclasses.fields(Options)]
    unknown = [name for name in given or {} if name not in names]
    if unknown:
        raise ArgumentError(f"unknown option {unknown[0]!r}; the options are {', '.join(names)}")
    return Options(**(given or {}))


@dataclasses.dataclass
class Report:
    """What became of one graph: facts of each program, reasons by operator of what stayed with PyTorch, how many
    operators run once and not in each call, and how long lowering and compiling took."""

    programs: list[Program] = dataclasses.field(default_factory=list)
    fallbacks: dict[str, str] = dataclasses.field(default_factory=dict)
    n_fallbacks: int = 0
    n_once: int = 0
    seconds: float = 0.0


# ---- running ----


class Runner:
    """A program and how to call it with PyTorch's tensors.  The first call, which brings the weights, compiles it."""

    keeps_copies = False  # of what is made of weights, until PyTorch says that these have changed

    def __init__(self, gm: torch.fx.GraphModule, e: Emitter, values: dict, options: Options, report: Report) -> None:
        self.gm, self.options, self.report, self.device = gm, options, report, e.device
        (returned,) = gm.graph.find_nodes(op="output")[0].args
        checks = assertions(gm)
        self.places, self.outputs = place_results(e, values, [*returned, *(tested for tested, _ in checks)])
        self.messages = [message for _, message in checks]
        assign_mutations(gm, e, values)
        self.emitter, self.slots, self.exchanges = e, e.slots, e.exchanges
        if self.exchanges is not None:
            self.exchanges.finish(e)
        self.lock, self.program, self.refused = threading.Lock(), None, False
        self.addresses = [s.data.data_ptr() if s.data is not None else 0 for s in self.slots]
        self.inputs = [(at, s.index) for at, s in enumerate(self.slots) if s.kind == "argument"]
        self.written = {s.index for s in self.slots if s.written}
        fakes = [n.meta["val"] for n in placeholders(gm)]
        self.expected = {i: (tuple(fakes[i].shape), tuple(fakes[i].stride()), fakes[i].dtype) for _, i in self.inputs}
        # Arguments that are copied in each call: their strides are not those of a dense tensor, or what lies in memory
        # is the negative of their values.  Such a bit is part of what Dynamo's guards compare.
        self.copied = {
            i
            for i, (shape, stride, _) in self.expected.items()
            if not is_permuted(shape, stride) or fakes[i].is_neg()
        }
        self.seen: dict[int, int | None] = dict.fromkeys(self.expected)
        self.statics = Statics([s.index for s in self.slots if s.kind == "argument" and s.static])
        still = set(self.statics.numbers)
        self.still = [(at, i) for at, i in self.inputs if i in still]
        self.moving = [(at, i) for at, i in self.inputs if i not in still]
        self.pick_moving, self.last = pick([i for _, i in self.moving]), None
        self.results = [place[1:] for place in self.places if place[0] == "slot"]
        in_order = [(at, []) for at in range(len(self.places))]
        self.plain = len(self.results) == len(self.places) and self.outputs == in_order and not self.messages
        self.idle = not self.results and not self.written and self.exchanges is None
        self.make = maker(self.device)

    def compile(self, threads: int, gpu: int | None = None) -> Program:
        """The program for the addresses of the first call."""
        constants = {
            s.name: (self.addresses[at], _dense_bytes(s, self.expected))
            for at, s in enumerate(self.slots)
            if s.constant
        }
        begin = time.perf_counter()
        program = self.emitter.graph.compile(constants, threads, gpu, self.options.profile)
        program.name_slots([s.name for s in self.slots])
        self.report.seconds += time.perf_counter() - begin
        return program

    def adopt(self, program: Program) -> None:
        program.addresses[:] = self.addresses
        self.addresses = program.addresses
        self.emitter, self.program = None, program
        self.report.programs.append(program)

    def start(self) -> None:
        self.adopt(self.compile(self.options.threads or torch.get_num_threads()))

    def give_up(self, problem: Error) -> None:
        """The compiler refuses the program as a whole: PyTorch runs it."""
        self.refused, self.statics = True, Statics([])
        self.report.fallbacks["the whole graph"] = str(problem).splitlines()[0]
        tell(self.report)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        if self.idle:
            return self.results_of([], (), arguments)
        if self.refused:
            return run_as_it_was(self.gm, arguments)
        with self.lock:
            self.take(arguments)
            copies = (
                [self.copy_in(at, i, arguments[i]) for at, i in self.inputs if i in self.copied] if self.copied else ()
            )
            made, make, addresses = [], self.make, self.addresses
            for at, shape, stride, dtype in self.results:
                tensor = make(shape, stride, dtype)
                made.append(tensor)
                addresses[at] = tensor.data_ptr()
            if self.program is None:
                try:
                    self.start()
                except Error as problem:
                    self.give_up(problem)
                    return run_as_it_was(self.gm, arguments)
            self.run()
        return made if self.plain and not copies else self.results_of(made, copies, arguments)

    def run(self) -> None:
        """Run the program with the tensors at self.addresses."""
        if self.exchanges is None:
            self.program.call()
        else:
            self.exchanges.run(self.program)

    def take(self, arguments: list[torch.Tensor]) -> None:
        """Let the program know where the arguments lie."""
        if not self.statics.are_as_before(arguments):
            self.note(arguments, self.still)
            self.statics.hold(arguments)
        now = list(map(address_of, self.pick_moving(arguments)))
        if now != self.last:
            self.last = None  # if one of them is wrong
            self.note(arguments, self.moving)
            self.last = now

    def note(self, arguments: Sequence[torch.Tensor], which: Sequence[tuple[int, int]]) -> None:
        """Note the addresses of arguments; those that are new are checked."""
        addresses, seen = self.addresses, self.seen
        for at, i in which:
            address = arguments[i].data_ptr()
            if seen[i] != address:
                seen[i] = None  # if it is wrong, the next one is checked, wherever it lies
                self.check(i, arguments[i])
                seen[i] = address
            addresses[at] = address

    def results_of(self, made: list[torch.Tensor], copies: Any, arguments: Sequence[Any]) -> list[Any]:
        """What the call returns; what it changed in copies goes back to the arguments."""
        for tensor, copy in copies:
            if tensor is not None:
                tensor.copy_(copy)
        rest = iter(made)
        placed = [next(rest) if place[0] == "slot" else given(place, arguments) for place in self.places]
        results = [view_of(placed[at], views) for at, views in self.outputs]
        for message in reversed(self.messages):
            aten._assert_async.msg(results.pop(), message)
        return results

    def copy_in(self, at: int, i: int, tensor: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """A copy of an argument as the program wants it, and the argument if the copy is to be copied back."""
        shape, stride, dtype = self.expected[i]
        if not is_permuted(shape, stride):
            stride = lowering.contiguous_strides(shape)
        copy = torch.empty_strided(shape, stride, dtype=dtype, device=self.device).copy_(tensor)
        self.addresses[at] = copy.data_ptr()
        return tensor if i in self.written else None, copy

    def check(self, i: int, tensor: torch.Tensor) -> None:
        """Is this tensor what the program was compiled for?  Asked when its address is new."""
        shape, stride, dtype = self.expected[i]
        if tensor.device != self.device or tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ArgumentError(
                f"argument {i} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; "
                f"compiled for {dtype} {list(shape)} on {self.device}"
            )
        if tensor.is_neg() or any(n > 1 and a != b for n, a, b in zip(shape, stride, tensor.stride())):
            self.copied.add(i)
        if tensor.untyped_storage().nbytes() < tensor.storage_offset() * tensor.element_size() + _span(tensor):
            raise ArgumentError(f"argument {i}: the storage of this tensor has been freed")


def maker(device: torch.device) -> Callable:
    """What makes a tensor of a shape, strides and a dtype there, its elements of any value: the function that PyTorch's
    own compiled code calls, which takes half the time of empty_strided, if there is one."""
    fast = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)
    if fast is not None and (device.type == "cpu" or torch.cuda.device_count() == 1):
        return fast
    current = getattr(torch._C, "_cuda_getDevice", None)  # where that function makes them

    def make(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if fast is not None and current() == device.index:
            return fast(shape, stride, dtype)
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    return make


def _dense_bytes(slot: Slot, expected: dict[int, tuple]) -> int:
    shape, dtype = (slot.data.shape, slot.data.dtype) if slot.data is not None else expected[slot.index][::2]
    return math.prod(shape) * dtype.itemsize


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the last."""
    return (
        (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))) * tensor.element_size()
        if tensor.numel()
        else 0
    )


# ---- compiling ----


def mutations(gm: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, torch.fx.Node, torch.fx.Node]]:
    """(node, argument, value): what AOTAutograd says at the end about arguments that the program changes."""
    copies = [n for n in gm.graph.nodes if n.op == "call_function" and n.target is aten.copy_.default]
    return [(n, n.args[0], n.args[1]) for n in copies if n.args[0].op == "placeholder"]


def assertions(gm: torch.fx.GraphModule) -> list[tuple[torch.fx.Node, str]]:
    """What must be true in each call, with the message of the error."""
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in ASSERTIONS]
    return [(n.args[0], n.args[1] if len(n.args) > 1 else "an assertion of the model is not true") for n in nodes]


ASSERTIONS = {aten._assert_async.default, aten._assert_async.msg}
OVERWRITING = {
    aten.index_put.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter_add.default,
}


def in_place_nodes(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Nodes that may write their first argument: it is to become their result, and nobody else reads it."""
    return {
        value
        for copy, argument, value in mutations(gm)
        if value.target in OVERWRITING and value.args[0] is argument and set(argument.users) == {copy, value}
    }


def lower_graph(gm: torch.fx.GraphModule, room: Any = None) -> tuple[Emitter, dict, dict[torch.fx.Node, str]]:
    """Lower all nodes but the mutations: the program, the nodes' values, and the nodes that were not lowered with the
    reason; the others go on as if the results of those were inputs.  room: of the collectives among them."""
    e, values, changes, unsupported = Emitter("torch", device_of(gm)), {}, mutations(gm), {}
    e.exchanges = collectives.Exchanges(room) if room is not None else None
    written, late = {argument for _, argument, _ in changes}, {copy for copy, _, _ in changes}
    e.in_place = in_place_nodes(gm)
    numbers = {node: i for i, node in enumerate(placeholders(gm))}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            values[node] = _argument(e, node, numbers[node], node in written)
        elif node.op == "get_attr":
            data = getattr(gm, node.target)
            values[node] = e.folded(data) if isinstance(data, torch.Tensor) else data
        elif node in late:
            values[node] = values[node.args[1]]
        elif node.target in ASSERTIONS and isinstance(values[node.args[0]], Val):
            values[node] = None  # the runner looks at the result
        elif node.op == "call_function":
            try:
                values[node] = e.lower(node, values)
            except (Unsupported, IndexError, KeyError, TypeError, AttributeError, ValueError, RuntimeError) as problem:
                unsupported[node] = str(problem) or type(problem).__name__
                values[node] = _stand_in(e, node)
    return e, values, unsupported


def assign_mutations(gm: torch.fx.GraphModule, e: Emitter, values: dict) -> None:
    """Write changed arguments, after everything that reads their old values."""
    late = [(values[argument], values[value]) for _, argument, value in mutations(gm) if value not in e.overwritten]
    late = [(state, val) for state, val in late if state.numel and val is not state]
    late = [(state, val if val.data is not None else e.fresh(val)) for state, val in late]
    for state, val in late:
        e.assign(state, val)


def _argument(e: Emitter, node: torch.fx.Node, index: int, written: bool) -> Any:
    fake = node.meta["val"]
    if not isinstance(fake, torch.Tensor):
        return fake
    if not node.users:
        return Foreign()
    try:
        return e.argument(index, fake, written, node.meta.get(STATIC, False))
    except Unsupported:
        return Foreign()


def _stand_in(e: Emitter, node: torch.fx.Node) -> Any:
    """What lowering goes on with after a node that PyTorch runs."""

    def one(fake: Any) -> Any:
        if not isinstance(fake, torch.Tensor):
            return fake
        try:
            e.n_stand_ins += 1
            return e.argument(STAND_IN + e.n_stand_ins, fake)
        except Unsupported:
            return Foreign()

    return torch.utils._pytree.tree_map(one, node.meta.get("val"))


def runner_of(device: torch.device) -> type[Runner]:
    if device.type == "cpu":
        return Runner
    from mpk.gpu import GpuRunner

    return GpuRunner


# ---- what stays with PyTorch ----


class _Supported(OperatorSupportBase):
    def __init__(self, unsupported: dict[torch.fx.Node, str]) -> None:
        self.unsupported = unsupported

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        return node.op == "call_function" and node not in self.unsupported


def compile_parts(
    gm: torch.fx.GraphModule, unsupported: dict[torch.fx.Node, str], options: Options, report: Report
) -> Callable:
    """Partition; every part is a program, PyTorch runs the rest."""
    partitioner = CapabilityBasedPartitioner(gm, _Supported(unsupported), allows_single_node_partition=True)
    fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    for node in fused.graph.nodes:
        if node.op == "call_module" and node.target.startswith("fused_"):
            part = getattr(fused, node.target)
            many = return_list(part)
            setattr(fused, node.target, Part(compile_static(part, options, report, nested=True), many))
    fused.recompile()
    return lambda arguments: list(fused(*arguments))


def note_fallbacks(reasons: Mapping[torch.fx.Node, str], report: Report) -> None:
    for node, reason in reasons.items():
        report.fallbacks.setdefault(str(node.target), reason)
        report.n_fallbacks += 1


def compile_static(gm: torch.fx.GraphModule, options: Options, report: Report, nested: bool = False) -> Callable:
    """A function of a list of arguments, from a functional graph of known shapes."""
    return_list(gm)
    exchanged, room = collectives.exchanged_nodes(gm) if options.collectives and not nested else (set(), None)
    cuts = {} if nested else ordered_nodes(gm, exchanged, None if exchanged else room)
    if cuts:
        note_fallbacks(cuts, report)
        return compile_between(gm, cuts, lambda part: compile_static(part, options, report))
    e, values, unsupported = lower_graph(gm, room if exchanged else None)
    try:
        if not unsupported:
            return runner_of(e.device)(gm, e, values, options, report)
    except (Unsupported, Error) as problem:
        unsupported = {n: str(problem) for n in gm.graph.nodes if n.op == "call_function"}
    if exchanged:  # in the order of the graph, which is that of the other processes
        note_fallbacks(unsupported, report)
        return compile_between(gm, unsupported, lambda part: compile_static(part, options, report))
    changes = mutations(gm)
    if changes:
        return copying_back(compile_static(without_mutations(gm), options, report), changes, gm)
    note_fallbacks(unsupported, report)
    if nested or not any(n.op == "call_function" and n not in unsupported for n in gm.graph.nodes):
        return lambda arguments: run_as_it_was(gm, arguments)
    return compile_parts(gm, unsupported, options, report)


def without_mutations(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with the new values of changed arguments as further results."""
    graph = torch.fx.Graph()
    copied: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(gm.graph, copied)
    out = torch.fx.GraphModule(gm, graph)
    changes = mutations(gm)
    results = list(gm.graph.find_nodes(op="output")[0].args[0]) + [value for _, _, value in changes]
    late = {copy: value for copy, _, value in changes}
    graph.output([copied[late.get(r, r)] if isinstance(r, torch.fx.Node) else r for r in results])
    for copy, _, _ in changes:
        graph.erase_node(copied[copy])
    out.recompile()
    return out


def copying_back(function: Callable, changes: list, gm: torch.fx.GraphModule) -> Callable:
    """Run, then write the further results over the arguments."""
    order = placeholders(gm)
    changed = [order.index(argument) for _, argument, _ in changes]

    def run(arguments: Sequence[Any]) -> list[Any]:
        results = function(arguments)
        for i, value in zip(changed, results[len(results) - len(changed) :]):
            arguments[i].copy_(value)
        return results[: len(results) - len(changed)]

    return run


# ---- the backend ----

_warned: set[frozenset[str]] = set()


def compile_and_tell(gm: torch.fx.GraphModule, options: Options) -> Callable:
    report, begin = Report(), time.perf_counter()

    def compile(part: torch.fx.GraphModule) -> Callable:
        return compile_static(part, options, report)

    gm = without_moves(without_complex(gm))
    if runner_of(device_of(gm)).keeps_copies:
        function, report.n_once = compile_once(gm, compile)
    else:
        function = compile(gm)
    report.seconds += time.perf_counter() - begin
    note(report, options)
    return function


def compile_any(gm: torch.fx.GraphModule, options: Options) -> Callable:
    """Of symbolic shapes: each that comes is compiled when it does."""
    return compile_symbolic(
        gm,
        lambda part: or_pytorch(compile_and_tell, part, options),
        lambda reasons: leave_to_pytorch(reasons, options),
    )


def or_pytorch(compile: Callable, gm: torch.fx.GraphModule, options: Options) -> Callable:
    """What `compile` makes of the graph; if it fails, which is a fault of the backend's, PyTorch runs the graph."""
    try:
        return compile(gm, options)
    except Exception as problem:
        reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
        leave_to_pytorch({"the whole graph": reason}, options)
        return lambda arguments: run_as_it_was(gm, arguments)


def leave_to_pytorch(reasons: dict[str, str], options: Options) -> None:
    """Note operators that stay with PyTorch, and why."""
    note(Report(fallbacks=reasons, n_fallbacks=len(reasons)), options)


def note(report: Report, options: Options) -> None:
    if options.reports is not None:
        options.reports.append(report)
    tell(report)


def tell(report: Report) -> None:
    """Warn of what stays with PyTorch, once for each set of operators."""
    names = frozenset(report.fallbacks)
    if names and names not in _warned:
        _warned.add(names)
        told = "PyTorch runs " + ", ".join(sorted(names)) + "; mpk.explain tells why"
        warnings.warn_explicit(told, UserWarning, "mpk", 0)  # no line of ours would help


def mark_static(gm: torch.fx.GraphModule) -> None:
    """Note which arguments AOTAutograd knows to be the same in each call: parameters, buffers, and tensors that are
    marked so, as a static cache's are."""
    context = torch._guards.TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    for i in facts.static_input_indices if facts is not None else ():
        if i < len(placeholders(gm)):
            placeholders(gm)[i].meta[STATIC] = True


def compiler(options: Options, weights: set[int]) -> Callable:
    def compile_fx(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable:
        mark_static(gm)
        mark_weights(gm, weights)
        with torch.utils._python_dispatch._disable_current_modes():
            function = or_pytorch(compile_any if is_symbolic(gm) else compile_and_tell, gm, options)

        def run(arguments: list[Any]) -> list[Any]:
            return function(arguments)

        run._boxed_call = True
        return run

    return compile_fx


def refuse_training(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable:
    raise TrainingError(
        "mpk compiles inference only, and this call would record gradients: "
        "put it under torch.no_grad() or torch.inference_mode(), or freeze the parameters"
    )


@functools.cache
def decompositions() -> dict:
    """Every decomposition of PyTorch but those of what a lowering does whole, of what draws random numbers (that stays
    with PyTorch, with the numbers that eager would draw), and those that write in place: the graph is functional."""
    every = torch._decomp.global_decomposition_table["post_autograd"]
    return {
        op: f
        for op, f in every.items()
        if isinstance(op, torch._ops.OpOverload)
        and op not in table
        and torch.Tag.nondeterministic_seeded not in op.tags
        and op.name().split(".")[0] not in own.kept | own.writing
    } | own.table


def mpk(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None, **_: Any) -> Callable:
    """The backend that torch.compile finds under the name "mpk".  options={"threads": 4} sets the workers."""
    lowering_index.lower_foreign()
    options, weights = options_of(options), weights_of(gm)
    backend = aot_autograd(
        fw_compiler=refuse_training,
        inference_compiler=compiler(options, weights),
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    with whole.whole_operators():
        return count_changes_of_parts(backend(gm, example_inputs), made_of_parts(gm, weights))
