"""A short round of ./dev soak, which otherwise runs for minutes with a sanitizer; and the verdicts of
bench/server_bars.py, which runs it on a GPU."""

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


def test_bars_are_judged(monkeypatch):
    monkeypatch.syspath_prepend(support.ROOT / "bench")
    import server_bars as bars

    def met(judge, rows):
        return [b["met"] for b in judge(rows)]

    def over(*shares):
        return [{"case": case, "over_plain": share} for case in bars.STREAMS for share in shares]

    assert met(bars.bars_of_streams, over(0.5, 0.019, 0.01)) == [True] * 3
    assert met(bars.bars_of_streams, over(0.5, 0.025, 0.01)) == [False, True, True]
    assert met(bars.bars_of_streams, []) == [False] * 3
    turn = {"case": "second turn, 4 new tokens after 4,000", "ms": [30, 15, 14]}
    times = [{"case": "prefix cache", "s": 1.5}, {"case": "cache_prompt false", "s": 6.1}]
    assert met(bars.bars_of_prefixes, [turn, *times]) == [True, True]
    assert met(bars.bars_of_prefixes, [{**turn, "ms": [21]}, times[0]]) == [False, False]
    gains = [{"drafts of": kind, "planted": p, "gain": gain} for kind, p, gain in (
        ("look-up", 0.8, 2.9), ("draft model", 0.8, 1.8), ("look-up", 0.001, 0.99), ("draft model", 0.001, None))]
    assert met(bars.bars_of_drafts, gains) == [True, False, True, False]
    soaked = {"clients": 1000, "asked": 300, "seconds": 304.1}
    assert met(bars.bars_of_soak, [soaked]) == [True] and met(bars.bars_of_soak, [{**soaked, "seconds": 0}]) == [False]


class Reply:
    """Of a connection and of a server."""
    status = 200

    def __init__(self, content):
        self.content = content

    def read(self):
        return self.content

    def close(self):
        pass
