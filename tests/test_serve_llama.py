"""llama-server's own API: /completion with its forms of prompts and members of replies, /apply-template, paths."""

import json
import math

import support
from serving import CHAT, model, server  # noqa: F401, fixtures

RANDOM = support.seed()
GREEDY = {"temperature": 0, "ignore_eos": True, "n_predict": 7}


def ids(s, words, special=True):
    return s.post("/tokenize", {"content": words, "add_special": special})["tokens"]


def told(s, prompt, **more):
    """The answer that OpenAI's endpoint gives."""
    return s.complete(prompt, max_tokens=7, return_token_ids=True, **more)["choices"][0]


def events(s, body, path="/completion"):
    _, headers, stream = s.ask("POST", path, {**body, "stream": True}, raw=True)
    assert headers["Content-Type"] == "text/event-stream"
    lines = stream.split("\n\n")
    assert lines.pop() == "" and all(e.startswith("data: ") for e in lines)
    return [json.loads(e[6:]) for e in lines]


def test_a_text_an_object_ids_and_a_mixture(server):
    tail = [RANDOM.randrange(250) for _ in range(5)]
    for prompt, same in (("in the", "in the"), ({"prompt_string": "in the"}, "in the"), (tail, tail), ([9], [9]),
                         (["in the", *tail], [*ids(server, "in the"), *tail]),
                         ([0, "in the", 8], [0, *ids(server, "in the", False), 8])):
        reply, expected = server.post("/completion", {"prompt": prompt, **GREEDY}), told(server, same)
        n = len(expected["prompt_token_ids"])
        assert reply["content"] == expected["text"] and reply["tokens"] == []
        assert (reply["tokens_evaluated"], reply["tokens_predicted"], reply["stop_type"]) == (n, 7, "limit")
        assert server.post("/completions", {"prompt": prompt, **GREEDY, "return_tokens": True})["tokens"] == \
            expected["token_ids"]


def test_several_prompts_are_a_list(server):
    prompts = ["in the", [5, 6, 7], ["the", 4]]
    replies = server.post("/completion", {"prompt": prompts, **GREEDY})
    assert [r["index"] for r in replies] == [0, 1, 2]
    for prompt, reply in zip(prompts, replies):
        assert reply["content"] == server.post("/completion", {"prompt": prompt, **GREEDY})["content"]


def test_a_stream_has_the_tokens(server):
    expected, found = told(server, "in the"), events(server, {"prompt": "in the", **GREEDY})
    assert "".join(e["content"] for e in found) == expected["text"]
    assert [t for e in found for t in e["tokens"]] == expected["token_ids"]
    assert [e["stop"] for e in found] == [False] * (len(found) - 1) + [True] and "timings" in found[-1]


def test_probabilities_are_those_of_logprobs(server):
    lists = told(server, "in the", logprobs=3)["logprobs"]
    whole = server.post("/completion", {"prompt": "in the", "n_probs": 3, **GREEDY})["completion_probabilities"]
    parts = [p for e in events(server, {"prompt": "in the", "n_probs": 3, **GREEDY})
             for p in e["completion_probabilities"]]
    assert whole == parts and len(whole) == 7
    for i, p in enumerate(whole):
        assert p["token"] == lists["tokens"][i] and p["logprob"] == lists["token_logprobs"][i]
        assert {t["token"]: t["logprob"] for t in p["top_logprobs"]} == lists["top_logprobs"][i]
        assert len(p["top_logprobs"]) == 3 and p["id"] == p["top_logprobs"][0]["id"]
        assert p["bytes"] is None or bytes(p["bytes"]).decode() == p["token"]
    assert "completion_probabilities" not in server.post("/completion", {"prompt": "in", "n_probs": 0, **GREEDY})
    asked = {"prompt": "in the", "n_probs": 3, **GREEDY}
    assert server.post("/completion", asked | {"post_sampling_probs": False})["completion_probabilities"] == whole
    error = server.post("/completion", asked | {"post_sampling_probs": True}, 400)["error"]
    assert error["param"] == "post_sampling_probs" and "'n_probs'" in error["message"]


def test_times_agree_with_each_other(server):
    prompt = [RANDOM.randrange(250) for _ in range(130)]
    for cached in (0, 128):
        t = server.post("/completion", {"prompt": prompt, **GREEDY})["timings"]
        assert (t["cache_n"], t["prompt_n"], t["predicted_n"]) == (cached, 130 - cached, 7)
        for phase, timed in (("prompt", 130 - cached), ("predicted", 6)):  # the first token comes with the prompt
            ms, each, rate = (t[f"{phase}_{name}"] for name in ("ms", "per_token_ms", "per_second"))
            assert math.isclose(ms, timed * each, rel_tol=1e-6) and ms >= 0
            assert math.isclose(rate * each, 1000, rel_tol=1e-6) if ms else rate == 0


