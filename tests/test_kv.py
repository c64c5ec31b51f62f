"""KV caches of every dtype: close to f32, the same answers alone and in any company, refused where none fits."""

import json

import numpy
import pytest

import support
import tiny

RANDOM = support.seed()
DTYPES = ["f32", "f16", "bf16", "q8_0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("kv") / "model", num_attention_heads=4, num_key_value_heads=2,
                      head_dim=32, tie_word_embeddings=False)


def test_every_dtype_is_near_f32(folder, tmp_path):
    tokens = [RANDOM.randrange(250) for _ in range(200)]
    exact = support.score(folder, tokens, tmp_path, "--device", "cpu")
    for dtype, bound in (("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 2e-2)):
        found = support.score(folder, tokens, tmp_path, "--device", "cpu", "--kv", dtype)
        difference = numpy.abs(found - exact).max() / (exact.max() - exact.min())
        print(f"{dtype}: {difference:.1e} of the range")
        assert 0 < difference < bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.draws(2)
def test_company_changes_no_answer(dtype, folder, tmp_path):
    """Shared pages, requests that are put back for want of them, threads and peers."""
    def run(requests, *options):
        path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in requests))
        _, words = support.mpk("batch", folder, path, "-o", out, "--device", "cpu", "--kv", dtype, *options)
        return [json.loads(line)["tokens"] for line in out.read_text().splitlines()], words

    story = [RANDOM.randrange(250) for _ in range(150)]
    lengths = [140] * 3 + [RANDOM.randrange(1, 150) for _ in range(11)]  # the first three share pages in any case
    requests = [{"tokens": story[:n] + [RANDOM.randrange(250)], "seed": i, "temperature": 0.9,
                 "max_tokens": RANDOM.randrange(1, 90), "ignore_eos": True} for i, n in enumerate(lengths)]
    for peers in (1, 2):
        alone, _ = run(requests, "--max-batch", 1, "--no-prefix-cache", "--gpus", peers, "--threads", peers)
        for batch, room in ((16, 4096), (5, 320)):
            found, words = run(requests, "--max-batch", batch, "--kv-tokens", room, "--gpus", peers, "--threads",
                               peers * RANDOM.choice([1, 2, 3]))
            assert found == alone, f"{peers} peers, batch {batch}, {room} positions"
            assert room < 4096 or "; 0 of" not in words


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.draws(2)
def test_a_long_context_has_one_answer(dtype, tmp_path):
    """Contexts of several parts: threads share them where heads are few, and no log probability changes by a bit."""
    folder = tiny.model(tmp_path / "model", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
                        max_position_embeddings=2048)
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    requests = [{"tokens": [RANDOM.randrange(250) for _ in range(n)], "seed": n, "temperature": 0.9, "logprobs": 3,
                 "max_tokens": 12, "ignore_eos": True} for n in (RANDOM.randrange(500, 540), 1030, 1700, 40)]
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))

    def run(threads, *options):
        support.mpk("batch", folder, path, "-o", out, "--device", "cpu", "--kv", dtype, "--threads", threads,
                    "--context", 2048, *options)
        return [json.loads(line) for line in out.read_text().splitlines()]

    model, _ = support.mpk("inspect", folder, "--device", "cpu", "--context", 2048, "--program")
    program, _ = support.mpk("opt", "--pass", "fuse_ops:context_tasks=4", "--workers", 2, stdin=model)
    assert program.count(b"= attention_parts(") == 2
    alone = run(1, "--max-batch", 1, "--no-prefix-cache")
    for threads in (2, 3, 5):
        assert run(threads, "--max-batch", RANDOM.choice([1, 2, 4])) == alone, threads


def test_reports_and_library(folder, tmp_path):
    import mpk
    bytes_of = {}
    for dtype in DTYPES:
        report = json.loads(support.mpk("inspect", folder, "--device", "cpu", "--kv", dtype, "--json")[0])
        assert report["memory"]["kv_dtype"] == dtype
        bytes_of[dtype] = report["memory"]["kv_per_token_bytes"]
        with mpk.LLM(folder, device="cpu", threads=1, context_tokens=64, kv_dtype=dtype) as llm:
            assert len(llm.generate([[1, 2, 3]], mpk.SamplingParams(max_tokens=5, ignore_eos=True))[0].token_ids) == 5
    assert bytes_of["f32"] == 2 * bytes_of["f16"] == 2 * bytes_of["bf16"]
    assert bytes_of["q8_0"] * 128 == bytes_of["f32"] * 34


def test_an_image_keeps_the_dtype(folder, tmp_path):
    image = tmp_path / "model.mpk"
    support.mpk("compile", folder, "-o", image, "--device", "cpu", "--kv", "q8_0", "--threads", 1)
    tokens = [RANDOM.randrange(250) for _ in range(40)]
    direct = support.score(folder, tokens, tmp_path, "--device", "cpu", "--kv", "q8_0", "--threads", 1)
    assert (support.score(image, tokens, tmp_path, "--device", "cpu") == direct).all()


def test_what_is_refused(folder, tmp_path):
    narrow = tiny.model(tmp_path / "narrow")  # heads of 8
    for code, needle, *words in (
            (1, "multiple of 32", "run", narrow, "-p", "x", "--device", "cpu", "--kv", "q8_0"),
            (1, "q8_0 is for the CPU", "inspect", folder, "--target", "sm_90a", "--kv", "q8_0"),
            (2, "q8_0", "run", folder, "-p", "x", "--kv", "q4_0")):
        out, errors = support.mpk(*words, code=code)
        assert out == b"" and needle in errors
