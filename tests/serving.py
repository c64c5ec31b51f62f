"""What the tests of mpk serve share: tiny models for a server, requests, templates."""

import json

import pytest

import tiny
from servers import Server

CHAT = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}")
THINKING = CHAT.replace("assistant:", "assistant: <think>\n")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """An answer of this model takes so long that every test is over before."""
    return tiny.model(tmp_path_factory.mktemp("serve") / "endless", max_position_embeddings=1 << 20)


@pytest.fixture(scope="module")
def server(model):
    with Server(model) as s:
        yield s


@pytest.fixture(scope="module")
def busy(endless):
    """A server whose requests run until they are cancelled."""
    with Server(endless, "--context", 1 << 20, "--max-batch", 2, "--kv-tokens", 1 << 21, "--grace", 0) as s:
        yield s


LONG = {"prompt": "in the", "max_tokens": 1 << 20, "ignore_eos": True, "temperature": 0}
MESSAGES = [{"role": "user", "content": "in the"}]


def chat(server, **more):
    return server.post("/v1/chat/completions", {"messages": MESSAGES, "chat_template": CHAT, "max_tokens": 12,
                                                "temperature": 0, "ignore_eos": True, **more})


def begin(server, stream, receive_bytes=None, **more):
    """A connection whose request is in the engine."""
    body = json.dumps({**LONG, "stream": stream, **more}).encode()
    c = server.connect(receive_bytes)
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return c
