"""torch.compile(backend="mpk"): which tensors share memory, and what their bits say about it, as in eager."""

import pytest
from test_torch import compiled, fresh, is_whole, tensors  # noqa: F401  (fresh is a fixture)

import torch

# ---- negative and conjugate bits ----


def scale(x):
    return x * 3


def two_steps(x):
    return (x + 1).sum(-1, keepdim=True) * x


def write(x):
    x.add_(2)
    return x * 3


def write_rows(x):
    x[1:] = x[:-1] * 2
    return x


def negate(x):
    return torch._neg_view(x), torch._neg_view(x)[1:] + x[1:]


def of_an_intermediate(x):
    y = x + 1
    return y, torch._neg_view(y)


@pytest.mark.parametrize("fn", [scale, two_steps, write, write_rows, negate, of_an_intermediate])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.draws(4)
def test_negative_bits(fn, dynamic):
    """The same memory, with and without the bit, and with strides that have gaps."""
    fast, _ = compiled(fn, dynamic=dynamic)
    for rows in (4, 4, 6):
        memory = torch.randn(rows, 8)
        for see in (lambda m: m, torch._neg_view, lambda m: torch._neg_view(m)[:, ::2], lambda m: m):
            ours, theirs = memory.clone(), memory.clone()
            got, expected = fast(see(ours)), fn(see(theirs))
            torch.testing.assert_close(tensors(got), tensors(expected))
            assert [t.is_neg() for t in tensors(got)] == [t.is_neg() for t in tensors(expected)]
            assert torch.equal(ours, theirs)


def test_imaginary_parts_of_conjugates():
    fast, reports = compiled(lambda x: x + 1)
    z = torch.randn(5, dtype=torch.complex64)
    for x in (z.imag, z.conj().imag, z.imag):
        torch.testing.assert_close(fast(x), x + 1)
    assert is_whole(reports, 2)


def test_a_conjugate_inside_the_graph():
    """PyTorch runs what is complex; the program gets a view with the bit."""
    fast, reports = compiled(lambda z: z.conj().imag.exp() * 2)
    for _ in range(3):
        z = torch.randn(4, dtype=torch.complex64)
        torch.testing.assert_close(fast(z), z.conj().imag.exp() * 2)
    assert reports[0].programs


def test_weights_and_constants_with_the_bit():
    constant = torch._neg_view(torch.tensor([1.0, 2.0, 3.0]))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch._neg_view(torch.randn(3)), requires_grad=False)
            self.register_buffer("shift", torch._neg_view(torch.randn(3)))

        def forward(self, x):
            return x * self.weight + self.shift + constant

    net = Net()
    fast, reports = compiled(net)
    for _ in range(2):
        x = torch.randn(2, 3)
        torch.testing.assert_close(fast(x), net(x))
        net.weight.mul_(2)
    net.weight.data = net.weight.detach().resolve_neg()
    torch.testing.assert_close(fast(x), net(x))
    assert all(not r.fallbacks for r in reports)


# ---- results that share memory ----


def shared(values):
    """Which of these tensors lie in one storage, and where in it."""
    values = tensors(values)
    storages = [v.untyped_storage().data_ptr() for v in values]
    first = [storages.index(s) for s in storages]
    return [(i, v.storage_offset() if first.count(i) > 1 else 0, v.stride()) for i, v in zip(first, values)]


def tail(x):
    y = x * 2
    return y, y[1:]


def two_parts(x):
    """What they are parts of is not returned."""
    y = x.exp()
    return y[:1], y[1:].t(), y + 1


def pieces(x):
    return (x + 1).split(1)


def twice(x):
    y = x @ x.t()
    return y, y


def layouts(x):
    y = x @ x.t()
    return y.t(), y.view(-1), y[0], y.diagonal(), y.unsqueeze(0).expand(2, -1, -1)


def largest(x):
    values, places = x.topk(2)
    return values, values[1:], places


def of_a_constant(x):
    y = torch.arange(6.0)
    return y[1:], y.view(2, 3), x + 1


def of_pytorch(x):
    y = torch.linalg.det(x.expand(3, *x.shape)) * 2
    return y, y[1:]


def of_an_argument(x):
    y = x.t()
    return x, y, y[1:], x + 1


def changed_later(x):
    y = x * 2
    z = y[1:]
    z.add_(1)
    return y, z


def halves_of_a_projection(x):
    q, k = torch.nn.functional.linear(x, torch.ones(8, x.shape[-1])).view(-1, 2, 4).transpose(0, 1).unbind()
    return q, k


@pytest.mark.parametrize(
    "fn",
    [
        tail,
        two_parts,
        pieces,
        twice,
        layouts,
        largest,
        of_a_constant,
        of_pytorch,
        of_an_argument,
        changed_later,
        halves_of_a_projection,
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore:PyTorch runs")
def test_results_share_memory_as_in_eager(fn, dynamic):
    fast, _ = compiled(fn, dynamic=dynamic)
    for n in (3, 3, 4):
        x = torch.randn(n, n)
        got, expected = fast(x), fn(x)
        torch.testing.assert_close(tensors(got), tensors(expected))
        assert shared(got) == shared(expected)
        held = [t.clone() for t in tensors(got)]
        fast(x + 1)  # writes new memory
        assert all(torch.equal(a, b) for a, b in zip(tensors(got), held))


def test_a_change_shows_in_the_results_that_share():
    fast, reports = compiled(tail)
    y, z = fast(torch.ones(3))
    y.fill_(7)
    assert torch.equal(z, torch.full((2,), 7.0)) and is_whole(reports)


# ---- arguments that are changed ----


@pytest.mark.filterwarnings("ignore:PyTorch runs")
@pytest.mark.parametrize("chosen", [0, 1, 5, 12])
def test_an_argument_is_changed_where_a_mask_is_set(chosen):
    """By rows, by one row, by a number, and by what is changed itself."""

    def rows(x, mask, h):
        h += 1
        x[mask] = h
        return h.sum()

    def one_row(x, mask, h):
        x[mask] = h[:1] * 2
        return h.sum()

    def number(x, mask, h):
        x[mask] = 3.0
        return h.sum()

    def more(x, mask, h):
        x.index_put_((mask,), h, accumulate=True)
        return h.sum()

    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask.view(-1)[torch.randperm(12)[:chosen]] = True
    for fn in rows, one_row, number, more:
        if fn is one_row and not chosen:
            continue
        torch._dynamo.reset()
        given = [torch.randn(2, 6, 4), mask, torch.randn(chosen, 4)]
        expected = [t.clone() for t in given]
        fast, _ = compiled(fn)
        torch.testing.assert_close(fast(*given), fn(*expected))
        torch.testing.assert_close(given, expected)
