"""What ends an answer, which request begins first, and log probabilities of prompts and token ids over HTTP."""

import json

import numpy
import openai
import pytest
import torch
import transformers

import support
from serving import CHAT, MESSAGES, chat, endless, model, server  # noqa: F401: fixtures

import mpk  # support knows where it is

RANDOM = support.seed()


@pytest.fixture(scope="module")
def llm(model):  # noqa: F811
    with mpk.LLM(model, threads=2, device="cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def net(model):  # noqa: F811
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def logprobs_of(net, tokens):
    """[i]: the natural logarithms of the probabilities of what follows token i."""
    with torch.no_grad():
        rows = net(torch.tensor([tokens])).logits[0].double().numpy()
    return rows - numpy.logaddexp.reduce(rows, axis=1, keepdims=True)


def plain_tokens(llm):
    """Each of a character that a text may hold anywhere."""
    return [i for i in range(250) if llm.detokenize([i]).isascii() and llm.detokenize([i]).isprintable()]


def some_prompt():
    return "".join(RANDOM.choice("abc the in\u00e9") for _ in range(RANDOM.randrange(1, 30)))


# ---- stop texts and tokens ----

@pytest.mark.parametrize("round_", range(4))
def test_a_stop_token_ends_the_answer(llm, server, round_):  # noqa: F811
    prompt, seed = some_prompt(), RANDOM.randrange(1000)
    long = dict(max_tokens=40, ignore_eos=True, temperature=1.0, seed=seed, allowed_token_ids=plain_tokens(llm))
    whole = llm.generate([prompt], mpk.SamplingParams(**long))[0].token_ids
    stops = RANDOM.sample(sorted(set(whole)), 2)
    end = min(whole.index(s) for s in stops)
    params = mpk.SamplingParams(**long, stop_token_ids=stops)
    shown = mpk.SamplingParams(**long, stop_token_ids=stops, include_stop_str_in_output=True)
    without, with_it = llm.generate([prompt, prompt], [params, shown])
    assert without.token_ids == with_it.token_ids == whole[:end + 1]
    assert without.finish == with_it.finish == "stop" and without.stop_reason == whole[end]
    assert without.text == llm.detokenize(whole[:end]) and with_it.text == llm.detokenize(whole[:end + 1])
    asked = {"prompt": prompt, **long, "stop_token_ids": stops}
    reply = server.post("/v1/completions", asked)["choices"][0]
    assert reply["text"] == without.text
    assert reply["finish_reason"] == "stop" and reply["stop_reason"] == whole[end]
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        assert server.post("/v1/completions", {**asked, name: True})["choices"][0]["text"] == with_it.text


@pytest.mark.parametrize("round_", range(4))
def test_a_stop_text_may_belong_to_the_answer(llm, server, round_):  # noqa: F811
    prompt, seed = some_prompt(), RANDOM.randrange(1000)
    long = dict(max_tokens=60, ignore_eos=True, temperature=1.0, seed=seed, allowed_token_ids=plain_tokens(llm))
    whole = llm.generate([prompt], mpk.SamplingParams(**long))[0].text
    at = RANDOM.randrange(len(whole) - 3)
    stop = whole[at:at + RANDOM.randrange(1, 4)]
    first = whole.index(stop)
    params = mpk.SamplingParams(**long, stop=[stop])
    shown = mpk.SamplingParams(**long, stop=[stop], include_stop_str_in_output=True)
    cut = llm.generate([prompt], params)[0]
    assert cut.text == whole[:first] and cut.stop_reason == stop and cut.finish == "stop"
    assert llm.generate([prompt], shown)[0].text == whole[:first] + stop
    assert "".join(p.text for p in llm.stream(prompt, shown)) == whole[:first] + stop
    asked = {"prompt": prompt, **long, "stop": [stop]}
    for include in (False, True):
        reply = server.post("/v1/completions", {**asked, "include_stop_str_in_output": include})["choices"][0]
        assert reply["text"] == whole[:first] + (stop if include else "") and reply["stop_reason"] == stop
    events = server.stream("/v1/completions", {**asked, "include_stop_str_in_output": True})
    assert "".join(e["choices"][0]["text"] for e in events) == whole[:first] + stop
    assert events[-1]["choices"][0]["stop_reason"] == stop
    assert server.post("/v1/completions", {"prompt": prompt, **long})["choices"][0]["stop_reason"] is None


# ---- priorities ----

def test_the_least_priority_begins_first(endless):  # noqa: F811
    """Every answer is endless and there is one place, so a token of one says that no other has begun."""
    with mpk.LLM(endless, max_batch=1, context_tokens=1 << 18, threads=2, device="cpu") as one:
        def begin(priority):
            return one.stream("in the", mpk.SamplingParams(ignore_eos=True, priority=priority))

        running = begin(0)
        assert next(running).token_ids
        waiting = {p: begin(p) for p in RANDOM.sample([3, 1, -2, 0, 2, -(1 << 31)], 6)}
        running.close()
        for priority in sorted(waiting):
            assert next(waiting[priority]).token_ids
            waiting[priority].close()


# ---- log probabilities of prompts ----

def ids_of(llm, prompt):
    return prompt if isinstance(prompt, list) else llm.tokenize(prompt)


def check_prompt(found, net, ids, top):
    rows = logprobs_of(net, ids)
    assert found[0] is None and len(found) == len(ids)
    for i, entry in enumerate(found[1:]):
        best = numpy.argsort(-rows[i], kind="stable")[:top]
        assert {str(ids[i + 1])} <= set(entry) and len(entry) in (top, top + 1)
        for token, value in entry.items():
            assert abs(value["logprob"] - rows[i][int(token)]) < 1e-4
            if value["rank"]:
                assert abs(rows[i][best[value["rank"] - 1]] - value["logprob"]) < 1e-4
        ranks = [v["rank"] for v in entry.values() if v["rank"]]
        assert sorted(ranks) == list(range(1, top + 1))


@pytest.mark.parametrize("top", [0, 1, 5])
def test_prompt_logprobs_are_those_of_transformers(llm, net, server, top):  # noqa: F811
    prompts = [some_prompt(), [RANDOM.randrange(200) for _ in range(9)]]
    for prompt in prompts:
        reply = server.complete(prompt, prompt_logprobs=top, n=2, logprobs=RANDOM.choice([None, 0, 3]))
        assert len(reply["choices"]) == 2
        for choice in reply["choices"]:
            check_prompt(choice["prompt_logprobs"], net, ids_of(llm, prompt), top)
    assert "prompt_logprobs" not in server.complete("in the")["choices"][0]
    ids = llm.tokenize(llm.chat_prompt(MESSAGES, chat_template=CHAT), add_special=False)
    check_prompt(chat(server, prompt_logprobs=top)["prompt_logprobs"], net, ids, top)
    with pytest.raises(openai.BadRequestError) as e:
        server.client().completions.create(model="tiny", prompt="x", stream=True, extra_body={"prompt_logprobs": 1})
    assert e.value.param == "prompt_logprobs"


@pytest.mark.parametrize("top", [0, 1, 4])
def test_an_echo_has_the_log_probabilities_of_its_prompt(llm, net, server, top):  # noqa: F811
    """As those ask for it who score given texts."""
    prompt = [some_prompt(), [RANDOM.randrange(200) for _ in range(12)]]
    reply = server.complete(prompt, echo=True, logprobs=top, max_tokens=1)
    for given, choice in zip(prompt, reply["choices"]):
        ids, probs = ids_of(llm, given), choice["logprobs"]
        rows = logprobs_of(net, ids)
        assert {len(probs[name]) for name in probs} == {len(ids) + 1}
        assert probs["token_logprobs"][0] is None and probs["top_logprobs"][0] is None
        own = [rows[i - 1][ids[i]] for i in range(1, len(ids))]
        assert numpy.allclose(probs["token_logprobs"][1:-1], own, atol=1e-4)
        best = numpy.sort(rows, axis=1)[:, ::-1][:, :top]
        for i, entry in enumerate(probs["top_logprobs"][1:]):
            assert numpy.allclose(sorted(entry.values(), reverse=True)[:len(entry)], best[i][:len(entry)], atol=1e-4)
    events = server.stream("/v1/completions", {"prompt": prompt[1], "echo": True, "logprobs": top, "max_tokens": 1,
                                               "temperature": 0})
    assert [v for e in events for v in e["choices"][0]["logprobs"]["token_logprobs"]] == \
        reply["choices"][1]["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("top", [0, 3])
def test_a_prompt_alone(llm, net, server, top):  # noqa: F811
    """max_tokens 0 scores a prompt: the lists of an answer of one token without that one."""
    prompt = [some_prompt(), [RANDOM.randrange(200) for _ in range(12)]]
    asked = {"prompt": prompt, "echo": True, "logprobs": top, "temperature": 0}
    longer = server.post("/v1/completions", {**asked, "max_tokens": 1})
    reply = server.post("/v1/completions", {**asked, "max_tokens": 0})
    assert reply["usage"]["completion_tokens"] == 0
    assert reply["usage"]["prompt_tokens"] == longer["usage"]["prompt_tokens"]
    for given, choice, other in zip(prompt, reply["choices"], longer["choices"], strict=True):
        assert choice["finish_reason"] == "length" and other["text"].startswith(choice["text"])
        assert not isinstance(given, str) or choice["text"] == given
        assert choice["logprobs"] == {name: values[:-1] for name, values in other["logprobs"].items()}
        assert len(choice["logprobs"]["tokens"]) == len(ids_of(llm, given))
    events = server.stream("/v1/completions", {**asked, "prompt": prompt[1], "max_tokens": 0,
                                               "stream_options": {"include_usage": True}})
    assert events.pop()["usage"]["completion_tokens"] == 0
    choices = [e["choices"][0] for e in events]
    assert [v for c in choices for v in c["logprobs"]["token_logprobs"]] == \
        reply["choices"][1]["logprobs"]["token_logprobs"]
    assert "".join(c["text"] for c in choices) == reply["choices"][1]["text"]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
    ids = ids_of(llm, prompt[0])
    alone = server.post("/v1/completions", {"prompt": prompt[0], "prompt_logprobs": top, "max_tokens": 0})["choices"][0]
    assert alone["text"] == "" and len(alone["prompt_logprobs"]) == len(ids)
    check_prompt(alone["prompt_logprobs"], net, ids, top)
    # with n, the prompt's first token marked, a mask, and where the model would end at once
    for more in ({"n": 2}, {"regex": "a+"}, {"stop_token_ids": list(range(8))}, {"allowed_token_ids": [2]}):
        for choice in server.post("/v1/completions", {**asked, **more, "max_tokens": 0})["choices"]:
            assert choice["finish_reason"] == "length"
            assert choice["logprobs"] in [c["logprobs"] for c in reply["choices"]]
    server.post("/v1/completions", {**asked, "max_tokens": 0, "min_tokens": 1}, 400)
    answer = llm.generate([prompt[0]], mpk.SamplingParams(prompt_only=True, prompt_logprobs=top))[0]
    assert (answer.token_ids, answer.text, answer.finish) == ([], "", "length")
    assert len(answer.prompt_logprobs) == len(ids)
    with pytest.raises(mpk.ArgumentError, match="prompt_only"):
        llm.generate([prompt[0]], mpk.SamplingParams(prompt_only=True, max_tokens=1))


def test_token_ids(llm, server):  # noqa: F811
    prompt, sampling = some_prompt(), dict(max_tokens=20, temperature=1.0, seed=RANDOM.randrange(1000))
    wanted = llm.generate([prompt], mpk.SamplingParams(**sampling))[0].token_ids
    asked = {"prompt": prompt, **sampling, "return_token_ids": True}
    choice = server.post("/v1/completions", asked)["choices"][0]
    assert choice["token_ids"] == wanted and choice["prompt_token_ids"] == llm.tokenize(prompt)
    choices = [e["choices"][0] for e in server.stream("/v1/completions", asked)]
    assert sum((c["token_ids"] for c in choices), []) == wanted
    assert [c["prompt_token_ids"] for c in choices if "prompt_token_ids" in c] == [llm.tokenize(prompt)]
    prompt = llm.chat_prompt(MESSAGES, chat_template=CHAT)
    wanted = llm.generate([prompt], mpk.SamplingParams(max_tokens=12, ignore_eos=True, raw_prompt=True))[0].token_ids
    ids = llm.tokenize(prompt, add_special=False)
    whole = chat(server, return_token_ids=True, n=2)
    assert [c["token_ids"] for c in whole["choices"]] == 2 * [wanted] and whole["prompt_token_ids"] == ids
    events = server.stream("/v1/chat/completions", {"messages": MESSAGES, "chat_template": CHAT, "max_tokens": 12,
                                                    "temperature": 0, "ignore_eos": True, "return_token_ids": True})
    assert sum((e["choices"][0].get("token_ids", []) for e in events), []) == wanted
    assert [e["prompt_token_ids"] for e in events if "prompt_token_ids" in e] == [ids]
    assert "token_ids" not in chat(server)["choices"][0]


def test_names_of_tokens_are_their_ids(llm, server):  # noqa: F811
    asked = dict(logprobs=2, return_tokens_as_token_ids=True, return_token_ids=True)
    choice = server.complete("in the", **asked)["choices"][0]
    names = [f"token_id:{i}" for i in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    assert all(name in top for name, top in zip(names, choice["logprobs"]["top_logprobs"]))
    entries = chat(server, **{**asked, "logprobs": True, "top_logprobs": 1})["choices"][0]
    assert [e["token"] for e in entries["logprobs"]["content"]] == [f"token_id:{i}" for i in entries["token_ids"]]


def test_batch_knows_the_same(model, tmp_path, llm):  # noqa: F811
    allowed = plain_tokens(llm)
    whole = llm.generate(["in the"], mpk.SamplingParams(max_tokens=30, ignore_eos=True, allowed_token_ids=allowed))[0]
    stop = whole.token_ids[RANDOM.randrange(30)]
    end = whole.token_ids.index(stop)
    requests = tmp_path / "requests.jsonl"
    line = {"prompt": "in the", "max_tokens": 30, "ignore_eos": True, "stop_token_ids": [stop], "priority": -3,
            "allowed_token_ids": allowed}
    requests.write_text("".join(json.dumps({**line, **more}) + "\n"
                                for more in ({}, {"include_stop_str_in_output": True})))
    out = [json.loads(x) for x in support.mpk("batch", model, requests)[0].splitlines()]
    assert [a["tokens"] for a in out] == 2 * [whole.token_ids[:end + 1]]
    assert [a["text"] for a in out] == [llm.detokenize(whole.token_ids[:n]) for n in (end, end + 1)]
