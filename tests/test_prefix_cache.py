"""The prefix cache and requests that are put back change no answer: random workloads, short of pages."""

import json
import threading

import pytest

import support
import tiny

RANDOM = support.seed()
PAGE = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("prefix") / "model", tie_word_embeddings=False)


STORIES = [[RANDOM.randrange(250) for _ in range(256)] for _ in range(3)]


def random_request(i):
    """It begins like one of a few stories, and goes on alone."""
    n = RANDOM.choice([1, 40, 64, 65, 100, 128, 150, 200])
    shared = RANDOM.choice([0, n, n, RANDOM.randrange(n + 1)])
    tokens = RANDOM.choice(STORIES)[:shared] + [RANDOM.randrange(250) for _ in range(n - shared)]
    request = {"tokens": tokens, "max_tokens": min(RANDOM.choice([1, 5, 40, 150, 256 - n]), 256 - n), "seed": i,
               "ignore_eos": True, "temperature": RANDOM.choice([0, 1.0])}
    if RANDOM.random() < 0.3:
        request |= {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "bad_words": ["the"]}
    if RANDOM.random() < 0.3:
        request["logprobs"] = 2
    if RANDOM.random() < 0.1:
        request["prompt_logprobs"] = 1
    if RANDOM.random() < 0.3:
        request["cache_salt"] = RANDOM.choice(["a", "b"])
    return request


def run(folder, requests, tmp_path, *options):
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    _, words = support.mpk("batch", folder, path, "-o", out, *options)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == len(requests) and all("error" not in a for a in answers), answers
    return answers, words


def test_neither_shared_pages_nor_want_of_them_change_an_answer(folder, tmp_path):
    requests = [random_request(i) for i in range(45)]
    requests += [{"tokens": STORIES[0][:140] + [i], "max_tokens": 9, "seed": i} for i in range(3)]  # these share pages
    plain, words = run(folder, requests, tmp_path, "--no-prefix-cache", "--max-batch", 4)
    assert "0 of 0 tokens of prompts from the prefix cache" in words
    for batch, kv_tokens, step in ((16, 4096, 512), (16, 640, 64), (5, 320, 16), (3, 256, 128)):
        order = list(range(len(requests)))
        RANDOM.shuffle(order)
        found, words = run(folder, [requests[i] for i in order], tmp_path, "--max-batch", batch, "--kv-tokens",
                           kv_tokens, "--step-tokens", step, "--threads", RANDOM.choice([1, 2, 3]))
        assert found == [plain[i] for i in order], f"batch {batch}, {kv_tokens} positions, steps of {step}"
        assert kv_tokens < 4096 or "; 0 of" not in words


def open_llm(folder, **options):
    import mpk
    return mpk.LLM(folder, device="cpu", threads=2, context_tokens=256, **options)


def test_requests_grow_are_put_back_and_may_leave(folder):
    """Answers of random length, some cancelled, in a quarter of the room that they would reserve."""
    import mpk
    # The first eight run together; each of them grows to at least three pages, and the eight pages there are hold
    # two such requests: some are put back whatever the random lengths.
    lengths = [150] * 8 + [RANDOM.choice([3, 80, 150]) for _ in range(16)]
    params = [mpk.SamplingParams(max_tokens=n, temperature=1, seed=i, ignore_eos=True) for i, n in enumerate(lengths)]
    prompts = [RANDOM.choice(STORIES)[:RANDOM.choice([10, 70, 100])] for _ in params]
    with open_llm(folder, prefix_cache=False, kv_tokens=4096) as llm:
        plain = [a.token_ids for a in llm.generate(prompts, params)]
        assert llm.describe()["put_back"] == 0
    with open_llm(folder, max_batch=8, kv_tokens=512) as llm:
        leavers = [threading.Thread(target=lambda i=i: next(llm.stream(prompts[i], params[i])))
                   for i in range(0, 24, 3)]
        for thread in leavers:
            thread.start()
        found = [a.token_ids for a in llm.generate(prompts, params)]
        for thread in leavers:
            thread.join()
        assert llm.describe()["put_back"] > 0
    assert found == plain


def test_cached_tokens_salts_and_conversations(folder):
    import mpk
    story = STORIES[0][:150]
    one = mpk.SamplingParams(max_tokens=70, ignore_eos=True)
    with open_llm(folder) as llm:
        def cached(prompt, **changes):
            return llm.generate([prompt], mpk.SamplingParams(max_tokens=1, ignore_eos=True, **changes))[0].cached_tokens
        first, = llm.generate([story], one)
        assert first.cached_tokens == 0
        again, = llm.generate([story], one)
        assert again.cached_tokens == 2 * PAGE and again.token_ids == first.token_ids
        turn = story + first.token_ids + [7, 8]  # the next turn finds the answer, too, but for its last page
        assert cached(turn) == (len(story) + len(first.token_ids) - 1) // PAGE * PAGE
        assert cached(turn, prefix_cache=False) == 0
        assert cached(turn, cache_salt="tenant") == 0
        assert cached(turn, cache_salt="tenant") == len(turn) // PAGE * PAGE
        assert cached(turn, prompt_logprobs=0) == 0
        facts = llm.describe()
        assert 0 < facts["prefix_found_tokens"] < facts["prefix_asked_tokens"]
        with pytest.raises(mpk.Error, match="NUL"):
            cached(turn, cache_salt="\0")
    with open_llm(folder, prefix_cache=False) as llm:
        assert [a.cached_tokens for a in llm.generate([story, story], one)] == [0, 0]
        assert llm.describe()["prefix_asked_tokens"] == 0


def test_prompts_that_come_together_are_computed_once(folder):
    import mpk
    story = STORIES[1][:200]
    with open_llm(folder, step_tokens=64) as llm:
        answers = llm.generate([story + [i] for i in range(8)], mpk.SamplingParams(max_tokens=3, ignore_eos=True))
        assert sorted(a.cached_tokens for a in answers) == [0] + 7 * [3 * PAGE]
