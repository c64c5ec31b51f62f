"""Rows that are only moved: images cut into windows, shifted and put together again, patches that are merged.

Input: a functional graph of known shapes.  Output: a graph with the same results, in which fewer rows are copied.  The
idea: what works on each row alone, as a norm, a product by a weight or an activation does, gives the same rows in
whatever order they lie.  So a move (views, permutations, rolls, slices, concatenations that keep rows whole) is not
carried out where it stands but noted, as the places of rows, and goes on behind the operators that work on rows; moves
that follow each other become one, and those that undo each other none.  Where something else reads the rows, as
attention does, one `embedding` with a constant brings them, before the operators on rows through which it may be moved
back, so that a sum that follows finds them in the same order.  A block of Swin has one such copy in place of eight.

Invariant: every node of the original graph keeps its meaning; new ones are added beside, and readers that are no moves
and do not work on rows are led to them.  What is then unused is dropped.  Called by backend.py.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import torch

from mpk.shapes import device_of

aten = torch.ops.aten
Node = torch.fx.Node

PIECE = 16  # bytes; rows are copied by whole pieces
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
IN_ORDER = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.clone.default,
    aten.alias.default,
}
ALONE = {aten.gelu.default, aten.relu.default, aten.silu.default, aten.sigmoid.default, aten.tanh.default}
PAIRS = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor}
PRODUCTS = {aten.mm.default: 0, aten.addmm.default: 1}  # place of the rows


@dataclasses.dataclass
class Rows:
    """A value as rows of another: entry i of `places`, which has the value's shape with rows for entries of its last
    axis, is the row of base [.., width] that lies there.  copies: how many the nodes that move it make of their rows.
    worked: the base was made beside the original graph, since an operator on rows was done before they are moved."""

    base: Node
    places: torch.Tensor
    copies: int = 0
    worked: bool = False

    @property
    def width(self) -> int:
        return self.base.meta["val"].shape[-1]


def value_of(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, Node) else None


def is_tensor(node: Any) -> bool:
    return isinstance(value_of(node), torch.Tensor)


def places_after(node: Node, places: torch.Tensor, width: int) -> torch.Tensor | None:
    """Where rows lie after a move of one operand; None if it is none, or cuts rows."""
    target, shape, rest = node.target, node.meta["val"].shape, node.args[1:]
    last = places.dim() - 1
    if not shape or shape[-1] % width:
        return None
    if target in IN_ORDER:
        return places.reshape(*shape[:-1], shape[-1] // width)
    if target is aten.expand.default or target is aten.constant_pad_nd.default:
        return places if shape == node.args[0].meta["val"].shape else None
    if target is aten.permute.default:
        return places.permute(rest[0]) if rest[0][-1] % len(shape) == last else None
    moved = {aten.transpose.int: rest[:2], aten.slice.Tensor: rest[:1] or (0,), aten.select.int: rest[:1]}.get(target)
    if target is aten.roll.default and len(rest) > 1:
        moved = rest[1]
    if not moved or any(axis % (last + 1) == last for axis in moved):
        return None
    return target(places, *rest)


def parts_of(node: Node) -> Sequence[Node]:
    """What a concatenation joins."""
    return node.args[0] if node.target is aten.cat.default else ()


def copies_of(node: Node) -> int:
    """How many copies of its rows a move makes: a roll and a concatenation count as two, since they also cut them."""
    if node.target is aten.cat.default or node.target is aten.roll.default:
        return 2
    lies_otherwise = value_of(node).is_contiguous() and not value_of(node.args[0]).is_contiguous()
    return int(node.target in (aten.clone.default, aten.reshape.default) and lies_otherwise)


def is_column(a: Any) -> bool:
    """The same for each row?"""
    return not isinstance(a, Node) or is_tensor(a) and value_of(a).dim() <= 1


def rows_of(node: Node) -> list[int] | None:
    """Which operands of a node are rows, each row of its result of one of each; None if it does not work on rows."""
    if node.op != "call_function" or not node.args:
        return None
    if node.target is aten.native_layer_norm.default:
        rest = [user for user in node.users if user.args[1:] != (0,) and user.users]
        return [0] if len(node.args[1]) == 1 and not rest else None
    if node.target in PRODUCTS:
        at = PRODUCTS[node.target]
        columns = at == 0 or value_of(node.args[0]).dim() == 1
        return [at] if columns and not node.kwargs and len(node.args) == at + 2 else None
    if node.target in ALONE:
        return [0]
    if node.target not in PAIRS or node.kwargs or len(node.args) != 2:
        return None
    found = [i for i in range(2) if not is_column(node.args[i])]
    whole = all(value_of(node.args[i]).shape == value_of(node).shape for i in found)
    return found if found and whole and all(value_of(a).dtype == value_of(node).dtype for a in tensors(node)) else None


def tensors(node: Node) -> list[Node]:
    return [a for a in node.args if is_tensor(a)]


def count_readers(graph: torch.fx.Graph) -> dict[Node, int]:
    """How many nodes read each one's rows, whatever view of them."""
    readers: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        through = [user.target in IN_ORDER or user.target is operator.getitem for user in node.users]
        readers[node] = sum(readers[user] if passed else 1 for user, passed in zip(node.users, through))
    return readers


