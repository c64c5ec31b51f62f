"""What depends on weights alone, worked out once and not in each call.

Input: a functional graph of known shapes, in which parameters and buffers of modules are marked.  Output: a function of
the graph's arguments.  PyTorch runs what reads only these and constants; the results are kept, and the rest of the
graph, which is compiled, takes them as further arguments that are the same in every call: scales of batch norms, biases
of positions, weights in another dtype.  On the way weights take the factors of their columns along, as layer scales
are, and weights [D, F] are laid as [F, D], as fast code wants them.

Invariant: what is kept was made of the weights as they are.  Before each call statics.py looks whether one is another,
lies elsewhere, or was changed in place as PyTorch counts it; if so, all is made anew.  Called by backend.py for graphs
on a GPU, whose programs keep copies of weights under the same conditions.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Collection
from typing import Any

import torch

from mpk.emit import (
    DTYPES,
    LINES,
    LINE_CHANNELS,
    WIDE,
    _flat,
    base_of,
    channels_first,
    channels_last,
    is_of_lines,
    is_of_patches,
    is_permuted,
    is_view,
    per_axis,
)
from mpk.results import is_changed
from mpk.shapes import STATIC, device_of, placeholders, returned_nodes
from mpk.statics import Statics

WEIGHT = "mpk_weight"  # of a placeholder: it is a parameter or a buffer of a module
PATIENCE = 4  # calls in a row that may find weights changed
aten = torch.ops.aten
Nodes = Collection[torch.fx.Node]


def weights_of(gm: torch.fx.GraphModule) -> set[int]:
    """Which arguments of Dynamo's graph are parameters and buffers of modules.  Other tensors that are the same in each
    call, as a static cache, often get new values."""
    given = [node.meta.get("grapharg") for node in placeholders(gm)]
    sources = [getattr(argument, "source", None) for argument in given]
    is_weight = torch._dynamo.source.is_from_unspecialized_param_buffer_source
    return {i for i, source in enumerate(sources) if source is not None and is_weight(source)}


def made_of_parts(gm: torch.fx.GraphModule, weights: Collection[int]) -> list[int]:
    """Those of them that are tensors made of others, as DTensor is."""
    fakes = [node.meta.get("example_value") for node in placeholders(gm)]
    is_made = torch.utils._python_dispatch.is_traceable_wrapper_subclass
    return [i for i in sorted(weights) if is_made(fakes[i])]


def mark_weights(gm: torch.fx.GraphModule, weights: Collection[int]) -> None:
    """Note in AOTAutograd's graph which arguments these are, or parts of them, of those that are the same in each
    call."""
    for node in placeholders(gm):
        described = node.meta.get("desc")
        while hasattr(described, "base"):  # it is a part of that one
            described = described.base
        of_weight = getattr(described, "idx", None) in weights and isinstance(node.meta.get("val"), torch.Tensor)
        node.meta[WEIGHT] = of_weight and node.meta.get(STATIC, False)


# ---- what depends on weights alone ----


def is_pure(node: torch.fx.Node) -> bool:
    """Does it give the same for the same operands, and change none?"""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace not in ("aten", "prims"):
        return False
    return not node.target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in node.target.tags


def can_be_kept(node: torch.fx.Node, device: torch.device) -> bool:
    """Can its results be arguments of a program?"""
    made = [v for v in _flat([node.meta.get("val")]) if isinstance(v, torch.Tensor)]
    dense = is_view(node) or all(is_permuted(v.shape, v.stride()) for v in made)
    return dense and all(v.device == device and v.numel() and v.dtype in DTYPES for v in made)


def known_nodes(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """What depends on no argument, and is not returned: the caller may write that."""
    known: set[torch.fx.Node] = set()
    returned = {base_of(node)[0] for node in returned_nodes(gm)}
    for node in gm.graph.nodes:
        made = node.op == "call_function" and is_pure(node) and node not in returned
        if node.op == "get_attr" or made and known.issuperset(node.all_input_nodes):
            known.add(node)
    return known


def steady_nodes(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Weights, and what reads only these and constants.  Not what is returned."""
    device, known, steady = device_of(gm), known_nodes(gm), set()
    returned = {base_of(node)[0] for node in returned_nodes(gm)}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            steady.update([node] if node.meta.get(WEIGHT) and not is_changed(node) else [])
        elif node.op == "call_function" and is_pure(node) and node not in returned and node not in known:
            if all(n in known or n in steady for n in node.all_input_nodes) and can_be_kept(node, device):
                steady.add(node)
    return steady


