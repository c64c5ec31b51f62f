"""torch.compile(backend="mpk") where processes with a GPU each share collectives: over NCCL, in groups of one and of
two processes (tests/torch_ranks.py has the cases), each against eager.  Skipped where there are fewer GPUs."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import support

torch = pytest.importorskip("torch")
RANDOM = support.seed()
SECONDS = 1500  # for all cases of one group; each is stopped by itself if it hangs

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

import apart
import torch_ranks


def usable_gpus():
    if not torch.distributed.is_nccl_available():
        return 0
    return sum(torch.cuda.get_device_capability(i) >= (8, 0) for i in range(torch.cuda.device_count()))


@pytest.fixture(scope="module", params=[1, 2])
def found(request, tmp_path_factory):
    """What each process of a group says of each case: None, or what is wrong."""
    world, n = request.param, usable_gpus()
    if n < world:
        pytest.skip(f"a group of {world} needs as many NVIDIA GPUs that PyTorch can use, and NCCL; here are {n}")
    folder, seed = tmp_path_factory.mktemp("ranks"), str(RANDOM.randrange(2**31))
    script = support.ROOT / "tests" / "torch_ranks.py"
    with subprocess.Popen([sys.executable, script, str(world), folder, seed, "--device", "cuda"],
                          start_new_session=True) as p:
        hangs = threading.Timer(SECONDS, os.killpg, (p.pid, signal.SIGKILL))
        hangs.start()
        p.wait()
        hangs.cancel()
    return json.loads((folder / f"{world}.json").read_text())


@pytest.mark.parametrize("case", [*torch_ranks.cases_of("cuda"), apart.END])
def test_processes(found, case):
    problems = [text for text in found.get(case, ["no process came to it"]) if text]
    assert not problems, "\n".join(problems)


CASES = """
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import apart
rank, names = int(sys.argv[3]), sys.argv[4:]
notes = apart.Notes(pathlib.Path(sys.argv[2]) / f"small-{rank}.json", rank, 2)
for name in names:
    notes.begin(name)
    if name == "hangs" or name == "fails" and rank == 1:
        time.sleep(100)
    if name == "dies" and rank == 1:
        os.kill(os.getpid(), 9)
    notes.end(name, "wrong" if name == "fails" else None)
    if name == "fails":
        os._exit(1)
"""


def test_others_go_on_after_a_case_that_hangs_fails_or_dies(tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "GRACE", 0.5)

    def command(rank, names):
        return [sys.executable, "-c", CASES, support.ROOT / "tests", tmp_path, rank, *names]

    names = ["first", "hangs", "second", "fails", "dies", "last"]
    found = apart.run(command, 2, names, tmp_path, "small", 2)
    assert list(found) == names and not any(any(found[name]) for name in ("first", "second", "last"))
    assert all("did not end" in text for text in found["hangs"])
    assert found["fails"][0] == "wrong" and "rank 1 did not end" in found["fails"][1]
    assert found["dies"][0] is None and "rank 1 did not end" in found["dies"][1]
    assert "Timeout" in (tmp_path / "small-0.log").read_text()


def test_a_group_that_does_not_start_is_told(tmp_path):
    found = apart.run(lambda rank, names: [sys.executable, "-c", "1 / 0"], 2, ["a", "b"], tmp_path, "none", 2)
    assert found == {"a": ["rank 0 did not begin", "rank 1 did not begin"]}
