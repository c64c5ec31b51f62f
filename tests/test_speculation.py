"""Speculation changes no token: random workloads with it give the answers of an engine without it."""

import json
import threading

import pytest

import support
import tiny
from serving import Server

RANDOM = support.seed()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("speculation") / "model", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def near(folder, tmp_path_factory):
    """A draft model that is often right: the model itself, with noise on its weights."""
    import torch
    from safetensors.torch import load_file, save_file
    to = tmp_path_factory.mktemp("near") / "model"
    to.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (to / name).write_bytes((folder / name).read_bytes())
    noise = torch.Generator().manual_seed(RANDOM.randrange(2**31))
    weights = {n: w * (1 + 0.05 * torch.randn(w.shape, generator=noise)).to(w.dtype)
               for n, w in load_file(folder / "model.safetensors").items()}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """One that is of another shape and family, and rarely right."""
    return tiny.model(tmp_path_factory.mktemp("far") / "model", family="Qwen3", hidden_size=16, head_dim=8,
                      num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1, intermediate_size=32)


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


def workload(n):
    """n random requests and a last one that is certain to draft.

    Drafts are tried only in steps in which nobody feeds a prompt.  Among short answers, with prompts fed 8 tokens a
    step, there may be no such step; the last request decodes until the others have ended.
    """
    last = {"tokens": loops(10), "max_tokens": 240, "seed": n, "ignore_eos": True, "temperature": 0,
            "allowed_token_ids": [RANDOM.randrange(250)]}
    return [random_request(i) for i in range(n)] + [last]


def shuffled(requests):
    """A random order of the requests, as indices, with the last request still last."""
    order = list(range(len(requests) - 1))
    RANDOM.shuffle(order)
    return order + [len(requests) - 1]


def run(folder, requests, tmp_path, *options):
    path, out = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in requests))
    _, words = support.mpk("batch", folder, path, "-o", out, "--device", "cpu", *options)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == len(requests) and not [a["error"] for a in answers if "error" in a]
    return answers, words


def test_drafts_change_no_answer(folder, tmp_path):
    requests = workload(60)
    plain, words = run(folder, requests, tmp_path, "--max-batch", 4)
    assert "drafts" not in words
    for batch, speculate, *more in ((1, "ngram"), (2, "ngram:15:1"), (4, "ngram:3:2", "--kv-tokens", 256),
                                    (16, "ngram:64:2"), (5, "ngram:8:1", "--step-tokens", 8, "--no-prefix-cache")):
        order = shuffled(requests)
        found, words = run(folder, [requests[i] for i in order], tmp_path, "--max-batch", batch, "--speculate",
                           speculate, *more)
        assert found == [plain[i] for i in order], f"batch {batch}, {speculate}, {more}"
        assert "drafts stood" in words


def test_a_draft_model_changes_no_answer(folder, near, far, tmp_path):
    requests = workload(40)
    plain, _ = run(folder, requests, tmp_path, "--max-batch", 4)
    for batch, model, *more in ((1, near, "--draft", 15), (3, far), (2, near, "--speculate", "ngram:5:2"),
                                (4, near, "--kv-tokens", 256, "--threads", 3), (16, near, "--draft", 64),
                                (5, near, "--step-tokens", 8, "--no-prefix-cache"),
                                (3, near, "--gpus", 2, "--threads", 2)):
        order = shuffled(requests)
        found, words = run(folder, [requests[i] for i in order], tmp_path, "--max-batch", batch, "--draft-model",
                           model, *more)
        if "--gpus" not in more:
            assert found == [plain[i] for i in order], f"batch {batch}, {model}, {more}"
        assert "drafts stood" in words
    one, _ = run(folder, requests, tmp_path, "--gpus", 2, "--threads", 2)
    assert found == [one[i] for i in order]


