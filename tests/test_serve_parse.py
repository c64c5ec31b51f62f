"""Typed answers through the clients that people use: openai's parse and LangChain's with_structured_output.

The model has random weights, so only what the server enforces makes these answers valid.  LangChain is not among the
packages of tests/requirements.txt, since it wants another version of openai: `pip install --target FOLDER
langchain-openai` and PYTHONPATH=FOLDER add it, else its test says that it was left out.
"""

import enum

import openai
import pydantic
import pytest

import support
import tiny
from serving import CHAT, MESSAGES, Server

CALLS = ("{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": "
         "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}")
HERMES = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHAT.replace("{{ m.content }}",
                                                                        "{{ m.content or '' }}" + CALLS)


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Part(pydantic.BaseModel):
    colour: Colour
    fits: bool


class Box(pydantic.BaseModel):
    """What is in a box."""
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Colour
    parts: list[Part] = pydantic.Field(max_length=2)
    spare: Part | None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parse")
    model = tiny.model(folder / "tiny", max_position_embeddings=4096)
    (folder / "template").write_text(HERMES)
    with Server(model, "--context", 4096, "--chat-template", folder / "template", "--any-model-name") as s:
        yield s


def check(box):
    assert isinstance(box, Box) and isinstance(box.kind, Colour) and len(box.parts) <= 2


@pytest.mark.parametrize("repeat", range(3))
def test_openai_parse(server, repeat):
    client = server.client()
    more = {"model": "gpt", "temperature": 1.2, "extra_body": {"seed": support.seed().randrange(1 << 30)}}
    chat = client.chat.completions.parse(messages=MESSAGES, response_format=Box, **more).choices[0]
    assert chat.finish_reason == "stop" and chat.message.refusal is None
    check(chat.message.parsed)
    check(client.responses.parse(input="in the", text_format=Box, **more).output_parsed)
    tools = [openai.pydantic_function_tool(Box)]
    call = client.chat.completions.parse(messages=MESSAGES, tools=tools, tool_choice="required",
                                         parallel_tool_calls=False, **more).choices[0].message.tool_calls[0]
    assert call.function.name == "Box"
    check(call.function.parsed_arguments)


def test_openai_parse_of_a_stream(server):
    with server.client().chat.completions.stream(messages=MESSAGES, response_format=Box, model="gpt",
                                                 temperature=1.2, seed=support.seed().randrange(1 << 30)) as stream:
        kinds = {event.type for event in stream}
        check(stream.get_final_completion().choices[0].message.parsed)
    assert {"chunk", "content.delta", "content.done"} <= kinds


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain(server, method):
    """Of json_mode only JSON is promised: that it fits the class is then the model's affair."""
    langchain = pytest.importorskip("langchain_openai", reason="not installed: pip install langchain-openai")
    chat = langchain.ChatOpenAI(model="gpt", base_url=f"http://{server.host}:{server.port}/v1", api_key="none",
                                temperature=1.2, seed=support.seed().randrange(1 << 30), max_retries=0, max_tokens=2000)
    typed = chat.with_structured_output(Box, method=method, include_raw=True)
    reply = typed.invoke("in the")
    if method != "json_mode":
        assert not reply["parsing_error"]
        check(reply["parsed"])
        check(list(chat.with_structured_output(Box, method=method).stream("in the"))[-1])
    else:
        assert reply["raw"].content.lstrip().startswith("{")
