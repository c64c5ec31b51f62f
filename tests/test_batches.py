"""A request gives the same bits alone or in company, in any order of arrival, with any number of threads, every run."""

import json

import pytest

import support
import tiny

RANDOM = support.seed()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("tiny") / "model", tie_word_embeddings=False)


def requests_of(n):
    def one(i):
        request = {"tokens": [RANDOM.randrange(250) for _ in range(RANDOM.choice([1, 2, 3, 17, 40, 64, 65, 100]))],
                   "max_tokens": RANDOM.choice([1, 2, 7, 20, 33]), "seed": i, "ignore_eos": bool(i % 3)}
        if i % 2:
            request |= {"temperature": RANDOM.choice([0.7, 1.0, 1.5]), "top_k": RANDOM.choice([0, 5, 40]),
                        "top_p": RANDOM.choice([1.0, 0.9]), "min_p": RANDOM.choice([0.0, 0.05])}
        else:
            request |= {"temperature": 0}
        return request
    return [one(i) for i in range(n)]


def run(folder, requests, tmp_path, *options):
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    support.mpk("batch", folder, path, "-o", out, *options)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == len(requests)
    assert all("error" not in a for a in answers), answers
    return [(a["tokens"], a["finish_reason"]) for a in answers]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return tiny.mixture(tmp_path_factory.mktemp("mixture") / "model")


@pytest.mark.parametrize("kind", ["folder", "mixture"])
def test_company_order_and_threads_do_not_matter(kind, tmp_path, request):
    folder = request.getfixturevalue(kind)
    requests = requests_of(16)
    alone = [run(folder, [r], tmp_path, "--threads", 1, "--max-batch", 1)[0] for r in requests]
    for (tokens, reason), request in zip(alone, requests):
        assert len(tokens) <= request["max_tokens"] and reason in ("stop", "length")
    for threads in (1, 2, 3, 7):
        order = list(range(16))
        RANDOM.shuffle(order)
        for batch in (16, 3):
            found = run(folder, [requests[i] for i in order], tmp_path, "--threads", threads, "--max-batch", batch)
            assert found == [alone[i] for i in order], f"{threads} threads, batch {batch}, order {order}"


def test_runs_repeat(folder, tmp_path):
    requests = requests_of(12)
    first = run(folder, requests, tmp_path)
    for _ in range(5):
        assert run(folder, requests, tmp_path) == first


def test_sampling_follows_the_seed(folder, tmp_path):
    """Different seeds give different texts, and over many draws the first token has the model's own distribution."""
    import numpy
    tokens = [5, 6, 7, 8]
    draws = run(folder, [{"tokens": tokens, "max_tokens": 1, "temperature": 1.0, "seed": s, "ignore_eos": True}
                         for s in range(3000)], tmp_path, "--max-batch", 16)
    counts = numpy.bincount([t[0] for t, _ in draws], minlength=262).astype(float)
    logits = support.score(folder, tokens, tmp_path)[-1].astype(float)
    p = numpy.exp(logits - logits.max())
    p /= p.sum()
    expected = p * 3000
    used = expected > 5
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    degrees = used.sum()
    assert degrees > 5
    assert statistic < degrees + 6 * (2 * degrees) ** 0.5, f"chi-square {statistic:.0f} of {degrees} degrees"


def test_a_prompt_alone(folder, tmp_path):
    """max_tokens 0: the log probabilities of the prompt, and no token."""
    scored = {"tokens": [RANDOM.randrange(250) for _ in range(20)], "prompt_logprobs": 2}
    path = tmp_path / "alone.jsonl"
    path.write_text("".join(json.dumps({**scored, "max_tokens": n}) + "\n" for n in (0, 1)))
    out, _ = support.mpk("batch", folder, path, "--max-batch=2")
    alone, longer = [json.loads(line) for line in out.splitlines()]
    assert (alone["tokens"], alone["text"], alone["finish_reason"]) == ([], "", "length") and len(longer["tokens"]) == 1
    assert alone["prompt_logprobs"] == longer["prompt_logprobs"] and len(alone["prompt_logprobs"]) == 20


def test_several_answers_to_a_prompt(folder, tmp_path):
    """n answers are those of seeds one after the other; best_of keeps the most probable of them."""
    import mpk
    hot = {"tokens": [RANDOM.randrange(250) for _ in range(20)], "max_tokens": 9, "temperature": 1.0,
           "ignore_eos": True, "seed": RANDOM.randrange(1000)}
    alone = [{**hot, "seed": hot["seed"] + i, "logprobs": 0} for i in range(4)]
    path = tmp_path / "several.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in [*alone, {**hot, "n": 4}, {**hot, "n": 2, "best_of": 4},
                                                           {**hot, "n": 3, "best_of": 2}]))
    out, _ = support.mpk("batch", folder, path, "--max-batch=3")
    *singles, many, best, wrong = [json.loads(line) for line in out.splitlines()]
    assert [a["tokens"] for a in many["answers"]] == [a["tokens"] for a in singles]
    means = [sum(entry[0][1] for entry in a["logprobs"]) / len(a["tokens"]) for a in singles]
    order = sorted(range(4), key=lambda i: -means[i])
    assert [a["tokens"] for a in best["answers"]] == [singles[i]["tokens"] for i in order[:2]]
    assert all("logprobs" not in a for a in best["answers"]) and "best_of" in wrong["error"]
    with mpk.LLM(str(folder), device="cpu") as llm:
        params = dict(max_tokens=9, temperature=1.0, ignore_eos=True, seed=hot["seed"])
        answers = llm.generate([hot["tokens"], hot["tokens"][:5]], mpk.SamplingParams(n=4, **params))
        assert [a.token_ids for a in answers[:4]] == [a["tokens"] for a in singles] and len(answers) == 8
        two = llm.generate(hot["tokens"], mpk.SamplingParams(n=2, best_of=4, **params))
        assert [a.token_ids for a in two] == [singles[i]["tokens"] for i in order[:2]] and two[0].logprobs is None
        with pytest.raises(mpk.ArgumentError):
            llm.generate("a", mpk.SamplingParams(n=2, best_of=1))
