"""A short round of ./dev soak, which otherwise runs for minutes with a sanitizer."""

import random

import pytest

import soak
import support
import tiny


def test_a_round(tmp_path):
    model, r = tiny.model(tmp_path / "tiny", tie_word_embeddings=False), random.Random(support.seed().random())
    assert any(sum(soak.soak_round(model, soak.draw_options(r, model), r, seconds, 8).values())
               for seconds in (2, 20, 60))  # the longer ones where the machine is so busy that none ended before


def test_a_wrong_answer_is_found():
    wanted = [[(0, "an answer", "stop", "null")]]
    load = soak.Round(None, [{}], wanted, 0, 0)
    for how, before in ((load.whole, b""), (load.stream, b"data: ")):
        for text in ("an answer", "another"):
            choice = b'{"choices": [{"index": 0, "text": "%s", "finish_reason": "stop"}]}' % text.encode()
            reply = Reply(before + choice)
            load.ask = lambda request, reply=reply: (reply, reply)
            if text == "an answer":
                assert how(0)
                continue
            with pytest.raises(AssertionError):
                how(0)


class Reply:
    """Of a connection and of a server."""
    status = 200

    def __init__(self, content):
        self.content = content

    def read(self):
        return self.content

    def close(self):
        pass
