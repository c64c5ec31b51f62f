"""What depends on weights alone is worked out once, and anew when PyTorch counts that a weight has changed.

A GPU's programs keep copies; here those of the CPU do, so that results can be compared with eager.
"""

import copy

import pytest

import support  # before mpk, which it finds

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch import nn

import mpk
from mpk import backend, emit, once
from mpk.emit import Emitter


@pytest.fixture(autouse=True)
def keeping(monkeypatch):
    monkeypatch.setattr(backend.Runner, "keeps_copies", True)
    torch._dynamo.reset()
    torch.manual_seed(support.seed().randrange(2**31))
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class ByColumns(nn.Module):
    """A linear layer whose weight lies as [D, F], as Conv1D of Transformers."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n_in, n_out)), nn.Parameter(torch.randn(n_out))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)


class Net(nn.Module):
    def __init__(self, width, scaled=True):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, width, 3), nn.BatchNorm1d(width, affine=scaled)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.places, self.last = nn.Embedding(16, width), ByColumns(width, 5)
        if scaled:
            self.norm.weight.normal_()
            self.norm.bias.normal_()

    def forward(self, x):
        y = self.norm(self.conv(x)).relu().transpose(1, 2)
        return self.last(y + self.places(torch.arange(y.shape[1]) % 16))


class Images(nn.Module):
    """Convolutions of few channels, of groups, and of a channel a group; pools; sums of images."""

    def __init__(self, spatial):
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[spatial - 1]
        self.norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[spatial - 1](16)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.first, self.second = conv(3, 16, 5, 2, 2, bias=False), conv(16, 16, 3, 1, 1)
        self.third, self.side = conv(16, 24, 3, 2, 1), conv(16, 24, 1, 2)
        self.apart, self.groups = conv(24, 24, 3, 1, 1, groups=24), conv(24, 16, 3, 1, 1, groups=2)

    def forward(self, x):
        functional = nn.functional
        y = torch.relu(self.norm(self.first(x)))
        pool = {3: functional.max_pool1d, 4: functional.max_pool2d, 5: functional.max_pool3d}[x.dim()]
        average = {3: functional.avg_pool1d, 4: functional.avg_pool2d, 5: functional.avg_pool3d}[x.dim()]
        y = torch.relu(self.second(pool(y, 3, 2, 1))) + y.mean()
        y = self.third(y) + self.side(y)
        y = average(self.apart(y) * 0.5 + y, 2, 2, 1)
        return self.groups(y), y.amax(-1), functional.silu(y.transpose(1, 2))


def compiled(net):
    reports = []
    return torch.compile(net.eval(), backend=backend.mpk, options=backend.Options(reports=reports)), reports


def kinds(reports):
    return [program.describe()["kinds"] for report in reports for program in report.programs]


def agree(fast, net, x):
    torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaled", [True, False])
def test_weights_that_change_are_noticed(scaled):
    random = support.seed()
    net = Net(random.randrange(4, 40), scaled)
    fast, reports = compiled(net)
    x = torch.randn(random.randrange(1, 4), 3, random.randrange(3, 30))
    agree(fast, net, x)
    (only,), (report,) = kinds(reports), reports
    assert report.n_once >= 6 and only["linear"] == 1 and "embedding" not in only and only["conv"] == 1
    agree(fast, net, x)
    for change in (
        lambda: net.norm.running_var.mul_(2),
        lambda: net.places.weight.add_(1),
        lambda: net.last.weight.mul_(0.5),
        lambda: setattr(net.last.weight, "data", torch.randn_like(net.last.weight)),
        lambda: setattr(net.places, "weight", nn.Parameter(torch.randn_like(net.places.weight))),
        lambda: net.load_state_dict({k: torch.rand_like(v.float()).to(v) for k, v in net.state_dict().items()}),
    ):
        change()
        agree(fast, net, x)
        agree(fast, net, torch.randn_like(x))
    assert len(kinds(reports)) == 1  # it was never compiled again


def test_weights_that_change_in_each_call_are_read_in_each_call():
    net = Net(8)
    fast, reports = compiled(net)
    for _ in range(2 * once.PATIENCE):
        agree(fast, net, torch.randn(2, 3, 9))
        net.places.weight.mul_(1.5)
    assert len(kinds(reports)) == 2 and kinds(reports)[1]["embedding"] == 1
    for _ in range(3):
        agree(fast, net, torch.randn(2, 3, 9))


def test_what_is_returned_is_made_in_each_call():
    net = nn.Linear(4, 4)

    def f(x):
        twice = net.weight * 2
        return twice, twice.t(), (net.bias + 1).clone(), x + net.bias.exp().sum()

    fast, x = torch.compile(f, backend=backend.mpk), torch.randn(4)
    for _ in range(3):
        results = fast(x)
        for got, expected in zip(results, f(x)):
            torch.testing.assert_close(got, expected)
        assert results[0].data_ptr() == results[1].data_ptr()
        for result in results:
            result.zero_()


@pytest.mark.parametrize("marked", [True, False])
def test_what_is_no_weight_is_not_kept(marked):
    """Nor what the graph itself writes."""
    cache = torch.randn(4)
    if marked:
        torch._dynamo.mark_static_address(cache)
    net = nn.BatchNorm1d(4, affine=False)

    def f(x):
        net.running_mean.add_(1)
        return x * cache.exp() + net.running_mean.sin()

    fast, x = torch.compile(f, backend=backend.mpk), torch.randn(2, 4)
    for _ in range(3):
        mean = net.running_mean.clone()
        got = fast(x)
        torch.testing.assert_close(got, x * cache.exp() + (mean + 1).sin())
        cache.untyped_storage().copy_(torch.randn(4).untyped_storage())  # PyTorch counts no change
    assert mpk.explain(f, x).once == 0


class Scaled(nn.Module):
    """Layer scales: of rows as DINOv2 has them, and of channels as ConvNeXt; a number as behind Whisper's queries."""

    def __init__(self, width, bias):
        super().__init__()
        self.first, self.last = nn.Linear(width, 7, bias=bias), ByColumns(7, width)
        self.rows, self.channels = (nn.Parameter(torch.randn(s)) for s in ((7,), (width, 1, 1)))

    def forward(self, x):
        y = self.rows * self.first(x.permute(0, 2, 3, 1)).relu()
        y = self.first(self.last(y).reshape(x.permute(0, 2, 3, 1).shape)) * self.rows
        return x + self.channels * (self.last(y) * 0.3).reshape(x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_take_factors_of_columns_along(bias, dtype):
    """But not behind a ReLU, nor in f16, where what is left of a weight might be nothing."""
    random = support.seed()
    net = Scaled(random.randrange(2, 30), bias).to(dtype)
    fast, reports = compiled(net)
    x = torch.randn(random.randrange(1, 3), net.channels.shape[0], random.randrange(1, 6), 3)

    def check():
        got, expected = fast(x.to(dtype)), copy.deepcopy(net).float()(x)
        limit = (1e-4 if dtype is torch.float32 else 0.25) * expected.abs().max()
        assert (got.float() - expected).abs().max() <= limit and got.stride() == expected.stride()

    check()
    assert ("mul" in kinds(reports)[0]) == (dtype is torch.float16)
    net.rows.mul_(2)
    net.first.weight.add_(0.5)
    check()
    assert len(kinds(reports)) == 1


def test_weights_in_another_dtype_are_kept():
    net, x = nn.Linear(24, 16), torch.randn(3, 24)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    told = mpk.explain(f, x)
    assert told.once == 2 and told.kinds.get("cast", 0) <= 1 and "2 operators on weights alone run once" in str(told)
    torch.testing.assert_close(told.result, f(x), rtol=0.02, atol=0.02)


def test_weights_on_another_device_stay_where_they_are():
    net, x = nn.Embedding(4, 8, device="meta"), torch.randn(8)
    gm = torch.fx.symbolic_trace(lambda w, x: x + torch.ops.aten.exp.default(w))
    for node, value in zip(once.placeholders(gm), (net.weight, x)):
        node.meta.update({"val": value, once.WEIGHT: True})
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is torch.ops.aten.exp.default:
            node.meta["val"] = net.weight.exp()
    assert all(node.op == "placeholder" for node in once.steady_nodes(gm))


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_images_of_a_gpu_have_their_channels_last(monkeypatch, spatial):
    monkeypatch.setattr(Emitter, "on_gpu", True)
    net, x = Images(spatial), torch.randn(2, 3, *(21, 18, 13)[:spatial])
    fast, reports = compiled(net)
    for _ in range(2):
        for got, expected in zip(fast(x), net(x)):
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride()
        net.third.weight.mul_(1.5)
    assert not reports[0].fallbacks


class Embedded(nn.Module):
    """Windows side by side of images of few channels, and windows of sequences: both become products."""

    def __init__(self, patch):
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 40, patch, patch), nn.Conv1d(64, 48, 3, 1, 1)
        self.second = nn.Conv1d(48, 64, 4, 2, bias=False)

    def forward(self, x, y):
        y = nn.functional.gelu(self.first(y))
        return self.patches(x).flatten(2).transpose(1, 2), y, self.second(torch.cat([y, y[:, :16]], 1)[:, :48])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_windows_that_are_rows_of_products(monkeypatch, dtype):
    monkeypatch.setattr(Emitter, "on_gpu", True)
    net = Embedded((4, 8)).to(dtype)
    x, y = torch.randn(2, 3, 4 * 9, 8 * 7).to(dtype), torch.randn(3, 64, 350).to(dtype)
    fast, reports = compiled(net)
    exact = copy.deepcopy(net).float()(x.float(), y.float())
    for got, expected in zip(fast(x, y), exact):
        assert got.shape == expected.shape
        torch.testing.assert_close(got.float(), expected, rtol=0.03, atol=0.03)
    (only,), (report,) = kinds(reports), reports
    assert not report.fallbacks and only["linear"] == 2 and only["conv"] == 1  # that of 48 channels


