"""torch.compile(backend="mpk"): what single operators become, and that they agree with eager, on the CPU."""

import math
import re

import pytest
import support
from test_torch import compiled, fresh, is_whole  # noqa: F401  (fresh is a fixture)
from test_torch_standin import lowered

import torch
from mpk import lowering_index

aten = torch.ops.aten
TENSOR = re.compile(r"(?:input|const|state) %(\S+) : \w+\[([\d, ]*)\]")
OPERATOR = re.compile(r"((?:%\S+, )*%\S+) = (\w+)\(([^)]*)\).* : (.*)")


def operators(text):
    """(kind, shapes of its operands, shapes of its results) of each operator of a tensor program."""
    shapes, found = {}, []

    def dims(inside):
        return [int(n) for n in inside.split(",") if n.strip()]

    for line in text.splitlines():
        if match := TENSOR.match(line):
            shapes[match[1]] = dims(match[2])
        elif match := OPERATOR.match(line):
            results = [dims(inside) for inside in re.findall(r"\w+\[([\d, ]*)\]", match[4])]
            shapes.update(zip((name.strip()[1:] for name in match[1].split(",")), results))
            operands = [shapes[name.strip()[1:]] for name in match[3].split(",") if name.strip() not in ("", "_")]
            found.append((match[2], operands, results))
    return found


def multiply_adds(text):
    """Of all products of a tensor program."""
    depth = {"linear": lambda x, *_: x[-1], "batch_matmul": lambda x, *_: x[-1], "expert_linear": lambda x, *_: x[-1]}
    return sum(math.prod(out[0]) * depth[kind](*given) for kind, given, out in operators(text) if kind in depth)


# ---- grouped products ----


@pytest.mark.parametrize("transposed", [True, False])
def test_a_grouped_product_takes_each_row_once(transposed):
    lowering_index.lower_foreign()
    rows, experts, width, columns = 32, 8, 64, 48

    def fn(x, w, ends):
        return torch.nn.functional.grouped_mm(x, w.transpose(-2, -1) if transposed else w, offs=ends)

    shape = (experts, columns, width) if transposed else (experts, width, columns)
    ends = torch.zeros(experts, dtype=torch.int32)
    e, _, unsupported, _ = lowered(fn, (rows, width), shape, ends, device="cpu", dtype=torch.bfloat16)
    assert not unsupported and multiply_adds(e.graph.text()) == rows * width * columns
    products = [given for kind, given, _ in operators(e.graph.text()) if kind == "expert_linear"]
    assert [given[2] for given in products] == [[experts, columns, width]]


@pytest.mark.parametrize("transposed", [True, False])
def test_grouped_products(transposed):
    """Groups of any size, none among them, and in fp32 as Transformers' own operator."""
    import transformers.integrations.moe  # noqa: F401  (it brings the operator)

    def fn(x, w, ends):
        w = w.transpose(-2, -1) if transposed else w
        return torch.ops.transformers.grouped_mm_fallback(x, w, ends)

    x = torch.randn(9, 20)
    w = torch.randn(4, 12, 20) if transposed else torch.randn(4, 20, 12)
    fast, reports = compiled(fn)
    for ends in [2, 2, 7, 9], [9, 9, 9, 9], [0, 0, 0, 9]:
        ends = torch.tensor(ends, dtype=torch.int32)
        torch.testing.assert_close(fast(x, w, ends), fn(x, w, ends))
    assert is_whole(reports)


# ---- what bodies of a GPU take ----


def test_wide_joins():
    def fn(*parts):
        return torch.cat(parts, 1), torch.stack([p[:, 0] for p in parts])

    for n in (14, 15, 20, 31):
        torch._dynamo.reset()
        parts = [torch.randn(2, i % 5 + 1) for i in range(n)]
        fast, reports = compiled(fn)
        torch.testing.assert_close(fast(*parts), fn(*parts))
        assert is_whole(reports)
        e, _, unsupported, _ = lowered(fn, *((2, i % 5 + 1) for i in range(n)), device="cpu")
        assert not unsupported
        assert max(len(given) + len(made) for _, given, made in operators(e.graph.text())) <= 15


def attend(q, k, v, mask):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_wide_heads(dtype):
    """2,048 columns and more; a row that sees nothing gives zeros."""
    q, k, v = (torch.randn(2, h, n, w).to(dtype) for h, n, w in ((4, 5, 1500), (2, 7, 1500), (2, 7, 700)))
    mask = torch.rand(5, 7) > 0.4
    mask[2] = False
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for seen in (None, mask, torch.randn(5, 7).to(dtype), torch.randn(2, 1, 5, 7).to(dtype)):
        torch._dynamo.reset()
        fast, reports = compiled(attend)
        wide = seen.double() if seen is not None and seen is not mask else seen
        expected = attend(q.double(), k.double(), v.double(), wide)
        torch.testing.assert_close(fast(q, k, v, seen).double(), expected, rtol=tolerance, atol=tolerance)
        assert is_whole(reports)
    fast, reports = compiled(lambda q, k: torch.nn.functional.scaled_dot_product_attention(q, k, k, is_causal=True))
    q = torch.randn(1, 2, 6, 2048)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q + 1, q + 1, is_causal=True)
    torch.testing.assert_close(fast(q, q + 1), expected)
    assert is_whole(reports) and "sdpa" not in reports[0].programs[0].describe()["kinds"]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("kind", ["all", "causal", "later", "window", "none"])
