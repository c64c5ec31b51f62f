"""Lowerings: one function for each ATen overload; here what works on elements, and views.

An element-wise operator is a row of a table: the expression of the operator map that it is.  The C compiler fuses
chains of them.  Rounding is that of the result's dtype; operands are promoted by the map, as PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mpk.emit import Emitter, Unsupported, Val, base_of, dense_order, is_permuted, shape_only, table

aten, prims = torch.ops.aten, torch.ops.prims


def lower(*targets: Any) -> Callable:
    """Put a function into the table, for overloads or for all functional overloads of packets."""

    def put(function: Callable) -> Callable:
        for target in targets:
            for overload in overloads(target):
                table[overload] = function
        return function

    return put


def overloads(target: Any) -> list[Any]:
    if isinstance(target, torch._ops.OpOverload):
        return [target]
    every = [getattr(target, name) for name in target.overloads()]
    return [o for o in every if not o._schema.is_mutable and not any(a.is_out for a in o._schema.arguments)]


def packet(name: str) -> Any:
    return getattr(prims, name[6:]) if name.startswith("prims.") else getattr(aten, name)


def result_dtype(e: Emitter) -> torch.dtype:
    """The dtype that PyTorch gives the node."""
    return e.node.meta["val"].dtype


def result_shape(e: Emitter) -> tuple[int, ...]:
    return tuple(e.node.meta["val"].shape)


# ---- element-wise ----

# fmt: off
# Functions of the map that have the operator's name, then the others.
UNARY = {name: f"{name}({{0}})" for name in """
    abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
    atanh sigmoid erf erfc erfinv lgamma digamma i0 sign ceil floor trunc square isnan isinf isfinite signbit
    reciprocal
""".split()} | {
    "neg": "-{0}", "_neg_view": "-{0}", "special_i0e": "i0e({0})", "special_i1": "i1({0})", "special_i1e": "i1e({0})",
    "special_bessel_j0": "j0({0})", "special_bessel_j1": "j1({0})", "special_bessel_y0": "y0({0})",
    "special_bessel_y1": "y1({0})", "special_ndtri": "ndtri({0})", "special_log_ndtr": "log_ndtr({0})",
    "special_erfcx": "erfcx({0})", "special_modified_bessel_i0": "i0({0})", "special_modified_bessel_i1": "i1({0})",
    "special_modified_bessel_k0": "k0({0})", "special_modified_bessel_k1": "k1({0})",
    "special_scaled_modified_bessel_k0": "k0e({0})", "special_scaled_modified_bessel_k1": "k1e({0})",
    "prims.spherical_bessel_j0": "where(isinf({0}), 0.0, where({0} == 0, 1.0, sin({0}) / {0}))",
    "sgn": "sign({0})", "relu": "max({0}, 0)", "logical_not": "lnot({0})",
    "isposinf": "{0} == inf", "isneginf": "{0} == (-inf)", "frac": "{0} - trunc({0})", "positive": "{0}",
    "angle": "where({0} < 0, 3.141592653589793, where(isnan({0}), nan, 0.0))",
    "deg2rad": "{0} * 0.017453292519943295", "rad2deg": "{0} * 57.29577951308232",
    "special_entr": "where({0} > 0, -{0} * log({0}), where({0} == 0, 0.0, where(isnan({0}), {0}, (-inf))))",
    "relu6": "min(max({0}, 0), 6)", "hardsigmoid": "min(max({0} + 3, 0), 6) / 6",
    "hardswish": "{0} * min(max({0} + 3, 0), 6) / 6", "log_sigmoid_forward": "min({0}, 0) - log1p(exp(-abs({0})))",
    "mish": "{0} * tanh(where({0} > 20, {0}, log1p(exp({0}))))",
}
BINARY = {name: f"{name}({{0}}, {{1}})" for name in """
    atan2 fmod remainder fmax fmin copysign nextafter hypot logaddexp logaddexp2 xlogy gcd lcm pow igamma
    igammac
