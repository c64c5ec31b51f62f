"""Speculation changes no token: random workloads with it give the answers of an engine without it."""

import json
import threading

import pytest

import support
import tiny

RANDOM = support.seed()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("speculation") / "model", tie_word_embeddings=False)


def loops(n):
    """A text that says again what it said, with a slip now and then."""
    part = [RANDOM.randrange(250) for _ in range(RANDOM.choice([2, 5, 17, 40]))]
    return [part[i % len(part)] if RANDOM.random() < 0.97 else RANDOM.randrange(250) for i in range(n)]


def random_request(i):
    n = RANDOM.choice([1, 10, 63, 64, 65, 120, 180])
    request = {"tokens": loops(n), "max_tokens": RANDOM.choice([1, 2, 20, 60, 256 - n]), "seed": i,
               "ignore_eos": RANDOM.random() < 0.5, "temperature": RANDOM.choice([0, 0, 0.3, 1.0])}
    request["max_tokens"] = min(request["max_tokens"], 256 - n)
    if RANDOM.random() < 0.5:  # few tokens to choose from: drafts are often right
        request["allowed_token_ids"] = RANDOM.sample(range(250), RANDOM.choice([1, 2, 3]))
    if RANDOM.random() < 0.3:
        request |= {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.2, "bad_words": ["the"]}
    if RANDOM.random() < 0.2:
        request["min_tokens"] = RANDOM.randrange(1 + min(30, request["max_tokens"]))
    if RANDOM.random() < 0.2:
        request |= {"top_k": 20, "top_p": 0.9, "typical_p": 0.9, "top_n_sigma": 2.0}
    if RANDOM.random() < 0.3:
        request["logprobs"] = RANDOM.choice([0, 3, 20])
    if RANDOM.random() < 0.1:
        request["prompt_logprobs"] = 1
    if RANDOM.random() < 0.2:
        request["stop"] = [chr(RANDOM.randrange(97, 123)), "th"]
    if RANDOM.random() < 0.3:
        request["cache_salt"] = RANDOM.choice(["a", "b"])
    if RANDOM.random() < 0.1:
        request["regex"] = "[ab]{3,9}"
        request["ignore_eos"] = False
        request.pop("allowed_token_ids", None)
    return request


def run(folder, requests, tmp_path, *options):
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    _, words = support.mpk("batch", folder, path, "-o", out, "--device", "cpu", *options)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == len(requests) and not [a["error"] for a in answers if "error" in a]
    return answers, words


def test_drafts_change_no_answer(folder, tmp_path):
    requests = [random_request(i) for i in range(60)]
    plain, words = run(folder, requests, tmp_path, "--max-batch", 4)
    assert "drafts" not in words
    for batch, speculate, *more in ((1, "ngram"), (2, "ngram:15:1"), (4, "ngram:3:2", "--kv-tokens", 256),
                                    (16, "ngram:64:2"), (5, "ngram:8:1", "--step-tokens", 8, "--no-prefix-cache")):
        order = list(range(len(requests)))
        RANDOM.shuffle(order)
        found, words = run(folder, [requests[i] for i in order], tmp_path, "--max-batch", batch, "--speculate",
                           speculate, *more)
        assert found == [plain[i] for i in order], f"batch {batch}, {speculate}, {more}"
        assert batch == 16 or "drafts stood" in words


def test_peers_draft(folder, tmp_path):
    requests = [random_request(i) for i in range(20)]
    plain, _ = run(folder, requests, tmp_path, "--gpus", 2, "--threads", 2)
    found, words = run(folder, requests, tmp_path, "--gpus", 2, "--threads", 2, "--max-batch", 3,
                       "--speculate=ngram:5:1")
    assert found == plain and "drafts stood" in words


def test_drafts_with_leavers_and_few_pages(folder):
    import mpk
    params = [mpk.SamplingParams(max_tokens=RANDOM.choice([3, 80, 120]), temperature=RANDOM.choice([0, 1]), seed=i,
                                 ignore_eos=True, allowed_token_ids=RANDOM.sample(range(250), 3)) for i in range(16)]
    prompts = [loops(RANDOM.choice([10, 70, 100])) for _ in params]
    with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256) as llm:
        plain = [a.token_ids for a in llm.generate(prompts, params)]
        assert llm.describe()["drafted_tokens"] == 0
    with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256, max_batch=4, kv_tokens=384, speculation="ngram",
                 draft_ngram=2) as llm:
        leavers = [threading.Thread(target=lambda i=i: next(llm.stream(prompts[i], params[i])))
                   for i in range(0, 16, 3)]
        for thread in leavers:
            thread.start()
        found = llm.generate(prompts, params)
        for thread in leavers:
            thread.join()
        facts = llm.describe()
    assert [a.token_ids for a in found] == plain
    assert 0 < facts["accepted_tokens"] <= facts["drafted_tokens"]
    assert sum(a.drafted_tokens for a in found) <= facts["drafted_tokens"]
    assert any(a.accepted_tokens for a in found)


