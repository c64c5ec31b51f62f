"""A module written by hand, shapes that change, an operator that mpk does not have: torch_module.py"""

import torch
from torch import nn

import mpk


class Smoother(nn.Module):
    """Mixes each row with a running mean that it keeps."""

    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        y = torch.tanh(self.mix(x)) + self.mean
        return y / y.norm(dim=-1, keepdim=True)


def main():
    torch.manual_seed(1)
    ours, theirs = Smoother(32), Smoother(32)
    theirs.load_state_dict(ours.state_dict())
    compiled, right = torch.compile(ours, backend="mpk", dynamic=True), True
    with torch.no_grad():
        for rows in (4, 7, 4, 9):
            x = torch.randn(rows, 32)
            right &= torch.allclose(compiled(x), theirs(x), atol=1e-6)
        right &= torch.allclose(ours.mean, theirs.mean)
    print(mpk.explain(theirs, torch.randn(4, 32)))
    print(mpk.explain(lambda x: torch.linalg.det(x @ x.T) + x.sum(), torch.randn(3, 3)))
    return right


if __name__ == "__main__":
    raise SystemExit(0 if main() else "the results differ")