""".split()} | {
    f"special_{shift}chebyshev_polynomial_{kind}": f"chebyshev_{kind}({x}, {{1}})"
    for kind in "tuvw" for shift, x in (("", "{0}"), ("shifted_", "{0} + {0} - 1"))
} | {
    "special_hermite_polynomial_h": "hermite_h({0}, {1})", "special_hermite_polynomial_he": "hermite_he({0}, {1})",
    "special_laguerre_polynomial_l": "laguerre({0}, {1})", "special_legendre_polynomial_p": "legendre({0}, {1})",
    "maximum": "max({0}, {1})", "minimum": "min({0}, {1})", "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}",
    "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}", "bitwise_and": "and({0}, {1})",
    "bitwise_or": "or({0}, {1})", "bitwise_xor": "xor({0}, {1})", "logical_and": "land({0}, {1})",
    "logical_or": "lor({0}, {1})", "logical_xor": "lxor({0}, {1})", "bitwise_left_shift": "shl({0}, {1})",
    "bitwise_right_shift": "shr({0}, {1})", "__lshift__": "shl({0}, {1})", "__rshift__": "shr({0}, {1})",
    "__and__": "and({0}, {1})", "__or__": "or({0}, {1})", "__xor__": "xor({0}, {1})",
    "special_xlog1py": "where(isnan({1}), nan, where({0} == 0, 0.0, {0} * log1p({1})))", "ldexp": "{0} * exp2({1})",
    "floor_divide": "floordiv({0}, {1})", "true_divide": "{0} / {1}",
    "heaviside": "where({0} == 0, {1}, where({0} > 0, 1, 0))", "float_power": "pow({0}, {1})",
    "prims.igamma": "igamma({0}, {1})", "prims.igammac": "igammac({0}, {1})", "special_zeta": "zeta({0}, {1})",
    "prims.zeta": "zeta({0}, {1})", "prims.add": "{0} + {1}", "prims.sub": "{0} - {1}",
}
# fmt: on


def elementwise(expression: str) -> Callable:
    count = 2 if "{1}" in expression else 1

    def function(e: Emitter, *operands: Any) -> Val:
        return e.map(expression, *operands[:count], dtype=result_dtype(e), shape=result_shape(e))

    return function


for _name, _expression in {**UNARY, **BINARY}.items():
    if hasattr(prims if _name.startswith("prims.") else aten, _name.removeprefix("prims.")):
        lower(packet(_name))(elementwise(_expression))


@lower(aten.bitwise_not)
def bitwise_not(e: Emitter, x: Val) -> Val:
    return e.map("not({0})", x, dtype=x.dtype)


@lower(aten.log_sigmoid_forward)
def log_sigmoid_forward(e: Emitter, x: Val) -> list[Any]:
    return [e.map(UNARY["log_sigmoid_forward"], x, dtype=x.dtype), e.folded(torch.empty(0, dtype=x.dtype))]


def plain(e: Emitter, kind: str, a: Any, b: Any) -> Val | None:
    """The operator add or mul, which the compiler's rules look for, if it is just that."""
    dtype = result_dtype(e)
    if not all(isinstance(v, Val) and v.dtype == dtype and v.literal() is None for v in (a, b)) or dtype is torch.bool:
        return None
    return e.op(kind, a, b)


@lower(aten.pow.Tensor_Scalar)
def pow_by_number(e: Emitter, x: Val, exponent: Any) -> Val:
    """PyTorch takes roots for these two exponents, of minus infinity, too."""
    dtype = result_dtype(e)
    root = {0.5: "sqrt({0})", -0.5: "rsqrt({0})"}.get(exponent) if dtype.is_floating_point else None
    return e.map(root, e.cast(x, dtype), dtype=dtype) if root else e.map(BINARY["pow"], x, exponent, dtype=dtype)


@lower(aten.mul, prims.mul)
def mul(e: Emitter, a: Any, b: Any) -> Val:
    return plain(e, "mul", a, b) or e.map("{0} * {1}", a, b, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.silu)
