"""torch.compile(backend="mpk") where processes share collectives: over gloo, in groups of one, two and three processes
(tests/torch_ranks.py has the cases), each against eager."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import support
import tiny

torch = pytest.importorskip("torch")
RANDOM = support.seed()
SECONDS = 1800  # for all cases of one group of processes, on a machine that does other work beside

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)
if not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

import torch_ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    tiny.model(folder / "llama", num_attention_heads=8, num_key_value_heads=4, tie_word_embeddings=False)
    tiny.mixture(folder / "mixture", num_attention_heads=8, num_key_value_heads=4)
    return folder


# A run takes three processes, in one group or in two, as the seed says; a thorough one takes all groups.
WORLDS = [1, 2, 3] if os.environ.get("MPK_THOROUGH") else RANDOM.choice(([1, 2], [3]))


@pytest.fixture(scope="module", params=WORLDS)
def found(request, folder):
    """What each process of a group says of each case: None, or a traceback."""
    world, seed = request.param, str(RANDOM.randrange(2**31))
    command = [sys.executable, support.ROOT / "tests" / "torch_ranks.py", str(world), folder, seed]
    with subprocess.Popen(command, start_new_session=True) as p:
        hangs = threading.Timer(SECONDS, os.killpg, (p.pid, signal.SIGKILL))
        hangs.start()
        code = p.wait()
        hangs.cancel()
    assert not code, "\n".join(log.read_text()[-1500:] for log in folder.glob(f"{world}-*.log"))
    return [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.parametrize("case", torch_ranks.cases_of("cpu"))
def test_processes(found, case):
    """A process that finds a difference ends, and with it all; the cases after it are not run."""
    problems = [rank[case] for rank in found if rank.get(case)]
    assert not problems, "\n".join(problems)
    if not all(case in rank for rank in found):
        pytest.skip("an earlier case failed")