def test_the_model_itself_is_always_right(folder):
    """As its own draft model: each draft stands, greedy or drawn, with rules, after put-back and a shared prompt."""
    import mpk
    start = [RANDOM.randrange(250) for _ in range(130)]
    prompts = [start + [RANDOM.randrange(250) for _ in range(RANDOM.choice([1, 9]))] for _ in range(6)]
    params = [mpk.SamplingParams(max_tokens=90, temperature=RANDOM.choice([0, 0.8, 2.0]), seed=i, ignore_eos=True,
                                 frequency_penalty=RANDOM.choice([0, 0.7]), top_p=RANDOM.choice([1, 0.8]))
              for i in range(len(prompts))]
    with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256, max_batch=3) as llm:
        plain = [a.token_ids for a in llm.generate(prompts, params)]
    for options in ({}, {"kv_tokens": 384}, {"prefix_cache": False}):
        with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256, max_batch=3, draft_model=folder,
                     **options) as llm:
            found = llm.generate(prompts, params)
            facts = llm.describe()
        assert [a.token_ids for a in found] == plain
        assert facts["draft_model_tokens"] == facts["drafted_tokens"] > 200
        assert facts["accepted_tokens"] == facts["drafted_tokens"] == facts["draft_model_accepted_tokens"]
        assert facts["draft_steps"] > 0


def test_draft_models_of_any_shape(folder, tmp_path):
    """Larger than the model, made for shorter texts, with more rows or fewer than there are tokens, a mixture of
    experts; and a mixture that has one."""
    mixture, requests = tiny.mixture(tmp_path / "mixture"), [random_request(i) for i in range(12)]
    drafts = [tiny.model(tmp_path / f"draft{i}", **shape) for i, shape in enumerate((
        {"hidden_size": 64, "num_hidden_layers": 3}, {"max_position_embeddings": 32}, {"vocab_size": 300},
        {"vocab_size": 200}))]
    for model, guessing in ((folder, [*drafts, mixture]), (mixture, [folder, mixture])):
        plain, _ = run(model, requests, tmp_path, "--max-batch", 3)
        for draft in guessing:
            options = ["--max-batch", 3, "--draft-model", draft, *RANDOM.choice((
                [], ["--speculate", "ngram:3:2"], ["--batch-invariant"], ["--no-prefix-cache"], ["--launch=jit"]))]
            found, words = run(model, requests, tmp_path, *options)
            assert found == plain, options
            assert "drafts stood" in words
    large = tiny.model(tmp_path / "large", vocab_size=300, tie_word_embeddings=False)
    plain, _ = run(large, requests, tmp_path, "--max-batch", 3)
    assert run(large, requests, tmp_path, "--max-batch", 3, "--draft-model", folder)[0] == plain


def test_a_server_has_a_draft_model(folder, near):
    """Streams, several answers of a request, log probabilities, forms, and a request without drafts."""
    shared = {"prompt": loops(120), "max_tokens": 60, "temperature": 0.2, "seed": 5, "ignore_eos": True}
    asked = [shared, {**shared, "n": 3}, {**shared, "logprobs": 2, "frequency_penalty": 0.3},
             {**shared, "regex": "[ab]{5,20}", "ignore_eos": False}, {**shared, "speculative.n_max": 0}]
    answers = {}
    for options in ((), ("--draft-model", near)):
        with Server(folder, "--max-batch", 4, "--quiet", *options) as server:
            replies = [server.post("/v1/completions", q) for q in asked]
            answers[options] = [r["choices"] for r in replies]
            stood = server.metric("mpk_accepted_draft_tokens_total")
            assert (stood > 0) == bool(options) and server.metric("mpk_draft_tokens_total") >= stood
            last = replies[-1]["usage"].get("completion_tokens_details", {})
            assert not last.get("accepted_prediction_tokens") and not last.get("rejected_prediction_tokens")
    plain, drafted = answers.values()
    assert plain == drafted


