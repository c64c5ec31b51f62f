"""From an FX graph of ATen operators, shapes known, to a tensor program.

Input: a functional graph whose nodes carry fake values of concrete shapes.  Output: a graph.Graph, and a slot for each
tensor that lies in PyTorch's memory.  Idea: nodes are lowered one by one, in order, by the functions of the tables in
lowering*.py; what depends on no input is evaluated by PyTorch at once and becomes a constant.  A value without elements
has no bytes, so it counts as such a constant, and the library never sees it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpk import graph as mg
from mpk._library import Error

DTYPES = {
    torch.float32: (mg.F32, "f32"),
    torch.float16: (mg.F16, "f16"),
    torch.bfloat16: (mg.BF16, "bf16"),
    torch.float64: (mg.F64, "f64"),
    torch.int32: (mg.I32, "i32"),
    torch.int64: (mg.I64, "i64"),
    torch.bool: (mg.BOOL, "bool"),
    torch.uint8: (mg.U8, "u8"),
    torch.int8: (mg.I8, "i8"),
    torch.int16: (mg.I16, "i16"),
}
FROM_IR = {number: dtype for dtype, (number, _) in DTYPES.items()}
ELEMENTWISE = {"map", "add", "mul", "silu", "gelu", "cast"}
VIEWS = {"reshape", "transpose", "expand", "slice", "strided"}
FOLD_LIMIT = 1 << 24  # elements of a value that is worked out at compile time

# Filled by lowering*.py: an overload -> (function of (Emitter, *arguments in the order of the schema)).
table: dict[Any, Callable[..., Any]] = {}
# Overloads whose result depends only on the shape and dtype of their tensors.
shape_only: set[Any] = set()
# Overloads that are run in each call even if what they read is known.
unfolded: set[Any] = set()


class Unsupported(Exception):
    """The node cannot be lowered; it stays with PyTorch."""


class Foreign:
    """A value that no program can hold; whoever reads it stays with PyTorch."""


@dataclasses.dataclass(eq=False)
class Val:
    """A value of the FX graph: a tensor of the program, or one known at compile time (data)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: mg.Tensor | None = None
    data: torch.Tensor | None = None
    permuted: tuple[Val, list[int]] | None = None  # of which it is a permutation, and its axes

    @property
    def transposed(self) -> Val | None:
        """Of which it is the transpose: [D, F] of [F, D]."""
        return self.permuted[0] if self.permuted is not None and self.rank == 2 else None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point

    def literal(self) -> str | None:
        """Its text in an expression, if all of its elements are known to be one number."""
        if (
            self.data is None
            or self.numel == 0
            or (self.numel > 1 and any(s for s, n in zip(self.data.stride(), self.shape) if n > 1))
        ):
            return None
        return literal(self.data[(0,) * self.rank].item() if self.rank else self.data.item())


