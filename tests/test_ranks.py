"""One process for each peer on the CPU (docs/gpus.md): one process's answers bit for bit; ends, differences."""

import json
import os
import signal
import subprocess
import time

import pytest

import support
import tiny

RANDOM = support.seed()
TOKENS = [RANDOM.randrange(250) for _ in range(40)]
SECONDS = 10.0  # in which an end of one process ends all


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Three KV heads and 50 of the feed-forward, which two do not divide."""
    return tiny.model(tmp_path_factory.mktemp("ranks") / "model", hidden_size=48, num_attention_heads=6,
                      num_key_value_heads=3, head_dim=16, intermediate_size=50)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "meet"


def start(*arguments):
    return subprocess.Popen([str(support.MPK), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, "MPK_DEVICE": "cpu"})


def finish(process, timeout=120.0):
    """Exit code and standard error."""
    error = process.communicate(timeout=timeout)[1].decode()
    return process.returncode, error


def rank(model, place, *options, gpus=2, rank=1):
    return start("rank", model, "--gpus", gpus, "--threads", gpus, "--meet", place, "--rank", rank, *options)


def common(place, gpus=2):
    return "--gpus", gpus, "--threads", gpus, "--meet", place


@pytest.mark.parametrize("gpus", [2, 3])
def test_answers_are_those_of_one_process(model, place, tmp_path, gpus):
    requests = [{"tokens": [RANDOM.randrange(250) for _ in range(RANDOM.choice([1, 9, 33]))], "seed": i,
                 "max_tokens": 10, "temperature": RANDOM.choice([0, 0.8]), "logprobs": 5, "ignore_eos": True}
                for i in range(8)]
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    answers = []
    for shared in (False, True):
        out = tmp_path / f"answers{shared}.jsonl"
        others = [rank(model, place, "--max-batch", 3, gpus=gpus, rank=r) for r in range(1, gpus)] if shared else []
        support.mpk("batch", model, path, "-o", out, "--max-batch", 3, "--gpus", gpus, "--threads", gpus,
                    *(["--meet", place] if shared else []))
        assert [finish(p) for p in others] == [(0, "")] * len(others)
        answers.append([json.loads(line) for line in out.read_text().splitlines()])
    assert answers[0] == answers[1] and not any("error" in a for a in answers[0])
    assert not place.exists()


@pytest.mark.parametrize("gpus", [2, 3])
def test_drafts_are_those_of_one_process(model, place, tmp_path, gpus):
    """A draft model of one KV head, which no peer can share evenly, and look-up; one process without drafts."""
    draft = tiny.model(tmp_path / "draft", family="Qwen3", hidden_size=16, head_dim=8, num_attention_heads=2,
                       num_key_value_heads=1, num_hidden_layers=1, intermediate_size=32)
    requests = [{"tokens": [RANDOM.randrange(250) for _ in range(5)] * RANDOM.choice([1, 7]), "seed": i,
                 "max_tokens": 24, "temperature": RANDOM.choice([0, 0.8]), "logprobs": 3, "ignore_eos": True,
                 "allowed_token_ids": RANDOM.sample(range(250), 2)} for i in range(6)]
    path, answers = tmp_path / "requests.jsonl", []
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    drafts = ["--draft-model", draft, "--draft", 4, "--speculate", "ngram:4:2", "--max-batch", 2]
    for shared in (False, True):
        out = tmp_path / f"answers{shared}.jsonl"
        others = [rank(model, place, *drafts, gpus=gpus, rank=r) for r in range(1, gpus)] if shared else []
        _, words = support.mpk("batch", model, path, "-o", out, *(
            [*common(place, gpus), *drafts] if shared else ["--gpus", gpus, "--threads", gpus]))
        assert [finish(p) for p in others] == [(0, "")] * len(others)
        assert ("drafts stood" in words) == shared
        answers.append([json.loads(line) for line in out.read_text().splitlines()])
    assert answers[0] == answers[1] and not any("error" in a for a in answers[0])


def test_an_image_and_logits(model, place, tmp_path):
    image = tmp_path / "image"
    support.mpk("compile", model, "-o", image, "--gpus", 2, "--threads", 2, "--max-batch", 1)
    alone = support.score(image, TOKENS, tmp_path)
    other = start("rank", image, "--gpus", 2, "--meet", place)
    together = support.score(image, TOKENS, tmp_path, "--gpus", 2, "--meet", place)
    assert (alone == together).all() and finish(other) == (0, "")


def compute_for_long(model, place, gpus):
    """The processes of a bench that takes minutes; all have met."""
    first = start("bench", model, "-b", 16, "-n", 180, "-r", 1000, "--context", 256, *common(place, gpus))
    wait_for(first, place.exists)
    others = [rank(model, place, "--context", 256, gpus=gpus, rank=r) for r in range(1, gpus)]
    wait_for(first, lambda: not place.exists())
    return [first, *others]


def wait_for(process, what):
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_killed_process_is_named(model, place, who, how):
    """All others end soon, say which rank it was, and leave nothing."""
    all_ = compute_for_long(model, place, 3)
    time.sleep(RANDOM.uniform(0, 2))
    all_[who].send_signal(how)
    begin = time.monotonic()
    for i, process in enumerate(all_):
        code, error = finish(process)
        if i != who:
            closed = who == 0 and how == signal.SIGTERM and code == 0  # in good order, once it computes
            assert closed or (code == 1 and f"rank {who} has ended" in error), (i, error)
    assert time.monotonic() - begin < SECONDS
    assert not place.exists()


def processor_seconds(process):
    fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_stopped_process_is_a_stall(model, place):
    """It computes when it has used more processor time than to compile takes, however busy the machine is."""
    first, other = compute_for_long(model, place, 2)
    used = RANDOM.uniform(2, 3)
    wait_for(first, lambda: processor_seconds(other) > used)
    other.send_signal(signal.SIGSTOP)
    try:
        code, error = finish(first, timeout=200)  # 10 s of no progress, longer where the machine is busy
    finally:
        other.kill()
        other.communicate()
    assert code == 1 and "made no progress" in error, error
    assert "while the process of rank 1 has not run for " in error and "rank 0" not in error, error


@pytest.mark.parametrize("option, name", [
    (["--context", "60"], "context 60"), (["--max-batch", "2"], "max-batch 2"), (["--kv", "bf16"], "kv "),
    (["--random-weights", "7"], "random-weights 1 7"), (["--threads", "4"], "threads 4"),
    (["--degree", "linear:1=3"], "another program")])
def test_what_differs_is_named(model, place, option, name):
    first = start("run", model, "-p", "a", "-n", 2, *common(place))
    other = rank(model, place, "--max-batch", 1, *option)
    for code, error in (finish(first), finish(other)):
        assert code == 1 and name in error and "rank 1" in error, error


@pytest.mark.parametrize("wrong", ["model", "count"])
def test_another_model_and_more_or_fewer_ranks(model, place, tmp_path, wrong):
    first = start("run", model, "-p", "a", "-n", 2, *common(place))
    if wrong == "model":
        wider, words = tiny.model(tmp_path / "wider", hidden_size=64), "it has model"
        other = rank(wider, place, "--max-batch", 1)
    else:
        other, words = rank(model, place, "--max-batch", 1, gpus=3, rank=2), "rank 2 of 3 came to rank 0 of 2"
    for code, error in (finish(first), finish(other)):
        assert code == 1 and words in error, error


def test_a_rank_that_does_not_come(model, place):
    """The wait is bounded, on both sides, and the one that is missing is named."""
    begin = time.monotonic()
    first = start("run", model, "-p", "a", *common(place, 3), "--meet-seconds", 2)
    other = rank(model, place, "--max-batch", 1, "--meet-seconds", 2, gpus=3, rank=2)
    for code, error in (finish(first), finish(other)):
        assert code == 1 and "rank 1 did not come to" in error, error
    code, error = finish(rank(model, place, "--meet-seconds", 1))
    assert code == 1 and "rank 0 did not come to" in error
    assert time.monotonic() - begin < 30 and not place.exists()


def test_two_of_one_rank(model, place):
    first = start("run", model, "-p", "a", *common(place, 3), "--meet-seconds", 20)
    others = [rank(model, place, "--max-batch", 1, gpus=3, rank=1) for _ in range(2)]
    code, error = finish(first)
    assert code == 1 and "two processes are rank 1" in error
    assert all(finish(p)[0] == 1 for p in others)


def test_what_a_killed_rank_0_has_left_is_in_no_one_s_way(model, place):
    first = start("run", model, "-p", "a", *common(place))
    wait_for(first, place.exists)
    first.kill()
    first.communicate()
    assert place.exists()
    other = rank(model, place, "--max-batch", 1)
    support.mpk("run", model, "-p", "a", "-n", 2, *common(place))
    assert finish(other) == (0, "") and not place.exists()


def test_refusals(model, place):
    run = ["run", model, "-p", "a"]
    for options, words in [
            (["--gpus", 2, "--meet", "node7:4000"], "ranks on several hosts are not supported"),
            (["--gpus", 1, "--meet", place], "gpus is 1"),
            (["--gpus", 2, "--meet", "/" + "x" * 200], "has 201 bytes"),
            (["--gpus", 2, "--meet", place / "nowhere" / "at"], "cannot wait for ranks at")]:
        error = support.mpk(*run, *options, code=1)[1]
        assert words in error, error
    error = support.mpk("rank", model, "--gpus", 2, "--meet", place, "--rank", 2, code=1)[1]
    assert "rank is 2, expected 0 to 1" in error
    assert "--meet is missing" in support.mpk("rank", model, "--gpus", 2, code=2)[1]


def test_in_python(model, place):
    """Rank 0 in this process; requests to another rank are refused."""
    import mpk
    other = rank(model, place, "--max-batch", 2)
    alone = mpk.LLM(model, gpus=2, threads=2, max_batch=2, device="cpu")
    with mpk.LLM(model, gpus=2, threads=2, max_batch=2, device="cpu", meet=place) as llm:
        answers = [e.generate([TOKENS], mpk.SamplingParams(max_tokens=5))[0].token_ids for e in (llm, alone)]
        assert answers[0] == answers[1]
        with pytest.raises(mpk.Error, match="takes requests"):
            llm.attend()
    alone.close()
    assert finish(other) == (0, "")
    first = start("run", model, "-p", "a", "-n", 2, *common(place))
    with mpk.LLM(model, gpus=2, threads=2, max_batch=1, device="cpu", meet=place, rank=1) as llm:
        with pytest.raises(mpk.Error, match="requests go to the engine of rank 0"):
            llm.generate([TOKENS])
        llm.attend()
    assert finish(first)[0] == 0