def is_same(node: torch.fx.Node) -> bool:
    """Is it a copy that lies as what it copies?"""
    copies = node.target is aten.clone.default
    return copies and node.meta["val"].stride() == node.args[0].meta["val"].stride()


def root_of(node: torch.fx.Node) -> torch.fx.Node:
    """What has to be kept for it: views and copies of that cost nothing."""
    while base_of(node)[0] is not node or is_same(node):
        node = node.args[0] if is_same(node) else base_of(node)[0]
    return node


def kept_nodes(gm: torch.fx.GraphModule, steady: Nodes) -> list[torch.fx.Node]:
    """What the rest of the graph reads of that, weights apart."""
    read = [n for node in gm.graph.nodes if node not in steady for n in node.all_input_nodes if n in steady]
    return [node for node in dict.fromkeys(map(root_of, read)) if node.op != "placeholder"]


# ---- products by weights ----

VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
FEWEST_CHANNELS = 3  # of a convolution's input that get more, up to WIDE
PRODUCTS = {aten.mm.default: 1, aten.addmm.default: 2}  # place of the weight


def call(graph: torch.fx.Graph, target: Any, *arguments: Any, **named: Any) -> torch.fx.Node:
    node = graph.call_function(target, arguments, named)
    node.meta["val"] = target(*(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in arguments), **named)
    return node


def axis_before(node: torch.fx.Node, axis: int) -> int | None:
    """Which axis of a node's operand is this one of its result, if the node only moves entries?"""
    shape, before = node.meta["val"].shape, node.args[0].meta["val"].shape
    if node.target is aten.permute.default:
        return node.args[1][axis] % len(shape)
    if node.target is aten.transpose.int:
        a, b = (i % len(shape) for i in node.args[1:])
        return {a: b, b: a}.get(axis, axis)
    if node.target is aten.clone.default:
        return axis
    is_last = node.target in VIEWS and axis == len(shape) - 1 and shape[-1:] == before[-1:]
    return len(before) - 1 if is_last else None


def product_of(node: torch.fx.Node, axis: int, steady: Nodes) -> torch.fx.Node | None:
    """The product by weights whose columns lie along this axis of a node, if nothing else reads it."""
    while len(node.users) == 1 and node.target not in PRODUCTS:
        if node.op != "call_function" or not isinstance(node.args[0] if node.args else None, torch.fx.Node):
            return None
        found = axis_before(node, axis) if isinstance(node.target, torch._ops.OpOverload) else None
        if found is None:
            return None
        node, axis = node.args[0], found
    plain = node.target in PRODUCTS and len(node.users) == 1 and len(node.args) == PRODUCTS[node.target] + 1
    if not plain or node.kwargs or node in steady or axis != 1 or node.args[-1] not in steady:
        return None
    bias = node.args[0] if node.target is aten.addmm.default else None
    return node if bias is None or bias in steady and bias.meta["val"].dim() == 1 else None


def factor_of(node: torch.fx.Node, steady: Nodes) -> tuple | None:
    """(operand, factor, axis) if node multiplies by a number, or each entry along an axis by a weight of its own."""
    y, factor = node.args
    last = node.meta["val"].dim() - 1
    if isinstance(factor, (int, float)):
        return y, factor, last
    if factor not in steady:
        y, factor = factor, y
    if factor not in steady or factor.op != "placeholder":
        return None
    shape = factor.meta["val"].shape
    wide = [last + 1 - len(shape) + i for i, n in enumerate(shape) if n > 1]
    return (y, factor, wide[0]) if len(wide) == 1 else None


