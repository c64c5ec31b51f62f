"""Operators whose order in the graph can be seen from outside: collectives, which the processes of a group must run in
one order, and what draws random numbers.

Some collectives are operators of the program (collectives.py).  PyTorch runs the others, and backend.py cuts the graph
at each, so that programs never run across one of them.  With them go the views of what such a collective still fills:
PyTorch finds out what to wait for by the memory of a tensor, and a program would copy what is not there yet.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch

from mpk.emit import base_of, table

COLLECTIVES = {"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor", "symm_mem"}
REASONS = {True: "other processes take part", False: "PyTorch draws random numbers, in the order of the graph"}


def is_collective(node: Any) -> bool:
    """A collective, or the wait for one."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in COLLECTIVES


def is_wait(node: torch.fx.Node) -> bool:
    return is_collective(node) and node.target.name().endswith("::wait_tensor")


def draws(node: torch.fx.Node) -> bool:
    """Does PyTorch draw random numbers?  What has a lowering draws none: attention is tagged so for its dropout."""
    tagged = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return tagged and node.target not in table


def is_under_way(node: Any) -> bool:
    """Is it the result of a collective that nobody has waited for?"""
    if not isinstance(node, torch.fx.Node):
        return False
    made = node.args[0] if node.target is operator.getitem else node
    return is_collective(made) and not is_wait(made)


def views_to(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The views that lead from the memory of a node to it, itself included."""
    base, found = base_of(node)[0], []
    while node is not base:
        found.append(node)
        node = node.args[0]
    return found


def ordered_nodes(
    gm: torch.fx.GraphModule, exchanged: Collection[torch.fx.Node] = (), reason: str | None = None
) -> dict[torch.fx.Node, str]:
    """The nodes at which a graph is cut, each with the reason.  exchanged: collectives that are operators of the
    program; reason: why there are none."""
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and n not in exchanged]
    collectives, random = [n for n in nodes if is_collective(n)], [n for n in nodes if draws(n)]
    if not collectives and len(random) < 2:
        return {}
    views = [v for n in nodes if is_under_way(base_of(n)[0]) and base_of(n)[0] not in exchanged for v in views_to(n)]
    views += [v for n in collectives if is_wait(n) for v in views_to(n.args[0])]
    reasons = dict.fromkeys(views, "it is a view of what a collective still fills")
    words = {True: REASONS[True] + (f"; {reason}" if reason else ""), False: REASONS[False]}
    return reasons | {n: words[is_collective(n)] for n in collectives + random}
