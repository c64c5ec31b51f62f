"""Decompositions that PyTorch does not bring: its fused layers, and operators on segments, rows and grids, as the
operators they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten


def attend(q: Tensor, k: Tensor, v: Tensor, n_heads: int, mask: Tensor | None, mask_type: int | None) -> Tensor:
    """q, k, v [B, T, D].  A mask is true where nothing is seen: keys [B, S] (type 1), else [T, S] or [B, H, T, S].  Of
    numbers, as nn.TransformerEncoder makes them (0 and -inf), all but 0 are true."""

    def heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], n_heads, -1).transpose(1, 2)

    if mask is None:
        y = F.scaled_dot_product_attention(heads(q), heads(k), heads(v))
    else:  # a row that sees nothing is NaN here, and zeros there
        scores = heads(q) @ heads(k).transpose(-2, -1) / math.sqrt(q.shape[-1] // n_heads)
        hidden = mask.bool()
        scores = scores.masked_fill(hidden[:, None, None, :] if mask_type == 1 else hidden, float("-inf"))
        y = torch.softmax(scores, -1) @ heads(v)
    return y.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)


def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    def attention(x: Tensor) -> Tensor:
        q, k, v = F.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        return F.linear(attend(q, k, v, num_heads, mask, mask_type), proj_weight, proj_bias)

    def feed_forward(x: Tensor) -> Tensor:
        y = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(y) if use_gelu else F.relu(y), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attention(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attention(src))
    return norm_2(x + feed_forward(x))


def self_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    if need_weights:
        return NotImplemented
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3)))
    y = F.linear(attend(q, k, v, num_head, mask, mask_type), proj_weight, proj_bias)
    return y, y.new_empty((0,))


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What an LSTM cell does on a GPU after its two products [B, 4 H]; the last result serves training alone."""
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * cx + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c, gates


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same of a GRU cell, [B, 3 H]."""
    x = input_gates if input_bias is None else input_gates + input_bias
    h = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (rx, zx, nx), (rh, zh, nh) = x.chunk(3, 1), h.chunk(3, 1)
    z = torch.sigmoid(zx + zh)
    n = torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
    return n + z * (hx - n), torch.cat([x, h[:, : 2 * hx.shape[1]]], 1)


def embedding_renorm(table: Tensor, ids: Tensor, max_norm: float, norm_type: float) -> Tensor:
    """Rows that ids name, shortened to max_norm where they are longer."""
    norm = torch.linalg.vector_norm(table, norm_type, 1, keepdim=True)
    one = torch.ones((), dtype=torch.int64, device=table.device)
    named = torch.zeros(table.shape[0], dtype=torch.int64, device=table.device).index_put((ids.reshape(-1),), one)
    return torch.where((named[:, None] > 0) & (norm > max_norm), table * (max_norm / (norm + 1e-7)), table)


def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Each line along the axis cut into segments; an entry beyond the last goes to one more, which is left out."""
    if indices is not None:
        return NotImplemented
    lengths = offsets.diff(dim=axis) if lengths is None else lengths
    n, segments = data.shape[axis], lengths.shape[axis]
    ends = lengths.cumsum(axis) + (0 if offsets is None else offsets.narrow(axis, 0, 1))
    places = torch.searchsorted(
        ends, torch.arange(n, device=data.device).expand(*data.shape[:axis], n).contiguous(), right=True
    )
    rest = (1,) * (data.dim() - axis - 1)
    kind, none = {
        "sum": ("sum", 0.0),
        "mean": ("sum", 0.0),
        "prod": ("prod", 1.0),
        "max": ("amax", -math.inf),
        "min": ("amin", math.inf),
    }[reduce]
    y = data.new_full((*data.shape[:axis], segments + 1, *data.shape[axis + 1 :]), none if initial is None else initial)
    y = y.scatter_reduce(axis, places.reshape(places.shape + rest).expand(data.shape), data, kind)
    y = y.narrow(axis, 0, segments)
    if reduce == "mean":
        count = lengths.reshape(lengths.shape + rest)
        y = torch.where(count > 0, y / count, math.nan if initial is None else y)
    return y


