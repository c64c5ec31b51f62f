"""Decompositions that PyTorch does not bring: its fused layers of a transformer encoder, as the operators they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten


def attend(q: Tensor, k: Tensor, v: Tensor, n_heads: int, mask: Tensor | None, mask_type: int | None) -> Tensor:
    """q, k, v [B, T, D].  A mask is true where nothing is seen: keys [B, S] (type 1), else [T, S] or [B, H, T, S]."""

    def heads(x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], n_heads, -1).transpose(1, 2)

    scores = heads(q) @ heads(k).transpose(-2, -1) / math.sqrt(q.shape[-1] // n_heads)
    if mask is not None:
        mask = mask[:, None, None, :] if mask_type == 1 else mask
        scores = scores.masked_fill(mask, float("-inf"))
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


table = {
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    aten._native_multi_head_attention.default: self_attention,
}

# PyTorch's own decompositions of these round in other places than its kernels.
kept = {"aten::linspace", "aten::logspace"}
