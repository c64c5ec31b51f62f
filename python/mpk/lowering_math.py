"""Lowerings of reductions, products, normalisations, attention, convolutions and pools; see lowering.py."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpk import whole  # noqa: F401  (it defines mpk::attention)
from mpk.emit import (
    LINES,
    WIDE,
    Emitter,
    Unsupported,
    Val,
    channels_first,
    channels_last,
    dtype_name,
    is_of_patches,
    lies_channels_last,
    per_axis,
)
from mpk.lowering import aten, lower, packet, prims, result_dtype, result_shape, strided

LOW = (torch.float16, torch.bfloat16)
WIDEST_HEADS = 2048  # of queries and values together, that the body of sdpa on a GPU takes (src/gen/body_index.c)
HIDDEN = -1e30  # what is lower hides a key: a weight beside one that counts is 0 (torch.finfo(bfloat16).min is -3.4e38)


def all_axes(x: Val, axes: Sequence[int] | int | None) -> list[int]:
    if axes is None or isinstance(axes, (list, tuple)) and not axes:
        return list(range(x.rank))
    return [axis % max(1, x.rank) for axis in ([axes] if isinstance(axes, int) else axes)] if x.rank else []


def reduce(e: Emitter, x: Val, kind: str, axes: Sequence[int], keep: bool, dtype: torch.dtype) -> Val:
    """Of no axes (a scalar) the reduction is the element itself."""
    if not axes and x.rank == 0:
        return e.map("{0} != 0", x, dtype=torch.bool) if kind in ("any", "all") else e.cast(x, dtype)
    return e.reduce(x, kind, axes, keep, dtype)


def widened(e: Emitter, x: Val) -> Val:
    """PyTorch converts to the dtype of the result first; that matters where digits would be lost."""
    return e.cast(x, result_dtype(e)) if x.is_float != result_dtype(e).is_floating_point or x.dtype is torch.bool else x


@lower(aten.sum.default, aten.mean.default, aten.prod.default)
def whole(e: Emitter, x: Val, dtype: Any = None) -> Val:
    x = widened(e, x)
    return reduce(e, x, e.node.target._overloadpacket.__name__, all_axes(x, None), False, result_dtype(e))


@lower(aten.sum.dim_IntList, aten.mean.dim, aten.prod.dim_int)
def over_axes(e: Emitter, x: Val, axes: Any, keep: bool = False, dtype: Any = None) -> Val:
    x = widened(e, x)
    return reduce(e, x, e.node.target._overloadpacket.__name__, all_axes(x, axes), keep, result_dtype(e))


@lower(prims.sum)
def prims_sum(e: Emitter, x: Val, axes: Any, *_: Any) -> Val:
    return reduce(e, x, "sum", all_axes(x, axes), False, result_dtype(e))


@lower(aten.amax, aten.amin)
def amax(e: Emitter, x: Val, axes: Any = None, keep: bool = False) -> Val:
    return reduce(e, x, e.node.target._overloadpacket.__name__[1:], all_axes(x, axes), keep, x.dtype)


@lower(prims.amax, prims.amin)
def prims_amax(e: Emitter, x: Val, axes: Any = None, *_: Any) -> Val:
    return amax(e, x, axes)


@lower(aten.max.default, aten.min.default)
def max_whole(e: Emitter, x: Val) -> Val:
    return reduce(e, x, e.node.target._overloadpacket.__name__, all_axes(x, None), False, x.dtype)


@lower(aten.any, aten.all)
def any_(e: Emitter, x: Val, axes: Any = None, keep: bool = False) -> Val:
    empty = isinstance(axes, (list, tuple)) and not axes
    if empty and "dims" in str(e.node.target) and x.rank:
        return e.cast(e.map("{0} != 0", x, dtype=torch.bool), result_dtype(e))
    out = reduce(e, x, e.node.target._overloadpacket.__name__, all_axes(x, axes), keep, torch.bool)
    return e.cast(out, result_dtype(e))


def extreme(e: Emitter, x: Val, axis: int | None, keep: bool, kind: str) -> list[Val]:
    """Values and indices along an axis, or of the whole tensor."""
    if x.rank == 0:
        return [x, e.folded(torch.zeros((), dtype=torch.int64))]
    if axis is None:
        x, axis = e.reshape(x, (x.numel,)), 0
    return e.ops("extreme", x, axis=axis % x.rank, keep=int(keep), kind=kind)


@lower(aten.max.dim, aten.min.dim)
def max_dim(e: Emitter, x: Val, axis: int, keep: bool = False) -> list[Val]:
    return extreme(e, x, axis, keep, e.node.target._overloadpacket.__name__)


@lower(aten.argmax, aten.argmin)
def argmax(e: Emitter, x: Val, axis: int | None = None, keep: bool = False) -> Val:
    index = extreme(e, x, axis, keep, e.node.target._overloadpacket.__name__[3:])[1]
    return e.reshape(index, result_shape(e))


@lower(aten.cumsum, aten.cumprod, aten.logcumsumexp)
def scan(e: Emitter, x: Val, axis: int, dtype: Any = None) -> Val:
    kind = {"cumsum": "sum", "cumprod": "prod", "logcumsumexp": "logsumexp"}[e.node.target._overloadpacket.__name__]
    if x.rank == 0:
        return e.cast(x, result_dtype(e))
    x = widened(e, x)
    return e.op("scan", x, axis=axis % x.rank, kind=kind, dtype=dtype_name(result_dtype(e)))


@lower(aten.cummax, aten.cummin)
def scan_extreme(e: Emitter, x: Val, axis: int) -> list[Val]:
    if x.rank == 0:
        return [x, e.folded(torch.zeros((), dtype=torch.int64))]
    return e.ops("scan_extreme", x, axis=axis % x.rank, kind=e.node.target._overloadpacket.__name__[3:])


def variance(e: Emitter, x: Val, axes: list[int], correction: Any, keep: bool) -> tuple[Val, Val]:
    """Variance and mean in fp32 or wider."""
    wide = torch.float32 if x.dtype in LOW else x.dtype
    n = math.prod(x.shape[axis] for axis in axes)
    mean = reduce(e, x, "mean", axes, True, wide)
    squares = e.map("square({0} - {1})", x, mean, dtype=wide)
    total = reduce(e, squares, "sum", axes, keep, wide)
    left = max(0.0, n - (1 if correction is None else correction))
    var = (
        e.map("{0} / {1}", total, float(left), dtype=x.dtype)
        if left
        else e.map("where({0} == 0, nan, {0} / 0.0)", total, dtype=x.dtype)
    )
    mean = e.cast(mean, x.dtype)
    return var, mean if keep else e.reshape(mean, var.shape)


@lower(aten.var.correction)
def var(e: Emitter, x: Val, axes: Any = None, correction: Any = None, keep: bool = False) -> Val:
    return variance(e, x, all_axes(x, axes), correction, keep)[0]


@lower(aten.std.correction)
def std(e: Emitter, x: Val, axes: Any = None, correction: Any = None, keep: bool = False) -> Val:
    return e.map("sqrt({0})", var(e, x, axes, correction, keep), dtype=x.dtype)


@lower(aten.var_mean.correction)
def var_mean(e: Emitter, x: Val, axes: Any = None, correction: Any = None, keep: bool = False) -> list[Val]:
    return list(variance(e, x, all_axes(x, axes), correction, keep))


@lower(aten._softmax, aten._log_softmax)
def softmax(e: Emitter, x: Val, axis: int, half_to_float: bool = False) -> Val:
    if x.rank == 0:
        return e.map("{0} - {0} + 1" if e.node.target is aten._softmax.default else "{0} - {0}", x, dtype=x.dtype)
    return e.op("softmax" if e.node.target is aten._softmax.default else "log_softmax", x, axis=axis % x.rank)


# ---- products ----


def product(e: Emitter, a: Val, b: Val) -> Val:
    """a [.., M, N] b [.., N, Q].  Projections by weights that lie as [Q, N] are the operator linear."""
    if a.numel == 0:
        return e.folded(torch.zeros((1,) * a.rank, dtype=a.dtype).expand(*a.shape[:-1], b.shape[-1]))
    if a.rank == 3 and a.shape[-1] == 1 and a.is_float:  # positions times frequencies
        return e.op("mul", a, b)
    if a.rank == 2 and a.is_float and a.dtype is not torch.float64 and b.transposed is not None:
        return e.op("linear", a, b.transposed)
    return e.op("batch_matmul", a, b)


def wide_product(e: Emitter, a: Val, b: Val) -> Val:
    """The product of floats of 16 bits in fp32, as it is before it is rounded."""
    if a.numel and a.dtype is b.dtype and a.shape[-1] != 1 and b.transposed is None:
        return e.op("batch_matmul", a, b, dtype="f32")
    return product(e, e.cast(a, torch.float32), e.cast(b, torch.float32))


@lower(aten.mm, aten.bmm)
def mm(e: Emitter, a: Val, b: Val, out_dtype: Any = None) -> Val:
    if out_dtype is not None:
        a, b = e.cast(a, out_dtype), e.cast(b, out_dtype)
    return product(e, a, b)


def weight_of(e: Emitter, a: Val, b: Val) -> Val | None:
    """b [D, F] as the weight [F, D] of a linear, if that has a fast body for it: always where it lies as [F, D]; on a
    GPU in 16 bits also where it lies as [D, F], as Conv1D of Transformers keeps it."""
    if b.transposed is not None or e.device.type != "cuda" or b.data is not None or b.rank != 2:
        return b.transposed
    return e.permute(b, [1, 0]) if a.dtype in LOW and a.dtype is b.dtype else None


@lower(aten.addmm, aten.baddbmm)
def addmm(e: Emitter, bias: Val, a: Val, b: Val, beta: Any = 1, alpha: Any = 1) -> Val:
    if (
        beta == alpha == 1
        and bias.rank == 1
        and bias.shape[0] == b.shape[-1]
        and a.is_float
        and a.dtype is not torch.float64
        and a.numel
        and (weight := weight_of(e, a, b)) is not None
    ):
        return e.op("linear", a, weight, None, None, bias)
    dtype = result_dtype(e)
    if not dtype.is_floating_point:
        alpha, beta = int(alpha), int(beta)
    y = wide_product(e, a, b) if dtype in LOW else product(e, a, b)
    if beta == 0:
        return e.map("{0} * {1}", y, alpha, dtype=dtype) if alpha != 1 else e.cast(y, dtype)
    return e.map(
        "{0} * {1} + {2} * {3}" if (alpha, beta) != (1, 1) else "{0} + {2}",
        y,
        alpha,
        bias,
        beta,
        dtype=dtype,
        shape=result_shape(e),
    )


@lower(aten.addbmm)
def addbmm(e: Emitter, bias: Val, a: Val, b: Val, beta: Any = 1, alpha: Any = 1) -> Val:
    flat = e.reshape(e.permute(a, [1, 0, 2]), (a.shape[1], a.shape[0] * a.shape[2]))
    return addmm(e, bias, flat, e.reshape(b, (b.shape[0] * b.shape[1], b.shape[2])), beta, alpha)


@lower(aten.mv)
def mv(e: Emitter, a: Val, b: Val) -> Val:
    return e.reshape(product(e, a, e.reshape(b, (b.shape[0], 1))), (a.shape[0],))


@lower(aten.dot, aten.vdot)
def dot(e: Emitter, a: Val, b: Val) -> Val:
    return e.reshape(product(e, e.reshape(a, (1, a.numel)), e.reshape(b, (b.numel, 1))), ())


def invert_lower(e: Emitter, a: Val, is_unit: bool) -> Val:
    """The inverses of lower triangles [B, N, N], N a power of two: blocks on the diagonal are inverted in pairs,
    [[A, 0], [C, D]] to [[A', 0], [-D' C A', D']], until one is left."""
    batch, n, _ = a.shape
    if is_unit:
        inverse = e.folded(torch.ones((), dtype=a.dtype).expand(batch, n, 1, 1))
    else:
        diagonal = strided(e, a, [batch, n], [n * n, n + 1], 0)
        inverse = e.reshape(e.map("1 / {0}", diagonal, dtype=a.dtype), (batch, n, 1, 1))
    size = 1
    while size < n:
        pairs = n // (2 * size)
        block = (batch * pairs, size, size)
        corner = [batch, pairs, size, size], [n * n, 2 * size * (n + 1), n, 1], size * n
        halves = e.reshape(inverse, (batch * pairs, 2, size, size))
        upper, lower_ = e.select(halves, 1, 0), e.select(halves, 1, 1)
        inner = e.op("batch_matmul", e.reshape(strided(e, a, *corner), block), upper)
        below = e.map("-{0}", e.op("batch_matmul", lower_, inner), dtype=a.dtype)
        beside = e.folded(torch.zeros((), dtype=a.dtype).expand(block))
        rows = [e.concat([upper, beside], 2), e.concat([below, lower_], 2)]
        inverse = e.reshape(e.concat(rows, 1), (batch, pairs, 2 * size, 2 * size))
        size *= 2
    return e.reshape(inverse, (batch, n, n))


@lower(aten.linalg_solve_triangular)
def solve_triangular(
    e: Emitter, a: Val, b: Val, upper: bool, left: bool = True, unitriangular: bool = False
) -> Val:
    """x with a x = b, or x a = b: b times the inverse of the triangle, of which the other half is not read."""
    shape, n = result_shape(e), a.shape[-1]
    batch, size = math.prod(shape[:-2]), 1 << (n - 1).bit_length()
    a = e.reshape(e.expand(a, (*shape[:-2], n, n)), (batch, n, n))
    b = e.reshape(e.expand(b, shape), (batch, *shape[-2:]))
    a = e.permute(a, [0, 2, 1]) if upper else a
    if size > n:  # ones after the diagonal
        a = e.op("pad", a, before=[0, 0, 0], after=[0, size - n, size - n], mode="constant", value=0.0)
        more = torch.arange(size) >= n
        a = e.map("where({0}, 1, {1})", e.folded(torch.diag(more)), a, dtype=a.dtype)
    inverse = invert_lower(e, a, unitriangular)
    inverse = e.slice(e.slice(inverse, 1, 0, n), 2, 0, n)
    inverse = e.permute(inverse, [0, 2, 1]) if upper else inverse
    return e.reshape(e.op("batch_matmul", *((inverse, b) if left else (b, inverse))), shape)


@lower(aten._trilinear)
def trilinear(
    e: Emitter,
    a: Val,
    b: Val,
    c: Val,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    sum_axes: Sequence[int],
    unroll: int = 1,
) -> Val:
    """The sum over some axes of a * b * c, each with axes of one entry put in."""

    def widened_by(x: Val, axes: Sequence[int]) -> Val:
        shape, rest = [], list(x.shape)
        for axis in range(x.rank + len(axes)):
            shape.append(1 if axis in axes else rest.pop(0))
        return e.reshape(x, shape)

    every = e.map(
        "{0} * {1} * {2}", widened_by(a, expand_a), widened_by(b, expand_b), widened_by(c, expand_c), dtype=a.dtype
    )
    return reduce(e, every, "sum", list(sum_axes), False, a.dtype)


@lower(aten._scaled_dot_product_flash_attention_for_cpu)
def flash_for_cpu(
    e: Emitter,
    q: Val,
    k: Val,
    v: Val,
    dropout: float = 0.0,
    causal: bool = False,
    mask: Val | None = None,
    scale: float | None = None,
) -> list[Any]:
    return [attend(e, q, k, v, mask, dropout, causal, scale), lambda: no_extra("log-sum-exp of attention")]


@lower(aten._scaled_dot_product_flash_attention)
def flash(
    e: Emitter,
    q: Val,
    k: Val,
    v: Val,
    dropout: float = 0.0,
    causal: bool = False,
    debug_mask: bool = False,
    scale: float | None = None,
) -> list[Any]:
    return [attend(e, q, k, v, None, dropout, causal, scale), *[lambda: no_extra("log-sum-exp of attention")] * 8]


@lower(aten._scaled_dot_product_efficient_attention)
def efficient(
    e: Emitter,
    q: Val,
    k: Val,
    v: Val,
    mask: Val | None = None,
    with_sums: bool = False,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> list[Any]:
    return [attend(e, q, k, v, mask, dropout, causal, scale), *[lambda: no_extra("log-sum-exp of attention")] * 3]


@lower(aten._scaled_dot_product_cudnn_attention)
def cudnn(
    e: Emitter,
    q: Val,
    k: Val,
    v: Val,
    mask: Val | None = None,
    with_sums: bool = False,
    dropout: float = 0.0,
    causal: bool = False,
    debug_mask: bool = False,
    scale: float | None = None,
) -> list[Any]:
    return [attend(e, q, k, v, mask, dropout, causal, scale), *[lambda: no_extra("log-sum-exp of attention")] * 8]


@lower(aten._scaled_dot_product_attention_math)
def attention_math(
    e: Emitter,
    q: Val,
    k: Val,
    v: Val,
    mask: Val | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    dropout_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> list[Any]:
    return [attend(e, q, k, v, mask, dropout, causal, scale), lambda: no_extra("weights of attention")]


@lower(aten._scaled_dot_product_fused_attention_overrideable, aten.scaled_dot_product_attention)
def attention(
    e: Emitter,
    q: Val,
    k: Val,
    v: Val,
    mask: Val | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Val:
    return attend(e, q, k, v, mask, dropout, causal, scale)


@lower(torch.ops.mpk.attention)
def whole_attention(
    e: Emitter, q: Val, k: Val, v: Val, mask: Val | None, causal: bool, scale: float | None
) -> Val:
    return attend(e, q, k, v, mask, 0.0, causal, scale)


def attend(
    e: Emitter, q: Val, k: Val, v: Val, mask: Val | None, dropout: float, causal: bool, scale: float | None
) -> Val:
    if dropout:
        raise Unsupported("attention with dropout")
    if q.rank != 4 or k.rank != 4:
        raise Unsupported(f"attention of rank {q.rank}")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if mask is not None and mask.data is not None and mask.numel:
        mask, causal = least_mask(e, mask, causal, q.shape[2], k.shape[2])
    if q.shape[-1] + v.shape[-1] > WIDEST_HEADS:
        return attend_by_products(e, q, k, v, mask, causal, scale)
    return e.op("sdpa", q, k, v, mask, scale=float(scale), causal=int(causal))


def least_mask(e: Emitter, mask: Val, causal: bool, rows: int, keys: int) -> tuple[Val | None, bool]:
    """Of a mask whose entries are known as little as says the same, and whether rows see no later key.  Models build
    masks that hide nothing, or later keys alone; without them no scores are changed, and keys that no row sees are not
    read.  All layers share what is left of a mask."""
    if (mask, rows, keys) not in e.masks:
        assert mask.data is not None
        e.masks[mask, rows, keys] = told_apart(e, mask.data.cpu(), rows, keys)
    least, lower = e.masks[mask, rows, keys]
    return least, causal or lower


def told_apart(e: Emitter, data: torch.Tensor, rows: int, keys: int) -> tuple[Val | None, bool]:
    """What hides is minus infinity, or so low a number that a weight beside one that counts is 0."""
    data = data.reshape((1,) * (4 - data.dim()) + data.shape)
    for axis in range(4):
        one = data.narrow(axis, 0, 1)
        if data.stride(axis) == 0 or torch.equal(data, one.expand(data.shape)):
            data = one
    seen = data if data.dtype is torch.bool else data == 0
    if seen.all():
        return None, False
    lower = torch.ones(rows, keys, dtype=torch.bool).tril()
    hides = data.dtype is torch.bool or bool((seen | (data < HIDDEN)).all())
    if hides and tuple(seen.shape[-2:]) == (rows, keys) and torch.equal(seen, lower.expand(seen.shape)):
        return None, True
    return e.folded(data), False


def attend_by_products(e: Emitter, q: Val, k: Val, v: Val, mask: Val | None, causal: bool, scale: float) -> Val:
    """sdpa with heads so wide that no body of a GPU holds a row: scores, their softmax and the result are operators of
    their own.  A row that sees nothing gives zeros, as there."""
    (batch, heads, n, width), (_, groups, seen, _) = q.shape, k.shape
    wide = torch.float32 if q.dtype in LOW else q.dtype

    def grouped(x: Val, *shape: int) -> Val:
        return e.reshape(e.cast(x, wide), (batch * groups, *shape))

    rows = heads // groups * n
    keys, values = grouped(k, seen, width), grouped(v, seen, v.shape[-1])
    scores = e.op("batch_matmul", grouped(q, rows, width), e.permute(keys, [0, 2, 1]))
    scores = e.map("{0} * {1}", e.reshape(scores, (batch, heads, n, seen)), float(scale), dtype=wide)
    if causal:
        lower = e.folded(torch.ones(n, seen, dtype=torch.bool).tril())
        scores = e.map("where({0}, {1}, (-inf))", lower, scores, dtype=wide)
    if mask is not None:
        expression = "where({0}, {1}, (-inf))" if mask.dtype is torch.bool else "{0} + {1}"
        scores = e.map(expression, mask, scores, dtype=wide)
    largest = e.reduce(scores, "max", [3], True, wide)
    weights = e.map("where({0} == (-inf), 0.0, {1})", largest, e.op("softmax", scores, axis=3), dtype=wide)
    y = e.op("batch_matmul", e.reshape(weights, (batch * groups, rows, seen)), values)
    return e.cast(e.reshape(y, (batch, heads, n, v.shape[-1])), q.dtype)


def no_extra(what: str) -> Any:
    raise Unsupported(f"the {what}")


@lower(aten._cdist_forward)
def cdist(e: Emitter, a: Val, b: Val, p: float, mode: int | None) -> Val:
    wide_a, wide_b = e.reshape(a, (*a.shape[:-1], 1, a.shape[-1])), e.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    return norm_of_difference(e, wide_a, wide_b, p)


@lower(aten._pdist_forward)
def pdist(e: Emitter, x: Val, p: float = 2) -> Val:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return norm_of_difference(e, e.op("index", x, e.folded(first)), e.op("index", x, e.folded(second)), p)


def norm_of_difference(e: Emitter, a: Val, b: Val, p: float) -> Val:
    """The p-norm of a - b over the last axis."""
    power = {
        0.0: "where({0} == {1}, 0, 1)",
        1.0: "abs({0} - {1})",
        2.0: "square({0} - {1})",
        math.inf: "abs({0} - {1})",
    }
    each = e.map(power.get(p, "pow(abs({0} - {1}), {2})"), a, b, float(p), dtype=a.dtype)
    total = e.reduce(each, "max" if p == math.inf else "sum", [each.rank - 1], False, a.dtype)
    if p in (0.0, 1.0, math.inf):
        return total
    return e.map("sqrt({0})" if p == 2.0 else "pow({0}, {1})", total, 1 / p, dtype=a.dtype)


# ---- normalisation ----


@lower(aten.native_layer_norm)
def layer_norm(e: Emitter, x: Val, shape: Sequence[int], weight: Val | None, bias: Val | None, eps: float) -> list[Any]:
    axes = list(range(x.rank - len(shape), x.rank))
    stats_shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    wide = x.dtype if weight is None or weight.dtype == x.dtype else weight.dtype
    if x.numel == 0:
        stand_in = torch.native_layer_norm(torch.empty(x.shape, dtype=x.dtype), shape, None, None, eps)
        return [e.folded(v) for v in stand_in]

    def flat(v: Val | None) -> Val | None:
        return None if v is None else e.reshape(v, (math.prod(shape),))

    def rstd() -> Val:
        return e.map("rsqrt({0} + {1})", variance(e, e.cast(x, wide), axes, 0, True)[0], eps, dtype=wide)

    rows = e.reshape(x, (*x.shape[: axes[0]], math.prod(shape)))
    y = e.reshape(e.op("layer_norm", rows, flat(weight), flat(bias), eps=float(eps)), x.shape)
    return [y, lambda: e.reshape(reduce(e, x, "mean", axes, True, wide), stats_shape), rstd]


# A group norm of many places is cut along them on a GPU, which has more workers than an image has groups: into so many
# parts, of at least so many places (group_moments).
MOST_GROUPS, FEWEST_PLACES, NORM_TASKS, PART_PLACES = 1024, 256, 128, 32


@lower(aten.native_group_norm)
def group_norm(
    e: Emitter, x: Val, weight: Val | None, bias: Val | None, n: int, c: int, hw: int, groups: int, eps: float
) -> list[Any]:
    if x.numel == 0:
        return [
            e.folded(v)
            for v in torch.native_group_norm(torch.empty(x.shape, dtype=x.dtype), None, None, n, c, hw, groups, eps)
        ]
    grouped = e.reshape(x, (n, groups, x.numel // (n * groups)))
    is_split = e.on_gpu and x.rank >= 4 and x.dtype in SHORT and groups <= MOST_GROUPS and hw >= FEWEST_PLACES
    laid = with_channels_last(e, x, 0) if is_split else x
    last = int(e.on_gpu and lies_channels_last(laid))  # as convolutions leave and read it
    image = e.permute(laid, channels_last(x.rank)) if last else x
    if is_split and last:
        parts = max(1, min(NORM_TASKS // n, hw // PART_PLACES))
        moments = e.op("group_moments", image, groups=groups, parts=parts)
        y = e.op("group_scale", image, moments, weight, bias, eps=float(eps))
    else:
        y = e.op("group_norm", image, weight, bias, groups=groups, eps=float(eps), last=last)
    y = e.permute(y, channels_first(y.rank)) if last else y

    def stats() -> tuple[Val, Val]:
        return variance(e, grouped, [2], 0, False)

    return [y, lambda: stats()[1], lambda: e.map("rsqrt({0} + {1})", stats()[0], eps, dtype=x.dtype)]


@lower(aten._fused_rms_norm)
def rms_norm(e: Emitter, x: Val, shape: Sequence[int], weight: Val | None, eps: float | None) -> list[Any]:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    if len(shape) != 1 or x.dtype is torch.float64:
        raise Unsupported("rms_norm over several axes")
    return [e.op("rms_norm", x, weight, eps=float(eps)), lambda: no_extra("factors of rms_norm")]


# ---- convolutions and pools ----


SHORT = torch.float32, torch.float16, torch.bfloat16
FEWEST_CHANNELS_OF_ROWS, FEWEST_OF_ROWS = 64, 1024  # of sequences, and their windows, that become rows of a product


def with_channels_last(e: Emitter, x: Val, missing: int) -> Val:
    """x as a GPU's convolutions read it.  The `missing` channels, which only the weights have (once.py), are zeros; few
    channels stay where they are."""
    if missing:
        laid = e.permute(x, channels_last(x.rank))
        y = e.op("pad", laid, before=[0] * x.rank, after=[0] * (x.rank - 1) + [missing], mode="constant", value=0.0)
        return e.permute(y, channels_first(x.rank))
    if lies_channels_last(x) or x.shape[1] < WIDE:
        return x
    return e.permute(e.op("copy", e.permute(x, channels_last(x.rank))), channels_first(x.rank))


def product_of_patches(e: Emitter, x: Val, w: Val, bias: Val | None) -> Val:
    """A convolution whose windows lie side by side: rows are windows (is_of_patches)."""
    places = [p // k for p, k in zip(x.shape[2:], w.shape[2:])]
    n = len(places)
    pairs = [size for p, k in zip(places, w.shape[2:]) for size in (p, k)]
    order = [0, *range(2, 2 + 2 * n, 2), 1, *range(3, 3 + 2 * n, 2)]  # places, channels, the kernel
    windows = e.op("copy", e.permute(e.reshape(x, (*x.shape[:2], *pairs)), order))
    rows = e.reshape(windows, (x.shape[0] * math.prod(places), math.prod(w.shape[1:])))
    y = e.op("linear", rows, e.as_rows(w), None, None, bias)
    return e.permute(e.reshape(y, (x.shape[0], *places, w.shape[0])), channels_first(n + 2))


MOST_OVERLAP = 4  # how often an entry of a sequence is copied, at most


def is_of_sequences(
    e: Emitter, x: Val, w: Val, stride: int, dilation: int, transposed: bool, groups: int, places: int
) -> bool:
    """Is a product of rows, each a window of a sequence, faster than a convolution?"""
    short, channels = x.dtype in LOW and x.dtype is w.dtype, w.shape[1]
    plain = short and w.rank == x.rank == 3 and groups == 1 and not transposed and dilation == 1
    return (
        (e.on_gpu and plain and w.shape[2] > 1 and w.shape[2] <= MOST_OVERLAP * stride)
        and (x.shape[1] == channels >= FEWEST_CHANNELS_OF_ROWS and channels % WIDE == 0)
        and x.shape[0] * places >= FEWEST_OF_ROWS
    )


def product_of_sequences(e: Emitter, x: Val, w: Val, bias: Val | None, stride: int, pad: int, places: int) -> Val:
    """The convolution of sequences [N, C, T]: windows of [N, T, C] side by side are rows."""
    laid = e.permute(x, channels_last(3))
    if pad:  # by concat, which copies 16 bytes at a time
        zeros = e.folded(torch.zeros(x.shape[0], pad, x.shape[1], dtype=x.dtype))
        laid = e.concat([zeros, laid, zeros], 1)
    taken = [e.slice(laid, 1, i, i + stride * (places - 1) + 1, stride) for i in range(w.shape[2])]
    rows = e.reshape(e.concat(taken, 2), (x.shape[0] * places, w.shape[2] * w.shape[1]))
    y = e.op("linear", rows, e.as_rows(e.permute(w, channels_last(3))), None, None, bias)
    return e.permute(e.reshape(y, (x.shape[0], places, w.shape[0])), channels_first(3))


def convolution_of_lines(
    e: Emitter, x: Val, w: Val, bias: Val | None, stride: Sequence[int], pad: Sequence[int], columns: int
) -> Val:
    """A convolution whose weight was laid by lines (once.py): what windows of `columns` columns have of stride[0] lines
    is a place."""
    size = list(e.node.meta["val"].shape[2:])
    size[0] += w.shape[2] - 1
    kernel, entries = [stride[0], columns], w.shape[1]
    lines = e.op("unfold", x, kernel=kernel, size=size, entries=entries, stride=stride, padding=pad)
    y = e.op("conv", e.permute(lines, channels_first(4)), w, bias, last=1)
    return e.permute(y, channels_first(4))


@lower(aten.convolution)
def convolution(
    e: Emitter,
    x: Val,
    w: Val,
    bias: Val | None,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Val:
    n = w.rank - 2
    batched = x.rank == w.rank
    x = x if batched else e.reshape(x, (1, *x.shape))
    if e.on_gpu and batched and is_of_patches(x, w, stride, pad, dilation, transposed, output_padding, groups):
        return product_of_patches(e, x, w, bias)
    if LINES in e.node.meta:
        return convolution_of_lines(e, x, w, bias, per_axis(stride, n), per_axis(pad, n), e.node.meta[LINES])
    places = (x.shape[2] + 2 * pad[0] - w.shape[2]) // stride[0] + 1
    if batched and is_of_sequences(e, x, w, stride[0], dilation[0], transposed, groups, places):
        return product_of_sequences(e, with_channels_last(e, x, 0), w, bias, stride[0], pad[0], places)
    last = e.on_gpu and not transposed and x.dtype in SHORT
    missing = 0 if transposed else w.shape[1] * groups - x.shape[1]
    if last or missing:
        x = with_channels_last(e, x, missing)
    y = e.op(
        "conv",
        x,
        w,
        bias,
        stride=per_axis(stride, n),
        padding=per_axis(pad, n),
        dilation=per_axis(dilation, n),
        groups=groups,
        transposed=int(transposed),
        output_padding=per_axis(output_padding, n),
        last=int(last),
    )
    y = e.permute(y, channels_first(y.rank)) if last else y
    return y if batched else e.reshape(y, y.shape[1:])


def reads_indices(e: Emitter) -> bool:
    return any(user.target is operator.getitem and user.args[1] == 1 for user in e.node.users)


def pooled_channels_last(e: Emitter, x: Val, kind: str, **attributes: Any) -> Val:
    """Channels are a third axis of places, with windows of one entry."""
    laid = e.permute(x, channels_last(x.rank))
    more = {"kernel": 1, "stride": 1, "padding": 0, "dilation": 1, "output": x.shape[1]}
    wide = {name: [*value, more[name]] if name in more else value for name, value in attributes.items()}
    y = e.ops(kind, e.reshape(laid, (laid.shape[0], 1, *laid.shape[1:])), **wide)[0]
    return e.permute(e.reshape(y, (y.shape[0], *y.shape[2:])), channels_first(x.rank))


def pooled(e: Emitter, x: Val, spatial: int, kind: str, **attributes: Any) -> list[Val]:
    """A pool of a tensor with or without its batch axis."""
    batched = x.rank == spatial + 2
    if batched and spatial == 2 and e.is_channels_last([x]) and not reads_indices(e):
        return [pooled_channels_last(e, x, kind, **attributes), lambda: no_extra("indices of a pool")]
    outs = e.ops(kind, x if batched else e.reshape(x, (1, *x.shape)), **attributes)
    return outs if batched else [e.reshape(y, y.shape[1:]) for y in outs]


def max_pool(spatial: int) -> Callable:
    def function(
        e: Emitter, x: Val, kernel: Any, stride: Any = (), pad: Any = 0, dilation: Any = 1, ceil: bool = False
    ) -> list[Val]:
        return pooled(
            e,
            x,
            spatial,
            "max_pool",
            kernel=per_axis(kernel, spatial),
            stride=per_axis(stride or kernel, spatial),
            padding=per_axis(pad, spatial),
            dilation=per_axis(dilation, spatial),
            ceil=int(ceil),
        )

    return function


def avg_pool(spatial: int) -> Callable:
    def function(
        e: Emitter,
        x: Val,
        kernel: Any,
        stride: Any = (),
        pad: Any = 0,
        ceil: bool = False,
        count: bool = True,
        divisor: int | None = None,
    ) -> Val:
        sizes, pads = per_axis(kernel, spatial), per_axis(pad, spatial)
        if ceil:  # a window may reach beyond the padding, which is not counted
            sizes = [min(k, n + 2 * p) for k, n, p in zip(sizes, x.shape[-spatial:], pads)]
        return pooled(
            e,
            x,
            spatial,
            "avg_pool",
            kernel=sizes,
            stride=per_axis(stride or kernel, spatial),
            padding=pads,
            ceil=int(ceil),
            count_include_pad=int(count),
            divisor=divisor or 0,
        )[0]

    return function


def adaptive(spatial: int, kind: str) -> Callable:
    def function(e: Emitter, x: Val, output: Any) -> Any:
        output = [x.shape[x.rank - spatial + i] if n is None else n for i, n in enumerate(per_axis(output, spatial))]
        outs = pooled(e, x, spatial, kind, kernel=output, output=output)
        return outs if kind == "max_pool" else outs[0]

    return function


for _n in (1, 2, 3):
    lower(getattr(packet(f"max_pool{_n}d_with_indices"), "default"))(max_pool(_n)) if _n > 1 else None
    lower(packet(f"avg_pool{_n}d"))(avg_pool(_n))
    lower(packet(f"adaptive_max_pool{_n}d").default)(adaptive(_n, "max_pool"))
    lower(packet(f"adaptive_avg_pool{_n}d").default)(adaptive(_n, "avg_pool"))
    if _n > 1:
        lower(packet(f"_adaptive_avg_pool{_n}d").default)(adaptive(_n, "avg_pool"))