def product_before(node: torch.fx.Node, steady: Nodes) -> tuple | None:
    """(a product by weights, the operand of node that it becomes, the factor) if node multiplies columns of a product.
    Not in f16, where small factors, as layer scales begin with, would leave nothing of weights."""
    found = factor_of(node, steady) if node.target is aten.mul.Tensor and node not in steady else None
    if found is None or not isinstance(found[0], torch.fx.Node):
        return None
    y, factor, axis = found
    result, values = node.meta["val"], [n.meta["val"] for n in (y, factor) if isinstance(n, torch.fx.Node)]
    alike = result.dtype in (torch.float32, torch.bfloat16) and all(v.dtype == result.dtype for v in values)
    if not alike or values[0].shape != result.shape or values[0].stride() != result.stride():
        return None
    product = product_of(y, axis, steady)
    return (product, y, factor) if product is not None else None


def fold_factors(gm: torch.fx.GraphModule, steady: set[torch.fx.Node]) -> None:
    """Weights and biases take the factors along."""
    for node in list(gm.graph.nodes):
        found = product_before(node, steady)
        if found is None:
            continue
        product, y, factor = found
        with gm.graph.inserting_before(product):
            if isinstance(factor, torch.fx.Node):
                factor = call(gm.graph, aten.reshape.default, factor, [-1])
                steady.add(factor)
            scaled = {n: call(gm.graph, aten.mul.Tensor, n, factor) for n in product.args if n in steady}
        steady.update(scaled.values())
        product.args = tuple(scaled.get(n, n) for n in product.args)
        node.replace_all_uses_with(y)
        gm.graph.erase_node(node)


def term_of(node: Any, fixed: Nodes) -> tuple | None:
    """(operand, term) if node adds something that depends on weights alone, or on nothing, to what does not."""
    if node.target is not aten.add.Tensor or node.kwargs or not all(isinstance(a, torch.fx.Node) for a in node.args):
        return None
    x, term = node.args if node.args[1] in fixed else reversed(node.args)
    like = node.meta["val"]
    alike = like.is_floating_point() and all(n.meta["val"].dtype == like.dtype for n in (x, term))
    same = x.meta["val"].shape == like.shape and x.meta["val"].stride() == like.stride()
    return (x, term) if alike and same and term in fixed and x not in fixed else None


def term_before(node: torch.fx.Node, fixed: Nodes) -> tuple | None:
    """(the last term, the sum before it, that one's operand, its term) if node adds two terms one after the other, with
    views in between at most that leave the axes of the first term as they are."""
    found = term_of(node, fixed)
    if found is None:
        return None
    x, last = found
    while x.target in VIEWS and len(x.users) == 1:
        x = x.args[0]
    before = term_of(x, fixed) if len(x.users) == 1 else None
    if before is None:
        return None
    shape = before[1].meta["val"].shape
    axes = max((len(shape) - i for i, n in enumerate(shape) if n > 1), default=0)
    same = axes == 0 or x.meta["val"].shape[-axes:] == node.meta["val"].shape[-axes:]
    return (last, x, *before) if same else None


def join_terms(gm: torch.fx.GraphModule, steady: set[torch.fx.Node]) -> None:
    """(x + a) + b becomes x + (a + b), as biases of relative positions and masks of windows are (Swin).  What has more
    axes than masks of attention may have is laid out whole."""
    fixed = steady | known_nodes(gm)
    for node in list(gm.graph.nodes):
        found = term_before(node, fixed) if node not in fixed else None
        if found is None:
            continue
        last, inner, x, first = found
        shape, whole = first.meta["val"].shape, node.meta["val"].shape
        with gm.graph.inserting_before(node):
            flat = call(gm.graph, aten.reshape.default, first, list(shape[max(0, len(shape) - len(whole)) :]))
            both = call(gm.graph, aten.add.Tensor, flat, last)
            made = [flat, both]
            if both.meta["val"].dim() > 4:
                made.append(call(gm.graph, aten.expand.default, both, list(whole)))
                made.append(call(gm.graph, aten.clone.default, made[-1], memory_format=torch.contiguous_format))
        steady.update(made)
        fixed.update(made)
        node.replace_input_with(last, made[-1])
        inner.replace_all_uses_with(x)
        gm.graph.erase_node(inner)


