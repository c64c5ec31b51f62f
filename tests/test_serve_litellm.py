"""LiteLLM against mpk serve: the calls of its documents, beside what the server answers by itself.

LiteLLM is not among the packages of tests/requirements.txt: `pip install --target FOLDER litellm mcp` and
PYTHONPATH=FOLDER add it, else these tests say that they were left out.  (It imports mcp, which it does not ask for.)
"""

import asyncio
import json
import os

import pytest

import support
import tiny
from serving import MESSAGES, Server
from test_serve_parse import HERMES

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing it asks another host
litellm = pytest.importorskip("litellm", reason="not installed: pip install litellm mcp")
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 99}}, "required": ["a"],
    "additionalProperties": False}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": {
    "type": "object", "properties": {"fits": {"type": "boolean"}}, "required": ["fits"],
    "additionalProperties": False}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("litellm")
    (folder / "template").write_text(HERMES)
    with Server(tiny.model(folder / "tiny", max_position_embeddings=1024), "--context", 1024, "--chat-template",
                folder / "template") as s:
        yield s


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    with Server(tiny.model(tmp_path_factory.mktemp("litellm") / "tiny"), "--embeddings") as s:
        yield s


def reach(server, provider="openai"):
    return {"model": f"{provider}/tiny", "api_base": f"http://{server.host}:{server.port}/v1", "api_key": "none",
            "max_retries": 0}


def answer(server, **more):
    return server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 12, **more})["choices"][0]


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_completions(server, provider):
    wanted = dict(messages=MESSAGES, max_tokens=12, temperature=1.0, seed=support.seed().randrange(1000), stop=["zz"],
                  top_p=0.9, **reach(server, provider))
    text = answer(server, temperature=1.0, seed=wanted["seed"], top_p=0.9, stop=["zz"])["message"]["content"]
    whole = litellm.completion(**wanted)
    assert whole.choices[0].message.content == text and whole.usage.completion_tokens <= 12
    chunks = list(litellm.completion(**wanted, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert litellm.stream_chunk_builder(chunks, messages=MESSAGES).usage.prompt_tokens == whole.usage.prompt_tokens

    async def later():
        return await asyncio.gather(*(litellm.acompletion(**wanted) for _ in range(3)))

    assert [r.choices[0].message.content for r in asyncio.run(later())] == 3 * [text]


def test_text_completion(server):
    wanted = dict(prompt="in the", max_tokens=8, temperature=0, **reach(server, "text-completion-openai"))
    text = server.complete(ignore_eos=False)["choices"][0]["text"]
    assert litellm.text_completion(**wanted).choices[0].text == text
    assert "".join(c.choices[0].text or "" for c in litellm.text_completion(**wanted, stream=True)) == text


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_schemas(server, stream):
    draw = dict(messages=MESSAGES, temperature=1.0, max_tokens=400, seed=support.seed().randrange(1000),
                **reach(server))

    def ask(**more):
        reply = litellm.completion(**draw, **more, stream=stream)
        return (litellm.stream_chunk_builder(list(reply)) if stream else reply).choices[0].message

    call, = ask(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).tool_calls
    assert call.function.name == "add" and json.loads(call.function.arguments)["a"] <= 99
    assert isinstance(json.loads(ask(response_format=SCHEMA).content)["fits"], bool)


def test_embeddings(vectors):
    own = vectors.post("/v1/embeddings", {"input": ["in the", "a"]})["data"]
    reply = litellm.embedding(input=["in the", "a"], encoding_format="float", **reach(vectors))
    assert [d["embedding"] for d in reply.data] == [d["embedding"] for d in own]


def test_errors_have_their_classes(server):
    with pytest.raises(litellm.exceptions.BadRequestError, match="temperature"):
        litellm.completion(messages=MESSAGES, temperature=-1, **reach(server))
    with pytest.raises(litellm.exceptions.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "a " * 3000}], **reach(server))
    with pytest.raises(litellm.exceptions.NotFoundError):
        litellm.completion(messages=MESSAGES, **{**reach(server), "model": "openai/other"})


def test_other_apis(server):
    """OpenAI's responses (of which LiteLLM asks for 16 tokens at least), and its provider for Anthropic's messages."""
    own = answer(server, temperature=0, max_tokens=16)["message"]["content"]
    at = {"api_key": "none", "max_retries": 0}
    reply = litellm.responses(model="openai/tiny", input="in the", max_output_tokens=16, temperature=0,
                              api_base=f"http://{server.host}:{server.port}/v1", **at)
    assert reply.output[0].content[0].text == own
    wanted = dict(model="anthropic/tiny", messages=MESSAGES, max_tokens=16, temperature=0,
                  api_base=f"http://{server.host}:{server.port}", **at)
    assert litellm.completion(**wanted).choices[0].message.content == own
    assert "".join(c.choices[0].delta.content or "" for c in litellm.completion(**wanted, stream=True)) == own
    call, = litellm.completion(**{**wanted, "max_tokens": 400, "temperature": 1.0}, tools=[TOOL],
                               tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
    assert call.function.name == "add" and json.loads(call.function.arguments)["a"] <= 99