def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The places of the first `size` entries that are not zero; those that are too many go to one more place."""
    if x.dim() == 0 or x.numel() == 0 or size == 0:
        return torch.full((size, x.dim()), fill_value, dtype=torch.int64, device=x.device)
    found = (x != 0).reshape(-1)
    place = torch.where(found, found.cumsum(0) - 1, size).clamp(max=size)
    number = x.new_full((size + 1,), -1, dtype=torch.int64)
    number = number.scatter(0, place, torch.arange(x.numel(), device=x.device))[:size]
    places = [number // math.prod(x.shape[axis + 1 :]) % n for axis, n in enumerate(x.shape)]
    return torch.where(number[:, None] < 0, fill_value, torch.stack(places, 1))


def histogram_dd(x: Tensor, edges: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False) -> Tensor:
    """Points x [.., D] counted in a box of cells between edges[i] [n_i + 1]; what lies outside goes to one more cell.
    The last cells hold their upper edges."""
    x = x.reshape(-1, len(edges))
    shape = [b.shape[0] - 1 for b in edges]
    cell, inside = x.new_zeros(x.shape[0], dtype=torch.int64), x.new_ones(x.shape[0], dtype=torch.bool)
    for axis, (b, n) in enumerate(zip(edges, shape)):
        at = x[:, axis].contiguous()
        cell = cell * n + (torch.searchsorted(b, at, right=True) - 1).clamp(max=n - 1)
        inside = inside & (at >= b[0]) & (at <= b[-1])
    n = math.prod(shape)
    weight = x.new_ones(x.shape[0]) if weight is None else weight.reshape(-1)
    counts = x.new_zeros(n + 1).index_put((torch.where(inside, cell, n),), weight, accumulate=True)[:n].reshape(shape)
    if density:
        counts = counts / counts.sum()
        for axis, b in enumerate(edges):
            counts = counts / b.diff().reshape([-1 if i == axis else 1 for i in range(len(edges))])
    return counts


def even_edges(
    x: Tensor, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Any = None, density: bool = False
) -> list[Tensor]:
    """bins[i] + 1 edges with equal steps over range, low and high for each i, or over what x [.., D] has."""
    x, edges = x.reshape(-1, len(bins)), []
    for axis, n in enumerate(bins):
        ends = x[:, axis].aminmax() if x.shape[0] else (x.new_zeros(()), x.new_ones(()))
        low, high = ends if range is None else (x.new_full((), v) for v in range[2 * axis : 2 * axis + 2])
        same = (low == high) * 0.5
        edges.append(torch.linspace(low - same, high + same, n + 1, dtype=x.dtype, device=x.device))
    return edges


def histogram_dd_even(
    x: Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Tensor:
    return histogram_dd(x, even_edges(x, bins, range=range), weight=weight, density=density)


def histogram(
    x: Tensor, edges: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    return histogram_dd(x.reshape(-1, 1), [edges], weight=weight, density=density), edges


def histogram_even(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    return histogram(x, even_edges(x.reshape(-1, 1), [bins], range=range)[0], weight=weight, density=density)


def grid_sampler_3d(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    """x [N, C, D, H, W] at the places grid [N, .., 3], (x, y, z) from -1 to 1.  mode 0: between the eight neighbours,
    1: the nearest; padding 0: nothing outside, 1: the border, 2: mirrored there."""

    def place(at: Tensor, n: int) -> Tensor:
        at = (at + 1) / 2 * (n - 1) if align else ((at + 1) * n - 1) / 2
        low, span = (0.0, n - 1.0) if align else (-0.5, float(n))
        if padding == 2:
            away = (at - low).abs()
            at = torch.where((away / span).floor() % 2 == 0, away % span, span - away % span) + low if span else at * 0
        return at if padding == 0 else at.clamp(0, n - 1)

    sizes = x.shape[2:]
    at = [place(grid[..., 2 - i], sizes[i]) for i in range(3)]
    batch = torch.arange(x.shape[0], device=x.device).reshape(-1, 1, 1, 1)
    columns, y = x.permute(0, 2, 3, 4, 1), x.new_zeros(())
    for corner in range(8 if mode == 0 else 1):
        weight, where, inside = torch.ones_like(at[0]), [], torch.ones_like(at[0], dtype=torch.bool)
        for i in range(3):
            upper, low = corner >> i & 1, at[i].floor()
            near = low + upper if mode == 0 else at[i].round()
            if mode == 0:
                weight = weight * (at[i] - low if upper else low + 1 - at[i])
            inside = inside & (near >= 0) & (near < sizes[i])
            where.append(near.clamp(0, sizes[i] - 1).to(torch.int64))
        y = y + columns[batch, where[0], where[1], where[2]] * torch.where(inside, weight, 0)[..., None]
    return y.permute(0, 4, 1, 2, 3)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A factor and a term for each channel, both of weights alone.  f32 at least; rounded once."""
    scale = torch.rsqrt(var.to(torch.promote_types(x.dtype, torch.float32)) + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    channels = (-1,) + (1,) * (x.dim() - 2)
    return (x * scale.view(channels) + shift.view(channels)).to(x.dtype), x.new_empty(0), x.new_empty(0)


table = {
    aten._native_batch_norm_legit_no_training.default: batch_norm,
    aten._thnn_fused_lstm_cell.default: lstm_cell,
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten.embedding_renorm.default: embedding_renorm,
    aten.segment_reduce.default: segment_reduce,
    aten.nonzero_static.default: nonzero_static,
    aten.grid_sampler_3d.default: grid_sampler_3d,
    aten.histogram.bins_tensor: histogram,
    aten.histogram.bin_ct: histogram_even,
    aten._histogramdd_bin_edges.default: even_edges,
    aten._histogramdd_from_bin_cts.default: histogram_dd_even,
    aten._histogramdd_from_bin_tensors.default: histogram_dd,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten._native_multi_head_attention.default: self_attention,
}

# PyTorch's own decompositions of these round in other places than its kernels.
kept = {"aten::linspace", "aten::logspace"}

# PyTorch's decompositions of these write into a tensor that they have made, which a functional graph must not do.
writing = {"aten::complex", "aten::polar"}