def is_by_columns(b: Any, steady: Nodes) -> bool:
    """Is it a weight [D, F] that lies so?"""
    if b not in steady or b.meta["val"].dim() != 2:
        return False
    fake = b.meta["val"]
    return fake.dtype in (torch.float32, torch.float16, torch.bfloat16) and fake.is_contiguous() and min(fake.shape) > 1


def lay_by_rows(gm: torch.fx.GraphModule, steady: set[torch.fx.Node]) -> None:
    """Products by such weights read the transpose of a copy that lies as [F, D]."""
    laid: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(gm.graph.nodes):
        b = node.args[PRODUCTS[node.target]] if node.target in PRODUCTS else None
        if node in steady or not is_by_columns(b, steady):
            continue
        if b not in laid:
            with gm.graph.inserting_before(node):
                turned = call(gm.graph, aten.t.default, b)
                rows = call(gm.graph, aten.clone.default, turned, memory_format=torch.contiguous_format)
                laid[b] = call(gm.graph, aten.t.default, rows)
            steady.update((turned, rows, laid[b]))
        node.replace_input_with(b, laid[b])


GATES = {aten.gelu.default, aten.silu.default}


def columns_of(half: Any) -> tuple[torch.fx.Node, int] | None:
    """The product of which this is a view of neighbouring columns, of all rows in order, and the first of them."""
    product = base_of(half)[0] if isinstance(half, torch.fx.Node) else None
    if product is not None and product.target is aten._unsafe_view.default:  # of a product without bias
        product = product.args[0]
    if product is None or product is half or product.target not in PRODUCTS:
        return None
    fake, whole = half.meta["val"], product.meta["val"]
    n, rows, step = fake.shape[-1], math.prod(fake.shape[:-1]), whole.shape[1]
    strides = [math.prod(fake.shape[i + 1 : -1]) * step for i in range(fake.dim() - 1)]
    lies_so = fake.dim() > 1 and rows == whole.shape[0] and list(fake.stride()) == [*strides, 1]
    return (product, fake.storage_offset()) if lies_so and whole.is_contiguous() and n < step else None


def gate_of(node: torch.fx.Node, steady: Nodes) -> tuple | None:
    """(product, half, gate, first column of each) if the node is half * act(gate), both halves of the columns of one
    product by a weight [F, D] of 16 bits, which nothing else reads."""
    if node.target is not aten.mul.Tensor or not all(isinstance(n, torch.fx.Node) for n in node.args):
        return None
    for up, act in (node.args, node.args[::-1]):
        gate = act.args[0] if act.target in GATES and len(act.users) == 1 else None
        found = columns_of(up), columns_of(gate)
        if None in found or found[0][0] is not found[1][0] or len(up.users) != 1 or len(gate.users) != 1:
            continue
        product, starts = found[0][0], [start for _, start in found]
        terms = [n for n in product.args if isinstance(n, torch.fx.Node)]
        weight, n, width = terms[-1], up.meta["val"].shape[-1], product.meta["val"].shape[1]
        alone = sorted(starts) == [0, n] and gate.meta["val"].shape[-1] == n and 2 * n == width
        by_rows = weight.target in (aten.t.default, aten.permute.default) and weight.args[0] in steady
        short = weight.meta["val"].dtype in (torch.float16, torch.bfloat16) and weight.meta["val"].stride(0) == 1
        biased = len(terms) == 2 or terms[0] in steady and terms[0].meta["val"].dim() == 1
        if alone and by_rows and short and biased and not product.kwargs:
            return product, up, gate, starts
    return None


