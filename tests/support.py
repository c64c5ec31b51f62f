"""What the Python tests share: the built command, random checkpoints, the demo model, a printed seed."""

import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("MPK_BUILD", ROOT / "build"))
MPK = BUILD / "mpk"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "mpk"
# The Python package is that of the source tree, over the library of the build that is tested.
os.environ.setdefault("MPK_LIBRARY", str(BUILD / "libmpk.so"))
sys.path.insert(0, str(ROOT / "python"))
DEMO_MODEL = pathlib.Path(os.environ.get("MPK_DEMO_MODEL", CACHE / "SmolLM2-135M-Instruct.Q4_1.gguf"))


def seed():
    """The seed of this run: MPK_SEED, or from the clock; printed so that a failure can be repeated."""
    value = int(os.environ.get("MPK_SEED", time.time_ns() % 2**31))
    print(f"seed: MPK_SEED={value}")
    return random.Random(value)


def mpk(*arguments, code=0, timeout=300, stdin=b"", env=None):
    """Run mpk and expect this exit code (None: any); its standard output as bytes, its standard error as text."""
    result = subprocess.run([str(MPK), *map(str, arguments)], input=stdin, capture_output=True, timeout=timeout,
                            env={"MPK_DEVICE": "cpu", **os.environ, **(env or {})})
    assert code is None or result.returncode == code, (
        f"mpk {' '.join(map(str, arguments))}: exit code {result.returncode}, expected {code}\n"
        + result.stderr.decode(errors="replace")[-2000:])
    return result.stdout, result.stderr.decode(errors="replace")


def score(folder, tokens, path, *options, env=None):
    """Teacher-forced logits of mpk for these tokens: float32 [T, V]."""
    import numpy
    ids, logits = path / "ids.txt", path / "logits.npy"
    ids.write_text(" ".join(map(str, tokens)))
    mpk("score", folder, "--tokens", ids, "--logits", logits, *options, env=env)
    return numpy.load(logits)


def randomise(model, generator, scale=1.0):
    """Give every parameter random values: matrices that keep the size of activations, norms near one, biases near 0."""
    import torch
    with torch.no_grad():
        for name, p in model.named_parameters():
            r = torch.randn(p.shape, generator=generator, dtype=torch.float32)
            if p.dim() == 1 and "norm" in name:
                r = 1 + 0.2 * r
            elif p.dim() == 1:
                r = 0.2 * r
            else:  # the embedding too: tied, it makes the logits
                r = r * (scale / p.shape[1] ** 0.5)
            p.copy_(r)
    return model


def save(model, folder, dtype="float32", shard=None):
    """Write a checkpoint as Transformers does; one shard for each `shard` bytes."""
    import torch
    model.to(getattr(torch, dtype)).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    return folder
