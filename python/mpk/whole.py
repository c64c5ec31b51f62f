"""Operators that PyTorch takes apart while it traces, before it asks any table of decompositions: resizing, and
attention on a GPU.  Within `whole_operators` they stay whole, for the lowerings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

# ---- resizing ----

RESIZERS = [
    f"{name}{n}d"
    for name, axes in {
        "upsample_nearest": (1, 2, 3),
        "_upsample_nearest_exact": (1, 2, 3),
        "upsample_linear": (1,),
        "upsample_bilinear": (2,),
        "upsample_trilinear": (3,),
        "upsample_bicubic": (2,),
    }.items()
    for n in axes
]


def resizer(name: str) -> Callable:
    """The overload with a size or factors, by that with a size."""
    whole = getattr(aten, name).default

    def resize(x: Tensor, size: Sequence[int] | None, *arguments: Any) -> Tensor:
        factors = arguments[-1]
        out = torch._decomp.decompositions.upsample_compute_output_size(x.size(), size, factors)
        return whole(x, out, *arguments[:-1], *(factors or [None] * (x.dim() - 2)))

    return resize


def resizing() -> Iterator[tuple[Any, dict]]:
    """Overloads, and the kernels that they have in Python meanwhile."""
    for name in RESIZERS:
        for op, resize in ((getattr(aten, name).default, None), (getattr(aten, name).vec, resizer(name))):
            taken = [key for key in (torch._C.DispatchKey.Autograd, COMPOSITE) if key in op.py_kernels]
            kept = {key: kernel for key, kernel in op.py_kernels.items() if key not in taken}
            yield op, kept | (dict.fromkeys(taken, resize) if resize else {})


# ---- attention ----

WIDEST = 128  # entries of a head, that the block programs of attention take (src/super)


@torch.library.custom_op("mpk::attention", mutates_args=())
def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """What PyTorch runs where a graph with attention is left to it."""
    grouped = q.shape[1] != k.shape[1]
    y = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return y.contiguous()


@attention.register_fake
def attention_shape(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> Tensor:
    return q.new_empty(*q.shape[:-1], v.shape[-1])


def is_ours(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Has attention of these a body that beats its parts?  On a CPU PyTorch keeps it whole itself.  DTensors, and other
    tensors made of tensors, know PyTorch's operators only, which they call on their parts: those are lowered, too."""
    if any(map(torch.utils._python_dispatch.is_traceable_wrapper_subclass, (q, k, v))):
        return False
    heads = all(x.dim() == 4 and x.dtype == q.dtype and x.shape[-1] <= WIDEST for x in (q, k, v))
    return q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16) and heads


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p == 0 and is_ours(q, k, v):
        return attention(q, k, v, attn_mask, is_causal, scale)
    whole = aten.scaled_dot_product_attention.default
    return whole._op_dk(
        COMPOSITE, q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


# ---- both ----


@contextlib.contextmanager
def whole_operators() -> Iterator[None]:
    whole = aten.scaled_dot_product_attention.default
    changes = [*resizing(), (whole, whole.py_kernels | {COMPOSITE: attend})]
    before = [(op, dict(op.py_kernels)) for op, _ in changes]

    def put(all_kernels: Sequence[tuple[Any, dict]]) -> None:
        for op, kernels in all_kernels:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()

    put(changes)
    try:
        yield
    finally:
        put(before)