def test_numbers_of_drafts(folder):
    """A text that loops for ever: nearly all drafts stand.  A request may ask for fewer, or for none."""
    import mpk
    prompt, params = [7, 9] * 20, {"max_tokens": 60, "ignore_eos": True, "allowed_token_ids": [9]}
    with mpk.LLM(folder, device="cpu", threads=1, context_tokens=256, speculation="ngram", draft_tokens=6) as llm:
        def drafts(**changes):
            answer, = llm.generate([prompt], mpk.SamplingParams(**(params | changes)))
            assert answer.token_ids == [9] * 60
            return answer.drafted_tokens, answer.accepted_tokens
        drafted, accepted = drafts()
        assert 40 < accepted <= drafted < 60
        steps = 60 - accepted
        assert drafts(draft_tokens=0) == (0, 0)
        few, few_accepted = drafts(draft_tokens=1)
        assert 0 < few <= 30 and 60 - few_accepted > steps
        with pytest.raises(mpk.Error, match="draft_tokens is 65"):
            drafts(draft_tokens=65)
    for options, words in (({"speculation": "magic"}, "expected one of none, ngram"),
                           ({"speculation": "ngram", "draft_tokens": 65}, "draft_tokens is 65, expected up to 64"),
                           ({"speculation": "ngram", "draft_ngram": 17}, "draft_ngram is 17, expected up to 16")):
        with pytest.raises(mpk.Error, match=words):
            mpk.LLM(folder, device="cpu", **options)


def test_words_of_the_command_line(folder):
    for word in ("magic", "ngram:0", "ngram:x", "ngram:3:", "ngram:1:2:3", "ngrams", ""):
        _, words = support.mpk("run", folder, "-p", "a", "--speculate", word, code=2)
        assert "--speculate" in words and "ngram[:DRAFTS[:N]]" in words
    _, words = support.mpk("run", folder, "-p", "a", "--speculate=ngram:100", "--device", "cpu", code=1)
    assert "draft_tokens is 100, expected up to 64" in words
    _, words = support.mpk("inspect", folder, "--target", "sm_90a", "--speculate=ngram", "--batch-invariant", code=1)
    assert "speculation with batch_invariant is for a CPU" in words
    plain, _ = support.mpk("run", folder, "-p", "a b a b a b a b", "-n", 20, "--device", "cpu")
    for word in ("none", "ngram", "ngram:4", "ngram:4:1"):
        out, _ = support.mpk("run", folder, "-p", "a b a b a b a b", "-n", 20, "--device", "cpu", "--speculate", word)
        assert out == plain


def test_a_gpu_has_room_for_drafts(folder):
    def tables(*options):
        out, _ = support.mpk("inspect", folder, "--target", "sm_90a", "--json", *options)
        return json.loads(out)["memory"]["tables_bytes"]
    assert tables("--speculate=ngram") > tables()


def test_bench_plants_drafts(folder):
    options = ("bench", folder, "--device", "cpu", "--generate", 60, "--runs", 1, "--prompt", 8, "--json", "-q")
    out, _ = support.mpk(*options, "--speculate=ngram:4", "--planted", 1)
    result = json.loads(out)
    assert result["acceptance"] == 1 and result["accepted_tokens"] == result["drafted_tokens"] > 60
    for figure in ("gain", "plain_decode_tokens_per_s"):  # null where the host saw a whole answer at once
        assert result[figure] is None or result[figure] > 0
    for share in (0.7, 0.03):
        out, _ = support.mpk(*options, "--speculate=ngram:4:1", "--planted", share, "--batch", 3)
        assert json.loads(out)["acceptance"] < 1
    out, _ = support.mpk(*options)
    assert "gain" not in json.loads(out) and "acceptance" not in json.loads(out)
    _, words = support.mpk(*options, "--planted", 0.5, code=2)
    assert "--planted is about drafts" in words


def test_an_image_drafts_too(folder, tmp_path):
    """One that was compiled without speculation has few rows for rules; drafts then keep to them."""
    requests = [random_request(i) for i in range(12)]
    plain, _ = run(folder, requests, tmp_path, "--max-batch", 1)
    for options in ((), ("--speculate", "ngram")):
        image = tmp_path / "image.mpk"
        support.mpk("compile", folder, "-o", image, "--max-batch", 1, "--device", "cpu", *options)
        found, _ = run(image, requests, tmp_path, "--speculate", "ngram:7:1")
        assert found == plain
