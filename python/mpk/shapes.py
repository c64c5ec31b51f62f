"""Graphs with symbols: one compiled function for each set of shapes that comes, the last CACHED_SHAPES are kept.

backend.compiler hands over functional graphs in which shapes or numbers differ from call to call.  Such a graph is made
for the shapes of a call by running it on fake tensors and recording the operators that they meet (at_shapes).  Where a
shape or a number depends on data, the graph is cut: PyTorch runs that operator, and what follows is compiled for the
shapes that come out of it.

Other threads may call compiled functions or compile meanwhile.  torch.fx's symbolic tracing, and make_fx, change state
of the whole process that these would see, so recording uses neither; what remains of such state, the flags of dispatch
modes, is changed under the lock that Dynamo compiles under.
"""

from __future__ import annotations

import collections
import operator
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.passes.split_module import split_module
from torch.utils._python_dispatch import TorchDispatchMode

from mpk.emit import _flat, is_view
from mpk.order import is_collective

CACHED_SHAPES = 32
STATIC = "mpk_static"  # of a placeholder: PyTorch says that its tensor is the same in each call
aten = torch.ops.aten


def placeholders(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return gm.graph.find_nodes(op="placeholder")


def returned_by(gm: torch.fx.GraphModule) -> Any:
    return gm.graph.find_nodes(op="output")[0].args[0]


def return_list(gm: torch.fx.GraphModule) -> bool:
    """Let the graph return a list of its results.  Did it before?"""
    output = gm.graph.find_nodes(op="output")[0]
    many = isinstance(output.args[0], (list, tuple))
    if not many:
        output.args = ([output.args[0]],)
        gm.recompile()
    return many


def is_symbolic(gm: torch.fx.GraphModule) -> bool:
    """Does any value have a shape, or is any a number, that differs from call to call?"""
    for node in gm.graph.nodes:
        for v in _flat([node.meta.get("val")]):
            if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return True
            if isinstance(v, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in (*v.shape, *v.stride())):
                return True
    return False


# ---- a graph for the shapes of one call ----


class Fakes(FakeTensorMode):
    """Fake tensors whose mode does not keep other threads from compiling."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class Recorder(TorchDispatchMode):
    """Writes a graph of the operators that tensors meet under it."""

    def __init__(self) -> None:
        super().__init__()
        self.graph, self.root = torch.fx.Graph(), torch.nn.Module()
        self.known: dict[int, tuple[torch.Tensor, torch.fx.Node]] = {}  # by id; the tensor is kept, and so is its id

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        reads_tensors = any(isinstance(v, torch.Tensor) for v in torch.utils._pytree.tree_leaves((args, kwargs)))
        if any(isinstance(v, torch.Tensor) for v in _flat([result])) or result is None and reads_tensors:
            node = self.graph.call_function(func, *self.with_nodes((tuple(args), dict(kwargs))))
            self.name(result, node)
        return result

    def name(self, result: Any, node: torch.fx.Node) -> None:
        """From now on `node` stands for this result; an argument that was changed in place keeps its own node."""
        node.meta["val"] = result
        if isinstance(result, (list, tuple)):
            for i, one in enumerate(result):
                if isinstance(one, torch.Tensor):
                    self.name(one, self.graph.call_function(operator.getitem, (node, i)))
        elif isinstance(result, torch.Tensor):
            self.known.setdefault(id(result), (result, node))

    def take(self, name: str, value: Any) -> None:
        """One more argument of the graph."""
        self.name(value, self.graph.placeholder(name))

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node that stands for a tensor; one that nothing recorded has made is a constant."""
        if id(tensor) not in self.known:
            name = f"constant_{len(self.known)}"
            self.root.register_buffer(name, tensor)
            self.name(tensor, self.graph.get_attr(name))
        return self.known[id(tensor)][1]

    def with_nodes(self, values: Any) -> Any:
        return torch.utils._pytree.tree_map_only(torch.Tensor, self.node_of, values)

    def finish(self, results: Any) -> torch.fx.GraphModule:
        self.graph.output(self.with_nodes(list(results)))
        self.graph.eliminate_dead_code(lambda node: node.is_impure() or is_collective(node))
        return torch.fx.GraphModule(self.root, self.graph)


class _Numbers(torch.fx.Interpreter):
    """Runs a graph, in which numbers may be tensors of rank 0.  Results must have the dtypes that numbers give them."""

    def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
        if target in (torch.sym_max, torch.sym_min) and any(isinstance(a, torch.Tensor) for a in args):
            target = torch.maximum if target is torch.sym_max else torch.minimum
            args = tuple(a if isinstance(a, torch.Tensor) else torch.full((), a) for a in args)
        return super().call_function(target, args, kwargs)

    def run_node(self, node: torch.fx.Node) -> Any:
        result, before = super().run_node(node), node.meta.get("val")
        if isinstance(result, torch.Tensor) and isinstance(before, torch.Tensor) and result.dtype != before.dtype:
            raise TypeError(f"{node.target} gives {result.dtype}, not {before.dtype}")
        return result


def at_shapes(gm: torch.fx.GraphModule, arguments: Sequence[Any]) -> torch.fx.GraphModule:
    """The graph for arguments of these shapes, all of them numbers."""
    with compile_lock, torch.no_grad():
        mode, recorder = Fakes(allow_non_fake_inputs=True), Recorder()
        fakes = [mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a for a in arguments]
        for node, fake in zip(placeholders(gm), fakes):
            recorder.take(node.name, fake)
        with mode, recorder:
            results = _Numbers(gm, garbage_collect_values=False).run(*fakes)
        out = recorder.finish(results)
    for node, before in zip(placeholders(out), placeholders(gm)):
        node.meta[STATIC] = before.meta.get(STATIC, False)
    return out


def symbols_of_shapes(gm: torch.fx.GraphModule) -> set[Any]:
    """Symbols that any shape, stride or offset depends on."""
    tensors = [v for n in gm.graph.nodes for v in _flat([n.meta.get("val")]) if isinstance(v, torch.Tensor)]
    sizes = [n for t in tensors for n in (*t.shape, *t.stride(), t.storage_offset()) if isinstance(n, torch.SymInt)]
    return {symbol for n in sizes for symbol in n.node.expr.free_symbols}


def returns_numbers(gm: torch.fx.GraphModule) -> bool:
    return any(isinstance(n.meta.get("val"), (torch.SymInt, torch.SymFloat)) for n in returned_nodes(gm))


def returned_nodes(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in _flat([returned_by(gm)]) if isinstance(n, torch.fx.Node)]


def loose_numbers(gm: torch.fx.GraphModule, device: torch.device) -> frozenset[int]:
    """Arguments that are numbers and no shape depends on: they can be tensors, and need no program each.  On a GPU none
    are if numbers are returned: the host would wait for them."""
    if device.type != "cpu" and returns_numbers(gm):
        return frozenset()
    used = symbols_of_shapes(gm)
    fakes = [node.meta.get("val") for node in placeholders(gm)]
    numbers = [(i, v) for i, v in enumerate(fakes) if isinstance(v, (torch.SymInt, torch.SymFloat))]
    return frozenset(i for i, v in numbers if not v.node.expr.free_symbols & used)


def device_of(gm: torch.fx.GraphModule) -> torch.device:
    """Where the graph's program runs: on the GPU of its first CUDA tensor, if it has one."""
    values = (v for n in gm.graph.nodes for v in _flat([n.meta.get("val")]) if isinstance(v, torch.Tensor))
    return next((v.device for v in values if v.device.type == "cuda"), torch.device("cpu"))


def key_of(arguments: Sequence[Any]) -> tuple:
    """What a graph is made for."""
    return tuple((a.shape, a.stride(), a.is_neg()) if isinstance(a, torch.Tensor) else a for a in arguments)


class ByShape:
    """One compiled function for each set of shapes, the last CACHED_SHAPES that were used.

    Calls with shapes that are known go on while another thread compiles for others."""

    def __init__(self, gm: torch.fx.GraphModule, compile_one: Callable, leave: Callable) -> None:
        self.gm, self.compile_one, self.leave = gm, compile_one, leave
        self.lock, self.making = threading.Lock(), threading.Lock()
        self.compiled: collections.OrderedDict[tuple, Callable] = collections.OrderedDict()
        self.device = device_of(gm)
        self.loose = loose_numbers(gm, self.device)
        self.numbers = {
            i: int if isinstance(node.meta["val"], torch.SymInt) else float
            for i, node in enumerate(returned_by(gm))
            if isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat))
        }

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        loose = self.loose
        function, arguments = self.find(self.loosened(given, loose))
        if function is None:
            with self.making:
                function, arguments = self.find(self.loosened(given, self.loose))
                if function is None:
                    function, arguments = self.make(given, arguments)
        results = function(arguments)
        for i, kind in self.numbers.items():
            results[i] = kind(results[i])
        return results

    def loosened(self, given: Sequence[Any], loose: frozenset[int]) -> Sequence[Any]:
        """The arguments, loose numbers as tensors."""
        return [self.as_tensor(a) if i in loose else a for i, a in enumerate(given)] if loose else given

    def as_tensor(self, number: int | float) -> torch.Tensor:
        dtype = torch.float64 if isinstance(number, float) else torch.int64
        return torch.full((), number, dtype=dtype, device=self.device)

    def find(self, arguments: Sequence[Any]) -> tuple[Callable | None, Sequence[Any]]:
        key = key_of(arguments)
        with self.lock:
            if key in self.compiled:
                self.compiled.move_to_end(key)
            return self.compiled.get(key), arguments

    def make(self, given: Sequence[Any], arguments: Sequence[Any]) -> tuple[Callable, Sequence[Any]]:
        """Compile for the shapes of these arguments."""
        try:
            function = self.compile_one(at_shapes(self.gm, arguments))
        except Exception as problem:  # whatever an operator says that wants a number, or a tensor with data, after all
            if self.loose:
                self.loose = frozenset()
                return self.make(given, given)
            self.leave({"the whole graph": str(problem).splitlines()[0] if str(problem) else type(problem).__name__})
            function = run_by_pytorch(self.gm)
        with self.lock:
            self.compiled[key_of(arguments)] = function
            if len(self.compiled) > CACHED_SHAPES:
                self.compiled.popitem(last=False)
        return function, arguments