def test_what_is_no_draft_model(folder, far, tmp_path):
    import mpk
    other = tiny.model(tmp_path / "other", special=["<x>"])
    words = json.loads((other / "tokenizer.json").read_text())
    spelled = words["model"]["vocab"]
    spelled["a"], spelled["b"] = spelled["b"], spelled["a"]
    (other / "tokenizer.json").write_text(json.dumps(words))
    image = tmp_path / "image.mpk"
    support.mpk("compile", folder, "-o", image, "--device", "cpu")
    for model, draft, options, error in (
            (folder, other, {}, r"another vocabulary: token \d+ is \"b\", of the model \"a\""),
            (folder, tmp_path / "nowhere", {}, "while opening the draft model .*nowhere"),
            (folder, image, {}, "it is an image"), (image, far, {}, "is an image, which holds one model"),
            (folder, far, {"embeddings": True}, "a draft model is for answers"),
            (folder, far, {"kv_dtype": "q8_0"}, "q8_0 needs heads of a multiple of 32")):
        with pytest.raises(mpk.Error, match=error):
            mpk.LLM(model, device="cpu", draft_model=draft, **options)
    for to in (image, folder / "model.safetensors"):  # of two faults the first is told
        _, words = support.mpk("compile", folder, "-o", to, "--device", "cpu", "--draft-model", far, code=1)
        assert "an image holds one model" in words
    _, words = support.mpk("inspect", folder, "--target", "sm_90a", "--draft-model", other, code=1)
    assert "another vocabulary" in words
    _, words = support.mpk("run", folder, "-p", "a", "--draft", 3, code=2)
    assert "--draft: it needs --draft-model or --speculate" in words
    _, words = support.mpk("run", folder, "-p", "a", "--draft", 3, "--speculate", "ngram:4", code=2)
    assert "--speculate says 4" in words
    requests, weights = tmp_path / "requests.jsonl", far / "model.safetensors"
    requests.write_text('{"prompt": "in", "max_tokens": 2}\n')
    before = weights.read_bytes()
    _, words = support.mpk("batch", folder, requests, "-o", weights, "--draft-model", far, code=1)
    assert "is a file of the model that is read" in words and weights.read_bytes() == before


def test_peers_draft(folder, tmp_path):
    requests = [random_request(i) for i in range(20)]
    plain, _ = run(folder, requests, tmp_path, "--gpus", 2, "--threads", 2)
    found, words = run(folder, requests, tmp_path, "--gpus", 2, "--threads", 2, "--max-batch", 3,
                       "--speculate=ngram:5:1")
    assert found == plain and "drafts stood" in words


@pytest.mark.parametrize("model", [False, True])
def test_drafts_with_leavers_and_few_pages(folder, near, model):
    import mpk
    how = {"draft_model": near} if model else {"speculation": "ngram", "draft_ngram": 2}
    params = [mpk.SamplingParams(max_tokens=RANDOM.choice([3, 80, 120]), temperature=RANDOM.choice([0, 1]), seed=i,
                                 ignore_eos=True, allowed_token_ids=RANDOM.sample(range(250), 3)) for i in range(16)]
    prompts = [loops(RANDOM.choice([10, 70, 100])) for _ in params]
    with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256) as llm:
        plain = [a.token_ids for a in llm.generate(prompts, params)]
        assert llm.describe()["drafted_tokens"] == 0
    with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256, max_batch=4, kv_tokens=384, **how) as llm:
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
    plain, _ = support.mpk("run", folder, "-p", "a b a b a b a b", "-n", 20, "--device", "cpu")
    for word in ("none", "ngram", "ngram:4", "ngram:4:1"):
        out, _ = support.mpk("run", folder, "-p", "a b a b a b a b", "-n", 20, "--device", "cpu", "--speculate", word)
        assert out == plain


def test_a_gpu_has_room_for_drafts(folder, far):
    def inspect(*options):
        out, _ = support.mpk("inspect", folder, "--target", "sm_90a", "--json", *options)
        return json.loads(out)
    plain, looks, guesses = inspect(), inspect("--speculate=ngram"), inspect("--draft-model", far)
    assert looks["memory"]["tables_bytes"] > plain["memory"]["tables_bytes"]
    invariant, both = inspect("--batch-invariant"), inspect("--batch-invariant", "--speculate=ngram")
    assert both["memory"]["tables_bytes"] > invariant["memory"]["tables_bytes"]
    for part in ("weights_bytes", "kv_bytes", "tables_bytes"):
        assert guesses["memory"][part] > plain["memory"][part]
    # its graphs follow the model's; none is for more tokens than a draft step has
    assert guesses["memory"]["step_tokens"] > 512
    sizes = [g["tokens"] for g in guesses["graphs"] if g.get("draft_model")]
    assert sizes and sizes == [g["tokens"] for g in plain["graphs"] if g["tokens"] <= 512]