def literal(value: bool | int | float) -> str:
    """A number as the operator map reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"({value})" if value < 0 else str(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "(-inf)"
    text = repr(float(value))
    text = text if any(c in text for c in ".e") else text + ".0"
    return f"({text})" if value < 0 or text[0] == "-" else text


def dtype_name(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise Unsupported(f"dtype {str(dtype).removeprefix('torch.')}")
    return DTYPES[dtype][1]


@dataclasses.dataclass
class Slot:
    """A tensor in PyTorch's memory: an argument of the compiled function, a constant, or a result; or in memory that
    processes share."""

    name: str
    kind: str  # "argument", "constant", "result", "shared"
    index: int  # of the argument or the result
    data: torch.Tensor | None = None
    written: bool = False
    static: bool = False  # an argument that PyTorch says is the same in each call
    constant: bool = False


class Emitter:
    """Builds one tensor program; the face that lowering functions see.  Its tensors are all on one device; what is
    known at compile time may lie on the CPU, too."""

    def __init__(self, name: str, device: torch.device = torch.device("cpu")) -> None:
        self.graph, self.device = mg.Graph(name), device
        self.slots: list[Slot] = []
        self.weights: dict[int, Slot] = {}  # by tensor: arguments that are constants
        self.rows: dict[int, Val] = {}  # the same as rows, by tensor (as_rows)
        self.lifted: dict[int, mg.Tensor] = {}
        self.node: torch.fx.Node | None = None
        self.in_place: set[torch.fx.Node] = set()  # nodes whose result may take the place of their first argument
        self.overwritten: set[torch.fx.Node] = set()  # those whose lowering made it so
        self.n_stand_ins = 0  # results of PyTorch that lowering went on with
        self.views: set[int] = set()  # tensors that may share the storage of another
        self.values: dict[torch.fx.Node, Any] = {}
        self.masks: dict[tuple[Val, int, int], tuple[Val | None, bool]] = {}  # lowering_math.least_mask
        self.exchanges: Any = None  # collectives.Exchanges, if programs may have some

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    # ---- tensors that come from outside ----

    def argument(self, index: int, fake: torch.Tensor, written: bool = False, static: bool = False) -> Val:
        """Argument `index` of the compiled function; its memory is used as it lies, strided like `fake`.  written: the
        program changes it; static: PyTorch says that it is the same in each call."""
        dtype_name(fake.dtype)
        if fake.device != self.device:
            raise Unsupported(f"a tensor on {fake.device} in a graph for {self.device}")
        shape = tuple(int(n) for n in fake.shape)
        if math.prod(shape) == 0:
            return self.folded(torch.empty(shape, dtype=fake.dtype))
        if len(shape) > mg.MAX_RANK:
            raise Unsupported(f"rank {len(shape)}, above {mg.MAX_RANK}")
        static = static and not fake.is_neg()  # the program gets a copy of what has a negative bit, in each call
        name, order = f"a{index}", dense_order(shape, fake.stride())
        add = self.graph.state if written else self.graph.constant if static else self.graph.input
        tensor = add(name, DTYPES[fake.dtype][0], [shape[axis] for axis in order])
        self.slots.append(Slot(name, "argument", index, None, written, static, static and not written))
        if self.slots[-1].constant:
            self.weights[tensor.id] = self.slots[-1]
        self.views.add(tensor.id)
        val = Val(tuple(shape[axis] for axis in order), fake.dtype, tensor)
        return self.permute(val, [order.index(axis) for axis in range(len(order))])

    def as_rows(self, val: Val) -> Val:
        """Filters [F, ..] as the weight [F, K] of a product.  Of an argument that is a constant this is another one in
        the same memory, since fast products take no views."""
        shape, tensor = (val.shape[0], math.prod(val.shape[1:])), self.tensor(val)
        slot = self.weights.get(tensor.id)
        if slot is None:
            return self.reshape(val, shape)
        if tensor.id not in self.rows:
            name = f"{slot.name}_rows"
            rows = self.graph.constant(name, DTYPES[val.dtype][0], shape)
            self.slots.append(dataclasses.replace(slot, name=name))
            self.rows[tensor.id] = Val(shape, val.dtype, rows)
        return self.rows[tensor.id]

    def folded(self, data: torch.Tensor) -> Val:
        """A value known at compile time."""
        return Val(tuple(data.shape), data.dtype, data=data)

    def tensor(self, val: Val) -> mg.Tensor:
        """The tensor of a value; one known at compile time becomes a constant."""
        if val.tensor is None:
            val.tensor = self._lift(val)
        return val.tensor

    def _lift(self, val: Val) -> mg.Tensor:
        assert val.data is not None
        if val.numel == 0:
            raise Unsupported("an operand has no elements")
        dtype_name(val.dtype)
        data = val.data
        if val.numel > 1 and val.literal() is not None:
            one = self.tensor(self.folded(data.as_strided([1] * val.rank, [1] * val.rank).clone()))
            return self.graph.operator("expand", [one], shape=val.shape)[0]
        data = data.contiguous().resolve_neg()
        name = f"c{len(self.slots)}"
        tensor = self.graph.constant(name, DTYPES[val.dtype][0], val.shape)
        self.slots.append(Slot(name, "constant", len(self.slots), data, constant=True))
        return tensor

    # ---- operators ----

    def op(self, kind: str, /, *operands: Val | None, **attributes: mg.AttributeValue) -> Val:
        return self.ops(kind, *operands, **attributes)[0]

    def ops(self, kind: str, /, *operands: Val | None, **attributes: mg.AttributeValue) -> list[Val]:
        """Add an operator; all of its results."""
        if kind in ELEMENTWISE and self.is_channels_last(operands):
            return [self.op_channels_last(kind, operands, attributes)]
        tensors = [None if v is None else self.tensor(v) for v in operands]
        try:
            made = self.graph.operator(kind, tensors, None, **attributes)
        except Error as problem:
            raise Unsupported(str(problem).splitlines()[0]) from None
        if kind in VIEWS:
            self.views.update(t.id for t in made)
        return [Val(t.shape, FROM_IR[t.dtype], t) for t in made]

    def is_channels_last(self, operands: Sequence[Val | None]) -> bool:
        """Are these images on a GPU whose channels lie last?  Of those that are as large as what becomes of them one is
        enough, since what reads the result is likely a convolution; of sequences [N, C, T] all have to."""
        given = [v for v in operands if v is not None]
        shape = torch.broadcast_shapes(*(v.shape for v in given))
        laid = [lies_channels_last(v) for v in given if v.shape == tuple(shape)]
        return self.on_gpu and bool(laid) and (any(laid) if len(shape) > 3 else all(laid))

    def op_channels_last(self, kind: str, operands: Sequence[Val], attributes: dict) -> Val:
        """The same of what lies there."""
        rank = max(v.rank for v in operands)
        shape = torch.broadcast_shapes(*(v.shape for v in operands))
        wide = [self.reshape(v, (1,) * (rank - v.rank) + v.shape) for v in operands]
        y = self.op(kind, *(self.laid_channels_last(v, shape) for v in wide), **attributes)
        return self.permute(y, channels_first(rank))

    def laid_channels_last(self, val: Val, shape: Sequence[int]) -> Val:
        """[N, C, ..] as [N, .., C].  An image of this shape is copied there unless it lies so: the copy, which a
        convolution or a norm may need as well, goes by tiles, where reads of single entries would be far apart."""
        laid = self.permute(val, channels_last(val.rank))
        far = val.rank > 3 and val.shape == tuple(shape) and not lies_channels_last(val) and val.shape[1] >= WIDE
        return self.op("copy", laid) if far else laid

    def overwrite(self) -> dict[str, int]:
        """The attribute of an operator that writes the node's first argument in place where it may."""
        if self.node not in self.in_place:
            return {}
        self.overwritten.add(self.node)
        return {"in_place": 1}

    def fresh(self, val: Val) -> Val:
        """The value in storage of its own."""
        tensor = self.tensor(val)
        return self.op("copy", val) if tensor.id in self.views else val

    def assign(self, state: Val, val: Val) -> None:
        """Write a value over an argument that the program may write."""
        self.op("slice_scatter", state, val, starts=[0] * state.rank, stops=state.shape, in_place=1)

    def map(self, expression: str, *operands: Any, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Val:
        """An element-wise expression of {0}, {1} ...: values, or numbers.  shape: of the result, if it is known."""
        words, tensors = [], []
        for operand in operands:
            word = operand.literal() if isinstance(operand, Val) else literal(operand)
            if word is None:
                if operand not in tensors:
                    tensors.append(operand)
                word = f"x{tensors.index(operand)}"
            words.append(word)
        shapes = [v.shape for v in operands if isinstance(v, Val)]
        shape = tuple(torch.broadcast_shapes(*shapes)) if shape is None else tuple(shape)
        if math.prod(shape) == 0:
            return self.folded(torch.empty(shape, dtype=dtype))
        if not tensors:
            val = self.op(
                "map",
                self.folded(torch.zeros((1,) * max(1, len(shape)), dtype=dtype)),
                expr=f"{expression.format(*words)}",
                dtype=dtype_name(dtype),
            )
        else:
            val = self.op("map", *tensors, expr=expression.format(*words), dtype=dtype_name(dtype))
        return self.expand(self.reshape(val, (1,) * (len(shape) - val.rank) + val.shape), shape)

    # ---- views and the like, which leave out what changes nothing ----

    def cast(self, val: Val, dtype: torch.dtype) -> Val:
        if val.dtype == dtype:
            return val
        if val.data is not None:
            return self.folded(val.data.to(dtype))
        return self.op("cast", val, dtype=dtype_name(dtype))

    def reshape(self, val: Val, shape: Sequence[int]) -> Val:
        shape = tuple(int(n) for n in shape)
        if val.shape == shape:
            return val
        if val.data is not None:
            return self.folded(val.data.reshape(shape))
        if len(shape) > mg.MAX_RANK:
            raise Unsupported(f"rank {len(shape)}, above {mg.MAX_RANK}")
        if lies_channels_last(val) and len(shape) >= 3 and shape[:2] == val.shape[:2]:  # only places are regrouped
            laid = self.reshape(val.permuted[0], (shape[0], *shape[2:], shape[1]))
            return self.permute(laid, channels_first(len(shape)))
        return self.op("reshape", val, shape=shape)

    def permute(self, val: Val, axes: Sequence[int]) -> Val:
        """Permutations of a permutation become one, or none at all."""
        axes = [axis % max(1, val.rank) for axis in axes]
        if axes == list(range(val.rank)):
            return val
        if val.data is not None:
            return self.folded(val.data.permute(axes))
        if val.permuted is not None:
            val, before = val.permuted
            return self.permute(val, [before[axis] for axis in axes])
        out = self.op("transpose", val, perm=axes)
        out.permuted = val, axes
        return out

    def expand(self, val: Val, shape: Sequence[int]) -> Val:
        shape = tuple(int(n) for n in shape)
        if val.shape == shape:
            return val
        if val.data is not None:
            return self.folded(val.data.expand(shape))
        if len(shape) > mg.MAX_RANK:
            raise Unsupported(f"rank {len(shape)}, above {mg.MAX_RANK}")
        return self.op("expand", self.reshape(val, (1,) * (len(shape) - val.rank) + val.shape), shape=shape)

    def slice(self, val: Val, axis: int, start: int, stop: int, step: int = 1) -> Val:
        """Entries start, start + step ... below stop of an axis; bounds are in range."""
        axis %= val.rank
        if (start, stop, step) == (0, val.shape[axis], 1):
            return val
        if val.data is not None:
            return self.folded(val.data[(slice(None),) * axis + (slice(start, stop, step),)])
        starts, stops = [0] * val.rank, list(val.shape)
        starts[axis], stops[axis] = start, stop
        if stop <= start:
            return self.folded(torch.empty([0 if i == axis else n for i, n in enumerate(val.shape)], dtype=val.dtype))
        if step == 1:
            return self.op("slice", val, starts=starts, stops=stops)
        steps = [1] * val.rank
        steps[axis] = step
        return self.op("slice", val, starts=starts, stops=stops, steps=steps)

    def select(self, val: Val, axis: int, index: int) -> Val:
        axis %= val.rank
        index += val.shape[axis] if index < 0 else 0
        one = self.slice(val, axis, index, index + 1)
        return self.reshape(one, val.shape[:axis] + val.shape[axis + 1 :])

    def concat(self, vals: Sequence[Val], axis: int) -> Val:
        """Joined in groups where an operator would have more inputs than a body of a GPU takes."""
        vals = [v for v in vals if v.numel]
        while len(vals) > mg.MAX_JOINED:
            vals = [self.concat(vals[i : i + mg.MAX_JOINED], axis) for i in range(0, len(vals), mg.MAX_JOINED)]
        return vals[0] if len(vals) == 1 else self.op("concat", *vals, axis=axis % vals[0].rank)

    def reduce(self, val: Val, kind: str, axes: Sequence[int], keep: bool, dtype: torch.dtype) -> Val:
        return self.op("reduce", val, axes=list(axes), keep=int(keep), kind=kind, dtype=dtype_name(dtype))

    # ---- nodes ----

    def lower(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
        """The value of a node: a Val, or a list of them.  Raises Unsupported."""
        self.node, self.values = node, values
        if node.target is operator.getitem:
            value = values[node.args[0]][node.args[1]]
            return value() if callable(value) else value
        meta = node.meta.get("val")
        places = {v.device for v in _flat([meta]) if isinstance(v, torch.Tensor)} - {self.device}
        if places - {torch.device("cpu")}:
            raise Unsupported(f"a result on {(places - {torch.device('cpu')}).pop()} in a graph for {self.device}")
        if isinstance(meta, torch.Tensor) and meta.numel() == 0:
            return self.folded(torch.empty(tuple(meta.shape), dtype=meta.dtype))
        arguments = bind(node)
        read = torch.fx.node.map_arg(arguments, lambda n: values[n])
        if any(isinstance(v, Foreign) for v in _flat(read)):
            raise Unsupported("it reads a tensor that no program can hold")
        folded = self._fold(node, values)
        if folded is not None:
            return folded
        if places:
            raise Unsupported(f"a result on {places.pop()} in a graph for {self.device}")
        function = table.get(node.target)
        if function is None:
            raise Unsupported("no lowering")
        result = function(self, *read)
        if isinstance(meta, torch.Tensor):
            self._check(result, meta)
        return result

    def _check(self, val: Val, meta: torch.Tensor) -> None:
        if val.shape != tuple(meta.shape) or val.dtype != meta.dtype:
            raise Unsupported(f"lowered to {val.dtype}{list(val.shape)}, not {meta.dtype}{list(meta.shape)}")

    def _fold(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
        """Work the node out now if nothing that it reads comes from outside."""
        if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
        if node.target in unfolded:
            return None
        if node.target in shape_only:
            return self._fold_shape_only(node, values)
        known = all(isinstance(v, Val) and v.data is not None for v in _flat([values[n] for n in node.all_input_nodes]))
        size = sum(v.numel() for v in _flat([node.meta.get("val")]) if isinstance(v, torch.Tensor))
        if not known or size > FOLD_LIMIT or node.target._schema.is_mutable:
            return None
        real = self._real if node.target is not torch.ops.aten.as_strided.default else self._laid_out
        args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: real(values[n], n.meta["val"]))
        args, kwargs = torch.utils._pytree.tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            result = node.target(*args, **kwargs)
        return torch.utils._pytree.tree_map_only(torch.Tensor, self.folded, result)

    def _fold_shape_only(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Val:
        """full, zeros_like and their kind: one number, seen everywhere."""
        meta, name = node.meta["val"], node.target._overloadpacket.__name__
        value: Any = 1 if "ones" in name else 0
        if "full" in name:
            at = [a.name for a in node.target._schema.arguments].index("fill_value")
            value = bind(node)[at]
        if isinstance(value, torch.fx.Node):
            value = values[value].data
            if value is None:
                raise Unsupported("the number is not known")
            value = value.item()
        return self.folded(torch.full((1,) * meta.dim(), value, dtype=meta.dtype).expand(tuple(meta.shape)))

    def _real(self, value: Any, fake: Any) -> Any:
        return torch.utils._pytree.tree_map_only(Val, lambda v: v.data.cpu(), value)

    def _laid_out(self, value: Val, fake: torch.Tensor) -> torch.Tensor:
        """With the strides that eager would have: what is known to be one number is kept once."""
        if fake.storage_offset() or not is_permuted(fake.shape, fake.stride()):
            raise Unsupported("strides of a part of a tensor that is known")
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cpu").copy_(value.data)


def _flat(values: Any) -> list[Any]:
    out: list[Any] = []
    for v in values:
        if isinstance(v, (list, tuple)):
            out += _flat(v)
        elif v is not None:
            out.append(v)
    return out


def bind(node: torch.fx.Node) -> list[Any]:
    """The arguments of a node in the order of its schema, defaults filled in."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return list(node.args)
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Unsupported("not an operator")
    parameters = node.target._schema.arguments
    arguments = list(node.args)
    for parameter in parameters[len(arguments) :]:
        arguments.append(node.kwargs[parameter.name] if parameter.name in node.kwargs else parameter.default_value)
    return arguments


def channels_last(rank: int) -> list[int]:
    """[N, C, ..] as [N, .., C]; channels_first: the other way."""
    return [0, *range(2, rank), 1]


def channels_first(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def lies_channels_last(val: Val) -> bool:
    """Is it an image [N, C, ..] that lies as [N, .., C]?"""
    return val.permuted is not None and val.rank >= 3 and val.permuted[1] == channels_first(val.rank)


def per_axis(values: Sequence[int] | int, n: int) -> list[int]:
    """Numbers of n spatial axes, of which one may stand for all."""
    values = [values] if isinstance(values, int) else list(values)
    return values * n if len(values) == 1 else values


WIDE = 8  # channels, or entries side by side, that a copy of 16 bytes takes in 16 bits
FEWEST_PATCHES = 64  # windows of which a product is faster
PIECE = 4  # entries of a window's line that are copied at a time, at least: 8 bytes


def is_of_patches(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> bool:
    """Do the windows of a convolution of images of few channels lie side by side, with lines of whole pieces?  Then it
    is a product of rows, each a window, with its weight as it is (lowering_math.py).  x, w: what has a shape and a
    dtype."""
    n, half = len(w.shape) - 2, w.dtype in (torch.float16, torch.bfloat16)
    kernel, places = list(w.shape[2:]), list(x.shape[2:])
    steps = [per_axis(given, n) for given in (stride, padding, dilation)]
    return (
        (half and x.dtype == w.dtype and groups == 1 and not transposed and x.shape[1] == w.shape[1] < WIDE)
        and steps == [kernel, [0] * n, [1] * n]
        and (all(p % k == 0 for p, k in zip(places, kernel)) and kernel[-1] % PIECE == 0)
        and (x.shape[1] * math.prod(kernel)) % WIDE == 0  # rows begin at multiples of 16 bytes
        and x.shape[0] * math.prod(p // k for p, k in zip(places, kernel)) >= FEWEST_PATCHES
    )


LINE_CHANNELS, MOST_OF_LINES = 64, 4  # that a copied box has; of images whose lines become so many
LINES = "mpk_lines"  # of a convolution's node whose weight once.py has laid so: the columns of its kernel
FEWEST_OF_LINES = 1 << 28  # products, as convolutions by boxes have (src/pass/flatten.c)


def is_of_lines(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> bool:
    """Is it a large convolution of images of few channels whose windows move by several lines?  Then what a window has
    of so many lines becomes one place of LINE_CHANNELS, and the kernel has one column and as many rows as there are
    such places (once.py, lowering_math.py).  It pays if a sum is shorter so than with WIDE channels a place."""
    if len(x.shape) != 4 or len(w.shape) != 4 or transposed or groups != 1 or w.shape[1] != x.shape[1]:
        return False
    (down, right), around = per_axis(stride, 2), per_axis(padding, 2)
    (filters, channels), kernel = w.shape[:2], w.shape[2:]
    places = [(n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], around, kernel, (down, right))]
    entries = -(-kernel[0] // down) * LINE_CHANNELS  # of a sum
    return (
        (w.dtype in (torch.float16, torch.bfloat16) and x.dtype == w.dtype and channels <= MOST_OF_LINES)
        and (down > 1 and per_axis(dilation, 2) == [1, 1] and down * kernel[1] * channels <= LINE_CHANNELS)
        and entries < math.prod(kernel) * WIDE
        and x.shape[0] * math.prod(places) * filters * entries >= FEWEST_OF_LINES
    )


def base_of(node: Any) -> tuple[Any, list[tuple]]:
    """The node in whose memory that of a node lies, and the views by numbers alone that lead from there to it."""
    chain: list[tuple] = []
    while isinstance(node, torch.fx.Node) and node.op == "call_function" and is_view(node):
        chain.insert(0, (node.target, node.args[1:], node.kwargs))
        node = node.args[0]
    return node, chain


def is_view(node: torch.fx.Node) -> bool:
    """Is it a view by numbers alone?  One of several results is a view if all of them are."""
    if len(node.all_input_nodes) != 1 or not isinstance(node.args[0], torch.fx.Node):
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def dense_order(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Axes from the slowest to the fastest in memory; as they are if no order is dense."""
    axes = list(range(len(shape)))
    if not is_permuted(shape, stride):
        return axes
    moving = sorted((axis for axis in axes if shape[axis] > 1), key=lambda axis: -stride[axis])
    return [axis if shape[axis] == 1 else moving.pop(0) for axis in axes]


def is_permuted(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Do the strides say a dense tensor with its axes in some order?"""
    expected = 1
    for n, s in sorted(((n, s) for n, s in zip(shape, stride) if n > 1), key=lambda ns: ns[1]):
        if s != expected:
            return False
        expected *= n
    return True
