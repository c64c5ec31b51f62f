"""Complex numbers as pairs of real ones, in a functional graph of known shapes.

Input: an FX graph of ATen operators with fake values.  Output: the same graph, in which a complex value that is made
and read by the operators below is a real one with a last axis of 2, as torch.view_as_real gives it; the library has no
complex numbers.  Called by backend.py before lowering.  Where something else makes or reads a complex value,
view_as_real or view_as_complex stands between, and stays with PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}

# An overload -> a function of (Pairs, the node) that gives the real node; None if it cannot.
table: dict[Any, Callable[[Pairs, torch.fx.Node], torch.fx.Node | None]] = {}


def value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def is_complex(node: Any) -> bool:
    return isinstance(value(node), torch.Tensor) and value(node).dtype in REAL


class Pairs:
    """The real nodes of complex ones, and how to make more."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self.real: dict[torch.fx.Node, torch.fx.Node] = {}

    def call(self, target: Any, *arguments: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, arguments)
        node.meta["val"] = target(*torch.fx.node.map_arg(arguments, value))
        return node

    def of(self, node: torch.fx.Node) -> torch.fx.Node:
        if node in self.real:
            return self.real[node]
        if value(node).is_conj():  # its memory holds the conjugate, which view_as_real refuses
            node = self.call(aten.resolve_conj.default, node)
        return self.call(aten.view_as_real.default, node)

    def part(self, node: torch.fx.Node, index: int) -> torch.fx.Node:
        return self.call(aten.select.int, self.of(node), -1, index)

    def join(self, real: torch.fx.Node, imaginary: torch.fx.Node) -> torch.fx.Node:
        return self.call(aten.cat.default, [self.call(aten.unsqueeze.default, n, -1) for n in (real, imaginary)], -1)


def pairs_of(*overloads: Any) -> Callable:
    def note(function: Callable) -> Callable:
        table.update(dict.fromkeys(overloads, function))
        return function

    return note


@pairs_of(aten.view_as_complex.default)
def view_as_complex(p: Pairs, node: torch.fx.Node) -> torch.fx.Node:
    return node.args[0]


@pairs_of(aten.complex.default, aten.polar.default)
def from_parts(p: Pairs, node: torch.fx.Node) -> torch.fx.Node:
    shape = list(value(node).shape)
    a, b = (p.call(aten.expand.default, part, shape) for part in node.args)
    if node.target is aten.polar.default:
        a, b = (p.call(aten.mul.Tensor, a, p.call(f, b)) for f in (aten.cos.default, aten.sin.default))
    return p.join(a, b)


@pairs_of(aten.mul.Tensor)
def multiply(p: Pairs, node: torch.fx.Node) -> torch.fx.Node | None:
    a, b = node.args if is_complex(node.args[0]) else reversed(node.args)
    real = REAL[value(node).dtype]
    if isinstance(b, (bool, int, float)):
        return p.call(aten.mul.Tensor, p.of(a), b)
    if not isinstance(b, torch.fx.Node) or REAL[value(a).dtype] is not real:
        return None
    if not is_complex(b):
        return p.call(aten.mul.Tensor, p.of(a), p.call(aten.unsqueeze.default, b, -1)) if value(b).dim() else None
    if REAL[value(b).dtype] is not real:
        return None
    (ar, ai), (br, bi) = ((p.part(n, 0), p.part(n, 1)) for n in (a, b))

    def product(x: torch.fx.Node, y: torch.fx.Node) -> torch.fx.Node:
        return p.call(aten.mul.Tensor, x, y)

    return p.join(
        p.call(aten.sub.Tensor, product(ar, br), product(ai, bi)),
        p.call(aten.add.Tensor, product(ar, bi), product(ai, br)),
    )


@pairs_of(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default)
def to_shape(p: Pairs, node: torch.fx.Node) -> torch.fx.Node:
    target = aten.expand.default if node.target is aten.expand.default else aten.reshape.default
    return p.call(target, p.of(node.args[0]), [*value(node).shape, 2])


@pairs_of(aten.unsqueeze.default, aten.select.int, aten.slice.Tensor, aten.index_select.default)
def along_axis(p: Pairs, node: torch.fx.Node) -> torch.fx.Node:
    x, axis, *more = node.args if len(node.args) > 1 else (node.args[0], 0)
    return p.call(node.target, p.of(x), axis - 1 if axis < 0 else axis, *more)


@pairs_of(aten.transpose.int)
def transpose(p: Pairs, node: torch.fx.Node) -> torch.fx.Node:
    x, *axes = node.args
    return p.call(node.target, p.of(x), *(axis - 1 if axis < 0 else axis for axis in axes))


@pairs_of(aten.permute.default)
def permute(p: Pairs, node: torch.fx.Node) -> torch.fx.Node:
    rank = value(node).dim()
    return p.call(node.target, p.of(node.args[0]), [*(axis % rank for axis in node.args[1]), rank])


@pairs_of(aten.clone.default, aten.alias.default)
def same(p: Pairs, node: torch.fx.Node) -> torch.fx.Node:
    return p.of(node.args[0])


def find_pairs(p: Pairs) -> None:
    for node in list(p.graph.nodes):
        if node.target is aten.view_as_real.default and node.args[0] in p.real:
            node.replace_all_uses_with(p.real[node.args[0]])
        elif is_complex(node) and node.target in table and value(node).numel():
            with p.graph.inserting_before(node):
                real = table[node.target](p, node)
            if real is not None:
                p.real[node] = real


def without_complex(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph, changed in place if it has complex values."""
    if not any(is_complex(node) for node in gm.graph.nodes):
        return gm
    p = Pairs(gm.graph)
    find_pairs(p)
    for node, real in reversed(p.real.items()):
        if node.target is aten.view_as_complex.default:
            continue
        with p.graph.inserting_after(node):
            whole = p.call(aten.view_as_complex.default, real)
        node.replace_all_uses_with(whole)
    p.graph.eliminate_dead_code()
    gm.recompile()
    return gm
