"""Calls of tools that must come, and strict ones: whatever random weights would write, the answer obeys."""

import json
import re

import jsonschema
import pytest

import support
import tiny
from serving import CHAT, MESSAGES, Server

KIND = {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 3,
        "maximum": 4000}}, "required": ["kind", "n"], "additionalProperties": False}
FLAGS = {"type": "object", "properties": {"on": {"$ref": "#/$defs/flag"}}, "required": ["on"],
         "additionalProperties": False, "$defs": {"flag": {"type": "boolean"}}}
SCHEMAS = {"find": KIND, "set \"it\"": FLAGS}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]

# How templates write calls, each as the models named do it; the tools are in the prompt.
HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT.replace("{{ m.content }}", "{{ m.content or '' }}@")
CALL = "{% for c in m.tool_calls or [] %}{% set f = c.function %}WORDS{% endfor %}"
TEMPLATES = {
    "qwen": "<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>",
    "llama": "{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}",
    "mistral": "[TOOL_CALLS] [{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}, \"id\": \"x\"}]",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n"
                "{{ f.arguments }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek 3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}"
                    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}
TEMPLATES["mistral 2025"] = "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"
TAGGED = ("<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}<parameter={{ k }}>\n"
          "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>")
TEMPLATES["qwen coder"] = TAGGED
TEMPLATES["seed"] = TAGGED.replace("tool_call>", "seed:tool_call>").replace(">\n{{ v", ">{{ v").replace("}}\n<", "}}<")
TEMPLATES = {name: HEAD.replace("@", CALL.replace("WORDS", words)) for name, words in TEMPLATES.items()}
TEMPLATES["told"] = CHAT


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = tiny.model(tmp_path_factory.mktemp("tools") / "tiny", max_position_embeddings=8192)
    with Server(model, "--context", 8192, "--any-model-name") as s:
        yield s


def body(r, **more):
    """A chat whose answer is hot, so that every seed has another one."""
    return {"messages": MESSAGES, "temperature": 1.3, "seed": r.randrange(1 << 30), "max_tokens": 900, **more}


def check_calls(calls, names=SCHEMAS):
    assert calls
    for call in calls:
        f = call["function"]
        assert f["name"] in names and call["id"].startswith("call_") and call["type"] == "function"
        jsonschema.validate(json.loads(f["arguments"]), SCHEMAS[f["name"]])


def ended(choice):
    """A random model may go on with calls until its tokens are spent; what it has called is whole."""
    assert choice["finish_reason"] in ("tool_calls", "length")
    return choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize("many", [True, False])
@pytest.mark.draws(4)
def test_calls_that_must_come(server, style, many):
    r = support.seed()
    for choice in ["required"] * 3 + [{"type": "function", "function": {"name": "set \"it\""}}]:
        asked = body(r, tools=TOOLS, tool_choice=choice, chat_template=TEMPLATES[style], parallel_tool_calls=many)
        answer = server.post("/v1/chat/completions", asked)["choices"][0]
        calls = answer["message"].get("tool_calls", [])
        if ended(answer):
            check_calls(calls, SCHEMAS if choice == "required" else ["set \"it\""])
            assert not answer["message"]["content"]
            assert len(calls) == 1 or (many and choice == "required" and style != "llama")


EDIT = {"type": "object", "properties": {
    "mode": {"enum": ["add", "cut", 3]}, "code": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]}, "spot": {"$ref": "#/$defs/spot"},
    "many": {"type": "array", "items": {"$ref": "#/$defs/spot"}, "maxItems": 2}},
    "required": ["mode", "code", "note", "spot"], "$defs": {"spot": {
        "type": "object", "properties": {"x": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["x"],
        "additionalProperties": False}}}


