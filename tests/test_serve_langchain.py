"""LangChain against mpk serve: the calls of its documents, beside what the server answers by itself.

LangChain is not among the packages of tests/requirements.txt, since it wants another version of openai: `pip install
--target FOLDER langchain-openai` and PYTHONPATH=FOLDER add it, else these tests say that they were left out.  What it
sends is in client_requests.json, which test_serve_requests.py sends without it.
"""

import asyncio
import os

import pytest

import support
import tiny
from serving import MESSAGES, Server
from test_serve_parse import HERMES, Box, check

os.environ.setdefault("LANGSMITH_TRACING", "false")  # else it tells another host
langchain = pytest.importorskip("langchain_openai", reason="not installed: pip install langchain-openai")
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage  # noqa: E402, of the same package
from langchain_core.output_parsers import StrOutputParser  # noqa: E402
from langchain_core.prompts import ChatPromptTemplate  # noqa: E402
from langchain_core.tools import tool  # noqa: E402


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("langchain")
    (folder / "template").write_text(HERMES)
    with Server(tiny.model(folder / "tiny", max_position_embeddings=4096), "--context", 4096, "--chat-template",
                folder / "template", "--any-model-name") as s:
        yield s


def reach(server):
    return {"base_url": f"http://{server.host}:{server.port}/v1", "api_key": "none", "max_retries": 0, "model": "gpt"}


def chat(server, **more):
    return langchain.ChatOpenAI(**{"temperature": 1.0, "seed": support.seed().randrange(1000), "max_tokens": 20,
                                   **reach(server), **more})


def own(server, model):
    body = {"messages": MESSAGES, "max_tokens": 20, "temperature": 1.0, "seed": model.seed}
    return server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]


def test_invoke_stream_and_batch(server):
    model = chat(server, stream_usage=True)
    text = own(server, model)
    whole = model.invoke([HumanMessage("in the")])
    assert whole.content == text and whole.usage_metadata["input_tokens"] > 0
    chunks = list(model.stream("in the"))
    assert "".join(c.content for c in chunks) == text
    assert sum(c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata) <= 20
    assert [m.content for m in model.batch(["in the", "in the"])] == [text, text]
    chain = ChatPromptTemplate.from_messages([("user", "in {what}")]) | model | StrOutputParser()
    assert chain.invoke({"what": "the"}) == "".join(chain.stream({"what": "the"})) == text

    async def later():
        parts = [c.content async for c in model.astream("in the")]
        return "".join(parts), (await model.ainvoke("in the")).content

    assert asyncio.run(later()) == (text, text)


def test_parameters(server):
    model = chat(server, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.2, logprobs=True, top_logprobs=2, n=2,
                 stop_sequences=["zz"], extra_body={"top_k": 40, "repetition_penalty": 1.1})
    reply = model.generate([[SystemMessage("a"), HumanMessage("in the")]])
    assert len(reply.generations[0]) == 2
    first = reply.generations[0][0].message.response_metadata
    assert len(first["logprobs"]["content"][0]["top_logprobs"]) == 2


@pytest.mark.parametrize("choice", ["any", "add", True])
def test_tools(server, choice):
    model = chat(server, max_tokens=400).bind_tools([add], tool_choice=choice)
    message = model.invoke("in the")
    assert message.tool_calls and not message.invalid_tool_calls
    results = [add.invoke(call) for call in message.tool_calls]
    assert all(isinstance(r, ToolMessage) and r.content for r in results)
    whole = None
    for chunk in model.stream("in the"):
        whole = chunk if whole is None else whole + chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [(c["name"], c["args"]) for c in message.tool_calls]
    history = [HumanMessage("in the"), message, *results]
    assert isinstance(chat(server).bind_tools([add]).invoke(history).content, str)  # what came back goes in again


def test_strict_tools(server):
    message = chat(server, max_tokens=400).bind_tools([Box], strict=True, tool_choice="Box").invoke("in the")
    check(Box(**message.tool_calls[0]["args"]))


def test_responses(server):
    model = chat(server, use_responses_api=True, seed=None, temperature=0)
    message = model.invoke("in the")
    assert message.text and "".join(c.text for c in model.stream("in the")) == message.text
    long = chat(server, use_responses_api=True, seed=None, max_tokens=2000)
    assert long.bind_tools([add], tool_choice="any").invoke("in the").tool_calls[0]["name"] == "add"
    check(long.with_structured_output(Box, method="json_schema").invoke("in the"))


def test_text_completion(server):
    model = langchain.OpenAI(**reach(server), temperature=0, max_tokens=8)
    text = server.complete(ignore_eos=False)["choices"][0]["text"]
    assert model.invoke("in the") == "".join(model.stream("in the")) == text


def test_embeddings(tmp_path):
    with Server(tiny.model(tmp_path / "tiny"), "--embeddings", "--any-model-name") as s:
        own = [d["embedding"] for d in s.post("/v1/embeddings", {"input": ["in the", "a"]})["data"]]
        vectors = langchain.OpenAIEmbeddings(**reach(s), check_embedding_ctx_length=False)
        got = vectors.embed_documents(["in the", "a"])
        assert [[round(x, 5) for x in v] for v in got] == [[round(x, 5) for x in v] for v in own]
        assert vectors.embed_query("a") == got[1]