def silu(e: Emitter, x: Val) -> Val:
    if x.dtype is torch.float64:
        return e.map("{0} * sigmoid({0})", x, dtype=x.dtype)
    return e.op("silu", x)


@lower(aten.add)
def add(e: Emitter, a: Any, b: Any, alpha: Any = 1) -> Val:
    if alpha == 1 and (sum_ := plain(e, "add", a, b)) is not None:
        return sum_
    expression = "{0} + {1}" if alpha == 1 else "{0} + {1} * {2}"
    return e.map(expression, a, b, alpha, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.sub)
def sub(e: Emitter, a: Any, b: Any, alpha: Any = 1) -> Val:
    expression = "{0} - {1}" if alpha == 1 else "{0} - {1} * {2}"
    return e.map(expression, a, b, alpha, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.rsub)
def rsub(e: Emitter, a: Any, b: Any, alpha: Any = 1) -> Val:
    return sub(e, b, a, alpha)


@lower(aten.div.Tensor, aten.div.Scalar)
def div(e: Emitter, a: Any, b: Any) -> Val:
    return e.map("{0} / {1}", a, b, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(e: Emitter, a: Any, b: Any, mode: str | None) -> Val:
    expression = {None: "{0} / {1}", "floor": "floordiv({0}, {1})", "trunc": "truncdiv({0}, {1})"}[mode]
    return e.map(expression, a, b, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.round.default, aten.round.decimals)
def round_(e: Emitter, x: Val, decimals: int = 0) -> Val:
    scale = 10.0 ** abs(decimals)
    expression = (
        "round({0})" if decimals == 0 else "round({0} * {1}) / {1}" if decimals > 0 else "round({0} / {1}) * {1}"
    )
    return e.map(expression, x, scale, dtype=x.dtype)


@lower(aten.gelu)
def gelu(e: Emitter, x: Val, approximate: str = "none") -> Val:
    if x.data is None and x.dtype is not torch.float64:
        return e.op("gelu", x, tanh=int(approximate == "tanh"))
    raise Unsupported("gelu of float64")


@lower(aten.where.self, prims.where)
def where(e: Emitter, c: Val, a: Any, b: Any) -> Val:
    return e.map("where({0}, {1}, {2})", c, a, b, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.lerp)
def lerp(e: Emitter, a: Val, b: Val, w: Any) -> Val:
    return e.map("lerp({0}, {1}, {2})", a, b, w, dtype=a.dtype, shape=result_shape(e))


@lower(aten.addcmul)
def addcmul(e: Emitter, x: Val, a: Val, b: Val, value: Any = 1) -> Val:
    return e.map("{0} + {3} * {1} * {2}", x, a, b, value, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.addcdiv)
def addcdiv(e: Emitter, x: Val, a: Val, b: Val, value: Any = 1) -> Val:
    return e.map("{0} + {3} * ({1} / {2})", x, a, b, value, dtype=result_dtype(e), shape=result_shape(e))


@lower(aten.clamp, aten.clamp_min, aten.clamp_max)
def clamp(e: Emitter, x: Val, low: Any = None, high: Any = None) -> Val:
    if "clamp_max" in str(e.node.target):
        low, high = None, low
    expression = "{0}" if low is None else "max({0}, {1})"
    expression = expression if high is None else f"min({expression}, {{2}})"
    return e.map(
        expression,
        x,
        0 if low is None else low,
        0 if high is None else high,
        dtype=result_dtype(e),
        shape=result_shape(e),
    )


@lower(aten._to_copy, prims.convert_element_type)
def to_copy(e: Emitter, x: Val, *_: Any) -> Val:
    return e.cast(x, result_dtype(e))


@lower(
    aten.clone,
    aten.alias,
    aten.detach,
    aten.lift_fresh,
    aten.lift_fresh_copy,
    aten.contiguous,
    aten.alias_copy,
    aten.detach_copy,
    aten.resolve_conj,
    aten.resolve_neg,
    aten.positive,
    aten.real,
    aten.conj,
    aten._conj,
    aten.conj_physical,
    prims.view_of,
    prims.clone,
)
def same(e: Emitter, x: Val, *_: Any) -> Val:
    return x


@lower(aten.copy)
def copy(e: Emitter, x: Val, source: Val, *_: Any) -> Val:
    return e.expand(e.cast(source, x.dtype), x.shape)


@lower(aten.isin.Tensor_Tensor)
def isin(e: Emitter, x: Val, among: Val, assume_unique: bool = False, invert: bool = False) -> Val:
    wide = e.map("{0} == {1}", e.reshape(x, x.shape + (1,)), e.reshape(among, (among.numel,)), dtype=torch.bool)
    found = e.reduce(wide, "any", [x.rank], False, torch.bool)
    return e.map("lnot({0})", found, dtype=torch.bool) if invert else found


@lower(aten.polygamma)
def polygamma(e: Emitter, n: int, x: Val) -> Val:
    if n == 0:
        return e.map("digamma({0})", x, dtype=result_dtype(e))
    factor = float((-1) ** (n + 1) * math.factorial(n))
    return e.map("{1} * zeta({2}, {0})", x, factor, float(n + 1), dtype=result_dtype(e))


@lower(aten.linspace.Tensor_Tensor, aten.linspace.Tensor_Scalar, aten.linspace.Scalar_Tensor)
def linspace(e: Emitter, start: Any, end: Any, steps: int, *_: Any) -> Val:
    """From both ends to the middle, integers in double, as PyTorch does."""
    dtype = result_dtype(e)
    wide = torch.float64 if not dtype.is_floating_point else torch.float32 if dtype.itemsize < 4 else dtype
    number = float if dtype.is_floating_point else int
    start, end = (e.cast(e.cast(v, dtype), wide) if isinstance(v, Val) else float(number(v)) for v in (start, end))
    i = e.folded(torch.arange(steps).to(wide))
    step = e.map("({1} - {0}) / {2}", start, end, float(max(1, steps - 1)), dtype=wide)
    return e.map(
        "where({0} < {1}, {2} + {4} * {0}, {3} - {4} * ({5} - {0}))",
        i,
        float(max(1, steps // 2)),
        start,
        end,
        step,
        float(steps - 1),
        dtype=dtype,
        shape=(steps,),
    )


# ---- made of shapes ----

for _name in (
    "full_like",
    "zeros_like",
    "ones_like",
    "empty_like",
    "new_full",
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_empty_strided",
    "full",
    "zeros",
    "ones",
    "empty",
    "empty_strided",
    "empty_permuted",
):
    shape_only.update(overloads(packet(_name)))


# ---- views ----


@lower(
    aten.view.default,
    aten._unsafe_view,
    aten.reshape,
    aten.view_copy.default,
    aten._reshape_alias,
    aten.squeeze,
    aten.squeeze_copy,
    aten.unsqueeze,
    aten.unsqueeze_copy,
    aten.flatten,
    prims.reshape,
    prims.squeeze,
    prims.collapse_view,
    prims.split_dim,
    aten.reshape.default,
    aten.unflatten,
    aten.ravel,
)
def to_shape(e: Emitter, x: Val, *_: Any) -> Val:
    return e.reshape(x, result_shape(e))


@lower(aten.permute, aten.permute_copy, prims.transpose)
def permute(e: Emitter, x: Val, axes: Sequence[int]) -> Val:
    return e.permute(x, axes)


@lower(aten.transpose.int, aten.transpose_copy, aten.swapaxes)
def transpose(e: Emitter, x: Val, a: int, b: int) -> Val:
    axes = list(range(x.rank))
    if axes:
        axes[a], axes[b] = axes[b], axes[a]
    return e.permute(x, axes)


@lower(aten.t, aten.t_copy, aten.numpy_T, aten.mT, aten.adjoint)
def t(e: Emitter, x: Val) -> Val:
    return e.permute(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2]) if x.rank >= 2 else x


@lower(aten.expand, aten.expand_copy)
def expand(e: Emitter, x: Val, *_: Any) -> Val:
    return e.expand(x, result_shape(e))


@lower(prims.broadcast_in_dim)
def broadcast_in_dim(e: Emitter, x: Val, shape: Sequence[int], axes: Sequence[int]) -> Val:
    middle = [1] * len(shape)
    for axis, n in zip(axes, x.shape):
        middle[axis] = n
    return e.expand(e.reshape(x, middle), shape)


def in_range(index: int | None, n: int, otherwise: int) -> int:
    """A bound of a slice as PyTorch reads it."""
    if index is None:
        return otherwise
    return max(0, min(n, index + n if index < 0 else index))


@lower(aten.slice.Tensor, aten.slice_copy)
def slice_(e: Emitter, x: Val, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1) -> Val:
    n = x.shape[axis]
    return e.slice(x, axis, in_range(start, n, 0), in_range(stop, n, n), step)


@lower(aten.select.int, aten.select_copy)
def select(e: Emitter, x: Val, axis: int, index: int) -> Val:
    return e.select(x, axis, index)


@lower(aten.split.Tensor, aten.split_copy.Tensor)
def split(e: Emitter, x: Val, size: int, axis: int = 0) -> list[Val]:
    n = x.shape[axis]
    return [e.slice(x, axis, at, min(at + size, n)) for at in range(0, max(n, 1), max(size, 1))]


@lower(aten.split_with_sizes, aten.split_with_sizes_copy, aten.split.sizes)
def split_with_sizes(e: Emitter, x: Val, sizes: Sequence[int], axis: int = 0) -> list[Val]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [e.slice(x, axis, end - size, end) for size, end in zip(sizes, ends)]


@lower(aten.unbind, aten.unbind_copy)
def unbind(e: Emitter, x: Val, axis: int = 0) -> list[Val]:
    return [e.select(x, axis, i) for i in range(x.shape[axis])]


@lower(aten.cat, aten.concat, aten.concatenate)
def cat(e: Emitter, xs: Sequence[Val], axis: int = 0) -> Val:
    rank, dtype = len(result_shape(e)), result_dtype(e)
    return e.concat([e.cast(x, dtype) for x in xs if x.numel], axis % rank)


@lower(prims.cat)
def prims_cat(e: Emitter, xs: Sequence[Val], axis: int) -> Val:
    return cat(e, xs, axis)


@lower(aten.stack)
def stack(e: Emitter, xs: Sequence[Val], axis: int = 0) -> Val:
    shape, dtype = list(result_shape(e)), result_dtype(e)
    shape[axis] = 1
    return e.concat([e.reshape(e.cast(x, dtype), shape) for x in xs], axis)


@lower(aten.repeat)
def repeat(e: Emitter, x: Val, repeats: Sequence[int]) -> Val:
    x = e.reshape(x, (1,) * (len(repeats) - x.rank) + x.shape)
    for axis, n in enumerate(repeats):
        if n > 1 and x.shape[axis] == 1:
            x = e.expand(x, x.shape[:axis] + (n,) + x.shape[axis + 1 :])
        elif n > 1:
            x = e.concat([x] * n, axis)
    return x


@lower(aten.flip)
def flip(e: Emitter, x: Val, axes: Sequence[int]) -> Val:
    axes = [axis % max(1, x.rank) for axis in axes]
    return e.op("flip", x, axes=axes) if x.rank and axes else x


@lower(aten.roll)
def roll(e: Emitter, x: Val, shifts: Sequence[int], axes: Sequence[int] = ()) -> Val:
    if not axes:
        return e.reshape(roll(e, e.reshape(x, (x.numel,)), shifts, [0]), x.shape)
    for shift, axis in zip(shifts, axes):
        n = x.shape[axis]
        k = -shift % n
        if k:
            x = e.concat([e.slice(x, axis, k, n), e.slice(x, axis, 0, k)], axis)
    return x


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


@lower(aten.as_strided, aten.as_strided_copy)
def as_strided(e: Emitter, x: Val, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Val:
    """A view of the memory in which x lies: of what x is itself a view of, in the order of its memory."""
    base, _ = base_of(e.node.args[0])
    seen, whole, val = e.node.args[0].meta["val"], base.meta["val"], e.values[base]
    first = (seen.storage_offset() if offset is None else offset) - whole.storage_offset()
    last = first + sum((n - 1) * s for n, s in zip(size, stride))
    if not is_permuted(whole.shape, whole.stride()) or first < 0 or last >= whole.numel() or not isinstance(val, Val):
        raise Unsupported("as_strided of memory with gaps, or of more than there is")
    return strided(e, e.permute(val, dense_order(whole.shape, whole.stride())), size, stride, first)


def strided(e: Emitter, x: Val, shape: Sequence[int], strides: Sequence[int], offset: int) -> Val:
    """Element (i ..) is number offset + sum i stride of x in row-major order."""
    if x.data is not None:
        return e.folded(x.data.contiguous().as_strided(list(shape), list(strides), offset))
    return e.op("strided", x, shape=list(shape), strides=list(strides), offset=offset)


@lower(aten.diagonal, aten.diagonal_copy)
def diagonal(e: Emitter, x: Val, offset: int = 0, a: int = 0, b: int = 1) -> Val:
    strides, shape = contiguous_strides(x.shape), result_shape(e)
    a, b = a % x.rank, b % x.rank
    first = strides[b] * offset if offset >= 0 else -strides[a] * offset
    rest = [strides[i] for i in range(x.rank) if i not in (a, b)]
    return strided(e, x, shape, rest + [strides[a] + strides[b]], first)


@lower(aten.unfold, aten.unfold_copy)
def unfold(e: Emitter, x: Val, axis: int, size: int, step: int) -> Val:
    strides = contiguous_strides(x.shape)
    if not x.rank:
        return e.reshape(x, result_shape(e))
    last = strides[axis]
    strides[axis] *= step
    return strided(e, x, result_shape(e), strides + [last], 0)


@lower(aten.triu, aten.tril)
def triangle(e: Emitter, x: Val, diagonal: int = 0) -> Val:
    return e.op("triangle", x, diagonal=diagonal, upper=int("triu" in str(e.node.target)))


@lower(aten.constant_pad_nd, aten.pad)
def constant_pad(e: Emitter, x: Val, pad: Sequence[int], value: Any = 0) -> Val:
    before, after = [0] * x.rank, [0] * x.rank
    for i in range(len(pad) // 2):
        axis, low, high = x.rank - 1 - i, pad[2 * i], pad[2 * i + 1]
        x = e.slice(x, axis, max(0, -low), x.shape[axis] - max(0, -high))
        before[axis], after[axis] = max(0, low), max(0, high)
    if not any(before) and not any(after):
        return x
    if not x.numel:
        return e.folded(torch.full(result_shape(e), value, dtype=x.dtype))
    return e.op("pad", x, before=before, after=after, mode="constant", value=float(value))


def padding(mode: str) -> Callable:
    def function(e: Emitter, x: Val, pad: Sequence[int]) -> Val:
        before, after, y = [0] * x.rank, [0] * x.rank, x
        for i in range(len(pad) // 2):
            before[-1 - i], after[-1 - i] = max(0, pad[2 * i]), max(0, pad[2 * i + 1])
        if any(before) or any(after):
            y = e.op("pad", x, before=before, after=after, mode=mode)
        for i in range(len(pad) // 2):
            axis, low, high = x.rank - 1 - i, max(0, -pad[2 * i]), max(0, -pad[2 * i + 1])
            y = e.slice(y, axis, low, y.shape[axis] - high)
        return y

    return function


for _n in (1, 2, 3):
    lower(packet(f"reflection_pad{_n}d"))(padding("reflect"))
    lower(packet(f"replication_pad{_n}d"))(padding("replicate"))
