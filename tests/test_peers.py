"""Several peers share a model: one peer's answers to rounding, the same bits in every run and company."""

import json

import numpy
import pytest

import support
import tiny

RANDOM = support.seed()
TOKENS = [RANDOM.randrange(250) for _ in range(70)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Shapes that do not divide: three KV heads, 50 of the feed-forward, an odd vocabulary; a mixture of experts."""
    folder = tmp_path_factory.mktemp("peers")
    return {
        "tied": tiny.model(folder / "tied", hidden_size=48, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
                           intermediate_size=50),
        "qwen3": tiny.model(folder / "qwen3", family="Qwen3", num_attention_heads=8, num_key_value_heads=2, head_dim=16,
                            tie_word_embeddings=False),
        "mixture": tiny.mixture(folder / "mixture"),
    }


@pytest.mark.parametrize("name", ["tied", "qwen3", "mixture"])
def test_logits_are_those_of_one_peer(models, name, tmp_path):
    one = support.score(models[name], TOKENS, tmp_path)
    for peers in (2, 3, 4, 8):
        several = support.score(models[name], TOKENS, tmp_path, "--gpus", peers)
        assert numpy.abs(several - one).max() <= 2e-5 * numpy.abs(one).max()
        again = support.score(models[name], TOKENS, tmp_path, "--gpus", peers, "--threads", 2 * peers)
        assert (several == again).all()


def test_weights_are_shared(models):
    """Each peer holds its part alone: together they hold the model once, but for norms and the second embedding."""
    def weights(*options):
        report = json.loads(support.mpk("inspect", models["qwen3"], "--json", *options)[0])
        return report["memory"]["weights_bytes"]
    one, four = weights(), weights("--gpus", 4)
    assert one <= four <= 1.1 * one


def test_company_does_not_matter(models, tmp_path):
    def run(requests, *options):
        path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in requests))
        support.mpk("batch", models["mixture"], path, "-o", out, "--gpus", 2, *options)
        return [json.loads(line)["tokens"] for line in out.read_text().splitlines()]

    requests = [{"tokens": TOKENS[:RANDOM.randrange(1, 60)], "max_tokens": 12, "seed": i, "ignore_eos": True,
                 "temperature": 0.9} for i in range(6)]
    assert run(requests) == [run([r])[0] for r in requests] == run(requests, "--threads", 4, "--max-batch", 2)


def test_library_and_image(models, tmp_path):
    import mpk
    image = tmp_path / "image"
    with mpk.LLM(models["qwen3"], gpus=2, device="cpu", context_tokens=64) as llm:
        answer = llm.generate([TOKENS[:9]], mpk.SamplingParams(max_tokens=8))[0].token_ids
    with mpk.LLM(models["qwen3"], gpus=1, device="cpu", context_tokens=64) as llm:
        assert llm.generate([TOKENS[:9]], mpk.SamplingParams(max_tokens=8))[0].token_ids == answer
    support.mpk("compile", models["qwen3"], "-o", image, "--gpus", 2, "--threads", 2)
    one = support.score(image, TOKENS, tmp_path)
    assert (one == support.score(models["qwen3"], TOKENS, tmp_path, "--gpus", 2)).all()
    error = support.mpk("score", image, "-p", "x", "--gpus", 3, code=1)[1]
    assert "the image was compiled for 2 gpus, not for 3" in error


def test_what_is_refused(models):
    for options, code, needle in [
        (["--gpus", 17], 2, "--gpus: '17' is not a whole number from 1 to 16"),
        (["--gpus", 2, "--launch", "jit"], 1, "launch must be auto or aot"),
    ]:
        assert needle in support.mpk("run", models["qwen3"], "-p", "x", *options, code=code)[1]


def test_what_gpus_would_hold(models):
    """Compiled for GPUs that are not here."""
    plans = [json.loads(support.mpk("inspect", models["qwen3"], "--gpus", n, "--target", "sm_90a", "--json",
                                    env={"MPK_DEVICE": ""})[0]) for n in (1, 2)]
    assert plans[1]["memory"]["device"].startswith("2 x sm_90a")