def test_attention_with_masks_that_are_known(kind, dtype):
    """What a mask says of which numbers are all known may become the flag of later keys, or nothing."""
    random = torch.Generator().manual_seed(support.seed().randrange(2**31))
    rows, keys = (int(torch.randint(2, 20, (), generator=random)) for _ in range(2))

    i, j = torch.arange(rows).reshape(rows, 1), torch.arange(keys)
    seen = {"all": i >= 0, "causal": i >= j, "later": i <= j, "window": (i - j).abs() < 2, "none": (i > 0) & (j > -1)}
    seen = seen[kind].expand(1, 1, rows, keys)

    def fn(q, k, v):
        mask = torch.tensor(seen.tolist())
        return attend(q, k, v, mask if dtype is torch.bool else torch.zeros(()).masked_fill(~mask, -math.inf))

    q, k, v = (torch.randn(2, h, n, 8, generator=random) for h, n in ((4, rows), (2, keys), (2, keys)))
    fast, reports = compiled(fn)
    scores = (q.double() @ k.double().repeat_interleave(2, 1).mT / math.sqrt(8)).masked_fill(~seen, -math.inf)
    expected = scores.softmax(-1).nan_to_num() @ v.double().repeat_interleave(2, 1)  # zeros where nothing is seen
    torch.testing.assert_close(fast(q, k, v), expected.float())
    assert is_whole(reports)


# ---- triangles, strides, assertions, windows ----


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.draws(4)
def test_triangular_systems(upper, left, unit):
    """The other half, and a diagonal of ones, are not read."""

    def fn(a, b):
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)

    for n, dtype in ((1, torch.float32), (5, torch.float32), (64, torch.float32), (9, torch.float64)):
        torch._dynamo.reset()
        whole = torch.ones(n, n, dtype=torch.bool)
        unread = whole.tril(0 if unit else -1) if upper else whole.triu(0 if unit else 1)
        a = (torch.randn(2, 1, n, n, dtype=dtype) / n + 2 * torch.eye(n, dtype=dtype)).masked_fill(unread, torch.nan)
        b = torch.randn(*((3, n, 4) if left else (3, 4, n)), dtype=dtype)
        fast, reports = compiled(fn)
        plain = a.nan_to_num(1.0)
        torch.testing.assert_close(fast(a, b), fn(plain, b))
        assert is_whole(reports)


def strided_transpose(x):
    return x.t().as_strided((2, 3), (1, 2), 1) * 2


def strided_part(x):
    return x[1:].as_strided((2, 3), (1, 2)) + 1


def strided_intermediate(x):
    return (x * 2).t()[1:].as_strided((3, 2), (2, 5)) + 1


def overlapping_windows(x):
    return x.view(-1).as_strided((4, 8), (4, 1)).softmax(-1)


def strided_constant(x):
    ones = torch.ones(2, 6)
    return x.sum() * ones.cumsum(1).as_strided((3, 2), (4, 1)) + ones.t().as_strided((3, 2), (2, 6))


@pytest.mark.parametrize(
    "fn", [strided_transpose, strided_part, strided_intermediate, overlapping_windows, strided_constant]
)
def test_strides_of_what_is_not_contiguous(fn):
    fast, reports = compiled(fn)
    for make in (lambda: torch.randn(4, 5), lambda: torch.randn(5, 4).t()):
        if fn is overlapping_windows and not make().is_contiguous():
            continue
        x = make()
        torch.testing.assert_close(fast(x), fn(x))
    assert all(not r.fallbacks and len(r.programs) == 1 for r in reports)


def test_assertions_of_a_model():
    def fn(x):
        torch._assert_async((x > 0).all(), "all must be positive")
        return x * 2

    for dynamic in (False, True):
        torch._dynamo.reset()
        fast, reports = compiled(fn, dynamic=dynamic)
        for _ in range(2):
            assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
            with pytest.raises(RuntimeError, match="all must be positive"):
                fast(torch.tensor([1.0, -1.0, 1.0]))
        assert is_whole(reports)


@pytest.mark.parametrize("pad, count, divisor", [(0, True, None), (1, True, None), (1, False, None), (1, True, 7)])
def test_windows_that_exceed_the_input(pad, count, divisor):
    def fn(x):
        return torch.nn.functional.avg_pool2d(x, 9, 9, pad, True, count, divisor) + 1

    x = torch.randn(2, 3, 5, 6)
    fast, reports = compiled(fn)
    torch.testing.assert_close(fast(x), fn(x))
    assert is_whole(reports)