class Mover:
    """What is known of the nodes of a graph so far."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.gm, self.graph, self.device = gm, gm.graph, device_of(gm)
        self.readers = count_readers(gm.graph)
        self.rows: dict[Node, Rows] = {}  # of values that are moved
        self.flats: dict[Node, Node] = {}  # values as [.., width]
        self.sources: dict[Node, Node] = {}  # what a flat was made of
        self.made: dict[Node, tuple[Node, Node]] = {}  # (operator on rows, its rows) of what was made beside the graph
        self.brought: dict[Node, list[tuple[torch.Tensor, Node]]] = {}  # rows that were copied, by base
        self.n_tables, self.is_changed = 0, False

    # ---- new nodes ----

    def call(self, target: Any, *args: Any, **named: Any) -> Node:
        node = self.graph.call_function(target, args, named)
        values = [value_of(a) if isinstance(a, Node) else a for a in args]
        node.meta["val"] = target(*values, **named)
        return node

    def flat(self, node: Node) -> Node:
        """A value of the original graph as rows."""
        if node not in self.flats:
            shape = value_of(node).shape
            whole = node if len(shape) == 2 else self.call(aten.reshape.default, node, [-1, shape[-1]])
            self.flats[node], self.sources[whole] = whole, node
        return self.flats[node]

    def again(self, node: Node, at: int, rows: Node) -> Node:
        """The operator `node` on other rows, as [.., width]."""
        args = [rows if i == at else a for i, a in enumerate(node.args)]
        y = self.call(node.target, *args, **node.kwargs)
        y = self.call(operator.getitem, y, 0) if node.target is aten.native_layer_norm.default else y
        self.made[y] = node, rows
        return y

    def table(self, base: Node, places: torch.Tensor) -> Node:
        """A constant of the graph."""
        name = f"_moved_rows_{self.n_tables}"
        self.n_tables += 1
        self.gm.register_buffer(name, places.to(torch.int32).to(self.device), persistent=False)
        table = self.graph.get_attr(name)
        table.meta["val"] = value_of(base).new_empty(places.shape, dtype=torch.int32)
        return table

    # ---- bringing rows ----

    def operator_of(self, base: Node) -> tuple[Node, Node] | None:
        """(operator on rows, its rows) that makes a base, if its rows come from one operand and nothing else reads
        what it makes."""
        if base in self.made:
            node, rows = self.made[base]
            return (node, rows) if len(rows_of(node)) == 1 and self.readers[node] == 1 else None
        node = self.sources.get(base)
        while node is not None and (node.target in IN_ORDER or node.target is operator.getitem):
            if node.target is not operator.getitem and value_of(node).shape[-1] != value_of(node.args[0]).shape[-1]:
                return None
            node = node.args[0]
        found = rows_of(node) if node is not None else None
        if not found or len(found) != 1 or self.readers[node] != 1 or node.args[found[0]] in self.rows:
            return None
        return node, self.flat(node.args[found[0]])

    def bring(self, base: Node, places: torch.Tensor) -> Node:
        """These rows of a base, as [.., width].  They are copied where they are narrowest, and of such places at the
        first, which other readers are likely to share."""
        chain, bases = [], [base]
        while places.numel() <= value_of(base).shape[0] and (found := self.operator_of(bases[-1])):
            chain.append(found[0])
            bases.append(found[1])
        widths = [value_of(b).shape[-1] for b in bases]
        best = max(i for i, width in enumerate(widths) if width == min(widths))
        rows = self.copy_of(bases[best], places)
        for node in reversed(chain[:best]):
            rows = self.again(node, rows_of(node)[0], rows)
        return rows

    def known(self, base: Node, places: torch.Tensor) -> Node | None:
        """A copy of these rows, if there is one."""
        return next((node for there, node in self.brought.get(base, ()) if torch.equal(there, places)), None)

    def copy_of(self, base: Node, places: torch.Tensor) -> Node:
        n, places = value_of(base).shape[0], places.reshape(-1)
        if places.numel() == n and torch.equal(places, torch.arange(n)):
            return base
        found = self.known(base, places)
        if found is None:
            found = self.graph.call_function(aten.embedding.default, (base, self.table(base, places)))
            found.meta["val"] = value_of(base).new_empty((places.numel(), value_of(base).shape[1]))
            self.brought.setdefault(base, []).append((places, found))
        return found

    def carried_out(self, node: Node) -> Node:
        """A value that was moved, as the original graph has it."""
        rows = self.rows.get(node)
        if rows is None or not rows.worked and rows.copies <= 1:
            return node
        y = self.call(aten.reshape.default, self.bring(rows.base, rows.places), list(value_of(node).shape))
        return y if value_of(y).stride() == value_of(node).stride() else node

    # ---- one node ----

    def rows_before(self, node: Any) -> Rows | None:
        """A value as rows; None if its rows cannot be copied by whole pieces."""
        if node in self.rows:
            return self.rows[node]
        x = value_of(node)
        if not is_tensor(node) or x.dim() < 2 or x.dtype not in FLOATS or not x.numel():
            return None
        if x.shape[-1] * x.element_size() % PIECE or not x.is_contiguous():
            return None
        n = x.numel() // x.shape[-1]
        return Rows(self.flat(node), torch.arange(n).reshape(*x.shape[:-1], 1))

    def move(self, node: Node) -> bool:
        """Note a move.  False: it is none."""
        parts = parts_of(node)
        if not parts and (not node.args or node.args[0] not in self.rows and node.target in IN_ORDER):
            return False
        befores = [self.rows_before(p) for p in parts or node.args[:1]]
        if not is_tensor(node) or None in befores or any(b.base is not befores[0].base for b in befores):
            return False
        first = befores[0]
        if parts:
            places = torch.cat([b.places for b in befores], *node.args[1:])
            if places.unique().numel() < places.numel():  # rows that are repeated, as those of tables of rotations
                return False
        else:
            places = places_after(node, first.places, first.width)
        if places is None:
            return False
        copies = sum(b.copies for b in befores) + copies_of(node)
        self.rows[node] = Rows(first.base, places, copies, any(b.worked for b in befores))
        return True

    def is_permutation(self, rows: Rows) -> bool:
        n = value_of(rows.base).shape[0]
        return rows.places.numel() == n and torch.equal(rows.places.reshape(-1).sort().values, torch.arange(n))

    def work(self, node: Node) -> bool:
        """Let an operator on rows work on rows as they lie.  False: it is none, or these are not moved, or by views
        alone, which cost nothing."""
        at = rows_of(node)
        moved = [self.rows[node.args[i]] for i in at or () if node.args[i] in self.rows]
        if not any(rows.worked or rows.copies for rows in moved):
            return False
        rows = [self.rows_before(node.args[i]) for i in at]
        fits = all(r is not None and r.width == value_of(node.args[i]).shape[-1] for i, r in zip(at, rows))
        if not fits or not all(map(self.is_permutation, rows)):
            return False
        order = rows[0].places.reshape(-1)
        if len(at) == 2 and not torch.equal(order, rows[1].places.reshape(-1)):
            order = self.meet(rows)
            if order is None:
                return False
        args = list(node.args)
        for i, r in zip(at, rows):
            args[i] = r.base
        base = self.call(node.target, *args, **node.kwargs)
        if node.target is aten.native_layer_norm.default:
            base = self.call(operator.getitem, base, 0)
        self.made[base] = node, rows[0].base
        shape = value_of(node)[0].shape if node.target is aten.native_layer_norm.default else value_of(node).shape
        self.rows[node] = Rows(base, order.reshape(*shape[:-1], 1), worked=True)
        return True

    def meet(self, rows: list[Rows]) -> torch.Tensor | None:
        """Two operands in one order: that of one of them, if the other has been copied in that order already, which
        then takes its place."""
        for one, other in ((0, 1), (1, 0)):
            order = rows[other].places.reshape(-1)
            there = rows[one].places.reshape(-1)[order.argsort()]
            found = self.known(rows[one].base, there)
            if found is not None:
                rows[one] = Rows(found, rows[other].places, worked=True)
                return order
        return None

    def see(self, node: Node) -> None:
        if node.target is operator.getitem and node.args[0] in self.rows:
            self.rows[node] = self.rows[node.args[0]]
            return
        with self.graph.inserting_before(node):
            if node.op == "call_function" and (self.move(node) or self.work(node)):
                return
            for read in [n for n in node.all_input_nodes if n in self.rows]:
                there = self.carried_out(read)
                if there is not read:
                    self.is_changed = True
                    node.replace_input_with(read, there)


def without_moves(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with what is only moved copied once where it has to be, or not at all."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    changed = torch.fx.GraphModule(gm, graph)
    mover = Mover(changed)
    for node in list(graph.nodes):
        mover.see(node)
    if not mover.is_changed:
        return gm
    graph.eliminate_dead_code()
    changed.recompile()
    return changed