@pytest.mark.parametrize("style", ["qwen coder", "seed"])
def test_arguments_in_tags(server, style):
    """Each argument stands in a tag of its own, as a text or as JSON; tests/tagged_test.c has other schemas."""
    r, tool = support.seed(), {"type": "function", "function": {"name": "edit", "parameters": EDIT}}
    for _ in range(4):
        answer = server.post("/v1/chat/completions", body(
            r, tools=[tool], tool_choice={"type": "function", "function": {"name": "edit"}},
            chat_template=TEMPLATES[style]))["choices"][0]
        assert answer["finish_reason"] == "tool_calls"
        call, = answer["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), EDIT)


def test_a_tool_that_may_not_be_called_is_not_looked_at(server):
    """A schema that no tags can hold is refused, but not beside the one tool that the request names."""
    r, other = support.seed(), {"type": "function", "function": {
        "name": "other", "parameters": {"type": "object", "anyOf": [{}]}}}
    asked = body(r, tools=[*TOOLS, other], chat_template=TEMPLATES["seed"])
    reply = server.post("/v1/chat/completions", {**asked, "tool_choice": "required"}, 400)
    assert "each argument by itself" in reply["error"]["message"]
    one = {"type": "function", "function": {"name": TOOLS[0]["function"]["name"]}}
    answer = server.post("/v1/chat/completions", {**asked, "tool_choice": one})["choices"][0]
    if ended(answer):
        check_calls(answer["message"]["tool_calls"], [TOOLS[0]["function"]["name"]])


def test_ids_of_the_prompt_come_once_in_a_stream(server):
    asked = {"messages": MESSAGES, "chat_template": CHAT, "max_tokens": 3, "n": 3, "temperature": 1, "ignore_eos": True,
             "return_token_ids": True}
    whole = server.post("/v1/chat/completions", asked)
    told = [e["prompt_token_ids"] for e in server.stream("/v1/chat/completions", asked) if "prompt_token_ids" in e]
    assert told == [whole["prompt_token_ids"]] and told[0]


def test_streams(server):
    r = support.seed()
    for style, template in TEMPLATES.items():
        asked = body(r, tools=TOOLS, tool_choice="required", chat_template=template, parallel_tool_calls=False)
        whole = server.post("/v1/chat/completions", asked)["choices"][0]["message"]["tool_calls"]
        deltas = [e["choices"][0] for e in server.stream("/v1/chat/completions", asked)]
        calls = [c for d in deltas for c in d["delta"].get("tool_calls", [])]
        assert [c["function"] for c in calls] == [c["function"] for c in whole], style
        check_calls(calls)
        assert not any(d["delta"].get("content") for d in deltas) and deltas[-1]["finish_reason"] == "tool_calls"


def test_strict_tools_bind_calls_alone(server):
    """With tool_choice auto an answer is a text, or begins calls, which are then valid."""
    r = support.seed()
    strict = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
    for style in ("qwen", "llama", "deepseek", "deepseek 3.1", "qwen coder", "seed", "mistral 2025", "told"):
        start = {"qwen": "<tool_call>", "qwen coder": "<tool_call>", "seed": "<seed:tool_call>", "llama": "{",
                 "mistral 2025": "[TOOL_CALLS]", "told": "<tool_call>"}.get(style, "<｜tool▁calls▁begin｜>")
        bias = {str(server.post("/tokenize", {"content": start})["tokens"][0]): 6}
        for logit_bias in ({}, bias):
            asked = body(r, tools=strict, chat_template=TEMPLATES[style], max_tokens=400, logit_bias=logit_bias,
                         parallel_tool_calls=False)
            answer = server.post("/v1/chat/completions", asked)["choices"][0]
            if answer["message"].get("tool_calls"):
                check_calls(answer["message"]["tool_calls"])
            else:
                assert answer["message"]["content"] or answer["finish_reason"] == "stop"
            if style == "llama" and answer["finish_reason"] == "stop" and not answer["message"].get("tool_calls"):
                assert not answer["message"]["content"].lstrip().startswith(("{", "["))


def test_strict_tools_beside_a_form(server):
    """An answer is calls, or has the form that was asked for."""
    r = support.seed()
    strict = [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS]
    forms = [{"guided_choice": ["yes", "no"]}, {"regex": "[yn]{2}"}, {"grammar": "root ::= [yn] [yn]"},
             {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1, 2]}}}}]
    for form in forms:
        answer = server.post("/v1/chat/completions", body(r, tools=strict, chat_template=TEMPLATES["qwen"],
                                                          parallel_tool_calls=False, **form))["choices"][0]["message"]
        if answer.get("tool_calls"):
            check_calls(answer["tool_calls"])
        else:
            assert answer["content"] in ("yes", "no", "1", "2") or set(answer["content"]) <= set("yn")


