"""Texts between two texts: /infill and `suffix`, for a model with tokens for gaps and for one without."""

import json

import pytest

import tiny
from serving import Server, model, server  # noqa: F401, fixtures

MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    with Server(tiny.model(tmp_path_factory.mktemp("infill") / "filler", special=MARKS)) as s:
        yield s


def ids(s, words, special=False):
    return s.post("/tokenize", {"content": words, "add_special": special})["tokens"]


def prompt_of(s, before, after, begun="", extras=()):
    prefix, suffix, middle, file = (ids(s, mark)[0] for mark in MARKS)
    others = [t for name, words in extras for t in [file, *ids(s, name), *ids(s, "\n"), *ids(s, words)]]
    return [*ids(s, "", True), *others, prefix, *ids(s, before), suffix, *ids(s, after), middle, *ids(s, begun)]


@pytest.mark.parametrize("begun, extras", [("", []), (" in", []), ("", [("a.py", "the in"), ("b.py", "x\ny")])])
def test_a_gap_is_a_prompt_with_marks(filler, begun, extras):
    prompt = prompt_of(filler, "def f():\n    the", "\nreturn in", begun, extras)
    text = filler.complete(prompt, max_tokens=9)["choices"][0]["text"]
    asked = {"input_prefix": "def f():\n    the", "input_suffix": "\nreturn in", "n_predict": 9, "prompt": begun,
             "input_extra": [{"filename": name, "text": words} for name, words in extras], **GREEDY}
    reply = filler.post("/infill", asked)
    assert reply["content"] == text and reply["stop"] and reply["stop_type"] == "limit"
    assert reply["tokens_evaluated"] == len(prompt) and reply["tokens_predicted"] == 9
    _, headers, stream = filler.ask("POST", "/infill", {**asked, "stream": True}, raw=True)
    events = [json.loads(e[6:]) for e in stream.split("\n\n")[:-1]]
    assert "".join(e["content"] for e in events) == text and [e["stop"] for e in events][-1]
    assert not any(e["stop"] for e in events[:-1]) and "X-Ignored-Parameters" not in headers


def test_suffix_of_completions(filler):
    text = filler.complete(prompt_of(filler, "the", "in"))["choices"][0]["text"]
    assert filler.complete("the", suffix="in")["choices"][0]["text"] == text
    for more in ({"prompt": [1, 2]}, {"echo": True}, {"suffix": 1}):
        filler.post("/v1/completions", {"prompt": "the", "suffix": "in", **more}, 400)


def test_several_answers_and_stops(filler):
    asked = {"input_prefix": "the", "input_suffix": "", "n_predict": 6, "temperature": 1.0, "n": 2, "seed": 5}
    two = filler.post("/infill", asked)
    assert len(two) == 2 and all(r["stop"] for r in two)
    whole = filler.post("/infill", {**asked, "n": 1, **GREEDY})["content"]
    cut = filler.post("/infill", {**asked, "n": 1, "stop": [whole[1:3]], **GREEDY})
    assert cut["stop_type"] == "word" and cut["stopping_word"] == whole[1:3] and cut["content"] in whole


def test_refusals(filler, server):
    for more in ({"input_prefix": 1}, {"input_suffix": None}, {"input_extra": {}}, {"input_extra": [{"text": 1}]},
                 {"input_extra": [{"filename": 1, "text": "a"}]}, {"prompt": [1]}, {"mirostat": 1}, {"n_predict": "x"}):
        filler.post("/infill", {"input_prefix": "a", "input_suffix": "b", **more}, 400)
    assert filler.ask("POST", "/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2,
                                          "colour": 1})[1]["X-Ignored-Parameters"] == "colour"
    for path, body in (("/infill", {"input_prefix": "a", "input_suffix": "b"}),
                       ("/v1/completions", {"prompt": "a", "suffix": "b"})):
        assert "cannot fill gaps" in server.post(path, body, 400)["error"]["message"]
    long = filler.post("/infill", {"input_prefix": "the " * 400, "input_suffix": "b"}, 400)["error"]
    assert long["code"] == "context_length_exceeded"
    words = "the " * 40000
    for more in ({"prompt": words}, {"input_extra": [{"text": words}]}, {"input_extra": [{"text": "the " * 900}] * 2}):
        asked = {"input_prefix": "a", "input_suffix": "b", **more}
        long = filler.post("/infill", asked, 400)["error"]
        assert long["code"] == "context_length_exceeded" and "bytes" in long["message"]
    long = filler.post("/completion", {"prompt": [1, words]}, 400)["error"]
    assert long["code"] == "context_length_exceeded" and f"{len(words)} bytes" in long["message"]
