"""torch.compile(backend="mpk"): operators that move entries, of random shapes and layouts, against eager."""

import pytest
from test_torch import compiled, fresh  # noqa: F401  (fresh is a fixture)

import torch
import torch.nn.functional as F

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64)


def number(low, high):
    return int(torch.randint(low, high + 1, ()))


def tensor(dtype, rank, longest=40):
    """A random tensor of a random shape whose axes lie in a random order in memory."""
    dims = [number(1, longest if i >= rank - 2 else 4) for i in range(rank)]
    order = torch.randperm(rank).tolist()
    dense = torch.randint(-50, 50, [dims[i] for i in order]).to(dtype)
    return dense.permute([order.index(i) for i in range(rank)])


def check(fn, *arguments):
    torch._dynamo.reset()
    fast, reports = compiled(fn)
    got, expected = fast(*arguments), fn(*arguments)
    assert got.shape == expected.shape and torch.equal(got, expected)
    assert not any(r.fallbacks for r in reports), reports


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.draws(2)
def test_pads(dtype):
    for _ in range(3):
        x = tensor(dtype, 4)
        around = [number(0, 5) for _ in range(6)]
        check(lambda x: F.pad(x, around, value=1), x)
    check(lambda x: F.pad(x, (0, 0, 3, 0)), x)
    wide = torch.randn(2, 3, number(4, 30), number(4, 30))
    for mode in ("reflect", "replicate", "circular"):
        around = [number(0, 3) for _ in range(4)]
        check(lambda x: F.pad(x, around, mode=mode), wide)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.draws(2)
def test_copies_and_joins(dtype):
    x = tensor(dtype, 4)
    check(lambda x: x.permute(0, 2, 3, 1).contiguous(), x)
    check(lambda x: x.transpose(1, 3).reshape(x.shape[0], -1), x)
    for axis in range(4):
        check(lambda x: torch.cat([x, x.flip(axis), x.narrow(axis, 0, 1)], axis), x)
    check(lambda x: torch.roll(x, (3, -2), (2, 3)), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.draws(4)
def test_entries_by_index(dtype, kind):
    x = tensor(dtype, 3, 100)
    for axis in range(3):
        shape = [number(1, n) for n in x.shape]
        shape[axis] = number(1, 150)
        index = torch.randint(0, x.shape[axis], shape)
        if kind is torch.int64:
            check(lambda x, i: x.gather(axis, i), x, index)
        check(lambda x, i: x.index_select(axis, i), x, index.flatten()[:70].to(kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.draws(2)
def test_triangles(dtype):
    x = tensor(dtype, 3)
    for diagonal in (0, number(-45, 45)):
        check(lambda x: x.tril(diagonal), x)
        check(lambda x: x.triu(diagonal), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.draws(2)
def test_strides(dtype):
    """Of what lies densely and of what does not; windows that overlap, rows that are short, steps of zero."""
    for _ in range(4):
        x = tensor(dtype, 3, 20)
        shape, n = (number(1, 4), number(1, 30), number(1, 5)), x.numel()
        strides = [number(0, (n - 1) // (3 * max(1, s - 1))) for s in shape]
        check(lambda x: x.contiguous().as_strided(shape, strides).contiguous(), x)
        check(lambda x: (x + x).transpose(0, 2).reshape(-1).as_strided(shape, strides).contiguous(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.draws(2)
def test_running_sums_and_products(dtype):
    x = tensor(dtype, 3, 150)
    whole = not dtype.is_floating_point

    def factors(x):  # their products are exact, and those of floats stay far from overflow
        return x.sign() * 2 if whole else torch.where(x > 0, 2.0, -0.5).to(dtype)
    for axis in range(3):
        for fn in (lambda x: x.cumsum(axis), lambda x: factors(x).cumprod(axis)):
            torch._dynamo.reset()
            fast, reports = compiled(fn)
            torch.testing.assert_close(fast(x), fn(x))
            assert not any(r.fallbacks for r in reports), reports
