"""Recurrences under torch.compile(backend="mpk"): loops that Dynamo unrolls, and associative_scan, each one recur."""

import pytest

import support  # before mpk, which it finds

import torch
from torch._higher_order_ops.associative_scan import associative_scan_op

import mpk
from mpk import backend

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(support.seed().randrange(2**31))
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def kinds(fn, *arguments):
    """How many operators of each kind the program has, and what stayed with PyTorch."""
    told = mpk.explain(fn, *arguments)
    counts = {}
    for part in (kind for program in told.code for kind in program):
        counts[part["kind"]] = counts.get(part["kind"], 0) + part["operators"]
    return counts, told.fallbacks


def selective(decay, x, c, start=None):
    """[batch, inner, steps, states] and columns [batch, steps, states]: the loop of a state-space model."""
    state = torch.zeros(decay.shape[0], decay.shape[1], decay.shape[3]) if start is None else start
    out = []
    for i in range(decay.shape[2]):
        state = decay[:, :, i] * state + x[:, :, i]
        out.append(torch.matmul(state.to(c.dtype), c[:, i, :].unsqueeze(-1))[:, :, 0])
    return torch.stack(out, dim=-1), state


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("steps", [4, 21, 64])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.draws(8)
def test_the_loop_of_a_state_space_model(batch, steps, given, dtype):
    decay, x = torch.rand(batch, 12, steps, 5), torch.randn(batch, 12, steps, 5)
    c, start = torch.randn(batch, steps, 5, dtype=dtype), torch.randn(12, 5) if given else None
    y = torch.compile(selective, backend=backend.mpk)(decay, x, c, start)
    expected = selective(decay, x, c, start)
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(y, expected):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)
    counts, fallbacks = kinds(selective, decay, x, c, start)
    assert not fallbacks and counts["recur"] == counts["batch_matmul"] == 1 and sum(counts.values()) < 12


def gated(x, w):
    """A loop with two states, of which one reads the other, over axis 1 of what a layer makes; the last states too."""
    gates, values = (x @ w).chunk(2, -1)
    h = m = torch.zeros(x.shape[0], values.shape[-1], dtype=x.dtype)
    out = []
    for i in range(x.shape[1]):
        m = torch.maximum(m - 1, gates[:, i])
        h = torch.sigmoid(gates[:, i]) * h + torch.exp(gates[:, i] - m) * values[:, i]
        out.append(torch.tanh(h))
    return torch.stack(out, 1), h, m


@pytest.mark.parametrize("shape", [(1, 9, 7), (4, 33, 16)])
def test_a_loop_of_two_states(shape):
    x, w = torch.randn(shape), torch.randn(shape[2], 2 * 11)
    for one, other in zip(torch.compile(gated, backend=backend.mpk)(x, w), gated(x, w)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    counts, fallbacks = kinds(gated, x, w)
    assert not fallbacks and counts["recur"] == 2 and sum(counts.values()) < 16


# ---- associative_scan: what a function of CUDA tensors becomes, whose combine function is element-wise ----


def scanned(combine, xs):
    states = [[x[0] for x in xs]]
    for i in range(1, xs[0].shape[0]):
        states.append(combine(*states[-1], *(x[i] for x in xs)))
    return [torch.stack(s) for s in zip(*states)]


def decays(a, b, c, d):
    return [a * c, c * b + d]


def sums(a, b):
    return [a + b]


def means(n, m, k, q):
    """Counts and means of what has been seen; the second needs the first as it was."""
    return [n + k, (n * m + k * q) / (n + k)]


@pytest.mark.parametrize("combine, n", [(decays, 2), (sums, 1), (means, 2)])
@pytest.mark.parametrize("shape", [(2,), (17, 3), (40, 2, 5, 6)])
@pytest.mark.parametrize("last", [True, False])
def test_associative_scans(combine, n, shape, last):
    def scan(*xs):
        states = associative_scan_op(combine, [x.abs() for x in xs], ())
        return (states[-1] * 2,) if last else tuple(states)

    xs = [torch.rand(shape) for _ in range(n)]
    expected = scanned(combine, [x.abs() for x in xs])
    for one, other in zip(torch.compile(scan, backend=backend.mpk)(*xs), [2 * expected[-1]] if last else expected):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    counts, fallbacks = kinds(scan, *xs)
    assert not fallbacks and counts["recur"] == (1 if last and combine is not means else n)


def test_rounding_of_a_scan_is_that_of_its_steps():
    def scan(a, b):
        return associative_scan_op(decays, [a, b], ())[1]

    a, b = torch.rand(30, 8, dtype=torch.bfloat16), torch.randn(30, 8, dtype=torch.bfloat16)
    assert torch.equal(torch.compile(scan, backend=backend.mpk)(a, b), scanned(decays, [a, b])[1])


def turned(a, b, c, d):
    return [a * c - b * d, a * d + b * c]


def test_states_that_need_each_other_stay_with_pytorch():
    def scan(*xs):
        return tuple(associative_scan_op(turned, [x + 1 for x in xs], ()))

    xs = [torch.rand(9, 3), torch.rand(9, 3)]
    for one, other in zip(torch.compile(scan, backend=backend.mpk)(*xs), scanned(turned, [x + 1 for x in xs])):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert list(kinds(scan, *xs)[1].values()) == ["states of a scan that need each other"]
