"""Answers of a given form through every face of mpk, on the demo model."""

import json
import re

import jsonschema
import pytest
import support

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"enum": [1, 2]},
                                           "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
          "required": ["name", "n", "tags"], "additionalProperties": False}
FORMS = [
    ({"json_schema": SCHEMA}, lambda t: jsonschema.validate(json.loads(t), SCHEMA)),
    ({"regex": "\\d{3}-[é-ü]{2,4}x?"}, lambda t: re.fullmatch("\\d{3}-[é-ü]{2,4}x?", t)[0]),
    ({"grammar": 'root ::= item{2,3}\nitem ::= [a-c]{1,4} "(" "a"? ")" | "é!"'},
     lambda t: re.fullmatch("(?:[a-c]+\\(.*\\)|é!){2,3}", t)[0]),
    ({"choice": ["yes", "no", "yes, but"]}, lambda t: ["yes", "no", "yes, but"].index(t)),
]

pytestmark = pytest.mark.skipif(not support.DEMO_MODEL.exists(), reason="./dev setup fetches the demo model")


def lines(tmp_path, requests, *options):
    source = tmp_path / "requests.jsonl"
    source.write_text("".join(json.dumps(r) + "\n" for r in requests))
    out, _ = support.mpk("batch", support.DEMO_MODEL, source, *options)
    return [json.loads(line) for line in out.splitlines()]


def test_batch_with_and_without_company(tmp_path):
    """Greedy and hot answers all have their form, and are the same alone and among requests without one."""
    r, requests, checks = support.seed(), [], []
    for i in range(12):
        form, check = FORMS[i % 4]
        requests.append({"prompt": "Answer: " * (1 + i), "temperature": [0, 1.5][i % 2], "max_tokens": 120,
                         "seed": r.randrange(1000), **form})
        checks.append(check)
    requests += [{"prompt": "Once", "max_tokens": 25}] * 3
    together = lines(tmp_path, requests, "--max-batch=8")
    for answer, check in zip(together, checks):
        assert answer["finish_reason"] == "stop", answer
        check(answer["text"])
    assert together[12] == together[13]
    assert lines(tmp_path, requests, "--max-batch=1") == together


def test_refusals(tmp_path):
    answers = lines(tmp_path, [
        {"prompt": "a", "json_schema": {"properties": {"x": {"not": {}}}}}, {"prompt": "a", "regex": "(?=a)"},
        {"prompt": "a", "regex": "a", "choice": ["b"]}, {"prompt": "a", "regex": "a", "ignore_eos": True},
        {"prompt": "a", "choice": []}, {"prompt": "a", "json_schema": {"minimum": 2, "maximum": 1, "type": "integer"}},
        {"prompt": "a", "regex": "abc", "allowed_token_ids": [0], "max_tokens": 5}])
    for answer, words in zip(answers, ["#/properties/x", "byte 2", "second form", "ignore_eos", "at least one",
                                       "contradicts", "other rules"]):
        assert words in answer["error"], answer


def test_masks_make_the_probable_token_the_best_allowed(tmp_path):
    """With a form that allows all, greedy tokens are those without one."""
    free = {"prompt": "The capital of France is", "max_tokens": 12}
    a, b = lines(tmp_path, [free, {**free, "regex": "[^\\x00]*"}])
    assert a["text"] == b["text"] and a["tokens"] == b["tokens"]


def test_python():
    import mpk
    with mpk.LLM(str(support.DEMO_MODEL), device="cpu") as llm:
        answer = llm.generate(["A person: "], mpk.SamplingParams(max_tokens=100, json_schema=SCHEMA))[0]
        jsonschema.validate(json.loads(answer.text), SCHEMA)
        assert llm.generate(["Yes or no? "], mpk.SamplingParams(choice=["no"]))[0].text == "no"
        short = mpk.SamplingParams(max_tokens=200, json_schema={"maxLength": 3, "type": "string"})
        assert len(json.loads(llm.generate(["{"], short)[0].text)) <= 3
        with pytest.raises(mpk.Error):
            llm.generate(["a"], mpk.SamplingParams(regex="a", choice=["b"]))


def test_command_line(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    out, _ = support.mpk("run", support.DEMO_MODEL, "-p", "JSON: ", "--json-schema", tmp_path / "s.json", "-q")
    jsonschema.validate(json.loads(out), SCHEMA)
    out, _ = support.mpk("chat", support.DEMO_MODEL, "-p", "Yes?", "--regex", "(?:no|yes)!", "-q")
    assert out.decode().strip() in ("no!", "yes!")
    _, words = support.mpk("run", support.DEMO_MODEL, "-p", "a", "--regex", "a", "--choice", "b", code=2)
    assert "give one of" in words


def test_structural_tags_everywhere(tmp_path):
    import mpk
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "choice", "choices": ["yes", "no"]}, {"type": "const_string", "value": "!"}]}}
    answer, = lines(tmp_path, [{"prompt": "Yes?", "structural_tag": tag, "max_tokens": 9}])
    assert answer["text"] in ("yes!", "no!")
    (tmp_path / "tag.json").write_text(json.dumps(tag))
    out, _ = support.mpk("run", support.DEMO_MODEL, "-p", "Yes?", "--structural-tag", tmp_path / "tag.json", "-q")
    assert out.decode().strip() in ("yes!", "no!")
    with mpk.LLM(str(support.DEMO_MODEL), device="cpu") as llm:
        assert llm.generate(["Yes?"], mpk.SamplingParams(structural_tag=tag))[0].text == answer["text"]
