"""What a server's features cost on a GPU: streams with rules, log probabilities, forms; second turns; shared prompts;
streams beside which long prompts arrive.

python bench/server.py MODEL [--what streams turns shared mixed] [--rounds N] [--out FILE.jsonl] [--serve="OPTIONS"]

Starts mpk serve MODEL with random weights and OPTIONS, and asks it with clients of Python's standard library.  Prompts
are random token ids, answers greedy.  Of streams each row has the server's mean gap between tokens
(mpk_inter_token_seconds) and how much more that is than in the row "plain" of the same round; the first round of a form
also makes the masks that later ones find.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import statistics
import subprocess
import threading
import time

PATH = "/v1/completions"
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
PERSON = {"type": "object", "required": ["name", "age", "tags"], "additionalProperties": False, "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4}}}
SCHEMA = {"type": "array", "minItems": 60, "items": PERSON}
CASES = {
    "plain": {}, "bias": {"logit_bias": {"7": 1}}, "penalties": PENALTIES, "logprobs 5": {"logprobs": 5},
    "penalties, logprobs 5": {**PENALTIES, "logprobs": 5},
    "regex": {"ignore_eos": False, "regex": "[a-zA-Z0-9 ,.]{900}"},
    "json schema": {"ignore_eos": False, "structured_outputs": {"json": SCHEMA}},
}


class Server:
    def __init__(self, arguments):
        command = [arguments.mpk, "serve", arguments.model, "--random-weights=1", "--port=0", "-q", *arguments.options]
        self.n_ids = min(30000, json.loads((pathlib.Path(arguments.model) / "config.json").read_text())["vocab_size"])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.line = self.process.stdout.readline()
        self.port = int(re.search(r":(\d+) ", self.line)[1])

    def close(self):
        self.process.terminate()
        self.process.wait(60)

    def ask(self, **body):
        """Seconds from the request to each event of its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        start = time.perf_counter()
        connection.request("POST", PATH, json.dumps({"temperature": 0, "ignore_eos": True, "stream": True, **body}))
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        times = []
        for line in reply:
            assert b'"error"' not in line, line
            if line.startswith(b"data: {"):
                times.append(time.perf_counter() - start)
        connection.close()
        return times

    def together(self, bodies):
        """Seconds until all are answered."""
        threads = [threading.Thread(target=self.ask, kwargs=body) for body in bodies]
        start = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return time.perf_counter() - start

    def gaps(self):
        """Their sum in seconds, and how many."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        name = "mpk_inter_token_seconds_"
        return [float(re.search(rf"^{name}{part} (\S+)$", text, re.M)[1]) for part in ("sum", "count")]

    def ids(self, r, n):
        """A prompt of n tokens without those of single bytes, unless there are no others."""
        return [r.randrange(self.n_ids // 100, self.n_ids) for _ in range(n)]


def streams(server, r, arguments):
    for number in range(arguments.rounds):
        plain = None
        for name in arguments.cases:
            before = server.gaps()
            server.together([{"prompt": server.ids(r, 64), "max_tokens": arguments.tokens, **CASES[name]}
                             for _ in range(arguments.streams)])
            after = server.gaps()
            gap = (after[0] - before[0]) / (after[1] - before[1]) * 1e3
            plain = plain or gap
            yield {"what": "gap between tokens", "case": name, "streams": arguments.streams, "prompt": 64,
                   "generate": arguments.tokens, "round": number, "ms": round(gap, 4),
                   "over_plain": round(gap / plain - 1, 4)}


def turns(server, r, arguments):
    for new in (4, 64):
        first, second = [], []
        for _ in range(arguments.rounds + 1):
            text = server.ids(r, 4000)
            first.append(server.ask(prompt=text, max_tokens=8)[0])
            second.append(server.ask(prompt=text + server.ids(r, new), max_tokens=8)[0])
        yield {"what": "to the first token, at the client", "case": f"second turn, {new} new tokens after 4,000",
               "ms": [round(1e3 * t, 2) for t in second], "first_turn_ms": round(1e3 * statistics.median(first), 1)}


def shared(server, r, arguments):
    for name, more in (("prefix cache", {}), ("cache_prompt false", {"cache_prompt": False})):
        system = server.ids(r, 2000)
        seconds = server.together([{"prompt": system + server.ids(r, 64), "max_tokens": 64, **more} for _ in range(64)])
        yield {"what": "64 requests with one beginning of 2,000 tokens, 64 of their own, 64 out", "case": name,
               "s": round(seconds, 3)}


def load(server, r, arguments, n, prompts):
    """Streams of n tokens beside which prompts of 4,000 arrive, one a second: the distances of the streams' tokens in
    ms, sorted, and ms from each prompt to its first token."""
    answers, firsts = [], [None] * prompts
    start = time.perf_counter()

    def stream():
        answers.append(server.ask(prompt=server.ids(r, 64), max_tokens=n))

    def prompt(i):
        text = server.ids(r, 4000)
        time.sleep(max(0, start + 0.5 + i - time.perf_counter()))
        firsts[i] = round(1e3 * server.ask(prompt=text, max_tokens=1)[0])

    threads = [threading.Thread(target=stream) for _ in range(arguments.streams)]
    threads += [threading.Thread(target=prompt, args=(i,)) for i in range(prompts)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sorted(1e3 * (b - a) for times in answers for a, b in zip(times, times[1:])), firsts


def mixed(server, r, arguments):
    plain = None
    for prompts in (0, arguments.prompts):
        n = arguments.tokens * (4 if prompts else 1)
        gaps, firsts = load(server, r, arguments, n, prompts)
        mean = statistics.mean(gaps)
        plain = plain or mean
        yield {"what": "gap between tokens, at the client", "streams": arguments.streams, "prompt": 64, "generate": n,
               "case": f"{prompts} prompts of 4,000, one a second" if prompts else "plain", "ms": round(mean, 3),
               "p50": round(gaps[len(gaps) // 2], 2), "p99": round(gaps[len(gaps) * 99 // 100], 2),
               "largest": round(gaps[-1], 1), "speed_kept": round(plain / mean, 3), "first_token_ms": firsts}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--serve", dest="options", type=str.split, default=[], help="options of mpk serve, in one word")
    p.add_argument("--mpk", default="build/mpk")
    p.add_argument("--what", nargs="+", choices=("streams", "turns", "shared", "mixed"),
                   default=["streams", "turns", "shared", "mixed"])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--streams", type=int, default=16)
    p.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="of streams; plain first")
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--prompts", type=int, default=6, help="how many long prompts arrive")
    p.add_argument("--out", type=pathlib.Path, help="a line of JSON for each row is appended to it")
    arguments = p.parse_args()
    r = random.Random(7)
    server = Server(arguments)
    print(server.line, end="", flush=True)
    for what in arguments.what:
        for row in globals()[what](server, r, arguments):
            print(json.dumps(row), flush=True)
            if arguments.out:
                with arguments.out.open("a") as f:
                    f.write(json.dumps({"machine": server.line.split("(")[-1].split(";")[0],
                                        "options": [arguments.model, *arguments.options], **row}) + "\n")
    server.close()


if __name__ == "__main__":
    main()