class Lines(nn.Module):
    """Convolutions of one image of few channels by one weight and by others, with what may follow them."""

    def __init__(self, channels, filters, kernel, stride, padding):
        super().__init__()
        self.first = nn.Conv2d(channels, filters, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(filters)
        self.second = nn.Conv2d(channels, filters, kernel, (stride[0] + 1, stride[1]), padding)
        self.apart = nn.Conv2d(channels, filters, kernel, stride, padding, dilation=(1, 2))

    def forward(self, x):
        return self.norm(self.first(x)).relu(), self.second(x), self.apart(x)


@pytest.mark.parametrize("case", range(8))
def test_lines_of_windows_become_channels(monkeypatch, case):
    monkeypatch.setattr(Emitter, "on_gpu", True)
    monkeypatch.setattr(emit, "FEWEST_OF_LINES", 1)
    random = support.seed()
    kernel = (7, 7) if case == 0 else (random.randrange(2, 8), random.randrange(2, 8))
    stride = (2, 2) if case < 4 else (random.randrange(1, 4), random.randrange(1, 4))
    padding = (3, 3) if case == 0 else (random.randrange(4), random.randrange(4))
    channels, dtype = (3 if case == 0 else random.randrange(1, 6)), random.choice([torch.bfloat16, torch.float16])
    net = Lines(channels, random.choice([8, 20]), kernel, stride, padding)
    net.norm.running_var.uniform_(0.5, 2)
    net = net.eval().to(dtype)
    x = torch.randn(2, channels, random.randrange(13, 30), random.randrange(13, 30)).to(dtype)
    exact = copy.deepcopy(net).float()(x.float())
    fast, reports = compiled(net)
    for got, expected in zip(fast(x), exact):
        assert got.shape == expected.shape
        torch.testing.assert_close(got.float(), expected, rtol=0.03, atol=0.03)
    (only,), (report,) = kinds(reports), reports
    taken = [emit.is_of_lines(x, m.weight, m.stride, m.padding, m.dilation, False, (0, 0), 1) for m in net.children()
             if isinstance(m, nn.Conv2d)]
    assert not report.fallbacks and only.get("unfold", 0) == sum(taken)
    assert case or taken == [True, True, False]


def test_a_program_that_is_refused_runs_with_weights_as_they_were(monkeypatch):
    def refuse(*_):
        raise mpk.LimitError("planted")

    monkeypatch.setattr(Emitter, "on_gpu", True)
    monkeypatch.setattr(emit, "FEWEST_OF_LINES", 1)
    monkeypatch.setattr("mpk.graph.Graph.compile", refuse)
    monkeypatch.setattr(backend, "_warned", set())
    support.seed()
    net, x = Lines(3, 8, (7, 7), (2, 2), (3, 3)).eval().bfloat16(), torch.randn(2, 3, 20, 20).bfloat16()
    fast, reports = compiled(net)
    with pytest.warns(UserWarning, match="the whole graph"):
        first = fast(x)
    for got, again, expected in zip(first, fast(x), net(x)):
        assert torch.equal(got, expected) and torch.equal(again, expected)
    assert set(reports[0].fallbacks) == {"the whole graph"}


def summed(x, first, last, windows, around):
    """Scores plus biases of positions, plus a mask of windows, either of them on either side."""
    batch, n, rows, keys = x.shape
    y = first + x if around else x + first
    y = y.view(batch // windows, windows, n, rows, keys)
    return (y + last.exp()).view(batch, n, rows, keys).softmax(-1)


@pytest.mark.parametrize("case", range(8))
def test_terms_of_weights_are_added_once(case):
    """To what is added to them later, across views; not where a view cuts the axes of the first term."""
    random = support.seed()
    batch, windows, n, rows, keys = (random.randrange(1, 4) for _ in range(5))
    shapes = [(1, n, rows, keys), (n, 1, 1), (keys,), (windows * batch, 1, rows, 1)]
    first, last = shapes[case % 4], (1, windows, 1, rows, keys)[random.randrange(2) :]
    values = [torch.randn(batch * windows, n, rows, keys), torch.randn(first), torch.randn(last)]
    gm = make_fx(lambda *v: summed(*v, windows, case >= 4), tracing_mode="fake")(*values)
    for i, node in enumerate(once.placeholders(gm)):
        node.meta[once.WEIGHT] = i > 0
    for node in gm.graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            node.meta["val"] = node.meta["tensor_meta"]
    expected, steady = gm(*values), once.steady_nodes(gm)
    once.join_terms(gm, steady)
    gm.graph.lint()
    gm.recompile()
    torch.testing.assert_close(gm(*values), expected)
    sums = [node for node in gm.graph.nodes if node.target is torch.ops.aten.add.Tensor]
    assert sum(node not in steady for node in sums) == (2 if case % 4 == 3 and batch > 1 else 1)


class Gated(nn.Module):
    """A feed-forward layer whose gate is one half of a product's columns."""

    def __init__(self, width, bias, act, first, twice):
        super().__init__()
        self.widen, self.act, self.first, self.twice = nn.Linear(width, 48, bias=bias), act, first, twice

    def forward(self, x):
        halves = self.widen(x).chunk(2, dim=-1)
        y = halves[1 - self.first] * self.act(halves[self.first])
        return y + halves[self.first] if self.twice else y


@pytest.mark.parametrize("case", range(8))
def test_halves_of_a_product_are_products(case):
    """Where one is the gate of the other and nothing else reads them; gate and product are then one operator."""
    bias, first, twice = case & 1 > 0, case >> 1 & 1, case > 5
    act = (nn.functional.gelu, nn.functional.silu, lambda x: nn.functional.gelu(x, approximate="tanh"))[case % 3]
    net, x = Gated(24, bias, act, first, twice).bfloat16(), torch.randn(2, 19, 24).bfloat16()
    fast, reports = compiled(net)
    for _ in range(2):
        torch.testing.assert_close(fast(x), net(x), rtol=2e-2, atol=2e-2)
        net.widen.weight.mul_(1.5)
    assert not reports[0].fallbacks and reports[0].n_once == (0 if twice else 4 if bias else 2)