# ---- shapes that depend on data ----


def run_by_pytorch(gm: torch.fx.GraphModule) -> Callable:
    return lambda arguments: list(gm(*arguments))


class Part(torch.nn.Module):
    """A compiled part in the place of its graph."""

    def __init__(self, compiled: Callable, many: bool) -> None:
        super().__init__()
        self.compiled, self.many = compiled, many

    def forward(self, *arguments: Any) -> Any:
        results = self.compiled(list(arguments))
        return results if self.many else results[0]


def depends_on_data(node: torch.fx.Node) -> bool:
    """Has the node a shape or a number that only its run tells, or is it a program of its own?"""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False

    def unbacked(values: Any) -> set[Any]:
        kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
        return {symbol for v in _flat([values]) if isinstance(v, kinds) for symbol in free_unbacked_symbols(v)}

    return bool(unbacked(node.meta.get("val")) - unbacked([n.meta.get("val") for n in node.all_input_nodes]))


def compile_symbolic(gm: torch.fx.GraphModule, compile_one: Callable, leave: Callable) -> Callable:
    """A function of a list of arguments.  compile_one makes one of a graph whose shapes are numbers; leave is told the
    operators that PyTorch runs, with the reasons."""
    return_list(gm)
    cuts = [n for n in gm.graph.nodes if depends_on_data(n)]
    if not cuts:
        return ByShape(gm, compile_one, leave)
    leave({str(node.target): "the shape of its result depends on data" for node in cuts})

    def compile_part(part: torch.fx.GraphModule) -> Callable:
        return ByShape(part, compile_one, leave) if is_symbolic(part) else compile_one(part)

    return compile_between(gm, set(cuts), compile_part)