def part_gates(gm: torch.fx.GraphModule, steady: set[torch.fx.Node]) -> None:
    """Where columns of a product are a gate and what it multiplies, each gets a product of its own, by rows of the
    weight that are copied once: the compiler makes one gated product of both."""
    for node in list(gm.graph.nodes):
        found = gate_of(node, steady)
        if found is None:
            continue
        product, *halves, starts = found
        *bias, x, weight = product.args
        for half, start in zip(halves, starts):
            n, width = half.meta["val"].shape[-1], product.meta["val"].shape[1]
            cut = [-start, start + n - width]
            with gm.graph.inserting_before(product):
                terms = [call(gm.graph, aten.constant_pad_nd.default, b, cut) for b in bias]
                rows = call(gm.graph, aten.constant_pad_nd.default, weight.args[0], [0, 0, *cut])
                turned = call(gm.graph, aten.t.default, rows)
                part = call(gm.graph, product.target, *terms, x, turned)
                laid = call(gm.graph, aten.reshape.default, part, list(half.meta["val"].shape))
            steady.update((*terms, rows, turned))
            half.replace_all_uses_with(laid)
        for half in halves:
            while not half.users and half is not x:
                dead, half = half, x if half is product else half.args[0]
                gm.graph.erase_node(dead)


def filters_of(node: torch.fx.Node, steady: Nodes) -> torch.fx.Node | None:
    """The weight of a convolution of images, if it can be laid with its channels last."""
    if node.target is not aten.convolution.default or node in steady or node.args[1] not in steady or node.args[6]:
        return None
    x, w = (n.meta["val"] for n in node.args[:2])
    short = w.dtype in (torch.float32, torch.float16, torch.bfloat16)
    fits = short and w.dim() >= 3 and x.dim() == w.dim() and w[0].numel() > 1
    return node.args[1] if fits and not is_of_patches(x, w, *node.args[3:9]) else None


def laid_filters(graph: torch.fx.Graph, w: torch.fx.Node, groups: int) -> list[torch.fx.Node]:
    """What leads from a weight to a copy that lies as [F, .., C], or, with a channel a group, as [.., C, F]."""
    shape = w.meta["val"].shape
    rank, made = len(shape), []
    if groups == 1 and FEWEST_CHANNELS <= shape[1] < WIDE:
        made.append(call(graph, aten.constant_pad_nd.default, w, [0, 0] * (rank - 2) + [0, WIDE - shape[1]]))
    order = [*range(2, rank), 1, 0] if groups > 1 and shape[1] == 1 else channels_last(rank)
    made.append(call(graph, aten.permute.default, made[-1] if made else w, order))
    made.append(call(graph, aten.clone.default, made[-1], memory_format=torch.contiguous_format))
    made.append(call(graph, aten.permute.default, made[-1], [order.index(axis) for axis in range(rank)]))
    return made


