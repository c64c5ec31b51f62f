"""Penalties, biases, bans, filters and log probabilities against a reference over the logits of Transformers."""

import json
import math
import re

import numpy
import pytest
import torch
import transformers

import support
import tiny

RANDOM = support.seed()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("sampling") / "model", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def net(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits_of(net, tokens):
    with torch.no_grad():
        return net(torch.tensor([tokens])).logits[0].double().numpy()


def run(folder, requests, tmp_path, *options):
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    support.mpk("batch", folder, path, "-o", out, *options)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == len(requests) and all("error" not in a for a in answers), answers
    return answers


def changed(x, request, history, ends):
    """What the rules make of a row of logits, as docs/api.md says it."""
    x, made = x.copy(), history[len(request["tokens"]):]
    for token, bias in request.get("logit_bias", {}).items():
        x[int(token)] += bias
    for token in set(history):
        penalty = request.get("repetition_penalty", 1)
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token in set(made):
        x[token] -= request.get("presence_penalty", 0) + made.count(token) * request.get("frequency_penalty", 0)
    allowed = request.get("allowed_token_ids")
    if allowed:
        x[[i for i in range(len(x)) if i not in allowed]] = -numpy.inf
    if len(made) < request.get("min_tokens", 0):
        x[([] if request.get("ignore_eos") else ends) + request.get("stop_token_ids", [])] = -numpy.inf
    if request.get("temperature", 0) > 0:
        x = filtered(x, request)
    return x


def filtered(x, request):
    finite = numpy.isfinite(x)
    if request.get("top_n_sigma"):
        x = numpy.where(x < x[finite].max() - request["top_n_sigma"] * x[finite].std(), -numpy.inf, x)
    if request.get("typical_p", 1) < 1:
        scaled = x / request["temperature"]
        logarithms = scaled - numpy.logaddexp.reduce(scaled)
        p = numpy.exp(logarithms)
        expected = -(p[p > 0] * logarithms[p > 0]).sum()
        order = numpy.argsort(numpy.abs(-logarithms - expected), kind="stable")
        n = int(numpy.searchsorted(numpy.cumsum(p[order]), request["typical_p"])) + 1
        kept = numpy.full(len(x), -numpy.inf)
        kept[order[:n]] = x[order[:n]]
        x = kept
    return cut(x, request)


def cut(x, request):
    """top_k, of the rest top_p, of the rest min_p."""
    order = numpy.argsort(-x, kind="stable")
    p = numpy.exp((x - x.max()) / request["temperature"])[order]
    if request.get("top_k"):
        p[request["top_k"]:] = 0
    if request.get("top_p", 1) < 1:
        p[int(numpy.searchsorted(numpy.cumsum(p), request["top_p"] * p.sum())) + 1:] = 0
    p[p < request.get("min_p", 0) * p[0]] = 0
    kept = numpy.full(len(x), -numpy.inf)
    kept[order[p > 0]] = x[order[p > 0]]
    return kept


def random_request(i):
    request = {"tokens": [RANDOM.randrange(250) for _ in range(RANDOM.choice([1, 5, 17, 40, 70]))],
               "max_tokens": RANDOM.choice([5, 12, 25]), "seed": i}
    if RANDOM.random() < 0.5:
        request["repetition_penalty"] = RANDOM.choice([0.8, 1.2, 2.0])
    if RANDOM.random() < 0.5:
        request["presence_penalty"] = RANDOM.choice([-0.5, 0.7, 1.5])
    if RANDOM.random() < 0.5:
        request["frequency_penalty"] = RANDOM.choice([-0.2, 0.3, 1.0])
    if RANDOM.random() < 0.5:
        request["logit_bias"] = {str(t): RANDOM.choice([-100, -2, 1.5]) for t in RANDOM.sample(range(250), 20)}
    if RANDOM.random() < 0.3:
        request["allowed_token_ids"] = RANDOM.sample(range(250), 90)
    if RANDOM.random() < 0.5:
        request["min_tokens"] = RANDOM.randrange(6)
    if RANDOM.random() < 0.5:
        request["stop_token_ids"] = RANDOM.sample(range(250), RANDOM.choice([1, 15]))
        request["ignore_eos"] = RANDOM.random() < 0.5
    if RANDOM.random() < 0.5:
        request["logprobs"] = RANDOM.choice([0, 1, 5, 20])
    if RANDOM.random() < 0.3:
        request["prompt_logprobs"] = RANDOM.choice([0, 3])
    return request


def check_logprobs(found, x, token, top):
    """found: [[id, logarithm], ...] for a row of logits whose next token this is."""
    reference = x - numpy.logaddexp.reduce(x)
    assert len(found) == 1 + top and found[0][0] == token
    assert all(abs(value - reference[i]) < 1e-4 for i, value in found)
    assert numpy.allclose([value for _, value in found[1:]], numpy.sort(reference)[::-1][:top], atol=1e-4)


def top_of(request):
    return max(request.get("logprobs", 0), request.get("prompt_logprobs", 0))


def test_rules_and_logprobs_are_those_of_the_reference(folder, net, tmp_path):
    requests, ends = [random_request(i) for i in range(24)], [net.config.eos_token_id]
    answers = run(folder, requests, tmp_path, "--max-batch", 5)
    compared = 0
    for request, answer in zip(requests, answers):
        history = list(request["tokens"])
        rows = logits_of(net, history + answer["tokens"])
        assert ("prompt_logprobs" in answer) == ("prompt_logprobs" in request)
        if "prompt_logprobs" in request:
            assert answer["prompt_logprobs"][0] is None and len(answer["prompt_logprobs"]) == len(history)
            for i in range(1, len(history)):
                check_logprobs(answer["prompt_logprobs"][i], rows[i - 1], history[i], top_of(request))
        for i, token in enumerate(answer["tokens"]):
            x = changed(rows[len(history) - 1], request, history, ends)
            assert x[token] > x.max() - 1e-3, (request, i)
            if "logprobs" in request:
                check_logprobs(answer["logprobs"][i], rows[len(history) - 1], token, top_of(request))
            history.append(token)
            compared += 1
        stops = set(request.get("stop_token_ids", []) + ([] if request.get("ignore_eos") else ends))
        assert not stops & set(answer["tokens"][:-1])
        ended = answer["tokens"][-1] in stops
        assert answer["finish_reason"] == ("stop" if ended else "length")
        assert ended or len(answer["tokens"]) == request["max_tokens"]
    assert compared > 100


def test_rules_do_not_depend_on_company(folder, tmp_path):
    requests = [random_request(i) | ({"temperature": 1.0, "typical_p": 0.8, "top_n_sigma": 2.0} if i % 2 else {})
                for i in range(12)]
    together = run(folder, requests, tmp_path, "--max-batch", 5, "--threads", 3)
    assert [run(folder, [r], tmp_path, "--max-batch", 1, "--threads", 1)[0] for r in requests] == together


@pytest.mark.parametrize("rules", [
    {}, {"top_k": 20, "temperature": 2.0}, {"top_p": 0.7}, {"top_k": 100, "top_p": 0.9, "min_p": 0.1},
    {"top_p": 0.95, "temperature": 30.0}, {"typical_p": 0.4}, {"top_n_sigma": 1.2},
    {"repetition_penalty": 1.5, "logit_bias": {"7": 2.5, "9": -100}},
    {"typical_p": 0.7, "top_n_sigma": 2.0, "temperature": 1.6},
    {"allowed_token_ids": [1, 2, 3, 50, 60, 70, 80, 90], "repetition_penalty": 3.0}])
@pytest.mark.draws(4)
def test_draws_have_the_distribution_of_the_reference(folder, net, tmp_path, rules):
    n, tokens = 2000, [5, 6, 7, 8, 7]
    request = {"tokens": tokens, "max_tokens": 1, "temperature": 1.0, "ignore_eos": True} | rules
    answers = run(folder, [request | {"seed": s} for s in range(n)], tmp_path, "--max-batch", 16)
    counts = numpy.bincount([a["tokens"][0] for a in answers], minlength=net.config.vocab_size).astype(float)
    x = changed(logits_of(net, tokens)[-1], request, tokens, []) / request["temperature"]
    expected = n * numpy.exp(x - numpy.logaddexp.reduce(x))
    assert counts[expected == 0].sum() == 0
    used = expected > 5
    statistic, degrees = ((counts - expected)[used] ** 2 / expected[used]).sum(), used.sum()
    assert degrees > 3
    assert statistic < degrees + 6 * (2 * degrees) ** 0.5, f"chi-square {statistic:.0f} of {degrees} degrees"


def test_bad_words_do_not_come(folder, tmp_path):
    prompt = {"prompt": "abc", "max_tokens": 60, "ignore_eos": True}
    text = run(folder, [prompt], tmp_path)[0]["text"]
    assert len(text) > 10
    words = [word for word in {text[i:i + 2] for i in range(len(text) - 1)} if word.isascii() and word.isprintable()]
    assert words
    other = run(folder, [prompt | {"bad_words": words}], tmp_path)[0]["text"]
    assert other and not any(word in other for word in words)


def test_python_offers_the_same(folder, net):
    import mpk
    tokens = [RANDOM.randrange(250) for _ in range(9)]
    params = mpk.SamplingParams(max_tokens=6, ignore_eos=True, repetition_penalty=1.5, logit_bias={3: -math.inf},
                                min_tokens=2, logprobs=4, prompt_logprobs=2)
    with mpk.LLM(folder, threads=2, context_tokens=64, device="cpu") as llm:
        answer, = llm.generate([tokens], params)
        pieces = list(llm.stream(tokens, params))
        plain, = llm.generate([tokens], mpk.SamplingParams(max_tokens=3))
    rows = logits_of(net, tokens + answer.token_ids)
    assert plain.logprobs is None and plain.prompt_logprobs is None
    assert [entry for piece in pieces for entry in piece.logprobs] == answer.logprobs
    assert answer.prompt_logprobs[0] is None and len(answer.prompt_logprobs) == len(tokens)
    for i, entries in enumerate(answer.prompt_logprobs[1:]):
        check_logprobs(entries, rows[i], tokens[i + 1], 2)
    for i, entries in enumerate(answer.logprobs):
        check_logprobs(entries, rows[len(tokens) - 1 + i], answer.token_ids[i], 4)
    assert 3 not in answer.token_ids


@pytest.mark.parametrize("field, words", [
    ({"min_tokens": 9}, "min_tokens"), ({"logit_bias": {"999999": 1}}, "vocabulary"),
    ({"logit_bias": {"x": 1}}, "\"x\""),
    ({"logprobs": 21}, "logprobs"), ({"typical_p": 1.5}, "typical_p"), ({"bad_words": [""]}, "bad word"),
    ({"allowed_token_ids": []}, "allowed_token_ids"), ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"allowed_token_ids": list(range(250)) * 20}, "4096 words"), ({"stop_token_ids": [999999]}, "vocabulary"),
    ({"stop_token_ids": list(range(16))}, "16 tokens"), ({"stop_token_ids": 3}, "stop_token_ids"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"), ({"priority": 1 << 31}, "priority")])
def test_what_cannot_be_is_refused(folder, tmp_path, field, words):
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps({"tokens": [1, 2], "max_tokens": 3} | field) + "\n")
    out, _ = support.mpk("batch", folder, path)
    assert words in json.loads(out)["error"]


@pytest.mark.parametrize("field", [
    {"json_object": True}, {"json_schema": {}}, {"regex": "a*"}, {"choice": ["a"]}, {"bad_words": ["a"]},
    {"stop": "a"}])
def test_what_needs_a_tokenizer_is_refused_without_one(tmp_path, field):
    model = tiny.model(tmp_path / "model")
    (model / "tokenizer.json").unlink()
    requests = "".join(json.dumps({"tokens": [1, 2], "max_tokens": 3} | more) + "\n" for more in ({}, field))
    out, _ = support.mpk("batch", model, "-", stdin=requests.encode())
    plain, refused = map(json.loads, out.splitlines())
    assert len(plain["tokens"]) == 3
    assert re.search("need a tokenizer, and this model has none$", refused["error"])
