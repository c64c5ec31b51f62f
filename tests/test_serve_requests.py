"""The requests that LangChain and LiteLLM send, sent without them: what their tests sent is in client_requests.json.

A recorded request gets the answer that its client reads: calls where they must come, an object of the schema, events to
the end of a stream; and no name in it is left unread.
"""

import json

import jsonschema
import pytest

import support
import tiny
from serving import Server
from test_serve_parse import HERMES

RECORDED = json.loads((support.ROOT / "tests/client_requests.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("requests") / "tiny", max_position_embeddings=4096)


@pytest.fixture(scope="module")
def servers(folder, tmp_path_factory):
    template = tmp_path_factory.mktemp("requests") / "template"
    template.write_text(HERMES)
    with (Server(folder, "--context", 4096, "--chat-template", template, "--any-model-name") as text,
          Server(folder, "--embeddings", "--any-model-name") as vectors):
        yield {False: text, True: vectors}


def schema_of(body):
    """What the answer must fit: by the API's name of it."""
    for form in (body.get("response_format"), (body.get("text") or {}).get("format"),
                 (body.get("output_config") or {}).get("format"), body.get("output_format")):
        if form and form["type"] == "json_schema":
            return form.get("json_schema", form)["schema"]
    return None


def must_call(body):
    choice = body.get("tool_choice")
    return choice in ("required", "any") or isinstance(choice, dict) and choice["type"] in ("function", "tool", "any")


def parts(path, reply):
    """Of a document: its text, and the arguments of its calls."""
    if path == "/v1/responses":
        items = reply["output"]
        return ("".join(c["text"] for i in items if i["type"] == "message" for c in i["content"]),
                [json.loads(i["arguments"]) for i in items if i["type"] == "function_call"])
    if path == "/v1/messages":
        return ("".join(b["text"] for b in reply["content"] if b["type"] == "text"),
                [b["input"] for b in reply["content"] if b["type"] == "tool_use"])
    choice = reply["choices"][0]
    message = choice.get("message") or {"content": choice["text"]}
    return message["content"], [json.loads(c["function"]["arguments"]) for c in message.get("tool_calls") or []]


def parts_of_stream(path, content):
    """The same of the events of a stream."""
    events = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
    if path == "/v1/responses":
        assert events[-1]["type"] == "response.completed" or events[-1]["type"] == "response.incomplete"
        return parts(path, events[-1]["response"])
    if path == "/v1/messages":
        assert events[-1]["type"] == "message_stop"
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        calls = "".join(d["partial_json"] for d in deltas if d["type"] == "input_json_delta")
        return "".join(d.get("text", "") for d in deltas), [json.loads(calls)] if calls else []
    assert content.endswith("data: [DONE]\n\n")
    choices = [c for e in events for c in e["choices"]]
    calls = [c["function"] for choice in choices for c in choice.get("delta", {}).get("tool_calls") or []]
    assert not calls or calls[0]["name"]
    text = "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)
    arguments = "".join(c.get("arguments") or "" for c in calls)
    return text, [json.loads(arguments)] if arguments and len([c for c in calls if c.get("name")]) == 1 else \
        [{}] * len(calls)


def is_cut(content):
    """Did the answer end at its limit of tokens?"""
    return any(end in content for end in ('"finish_reason":"length"', '"stop_reason":"max_tokens"',
                                          '"status":"incomplete"'))


def ask(server, path, body):
    """Headers, what came, its text and calls, with a seed of its own each time: a model of random weights may draw such
    long names that its only call, or its object, is cut, and then the request is put again."""
    r = support.seed()
    for _ in range(10):
        seed = {"seed": r.randrange(1 << 30)} if body.get("seed") else {}
        status, headers, content = server.ask("POST", path, {**body, **seed}, raw=True)
        assert status == 200, content
        if path == "/v1/embeddings":
            return headers, content, None, None
        text, calls = parts_of_stream(path, content) if body.get("stream") else parts(path, json.loads(content))
        if not is_cut(content) or (calls if must_call(body) else not schema_of(body)):
            return headers, content, text, calls
    raise AssertionError("ten answers in a row were cut: " + content)


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_a_recorded_request(servers, number):
    path, body = RECORDED[number]["path"], RECORDED[number]["body"]
    headers, content, text, calls = ask(servers[path == "/v1/embeddings"], path, body)
    assert "X-Ignored-Parameters" not in headers, headers["X-Ignored-Parameters"]
    if path == "/v1/embeddings":
        assert len(json.loads(content)["data"]) == len(body["input"])
        return
    assert headers["Content-Type"] == ("text/event-stream" if body.get("stream") else "application/json")
    if must_call(body):
        assert calls, content
        tool = body["tools"][0]
        wanted = tool.get("input_schema") or tool.get("function", tool)["parameters"]
        for arguments in calls:
            jsonschema.validate(arguments, wanted if arguments else {})
    elif schema_of(body):
        jsonschema.validate(json.loads(text), schema_of(body))
    elif (body.get("response_format") or {}).get("type") == "json_object":
        assert text.lstrip().startswith("{")
    else:
        assert text or calls


def test_both_clients_are_recorded():
    assert {r["client"].split()[0] for r in RECORDED} == {"langchain-openai", "litellm"}
    assert {r["path"] for r in RECORDED} >= {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                                             "/v1/embeddings"}