def test_ends(server):
    text = told(server, "in the")["text"]
    cut = server.post("/completion", {"prompt": "in the", **GREEDY, "stop": [text[2:4]]})
    assert cut["stop_type"] == "word" and cut["stopping_word"] == text[2:4] and text.startswith(cut["content"])
    form = server.post("/completion", {"prompt": "a", "grammar": 'root ::= "ab" | "ba"', "temperature": 1.0})
    assert form["content"] in ("ab", "ba") and form["stop_type"] == "eos"
    # without n_predict, until the context is full
    free = server.post("/completion", {"prompt": "in", "temperature": 0, "ignore_eos": True})
    assert free["tokens_evaluated"] + free["tokens_predicted"] == 256 and free["stop_type"] == "limit"


def test_what_is_no_prompt(server):
    for prompt in (None, 5, True, [], {}, {"prompt_string": 5}, {"prompt_string": ["a"]}, [5, None], [5, [6]], [-1],
                   [1 << 31], [1 - (1 << 32)], [[]], [["a", {}], 5], [5, 1.5]):
        error = server.post("/completion", {"prompt": prompt, "n_predict": 1}, 400)["error"]
        assert error["param"] == "prompt", prompt
    image = {"prompt_string": "a", "multimodal_data": ["x"]}
    assert "only text" in server.post("/completion", {"prompt": image}, 400)["error"]["message"]
    for token in (1 << 30, (1 << 31) - 1):  # a number of 31 bits, but in no vocabulary
        error = server.post("/completion", {"prompt": ["a", token], "n_predict": 1}, 400)["error"]
        assert str(token) in error["message"], error


def test_the_prompt_of_a_chat(server):
    messages = [{"role": "user", "content": "in"}, {"role": "assistant", "content": None}]
    asked = {"messages": messages, "chat_template": CHAT}
    prompt = server.post("/apply-template", asked)["prompt"]
    assert prompt == "user: in\nassistant: \nassistant:"
    assert server.post("/apply-template", {**asked, "add_generation_prompt": False})["prompt"] == prompt[:-10]
    chat = server.post("/chat/completions", {**asked, "max_tokens": 7, "temperature": 0, "ignore_eos": True})
    plain = server.post("/completion", {"prompt": ids(server, prompt, False), **GREEDY})
    assert chat["choices"][0]["message"]["content"] == plain["content"]
    assert server.post("/apply-template", {"messages": []}, 400)["error"]["param"] == "messages"


def test_a_prompt_that_is_only_computed(server):
    """n_predict 0, by which editors fill the cache."""
    prompt = "the cat in the hat " * 15
    for body in ({"prompt": prompt}, {"prompt": prompt, "stream": True}):
        body["n_predict"] = 0
        [end] = events(server, body) if "stream" in body else [server.post("/completion", body)]
        assert (end["content"], end["tokens"], end["stop"], end["stop_type"]) == ("", [], True, "limit")
        assert end["tokens_predicted"] == 0 and end["timings"]["predicted_n"] == 0
    assert end["timings"]["cache_n"] > 0 and end["timings"]["prompt_ms"] > 0


def test_other_paths(server):
    assert server.ask("GET", "/models")[2] == server.ask("GET", "/v1/models")[2]
    for path in ("/v1/health", "/ping"):
        assert server.ask("GET", path)[2] == {"status": "ok"}
    for path in ("/score", "/rerank", "/reranking", "/v1/reranking", "/v2/rerank"):
        assert "--embeddings" in server.post(path, {}, 400)["error"]["message"], path
    status, headers, _ = server.ask("GET", "/completions")
    assert status == 405 and headers["Allow"] == "POST"


def test_offsets_are_of_characters(server):
    """Of texts in which characters take several bytes."""
    lists = told(server, "é the \N{SNOWMAN} in", echo=True, logprobs=0)["logprobs"]
    at = 0
    assert lists["tokens"][0] == "<s>"  # which the text does not have
    for name, offset in zip(lists["tokens"], lists["text_offset"]):
        assert offset == at
        at += 0 if name == "<s>" else 1 if name.startswith("token_id:") else len(name)
