"""Rows that are only moved are copied once, or not at all: windows, shifts, patches that are merged."""

import pytest

import support  # before mpk, which it finds

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import mpk
from mpk import backend, moves

aten = torch.ops.aten
WIDTH = 8


def drawn_move(random, shape):
    """(a function that moves the rows of a value [A, B, C, D], or takes some of them twice or not; name)."""
    a, b = random.randrange(3), random.randrange(3)
    shift, n = random.randrange(-3, 4), shape[a]
    kind = random.choice(("roll", "permute", "view", "cat", "slice", "part", "twice"))
    order = random.sample(range(3), 3) + [3]
    kinds = {
        "roll": lambda x: x.roll((shift, 1), (a, b)),
        "permute": lambda x: x.permute(order).contiguous(),
        "view": lambda x: x.reshape(x.shape[b], -1, 1, x.shape[-1]),
        "cat": lambda x: torch.cat([x.narrow(a, 1, n - 1), x.narrow(a, 0, 1)], a),
        "slice": lambda x: x.flatten(0, 2)[:: 1 + n % 2][None, :, None].clone(),
        "part": lambda x: x.narrow(a, n // 3, n - n // 3),
        "twice": lambda x: torch.cat([x, x], a),
    }
    return kinds[kind]


class Moved(nn.Module):
    """Moves and layers that work on rows, in any order, some read twice; now and then sums with what was before, and
    operators that mix rows."""

    def __init__(self, random, shape):
        super().__init__()
        self.steps, self.layers = [], nn.ModuleList()
        x = torch.zeros(shape)
        before = [x]
        for _ in range(random.randrange(3, 12)):
            kind = random.choice(("move", "move", "move", "norm", "linear", "gelu", "sum", "mix"))
            step = self.drawn(kind, random, x, before)
            x = step(x, before)
            before.append(x)
            self.steps.append(step)

    def drawn(self, kind, random, x, before):
        layer = {"norm": nn.LayerNorm(WIDTH), "linear": nn.Linear(WIDTH, WIDTH)}.get(kind)
        if layer is not None:
            nn.init.normal_(layer.bias)
            self.layers.append(layer)
            return lambda x, _: layer(x)
        same = [i for i, y in enumerate(before) if y.numel() == x.numel()]
        i = random.choice(same)
        if kind == "move":
            move = drawn_move(random, x.shape)
            return lambda x, _: move(x)
        if kind == "sum":
            return lambda x, before: before[i].reshape(x.shape) + x
        return lambda x, _: nn.functional.gelu(x) if kind == "gelu" else x + x.flatten(0, 2).mean(0)

    def forward(self, x):
        before = [x]
        for step in self.steps:
            x = step(x, before)
            before.append(x)
        return x, before[len(before) // 2].sum(-1)


def graph_of(f, *values):
    """As AOTAutograd makes it."""
    return make_fx(f, backend.decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)(*values)


def count(gm, *targets):
    return sum(node.target in targets for node in gm.graph.nodes)


@pytest.mark.parametrize("case", range(24))
@pytest.mark.draws(8)
def test_moved_rows_are_the_same(case):
    random = support.seed()
    torch.manual_seed(random.randrange(2**31))
    shape = [random.randrange(2, 7) for _ in range(3)] + [WIDTH]
    with torch.no_grad():
        net, x = Moved(random, shape), torch.randn(shape)
        gm = graph_of(net, x)
        changed = moves.without_moves(gm)
        changed.graph.lint()
        for got, expected in zip(changed(x), net(x)):
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride()


class Windows(nn.Module):
    """A block as Swin's: rows of an image in windows, shifted or not, for something that mixes the rows of a window."""

    def __init__(self, size, shift):
        super().__init__()
        self.size, self.shift = size, shift
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wide, self.narrow, self.last = (nn.Linear(*s) for s in ((WIDTH, 24), (24, WIDTH), (WIDTH, WIDTH)))

    def forward(self, x):
        n, h, w, c = x.shape
        y = self.first(x)
        y = y.roll((-self.shift, -self.shift), (1, 2)) if self.shift else y
        y = y.view(n, h // self.size, self.size, w // self.size, self.size, c).permute(0, 1, 3, 2, 4, 5)
        y = self.wide(y.reshape(-1, self.size**2, c))
        y = self.narrow(y.softmax(1))
        y = y.view(n, h // self.size, w // self.size, self.size, self.size, c).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(n, h, w, c)
        x = x + (y.roll((self.shift, self.shift), (1, 2)) if self.shift else y)
        return x + self.last(nn.functional.gelu(self.second(x)))


class Merged(nn.Module):
    """Rows of 2 x 2 become one."""

    def forward(self, x):
        return torch.cat([x[:, i::2, j::2] for j in range(2) for i in range(2)], -1)


def test_a_block_of_windows_copies_its_rows_once():
    random = support.seed()
    torch.manual_seed(random.randrange(2**31))
    size, n = random.randrange(2, 4), random.randrange(1, 3)
    net = nn.Sequential(Windows(size, 0), Windows(size, 1), Windows(size, 0), Merged(), nn.LayerNorm(4 * WIDTH))
    x = torch.randn(n, 4 * size, 2 * size, WIDTH)
    torch._dynamo.reset()
    with torch.no_grad():
        changed = moves.without_moves(graph_of(net, x))
        told, expected = mpk.explain(net, x), net(x)
    torch.testing.assert_close(told.result, expected, rtol=1e-4, atol=1e-4)
    assert count(changed, aten.embedding.default) == told.kinds["embedding"] == 4
    assert not count(changed, aten.roll.default, aten.cat.default) and "concat" not in told.kinds


def test_what_is_moved_for_nothing_stays():
    """Views that cost nothing, as those of heads, what comes back, rows beside others, and rows that are repeated."""
    for f in (
        lambda x: x.transpose(0, 1).relu().sum(1),
        lambda x: (x.transpose(0, 1) * 0.5) @ x.transpose(0, 1).mT,
        lambda x: x.roll(1, 0).relu().roll(-1, 0).sum(1),
        lambda x: torch.cat([x, x.relu()], 1).sum(1),
        lambda x: torch.cat([x, x], -1).cos().sum(1),
    ):
        gm = graph_of(f, torch.randn(3, 4, WIDTH))
        assert not count(moves.without_moves(gm), aten.embedding.default)