def test_reasoning_comes_before_the_form(server):
    """Where the prompt begins the reasoning, calls and forms begin when it ends."""
    r = support.seed()
    thinks = TEMPLATES["qwen"].replace("assistant:", "assistant: <think>\n")
    end = server.post("/tokenize", {"content": "</think>"})["tokens"]
    for more in ({"tools": TOOLS, "tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        asked = body(r, chat_template=thinks, parallel_tool_calls=False, logit_bias={str(t): 5 for t in end}, **more)
        answer = server.post("/v1/chat/completions", {**asked, "max_tokens": 6000})["choices"][0]
        if answer["finish_reason"] == "length":
            continue
        if "tools" in more:
            check_calls(answer["message"]["tool_calls"])
        else:
            assert isinstance(json.loads(answer["message"]["content"]), dict)


def test_a_form_after_reasoning_of_the_answer(tmp_path):
    """A model with a token <think> may reason before the form that was asked for, and before calls that must come,
    unless its prompt says that the reasoning is over."""
    folder = tiny.model(tmp_path / "thinks", marks=["<think>", "</think>"], max_position_embeddings=2048)
    with Server(folder, "--context", 2048) as s:
        begins, ends = s.post("/tokenize", {"content": "<think></think>"})["tokens"]
        r = support.seed()
        for more in ({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
                     {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": KIND}}}):
            for bias, prompt in ((100, "assistant:"), (-100, "assistant:"), (100, "assistant:<think>\n\n</think>\n")):
                template = TEMPLATES["qwen"].replace("assistant:", prompt)
                asked = body(r, chat_template=template, logit_bias={str(begins): bias, str(ends): 100}, **more)
                choice = s.post("/v1/chat/completions", {**asked, "return_token_ids": True})["choices"][0]
                message = choice["message"]
                assert (choice["token_ids"][0] == begins) == (bias > 0 and prompt.endswith(":"))
                assert message.get("reasoning") == message.get("reasoning_content")
                if "tools" in more:
                    check_calls(message["tool_calls"])
                else:
                    jsonschema.validate(json.loads(message["content"]), KIND)


def test_other_apis(server):
    r = support.seed()
    for choice, name in (({"type": "any", "disable_parallel_tool_use": True}, None),
                         ({"type": "tool", "name": "find"}, "find")):
        reply = server.post("/v1/messages", {
            "model": "x", "messages": MESSAGES, "max_tokens": 600, "temperature": 1.0, "tool_choice": choice,
            "chat_template": TEMPLATES["qwen"], "seed": r.randrange(1 << 30),
            "tools": [{"name": n, "input_schema": s} for n, s in SCHEMAS.items()]})
        assert reply["stop_reason"] == "tool_use" and len(reply["content"]) == 1
        block = reply["content"][0]
        assert block["type"] == "tool_use" and block["name"] in ([name] if name else SCHEMAS)
        jsonschema.validate(block["input"], SCHEMAS[block["name"]])
    for choice in ("required", {"type": "function", "name": "find"}):
        reply = server.post("/v1/responses", {
            "input": "a", "tool_choice": choice, "parallel_tool_calls": False, "chat_template": TEMPLATES["qwen"],
            "temperature": 1.3, "seed": r.randrange(1 << 30), "max_output_tokens": 600,
            "tools": [{"type": "function", "name": n, "parameters": s, "strict": True} for n, s in SCHEMAS.items()]})
        item, = reply["output"]
        assert item["type"] == "function_call" and item["name"] in (["find"] if choice != "required" else SCHEMAS)
        jsonschema.validate(json.loads(item["arguments"]), SCHEMAS[item["name"]])


def test_structural_tags(server):
    r = support.seed()
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "<<"}, {"type": "tags_with_separator", "separator": ",", "at_least_one": True,
         "tags": [{"type": "tag", "begin": "n=", "content": {"type": "json_schema", "json_schema": {"enum": [1, 22]}},
                   "end": [";", "."]},
                  {"type": "tag", "begin": "t=", "content": {"type": "any_text"}, "end": "}"}]},
        {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]{2}"}, {"type": "const_string", "value": "x"},
                                    {"type": "grammar", "grammar": "root ::= \"g\""}]}]}}
    one = "(?:n=(?:1|22)[;.]|t=[^}]*\\})"
    for form in ({"response_format": tag}, {"structural_tag": json.dumps(tag)},
                 {"structured_outputs": {"structural_tag": tag}}):
        answer = server.post("/v1/completions", {"prompt": "a", "temperature": 1.2, "seed": r.randrange(1 << 30),
                                                 "max_tokens": 4000, **form})["choices"][0]
        if answer["finish_reason"] == "stop":
            assert re.fullmatch(f"<<{one}(?:,{one})*(?:[0-9]{{2}}|x|g)", answer["text"], re.S), answer


@pytest.mark.parametrize("more, words", [
    ({"tool_choice": "required"}, "no 'tools'"), ({"tool_choice": {}, "tools": TOOLS}, "is none of"),
    ({"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": TOOLS}, "not in 'tools'"),
    ({"tool_choice": "required", "tools": TOOLS, "ignore_eos": True}, "ignore_eos"),
    ({"tool_choice": "required", "tools": TOOLS, "chat_template": HEAD.replace("@", CALL.replace(
        "WORDS", "<tool_call>\n<function={{ f.name }}>"))}, "none of the forms"),
    ({"tools": [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}],
      "chat_template": TEMPLATES["mistral"]}, "has no text"),
    ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "not": {}}}}]}, "\"not\""),
    ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "anyOf": [{}]}}}], "chat_template": TEMPLATES["seed"]}, "each argument by itself"),
    ({"structural_tag": {"format": {"type": "tag"}}}, "begin"),
    ({"structural_tag": {"format": {"type": "x"}}}, "\"x\""),
    ({"structural_tag": "{"}, "structural tag"), ({"regex": "("}, "regular expression"),
])
def test_refusals(server, more, words):
    reply = server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template": CHAT, **more}, 400)
    assert words in reply["error"]["message"]
    assert server.ask("GET", "/health")[0] == 200