def laid_lines(graph: torch.fx.Graph, w: torch.fx.Node, down: int) -> list[torch.fx.Node]:
    """What leads from a weight [F, C, h, w] to a copy whose places are `down` lines of it, [F, LINE_CHANNELS, .., 1]; a
    line that the kernel has not, and entries after its lines, are 0."""
    filters, channels, rows, columns = w.meta["val"].shape
    places, entries = -(-rows // down), down * columns * channels
    made = [w]
    if places * down > rows:
        made.append(call(graph, aten.constant_pad_nd.default, w, [0, 0, 0, places * down - rows]))
    made.append(call(graph, aten.permute.default, made[-1], channels_last(4)))
    made.append(call(graph, aten.clone.default, made[-1], memory_format=torch.contiguous_format))
    made.append(call(graph, aten.view.default, made[-1], [filters, places, 1, entries]))
    if entries < LINE_CHANNELS:
        made.append(call(graph, aten.constant_pad_nd.default, made[-1], [0, LINE_CHANNELS - entries]))
    made.append(call(graph, aten.permute.default, made[-1], channels_first(4)))
    return made[1:]


def lay_channels_last(gm: torch.fx.GraphModule, steady: set[torch.fx.Node]) -> None:
    """Convolutions read such copies of their weights.  A few channels become WIDE; what is added is 0, and lowering
    adds as much to the image; or lines of the kernel become the channels (is_of_lines)."""
    laid: dict[tuple, torch.fx.Node] = {}
    for node in list(gm.graph.nodes):
        w = filters_of(node, steady)
        if w is None:
            continue
        x, down = node.args[0].meta["val"], per_axis(node.args[3], 2)[0]
        by_lines = is_of_lines(x, w.meta["val"], *node.args[3:9])
        key = w, node.args[8] > 1, by_lines and down
        if by_lines:
            node.meta[LINES] = w.meta["val"].shape[3]
        if key not in laid:
            with gm.graph.inserting_before(node):
                made = laid_lines(gm.graph, w, down) if by_lines else laid_filters(gm.graph, w, node.args[8])
            steady.update(made)
            laid[key] = made[-1]
        node.replace_input_with(w, laid[key])


# ---- two graphs ----


def copy_of(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return torch.fx.GraphModule(gm, graph)


def only(gm: torch.fx.GraphModule, kept: list[torch.fx.Node]) -> torch.fx.GraphModule:
    """The graph that returns these, of the same arguments."""
    graph, copies = torch.fx.Graph(), {}
    for node in gm.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output([copies[node] for node in kept])
    graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    return torch.fx.GraphModule(gm, graph)


def take_as_arguments(gm: torch.fx.GraphModule, steady: Nodes, kept: list[torch.fx.Node]) -> None:
    """Let the graph take these as further arguments, in place of what makes them."""
    last = placeholders(gm)[-1]
    for i, node in enumerate(kept):
        with gm.graph.inserting_after(last):
            last = gm.graph.placeholder(f"kept_{i}")
        last.meta.update({"val": node.meta["val"], STATIC: True})
        node.replace_all_uses_with(last)
    for node in reversed(list(gm.graph.nodes)):
        if node in steady and node.op == "call_function" and not node.users:
            gm.graph.erase_node(node)
    gm.recompile()


class Once:
    """The rest of a graph, and what it takes beside the arguments.  Any thread may call it."""

    def __init__(self, before: torch.fx.GraphModule, rest: Callable, whole: Callable[[], Callable]) -> None:
        self.before, self.rest, self.whole = before, rest, whole
        numbers = [i for i, node in enumerate(placeholders(before)) if node.users]
        self.statics, self.kept, self.changes, self.lock = Statics(numbers), [], 0, threading.Lock()
        self.statics.watch(numbers)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        with self.lock:
            if self.before is not None:
                self.look_at(arguments)
            rest, kept = self.rest, self.kept
        return rest([*arguments, *kept])

    def look_at(self, arguments: list[Any]) -> None:
        """Make what is kept anew if weights have changed.  If they do from call to call, nothing is kept any more."""
        if self.statics.are_as_before(arguments):
            self.changes = 0
            return
        self.changes += 1
        if self.changes > PATIENCE:
            self.rest, self.before, self.kept, self.statics = self.whole(), None, [], None
            return
        self.kept = self.make(arguments)
        self.statics.hold(arguments)

    def make(self, arguments: list[Any]) -> list[torch.Tensor]:
        """What is kept, of the weights as they are now; done when this returns, for whatever stream comes next."""
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            made = list(self.before(*arguments))
        if made[0].is_cuda:
            torch.cuda.synchronize(made[0].device)
        return made


def run_as_it_was(gm: torch.fx.GraphModule, arguments: list[Any]) -> list[Any]:
    """PyTorch runs a graph.  One whose weights have been laid for fast code may be none that it can run: then the graph
    before that."""
    before, n = getattr(gm, "mpk_before", (gm, len(arguments)))
    return list(before(*arguments[:n]))


def compile_once(
    gm: torch.fx.GraphModule, compile: Callable[[torch.fx.GraphModule], Callable]
) -> tuple[Callable, int]:
    """A function of the graph's arguments, and how many operators it runs once."""
    rest = copy_of(gm)
    steady = steady_nodes(rest)
    fold_factors(rest, steady)
    join_terms(rest, steady)
    part_gates(rest, steady)
    lay_by_rows(rest, steady)
    lay_channels_last(rest, steady)
    kept = kept_nodes(rest, steady)
    if not kept:
        return compile(gm), 0
    before = only(rest, kept)
    take_as_arguments(rest, steady, kept)
    rest.mpk_before = gm, len(placeholders(gm))
    n = sum(node.op == "call_function" for node in before.graph.nodes)
    return Once(before, compile(rest), lambda: compile(gm)), n
