"""Lowerings of indexing, scattering, sorting and resizing; see lowering.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpk.emit import Emitter, Unsupported, Val, dtype_name
from mpk.lowering import aten, in_range, lower, packet, result_dtype, result_shape
from mpk.lowering_math import LOW, no_extra


def axis_first(e: Emitter, x: Val, axis: int) -> Val:
    return e.permute(x, [axis, *(i for i in range(x.rank) if i != axis)])


def axis_back(e: Emitter, x: Val, axis: int, width: int = 1) -> Val:
    """The first `width` axes to place `axis`."""
    rest = list(range(width, x.rank))
    return e.permute(x, rest[:axis] + list(range(width)) + rest[axis:])


def as_index(e: Emitter, i: Val) -> Val:
    if i.dtype in (torch.bool, torch.uint8):
        raise Unsupported("an index of bool, whose result has a size that depends on data")
    return i if i.dtype in (torch.int32, torch.int64) else e.cast(i, torch.int64)


def leading(x: Val, indices: Sequence[Val | None]) -> tuple[list[int], list[int], int]:
    """Axes that are indexed, the others, and where PyTorch puts the indexed ones in the result."""
    axes = [i for i, index in enumerate(indices) if index is not None]
    rest = [i for i in range(x.rank) if i not in axes]
    adjacent = axes == list(range(axes[0], axes[-1] + 1))
    return axes, rest, axes[0] if adjacent else 0


@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(e: Emitter, x: Val, indices: Sequence[Val | None]) -> Val:
    given = [as_index(e, i) for i in indices if i is not None]
    if not given:
        return x
    axes, rest, at = leading(x, indices)
    y = e.op("index", e.permute(x, axes + rest), *given)
    return axis_back(e, y, at, y.rank - len(rest))


@lower(aten.index_put, aten._unsafe_index_put, aten._index_put_impl)
def index_put(e: Emitter, x: Val, indices: Sequence[Val | None], values: Val, accumulate: bool = False, *_: Any) -> Val:
    given = [i for i in indices if i is not None]
    values = e.cast(values, x.dtype)
    if len(given) == 1 and given[0].dtype is torch.bool and values.numel == 1 and not accumulate:
        at = [i for i, index in enumerate(indices) if index is not None][0]
        mask = e.reshape(given[0], (1,) * at + given[0].shape + (1,) * (x.rank - at - given[0].rank))
        return e.map("where({0}, {1}, {2})", mask, e.reshape(values, ()), x, dtype=x.dtype, shape=x.shape)
    if len(given) == 1 and given[0].dtype is torch.bool and indices[0] is given[0]:
        return put_masked(e, x, given[0], values, accumulate)
    given = [as_index(e, i) for i in given]
    if any(i.numel == 0 for i in given) or values.numel == 0:
        return x
    axes, rest, at = leading(x, indices)
    many = torch.broadcast_shapes(*(i.shape for i in given))
    shape = tuple(x.shape[i] for i in rest)
    placed = e.expand(values, shape[:at] + tuple(many) + shape[at:])
    order = [*range(at, at + len(many)), *range(at), *range(at + len(many), len(many) + len(rest))]
    y = e.op(
        "index_put",
        e.permute(x, axes + rest),
        e.permute(placed, order),
        *given,
        accumulate=int(accumulate),
        **e.overwrite(),
    )
    back = axes + rest
    return e.permute(y, [back.index(i) for i in range(x.rank)])


def counted(e: Emitter, mask: Val) -> Val:
    """For each element of a mask, how many are set before it; of rank 1."""
    flat = e.reshape(mask, (mask.numel,))
    return e.map("max({0} - 1, 0)", e.op("scan", flat, axis=0, kind="sum", dtype="i64"), dtype=torch.int64)


def put_masked(e: Emitter, x: Val, mask: Val, values: Val, accumulate: bool) -> Val:
    """Entry by entry of x, where the mask is set, the next row of values."""
    rest = x.shape[mask.rank :]
    if values.rank <= len(rest) or values.shape[0] == 1:
        taken = values if values.rank <= len(rest) else e.reshape(values, values.shape[1:])
        mask = e.reshape(mask, mask.shape + (1,) * len(rest))
        return e.map(
            "{2} + where({0}, {1}, 0)" if accumulate else "where({0}, {1}, {2})",
            mask,
            taken,
            x,
            dtype=x.dtype,
            shape=x.shape,
        )
    rows = e.expand(values, (values.shape[0], *rest))
    taken = e.reshape(e.op("index", rows, counted(e, mask)), x.shape)
    mask = e.reshape(mask, mask.shape + (1,) * len(rest))
    expression = "{2} + where({0}, {1}, 0)" if accumulate else "where({0}, {1}, {2})"
    return e.map(expression, mask, taken, x, dtype=x.dtype, shape=x.shape)


@lower(aten.put)
def put(e: Emitter, x: Val, i: Val, source: Val, accumulate: bool = False) -> Val:
    if i.numel == 0:
        return x
    flat = e.op(
        "index_put",
        e.reshape(x, (x.numel,)),
        e.reshape(source, (source.numel,)),
        e.reshape(as_index(e, i), (i.numel,)),
        accumulate=int(accumulate),
    )
    return e.reshape(flat, x.shape)


@lower(aten.index_reduce)
def index_reduce(e: Emitter, x: Val, axis: int, i: Val, source: Val, kind: str, include_self: bool = True) -> Val:
    if x.rank == 0:
        y = index_reduce(e, e.reshape(x, (1,)), 0, i, e.reshape(source, (source.numel,)), kind, include_self)
        return e.reshape(y, ())
    axis %= x.rank
    i = e.reshape(i, [i.numel if a == axis else 1 for a in range(x.rank)])
    return scatter_into(e, x, axis, e.expand(i, source.shape), source, REDUCE[kind], include_self)


@lower(aten.index_select)
def index_select(e: Emitter, x: Val, axis: int, i: Val) -> Val:
    if x.rank == 0:
        return e.reshape(e.expand(e.reshape(x, (1,)), (i.numel,)), result_shape(e))
    axis %= x.rank
    return axis_back(e, e.op("index", axis_first(e, x, axis), as_index(e, e.reshape(i, (i.numel,)))), axis)


@lower(aten.embedding)
def embedding(e: Emitter, table: Val, ids: Val, *_: Any) -> Val:
    ids = as_index(e, ids)
    if table.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return e.op("index", table, ids)
    rows = e.op("embedding", e.reshape(ids, (ids.numel,)), table, dtype=dtype_name(table.dtype))
    return e.reshape(rows, ids.shape + table.shape[1:])


@lower(aten._embedding_bag_forward_only, aten._embedding_bag)
def embedding_bag(
    e: Emitter,
    table: Val,
    ids: Val,
    offsets: Val,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Val | None = None,
    include_last_offset: bool = False,
    padding: int = -1,
) -> list[Any]:
    """The sum, mean or largest of the rows ids[offsets[b]] .. ids[offsets[b + 1] - 1] of the table; of none: 0."""
    bags, n, width = offsets.shape[0] - int(include_last_offset), ids.numel, table.shape[1]
    wide = torch.float32 if table.dtype in LOW else table.dtype
    y = e.folded(torch.zeros((1, 1), dtype=wide).expand(bags, width))
    if n and y.numel:
        begun = search(e, offsets, e.folded(torch.arange(n)), True)
        left_out = "lor({0} == {1}, {2} > {3})"
        bag = e.map(f"where({left_out}, {{3}}, {{2}} - 1)", ids, padding, begun, bags, dtype=torch.int64)
        rows = e.cast(e.op("index", table, as_index(e, ids)), wide)
        rows = rows if weights is None else e.map("{0} * {1}", rows, e.reshape(weights, (n, 1)), dtype=wide)
        places = e.expand(e.reshape(bag, (n, 1)), (n, width))
        y = scatter_into(e, y, 0, places, rows, ("sum", "mean", "max")[mode], False)
    return [e.cast(y, table.dtype), *[lambda: no_extra("places of bags")] * 3]


@lower(aten.gather)
def gather(e: Emitter, x: Val, axis: int, i: Val, *_: Any) -> Val:
    if x.rank == 0:
        return e.expand(x, i.shape)
    if i.rank == 0:
        i = e.reshape(i, (1,))
    return e.reshape(e.op("take_along", x, as_index(e, i), axis=axis % x.rank), result_shape(e))


REDUCE = {
    "": "set",
    "add": "sum",
    "sum": "sum",
    "multiply": "prod",
    "prod": "prod",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
}


def scatter_into(e: Emitter, x: Val, axis: int, i: Val, source: Val, kind: str, include_self: bool = True) -> Val:
    shape = x.shape
    if i.numel == 0:
        return x
    x, i = (e.reshape(v, (1,)) if v.rank == 0 else v for v in (x, i))
    source = e.reshape(source, (1,) * max(0, i.rank - source.rank) + source.shape)
    for a in range(i.rank):
        if source.shape[a] > i.shape[a]:
            source = e.slice(source, a, 0, i.shape[a])
    y = e.op(
        "scatter",
        x,
        as_index(e, i),
        e.cast(source, x.dtype),
        axis=axis % x.rank,
        kind=kind,
        include_self=int(include_self),
        **e.overwrite(),
    )
    return e.reshape(y, shape)


@lower(aten.scatter.src, aten.scatter_add, aten.scatter.reduce)
def scatter(e: Emitter, x: Val, axis: int, i: Val, source: Val, reduce: str = "") -> Val:
    kind = "sum" if e.node.target is aten.scatter_add.default else REDUCE[reduce]
    return scatter_into(e, x, axis, i, source, kind)


@lower(aten.scatter.value, aten.scatter.value_reduce)
def scatter_value(e: Emitter, x: Val, axis: int, i: Val, value: Any, reduce: str = "") -> Val:
    source = e.folded(torch.full((1,) * i.rank, value, dtype=x.dtype).expand(i.shape))
    return scatter_into(e, x, axis, i, source, REDUCE[reduce])


@lower(aten.scatter_reduce.two)
def scatter_reduce(e: Emitter, x: Val, axis: int, i: Val, source: Val, reduce: str, include_self: bool = True) -> Val:
    return scatter_into(e, x, axis, i, source, REDUCE[reduce], include_self)


@lower(aten.slice_scatter)
def slice_scatter(
    e: Emitter, x: Val, source: Val, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Val:
    n, axis = x.shape[axis], axis % x.rank
    start, stop = in_range(start, n, 0), in_range(stop, n, n)
    if stop <= start:
        return x
    return put_box(e, x, source, axis, start, stop, step)


def put_box(e: Emitter, x: Val, source: Val, axis: int, start: int, stop: int, step: int = 1) -> Val:
    starts, stops, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return e.op("slice_scatter", x, e.cast(source, x.dtype), starts=starts, stops=stops, steps=steps, **e.overwrite())


@lower(aten.select_scatter)
def select_scatter(e: Emitter, x: Val, source: Val, axis: int, at: int) -> Val:
    axis %= x.rank
    at += x.shape[axis] if at < 0 else 0
    source = e.reshape(
        e.expand(source, x.shape[:axis] + x.shape[axis + 1 :]), x.shape[:axis] + (1,) + x.shape[axis + 1 :]
    )
    return put_box(e, x, source, axis, at, at + 1)


@lower(aten.diagonal_scatter, aten.as_strided_scatter)
def strided_scatter(e: Emitter, x: Val, source: Val, *arguments: Any) -> Val:
    """Put a source where a view of x looks; the places are known."""
    meta = e.node.args[0].meta["val"]
    if not meta.is_contiguous():
        raise Unsupported("a scatter through strides into what is not contiguous")
    places = torch.arange(x.numel).reshape(x.shape)
    if e.node.target is aten.diagonal_scatter.default:
        places = places.diagonal(*arguments)
    else:
        size, stride, offset = arguments
        places = places.as_strided(size, stride, offset or 0)
    flat = e.op(
        "index_put",
        e.reshape(x, (x.numel,)),
        e.reshape(e.expand(source, places.shape), (places.numel(),)),
        e.folded(places.reshape(-1)),
    )
    return e.reshape(flat, x.shape)


@lower(aten.masked_scatter)
def masked_scatter(e: Emitter, x: Val, mask: Val, source: Val) -> Val:
    shape = tuple(torch.broadcast_shapes(x.shape, mask.shape))
    mask = e.reshape(e.expand(mask, shape), (math.prod(shape),))
    taken = e.reshape(e.op("index", e.reshape(source, (source.numel,)), counted(e, mask)), shape)
    return e.map("where({0}, {1}, {2})", e.reshape(mask, shape), taken, x, dtype=x.dtype, shape=shape)


@lower(aten.sort.default, aten.sort.stable)
def sort(e: Emitter, x: Val, *arguments: Any) -> list[Val]:
    axis, descending = arguments[1:3] if e.node.target is aten.sort.stable else (arguments + (-1, False))[:2]
    if x.rank == 0:
        return [x, e.folded(torch.zeros((), dtype=torch.int64))]
    return e.ops("sort", x, axis=axis % x.rank, descending=int(descending))


@lower(aten.argsort.default, aten.argsort.stable)
def argsort(e: Emitter, x: Val, *arguments: Any) -> Val:
    axis, descending = arguments[1:3] if e.node.target is aten.argsort.stable else (arguments + (-1, False))[:2]
    return (
        e.ops("sort", x, axis=axis % x.rank, descending=int(descending))[1]
        if x.rank
        else e.folded(torch.zeros((), dtype=torch.int64))
    )


@lower(aten.topk)
def topk(e: Emitter, x: Val, k: int, axis: int = -1, largest: bool = True, is_sorted: bool = True) -> list[Val]:
    if x.rank == 0:
        return [x, e.folded(torch.zeros((), dtype=torch.int64))]
    return e.ops("topk", x, axis=axis % x.rank, k=k, largest=int(largest))


@lower(aten.kthvalue)
def kthvalue(e: Emitter, x: Val, k: int, axis: int = -1, keep: bool = False) -> list[Val]:
    if x.rank == 0:
        return [x, e.folded(torch.zeros((), dtype=torch.int64))]
    axis %= x.rank
    parts = [e.slice(v, axis, k - 1, k) for v in e.ops("sort", x, axis=axis)]
    return parts if keep else [e.reshape(v, v.shape[:axis] + v.shape[axis + 1 :]) for v in parts]


@lower(aten.median.dim, aten.nanmedian.dim)
def median(e: Emitter, x: Val, axis: int, keep: bool = False) -> list[Val]:
    """The lower of the two in the middle.  NaN is sorted last: if there is one, it is the median, or is not counted."""
    if x.rank == 0:
        return [x, e.folded(torch.zeros((), dtype=torch.int64))]
    axis, n = axis % x.rank, x.shape[axis]
    values, places = e.ops("sort", x, axis=axis)
    nans = e.reduce(e.map("isnan({0})", x, dtype=torch.bool), "sum", [axis], True, torch.int64)
    skips = "nanmedian" in str(e.node.target)
    expression = "max({1} - {0} - 1, 0)" if skips else "where({0} > 0, {2}, {1} - 1)"
    middle = e.map(expression, nans, n if skips else n, n * 2 - 1, dtype=torch.int64)
    middle = e.map("truncdiv({0}, 2)", middle, dtype=torch.int64)
    parts = [e.op("take_along", v, middle, axis=axis) for v in (values, places)]
    return parts if keep else [e.reshape(v, v.shape[:axis] + v.shape[axis + 1 :]) for v in parts]


@lower(aten.median.default, aten.nanmedian.default)
def median_whole(e: Emitter, x: Val) -> Val:
    return e.reshape(median(e, e.reshape(x, (x.numel,)), 0)[0], ())


@lower(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    e: Emitter,
    boundaries: Val,
    x: Any,
    int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Val | None = None,
) -> Val:
    if sorter is not None:
        boundaries = e.op("take_along", boundaries, as_index(e, sorter), axis=boundaries.rank - 1)
    x = x if isinstance(x, Val) else e.folded(torch.tensor(x, dtype=boundaries.dtype))
    return e.cast(search(e, boundaries, x, right or side == "right"), result_dtype(e))


def search(e: Emitter, boundaries: Val, x: Val, right: bool) -> Val:
    wide = torch.promote_types(boundaries.dtype, x.dtype)
    flat = e.reshape(e.cast(x, wide), (1,) if not x.rank else x.shape)
    return e.reshape(e.op("search_sorted", e.cast(boundaries, wide), flat, right=int(right)), x.shape)


@lower(aten.bucketize.Tensor)
def bucketize(e: Emitter, x: Val, boundaries: Val, int32: bool = False, right: bool = False) -> Val:
    return e.cast(search(e, boundaries, x, right), result_dtype(e))


@lower(aten.histc)
def histc(e: Emitter, x: Val, bins: int = 100, low: Any = 0, high: Any = 0) -> Val:
    if low < high:
        bounds: list[Any] = [float(low), float(high)]
    else:
        every = list(range(x.rank))
        least, most = (e.reduce(x, kind, every, False, x.dtype) for kind in ("min", "max"))
        bounds = [
            e.map("where({0} == {1}, {0} - 1, {0})", least, most, dtype=x.dtype),
            e.map("where({0} == {1}, {1} + 1, {1})", least, most, dtype=x.dtype),
        ]
    place = e.map(
        "where(lor({0} < {1}, {0} > {2}), {3}, min(i64(({0} - {1}) * {3} / ({2} - {1})), {4}))",
        e.reshape(x, (x.numel,)),
        *bounds,
        bins,
        bins - 1,
        dtype=torch.int64,
    )
    ones, zeros = (torch.full((1,), v, dtype=x.dtype) for v in (1, 0))
    return e.op("index_put", e.folded(zeros.expand(bins)), e.folded(ones.expand(x.numel)), place, accumulate=1)


def grouped_mm(
    e: Emitter, x: Val, w: Val, ends: Val, bias: Val | None = None, out_dtype: torch.dtype | None = None
) -> Val:
    """Rows of x [T, D] in groups, group g by w[g] [D, F]: each row goes to one expert.  Rows after the last group are
    zeros."""
    if x.rank != 2 or w.rank != 3 or bias is not None:
        raise Unsupported("grouped_mm of other ranks, or with a bias")
    group = search(e, e.cast(ends, torch.int64), e.folded(torch.arange(x.shape[0])), True)
    ids = e.reshape(e.cast(group, torch.int32), (x.shape[0], 1))
    y = e.op("expert_linear", x, ids, e.permute(w, [0, 2, 1]))
    return e.cast(e.reshape(y, (x.shape[0], w.shape[2])), result_dtype(e))


def lower_foreign() -> None:
    """Operators that other packages bring along, once they are there."""
    for space, name in (("transformers", "grouped_mm_fallback"), ("aten", "_grouped_mm")):
        found = getattr(getattr(torch.ops, space), name, None)
        if found is not None:
            lower(found)(grouped_mm)


# ---- resizing ----


def resize(mode: str, spatial: int, aligned: bool) -> Callable:
    def function(e: Emitter, x: Val, size: Sequence[int], *arguments: Any) -> Val:
        align = bool(arguments[0]) if aligned else False
        scales = list(arguments[1 if aligned else 0 :])
        if len(scales) == 1 and isinstance(scales[0], (list, tuple)):
            scales = list(scales[0])
        given = {f"scale_{i}": float(s) for i, s in enumerate(scales[:spatial]) if s}
        return e.op("upsample", x, size=list(result_shape(e)[2:]), mode=mode, align_corners=int(align), **given)

    return function


for _name, _mode, _spatial, _aligned in (
    ("upsample_nearest1d", "nearest", 1, False),
    ("upsample_nearest2d", "nearest", 2, False),
    ("upsample_nearest3d", "nearest", 3, False),
    ("_upsample_nearest_exact1d", "nearest_exact", 1, False),
    ("_upsample_nearest_exact2d", "nearest_exact", 2, False),
    ("_upsample_nearest_exact3d", "nearest_exact", 3, False),
    ("upsample_linear1d", "linear", 1, True),
    ("upsample_bilinear2d", "linear", 2, True),
    ("upsample_trilinear3d", "linear", 3, True),
    ("upsample_bicubic2d", "cubic", 2, True),
):
    lower(packet(_name))(resize(_mode, _spatial, _aligned))


def blending(n: int, size: int, align: bool, scale: float | None) -> torch.Tensor:
    """[size, n]: how much of each of n entries a resized one takes, a triangle as wide as what it stands for."""
    ratio = 1 / scale if scale else n / size
    ratio = ((n - 1) / (size - 1) if size > 1 else 0.0) if align else ratio
    wide = max(ratio, 1.0)
    centre = ratio * (torch.arange(size, dtype=torch.float64) + 0.5)[:, None]
    j = torch.arange(n)[None, :]
    seen = (j >= (centre - wide + 0.5).trunc().clamp(min=0)) & (j < (centre + wide + 0.5).trunc())
    weight = (1 - ((j - centre + 0.5) / wide).abs()).clamp(min=0) * seen
    return weight / weight.sum(1, keepdim=True)


@lower(aten._upsample_bilinear2d_aa.default)
def bilinear_aa(
    e: Emitter, x: Val, size: Sequence[int], align: bool, scale_h: float | None = None, scale_w: float | None = None
) -> Val:
    wide = torch.float32 if x.dtype in LOW else x.dtype
    n, (h, w) = math.prod(x.shape[:2]), x.shape[2:]
    rows, columns = blending(h, size[0], align, scale_h), blending(w, size[1], align, scale_w).T
    y = e.cast(e.reshape(x, (n, h, w)), wide)
    y = e.op("batch_matmul", y, e.folded(columns.to(wide).expand(n, *columns.shape)))
    y = e.op("batch_matmul", e.folded(rows.to(wide).expand(n, *rows.shape)), y)
    return e.cast(e.reshape(y, result_shape(e)), x.dtype)