def test_bench_plants_drafts(folder):
    options = ("bench", folder, "--device", "cpu", "--generate", 60, "--runs", 1, "--prompt", 8, "--json", "-q")
    out, _ = support.mpk(*options, "--speculate=ngram:4", "--planted", 1)
    result = json.loads(out)
    assert result["acceptance"] == result["chance"] == 1 and result["accepted_tokens"] == result["drafted_tokens"] > 30
    for figure in ("gain", "plain_decode_tokens_per_s"):  # null where the host saw a whole answer at once
        assert result[figure] is None or result[figure] > 0
    for share in (0.7, 0.03):
        out, _ = support.mpk(*options, "--speculate=ngram:4:1", "--planted", share, "--batch", 3)
        assert json.loads(out)["acceptance"] < 1
    out, _ = support.mpk(*options, "--draft-model", folder, "--draft", 3)
    result = json.loads(out)
    assert result["acceptance"] == 1 and result["draft_model_tokens"] == result["drafted_tokens"]
    assert 0 < result["draft_steps"] and "gain" in result
    out, _ = support.mpk(*options, "--draft-model", folder, "--draft", 3, "--planted", 1)
    assert json.loads(out)["acceptance"] == 1
    out, _ = support.mpk(*options, "--draft-model", folder, "--draft", 3, "--planted", 0.004)
    assert json.loads(out)["acceptance"] < 0.5
    _, words = support.mpk(*options, "--draft-model", folder, "--speculate=ngram", "--planted", 0.5, code=2)
    assert "--planted is about the drafts of --speculate or of --draft-model" in words
    out, _ = support.mpk(*options)
    assert "gain" not in json.loads(out) and "acceptance" not in json.loads(out)
    _, words = support.mpk(*options, "--planted", 0.5, code=2)
    assert "--planted says nothing without --speculate|draft-model" in words


def test_an_image_drafts_too(folder, tmp_path):
    """One that was compiled without speculation has few rows for rules; drafts then keep to them."""
    requests = [random_request(i) for i in range(12)]
    plain, _ = run(folder, requests, tmp_path, "--max-batch", 1)
    for options in ((), ("--speculate", "ngram")):
        image = tmp_path / "image.mpk"
        support.mpk("compile", folder, "-o", image, "--max-batch", 1, "--device", "cpu", *options)
        found, _ = run(image, requests, tmp_path, "--speculate", "ngram:7:1")
        assert found == plain


@pytest.mark.parametrize("model", [False, True])
def test_forms_draft(folder, near, model):
    """Each draft has the mask of its place, or does not stand; so forms get the tokens that they get without drafts."""
    import mpk
    how = {"draft_model": near} if model else {"speculation": "ngram", "draft_ngram": 1}
    forms = [{"regex": "(ab|cd){2,60}"}, {"regex": "[a-c]{30,90}"}, {"choice": ["a" * 32, "b"]},
             {"json_schema": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 12, "maxItems": 30}}]
    params = [mpk.SamplingParams(max_tokens=RANDOM.choice([5, 90]), temperature=RANDOM.choice([0, 1]), seed=i,
                                 frequency_penalty=RANDOM.choice([0, 0.2]), **forms[i % len(forms)])
              for i in range(12)]
    # a draft model guesses without a mask, so that hardly a draft stands where a form allows little; here it allows
    # nearly all
    params += [mpk.SamplingParams(max_tokens=90, temperature=0, regex="[^~]{200,}") for _ in range(3)]
    prompts = [loops(RANDOM.choice([10, 60])) for _ in params]
    with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256, max_batch=3) as llm:
        plain = [a.token_ids for a in llm.generate(prompts, params)]
    stood = 0
    for options in ({"max_batch": 3}, {"max_batch": 1}, {"max_batch": 3, "kv_tokens": 384}):
        with mpk.LLM(folder, device="cpu", threads=2, context_tokens=256, **how, **options) as llm:
            found = llm.generate(prompts, params)
            stood += sum(a.accepted_tokens for a in found)
        assert [a.token_ids for a in found] == plain, options
    assert stood > 0
