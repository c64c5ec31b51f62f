"""./dev soak: mpk serve under random load; every answer that ends is that of its request alone.

Rounds of half a minute or so.  Each draws requests that begin alike and go on apart (greedy and sampled, with
penalties, log probabilities, forms, several answers, stop tokens, priorities), asks a server for one at a time, without
a prefix cache, what their answers are, and then puts them again and again to a server whose size it has drawn: few or
many places, little KV memory so that answers are put back (on a GPU: pause), small steps, speculation or not, a draft
model, a prefix cache that forgets.  Of its clients, each a connection, some stream, some leave in the midst, some
before anything has come.  At the end of a round nothing runs, nothing holds KV memory, and the server ends by itself
without a word of a sanitizer.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import resource
import socket
import sys
import tempfile
import threading
import time

from servers import WAIT, Server

PATH = "/v1/completions"
FORMS = ({"regex": "[a-z]{3,9}( [0-9]+)*"}, {"guided_choice": ["a thing", "some things", "in an end"]},
         {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
                          "required": ["a"], "additionalProperties": False}})


def draw_request(r, stories):
    n = r.choice((1, 30, 64, 65, 128, 150, 200))
    shared = r.choice((0, n, r.randrange(n + 1)))
    request = {"prompt": r.choice(stories)[:shared] + [r.randrange(250) for _ in range(n - shared)],
               "max_tokens": r.choice((1, 5, 40, 120)), "temperature": r.choice((0, 1.0)), "seed": r.randrange(1000)}
    if r.random() < 0.3:
        request |= {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "bad_words": ["the"]}
    if r.random() < 0.3:
        request["logprobs"] = 2
    if r.random() < 0.2:
        request["n"] = 2
    if r.random() < 0.2:
        request["cache_salt"] = r.choice(("a", "b"))
    if r.random() < 0.2:
        request |= {"stop_token_ids": r.sample(range(250), 12), "include_stop_str_in_output": r.random() < 0.5}
    if r.random() < 0.3:
        request["priority"] = r.choice((-1, 1, 2))
    if r.random() < 0.2:
        request |= r.choice(FORMS)
    else:
        request["ignore_eos"] = True
    return request


def draw_options(r, draft, short=False):
    """Of a server on a CPU; short: its KV memory never suffices for all its places."""
    options = ["--max-batch", r.choice((5, 16) if short else (2, 5, 16)),
               "--kv-tokens", r.choice((320, 640) if short else (320, 640, 4096)),
               "--step-tokens", r.choice((16, 64, 512)), "--threads", r.choice((1, 2, 3))]
    return options + r.choice(([], ["--speculate=ngram"], ["--no-prefix-cache"],
                               ["--draft-model", draft, *r.choice(([], ["--speculate=ngram"]))]))


def draw_options_gpu(r, short=False):
    """Steps filled apart, so that company changes no bit; only two numbers of places, as each is a kernel.  Pieces of
    prompts of 64 tokens, since only whole pieces are shared."""
    return ["--batch-invariant", "--random-weights", 1, "--context", 512, "--step-tokens", 64,
            "--max-batch", r.choice((5, 16)),
            "--kv-tokens", r.choice((640, 1280) if short else (640, 1280, 4096)),
            *r.choice(([], ["--no-prefix-cache"], ["--speculate=ngram"]))]


def answer_of(choice):
    return choice["index"], choice["text"], choice["finish_reason"], json.dumps(choice.get("logprobs"))


def answers_of_stream(events):
    """As of one document; log probabilities come in parts, which are left out."""
    texts, ends = collections.defaultdict(str), {}
    for line in events:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
                ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
    return sorted((i, text, ends[i]) for i, text in texts.items())


class Round:
    def __init__(self, server, requests, wanted, seed, deadline):
        self.server, self.requests, self.wanted, self.deadline = server, requests, wanted, deadline
        self.seed, self.faults, self.counts = seed, [], collections.Counter()
        self.wait = WAIT  # seconds after which a client takes its answer for lost
        self.lock = threading.Lock()

    def ask(self, request):
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=self.wait)
        connection.request("POST", PATH, json.dumps(request))
        return connection, connection.getresponse()

    def leave(self, r, request):
        """Hang up before, or in the midst of, what comes."""
        body = json.dumps({**request, "stream": r.random() < 0.7}).encode()
        with socket.create_connection((self.server.host, self.server.port), timeout=self.wait) as c:
            c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(body)) + body)
            if r.random() < 0.7:
                c.recv(r.choice((1, 300, 2000)))
        return "left"

    def stream(self, i):
        connection, reply = self.ask({**self.requests[i], "stream": True})
        assert reply.status == 200, reply.read()
        got = answers_of_stream(reply.read().split(b"\n"))
        connection.close()
        assert got == [a[:3] for a in self.wanted[i]], ("stream", self.requests[i], got, self.wanted[i])
        return "streamed"

    def whole(self, i):
        connection, reply = self.ask(self.requests[i])
        content = json.loads(reply.read())
        connection.close()
        assert reply.status == 200, content
        got = [answer_of(c) for c in content["choices"]]
        assert got == self.wanted[i], (self.requests[i], got, self.wanted[i])
        return "whole"

    def client(self, number):
        r = random.Random(f"{self.seed} {number}")
        try:
            first = True  # however late it is
            while (first or time.monotonic() < self.deadline) and not self.faults:
                first = False
                i = r.randrange(len(self.requests))
                how = self.leave(r, self.requests[i]) if r.random() < 0.2 else r.choice((self.stream, self.whole))(i)
                with self.lock:
                    self.counts[how] += 1
        except Exception as e:  # the round goes on to its end, then tells
            self.faults.append(repr(e))

    def run(self, n_clients):
        self.wait *= 1 + n_clients // 20  # they share the machine
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(n_clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not self.faults, self.faults[0]
        for name in ("mpk_requests_running", "mpk_requests_waiting", "mpk_kv_tokens_used"):
            self.server.wait_metric(name, 0)


def alone_options(options):
    """Of the server that tells what the answers are: the plainest on a CPU (2 places: for requests of two answers), on
    a GPU the same kernel, without drafts."""
    if "--batch-invariant" not in options:
        return ["--max-batch", 2]
    return [o for o in options if o not in ("--no-prefix-cache", "--speculate=ngram")]


def soak_round(model, options, r, seconds, n_clients):
    stories = [[r.randrange(250) for _ in range(256)] for _ in range(3)]
    requests = [draw_request(r, stories) for _ in range(30)]
    with Server(model, *alone_options(options), "--no-prefix-cache", "--quiet") as alone:
        wanted = [[answer_of(c) for c in alone.post(PATH, q)["choices"]] for q in requests]
    crowd = ["--max-waiting", 2 * n_clients, "--max-connections", 2 * n_clients + 8]
    print(" ".join(map(str, options)), end=": ", flush=True)  # also of a round that fails
    with Server(model, *options, *crowd, "--quiet") as server:
        work = Round(server, requests, wanted, r.random(), time.monotonic() + seconds)
        work.run(n_clients)
        memory = int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4 // 1024
        print(f"{dict(work.counts)}, "
              f"{server.metric('mpk_preemptions_total'):.0f} put back, "
              f"{server.metric('mpk_prefix_cache_hits_total'):.0f} tokens from the prefix cache, "
              f"{server.metric('mpk_accepted_draft_tokens_total'):.0f} drafts stood, {memory} MiB", flush=True)
    return work.counts


def make_models(folder):
    """A model and a smaller one that may draft for it; they need torch, which a GPU's machine may lack."""
    import tiny
    return [tiny.model(folder / name, tie_word_embeddings=False, num_hidden_layers=n)
            for name, n in (("tiny", 2), ("draft", 1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, nargs="?", default=600)
    parser.add_argument("--clients", type=int, default=24, help="connections at a time")
    parser.add_argument("--round", type=float, default=30, help="seconds of a round's load")
    parser.add_argument("--short", action="store_true", help="too little KV memory in every round")
    parser.add_argument("--gpu", metavar="MODEL", help="on a GPU, with --batch-invariant: a folder of models/, its "
                        "weights made up (PYTHONPATH=python MPK_BUILD=build python tests/soak.py ...)")
    args = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))  # the server's, too
    seed = int(os.environ.get("MPK_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"seed: MPK_SEED={seed}", flush=True)
    r, total = random.Random(seed), collections.Counter()
    if args.gpu:
        os.environ["MPK_DEVICE"] = "cuda"
    with tempfile.TemporaryDirectory() as folder:
        models = [] if args.gpu else make_models(pathlib.Path(folder))
        end = time.monotonic() + args.seconds
        while (left := end - time.monotonic()) > 0:
            options = draw_options_gpu(r, args.short) if args.gpu else draw_options(r, r.choice(models), args.short)
            total += soak_round(args.gpu or models[0], options, r, min(args.round, left), args.clients)
    print(f"{dict(total)}: every answer that ended was that of its request alone")


if __name__ == "__main__":
    sys.exit(main())
