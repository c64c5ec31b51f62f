"""torch.compile(backend="mpk"): shapes that change while several threads call, and shapes that depend on data."""

import threading
import warnings

import pytest
from test_torch import assert_near, compiled, fresh, is_whole  # noqa: F401  (fresh is a fixture)

import torch
import torch_nets

from mpk import backend

# ---- threads ----


def run_together(call, count):
    """call(i) in threads of their own; what they raised."""
    problems = []

    def run(i):
        try:
            with torch.no_grad():
                call(i)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


@pytest.mark.parametrize("warm", [True, False])
def test_threads_call_with_changing_shapes(warm):
    net = torch.nn.Linear(64, 64)
    fast, reports = compiled(net, dynamic=True)
    if warm:
        fast(torch.randn(2, 64))

    def call(i):
        for step in range(12):
            x = torch.randn(3 + (i + step) % 8, 64)
            torch.testing.assert_close(fast(x), net(x))

    assert run_together(call, 3) == []
    assert all(not r.fallbacks for r in reports)


def test_threads_call_different_functions_while_others_compile():
    """What one thread compiles, or makes for another shape, does not disturb what the others call and compile."""
    scale, _ = compiled(lambda x: x * 2, dynamic=True)
    scale(torch.ones(2))

    def call(i):
        fast, _ = compiled(lambda x: (x + i).softmax(-1), dynamic=True)
        for n in range(2, 8):
            x = torch.randn(n, 4 + i)
            torch.testing.assert_close(fast(x), (x + i).softmax(-1))
            torch.testing.assert_close(scale(x[0]), x[0] * 2)

    assert run_together(call, 3) == []
    x = torch.randn(5)
    again, reports = compiled(torch.neg)
    torch.testing.assert_close(again(x), -x)
    assert len(reports) == 1  # nothing that keeps Dynamo from compiling is left behind


# ---- shapes that depend on data ----


@pytest.fixture
def captured():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="PyTorch runs")
            yield


def changes_and_selects(x):
    x.add_(1)
    return x[x > 1] * 2, x


def selects_old_values(x):
    rows = x[1:]
    y = x[x > 0] + 1
    x.mul_(2)
    return y, rows * 3


def selects_twice(x):
    y = x[x > 0].sin()
    return y[y > 0.5] + 1, y


def views_of_what_was_selected(x):
    y = x[x > 0] * 2
    return y, y.view(-1, 1), x.t()


FUNCTIONS = {
    "nonzero": lambda x: x.nonzero() + 1,
    "mask": lambda x: x[x > 0] * 2,
    "masked_select": lambda x: torch.masked_select(x, x > 0).sort()[0],
    "unique": lambda x: torch.unique((x * 2).round()) + 1,
    "unique_all": lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
    "repeat_interleave": lambda x: torch.repeat_interleave(x.flatten(), (x.flatten() > 0).long() + 1) * 2,
    "item": lambda x: x * x.sum().item() + 1,
    "whole_item": lambda x: x * (x > 0).sum().item() + 1,
    "item_returned": lambda x: ((x > 0).sum().item() + 1, x + 1),
    "item_as_size": lambda x: torch.ones(int((x > 0).sum().item())) + x.sum(),
    "changes_and_selects": changes_and_selects,
    "selects_old_values": selects_old_values,
    "selects_twice": selects_twice,
    "views_of_what_was_selected": views_of_what_was_selected,
    "random": lambda x: (torch.rand(3), x[x > 0] + torch.rand(1), torch.rand(2)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.draws(12)
def test_shapes_that_depend_on_data(captured, name, dynamic):
    """PyTorch runs what the shapes depend on; the rest becomes programs, and nothing is raised."""
    fn = FUNCTIONS[name]
    fast, reports = compiled(fn, dynamic=dynamic)
    for rows in (3, 3, 5, 4):
        ours = torch.randn(rows, 4)
        theirs = ours.clone()
        torch.manual_seed(rows)
        got = fast(ours)
        torch.manual_seed(rows)
        torch.testing.assert_close(got, fn(theirs))
        assert torch.equal(ours, theirs)
    assert any(r.programs for r in reports) or name == "unique_all"
    assert "the whole graph" not in {kind for r in reports for kind in r.fallbacks}


def test_branches_that_depend_on_data_stay_with_pytorch(captured):
    def fn(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)) + 1

    fast, reports = compiled(fn, dynamic=True)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(4)):
        torch.testing.assert_close(fast(x), fn(x))
    assert any(r.programs for r in reports)


# ---- complex numbers ----


@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_numbers_are_pairs(dynamic):
    def rotated(x, angle):
        turns = torch.polar(torch.ones_like(angle), angle * 2)
        turns = (turns * torch.complex(angle, angle + 1) * 0.5 * angle)[None].transpose(-1, -2).permute(2, 1, 0)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        pairs = pairs.unsqueeze(-1).expand(*pairs.shape, 2).select(-1, 1)[..., 1:].reshape(-1, 3, 1)
        return torch.view_as_real((pairs * turns[:, 1:]).clone()).flatten(-2) + 1

    fast, reports = compiled(rotated, dynamic=dynamic)
    for rows in (3, 5):
        x, angle = torch.randn(rows, 8), torch.randn(rows, 4)
        torch.testing.assert_close(fast(x, angle), rotated(x, angle))
    assert reports and all((len(r.programs), r.fallbacks) == (1, {}) for r in reports)


@pytest.mark.filterwarnings("ignore:PyTorch runs")
def test_conjugates_that_pytorch_makes():
    def correlation(x, y, z):
        a, b = torch.fft.rfft(x, dim=1), torch.fft.rfft(y, dim=1)
        return torch.fft.irfft(a * b.conj(), dim=1), torch.view_as_real(torch.view_as_complex(y) * z)

    x, y = torch.randn(3, 12, 2), torch.randn(3, 12, 2)
    z = torch.randn(3, 12, dtype=torch.complex64).conj()
    with pytest.warns(UserWarning, match="PyTorch runs"):
        got = torch.compile(correlation, backend=backend.mpk)(x, y, z)
    torch.testing.assert_close(got, correlation(x, y, z))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_fault_of_the_backend_leaves_the_graph_to_pytorch(monkeypatch, dynamic):
    def fail(gm):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(backend, "without_complex", fail)
    reports = []
    options = backend.Options(reports=reports)
    fast = torch.compile(lambda x: x.sin() + 1, backend=backend.mpk, options=options, dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (3, 5):
            x = torch.randn(n)
            torch.testing.assert_close(fast(x), x.sin() + 1)
    assert all(r.fallbacks == {"the whole graph": "ZeroDivisionError: planted"} for r in reports) and reports


def test_complex_numbers_that_others_read():
    """An argument, a result, and an operator that has no pairs."""

    def fn(z, angle):
        turns = torch.polar(angle + 1, angle)
        return turns * z, torch.view_as_real(turns.exp() * turns) + 1

    for dtype in (torch.float32, torch.float64):
        torch._dynamo.reset()
        fast, reports = compiled(fn)
        z, angle = torch.randn(3, 4, dtype=dtype.to_complex()), torch.randn(4, dtype=dtype)
        torch.testing.assert_close(fast(z, angle), fn(z, angle))
        assert reports[0].programs and reports[0].fallbacks


@pytest.mark.parametrize("name", torch_nets.COMPLEX)
def test_models_that_rotate_by_complex_numbers(name):
    net, arguments = torch_nets.COMPLEX[name]().eval(), {**torch_nets.token_ids(), "use_cache": False}
    fast, reports = compiled(net)
    assert_near(fast(**arguments), net(**arguments))
    assert is_whole(reports)
