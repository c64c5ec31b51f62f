"""Where the results of a graph lie: in new tensors, in arguments, or in what other results lie in, too.

Input: a lowered graph and the values of its nodes.  Output: places, and for each result the views that lead there.
backend.Runner makes the tensors anew in each call and applies the views.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import torch

from mpk.emit import Emitter, Slot, Val, base_of, dense_order, is_permuted
from mpk.lowering import contiguous_strides

aten = torch.ops.aten


def view_of(value: Any, views: Sequence[tuple]) -> Any:
    for target, rest, named in views:
        value = target(value, *rest, **named)
    return value


def given(place: tuple, arguments: Sequence[Any]) -> Any:
    """What lies in a place that no program writes."""
    if place[0] == "argument":
        return arguments[place[1]]
    return place[1].clone() if place[0] == "made" else place[1]


def is_changed(node: torch.fx.Node) -> bool:
    """Does the program write this argument?"""
    return node.op == "placeholder" and any(user.target is aten.copy_.default for user in node.users)


def can_be_shared(node: Any, values: dict) -> bool:
    """Can results be views of this node?  Its new tensor must lie as that of eager does."""
    if not isinstance(node, torch.fx.Node) or not isinstance(values.get(node), Val):
        return False
    if node.op == "placeholder":
        return not is_changed(node)
    fake = node.meta["val"]
    return fake.numel() > 0 and is_permuted(fake.shape, fake.stride()) and not fake.storage_offset()


def place_results(e: Emitter, values: dict, returned: Sequence[Any]) -> tuple[list[tuple], list[tuple[int, list]]]:
    """Where results lie: places, and for each result the number of its place and the views that lead from there to it.

    Results share memory with arguments and with each other where they do in eager: what two of them are views of gets
    a place, even if it is not returned itself.  A view that shares with no other result gets a place of its own.

    A place is ("slot", slot, shape, stride, dtype): a new tensor that the program writes; ("argument", index);
    ("known", value); or ("made", tensor): copied for each call."""
    bases = [base_of(node) for node in returned]
    uses = collections.Counter(base for base, _ in bases if isinstance(base, torch.fx.Node))
    places: list[tuple] = []
    numbers: dict[torch.fx.Node, int] = {}
    outputs: list[tuple[int, list]] = []
    for node, (base, views) in zip(returned, bases):
        shared = can_be_shared(base, values) and (base.op == "placeholder" or uses[base] > 1)
        node, views = (base, views) if shared else (node, [])
        if node not in numbers:
            places.append(place_of(e, values, node, len(places)))
        if isinstance(node, torch.fx.Node):
            outputs.append((numbers.setdefault(node, len(places) - 1), views))
        else:
            outputs.append((len(places) - 1, views))
    return places, outputs


def place_of(e: Emitter, values: dict, node: Any, index: int) -> tuple:
    """The place of a value that is returned; a new tensor has the strides that PyTorch would give it."""
    if not isinstance(node, torch.fx.Node):
        return ("known", node)
    if node.op == "placeholder":
        return ("argument", node.graph.find_nodes(op="placeholder").index(node))
    val = values[node]
    if not isinstance(val, Val):
        return ("known", val)
    fake = node.meta["val"]
    shape = tuple(fake.shape)
    stride = tuple(fake.stride()) if is_permuted(shape, fake.stride()) else tuple(contiguous_strides(shape))
    if val.numel == 0:
        return ("known", torch.empty_strided(shape, stride, dtype=val.dtype, device=fake.device))
    if fake.device != e.device:
        return ("made", torch.empty_strided(shape, stride, dtype=val.dtype, device=fake.device).copy_(val.data))
    order = dense_order(shape, stride)
    name = f"r{index}"
    laid = e.permute(val, order)
    tensor = e.graph.operator("copy", [e.tensor(laid)], name)[0]
    e.graph.output(tensor)
    e.slots.append(Slot(name, "result", index))
    return ("slot", len(e.slots) - 1, shape, stride, val.dtype)