def compile_between(
    gm: torch.fx.GraphModule, cuts: Collection[torch.fx.Node], compile_part: Callable
) -> Callable:
    """PyTorch runs these nodes, in the graph's order; compile_part compiles what comes between them."""
    parts = cut_at(gm, cuts)
    for name, part in parts.named_children():
        many, by_pytorch = return_list(part), int(name.rpartition("_")[2]) % 2
        setattr(parts, name, Part(run_by_pytorch(part) if by_pytorch else compile_part(part), many))
    return run_by_pytorch(parts)


def changes_alone(copy: torch.fx.Node, numbers: dict[torch.fx.Node, int]) -> bool:
    """Can the part that makes the new value of an argument write it?  Nobody else reads the old one, or a view of it,
    which may share its memory."""
    argument, value = copy.args[:2]
    readers, part = set(argument.users) - {copy}, numbers.get(value, 1)
    while views := {user for node in readers if is_view(node) for user in node.users} - readers:
        readers |= views
    return value.op == "call_function" and part % 2 == 0 and all(
        node.op == "call_function" and numbers.get(node) == part for node in readers
    )


def cut_at(gm: torch.fx.GraphModule, cuts: Collection[torch.fx.Node]) -> torch.fx.GraphModule:
    """The graph in parts that follow each other, submod_0 ...: those of odd numbers are for PyTorch.  They have the cut
    nodes; the last has the changes of arguments that other parts than that of the new value read."""
    numbers: dict[torch.fx.Node, int] = {}
    now = 0
    for node in gm.graph.nodes:
        late = node.op == "call_function" and node.target is aten.copy_.default
        if late and changes_alone(node, numbers):
            numbers[node] = numbers[node.args[1]]
            continue
        of_cut = node.target is operator.getitem and node.args[0] in cuts
        if (node in cuts or late or of_cut) != bool(now % 2) and node.op == "call_function":
            now += 1
        numbers[node] = now
    return split_module(gm, gm, lambda node: numbers[node], keep_original_order=True)
