"""What a server must reach on an H100, in one command: features beside none, the prefix cache, drafts, a soak.

python bench/server_bars.py [--out FILE.json] [--seconds N] [--soak N] [--what streams prefix drafts soak]

Of Python's standard library alone; weights are made up.  It runs bench/server.py, mpk bench --planted and tests/soak.py
one after another; the soak gets what is left of --seconds, at most --soak.  Each bar is a line of JSON: what was
measured, the limit, and whether it is met; a part that fails is a bar that is not met.  --out gets them all, with the
rows that they come from, after each part.
"""

import argparse
import ast
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STREAMS = {"penalties, logprobs 5": 0.02, "regex": 0.03, "json schema": 0.03}  # how much slower than plain


def bar(what, value, limit, is_most=True):
    is_met = value is not None and (value <= limit if is_most else value >= limit)
    return {"bar": what, "value": value, "at most" if is_most else "at least": limit, "met": is_met}


def bars_of_streams(rows):
    """The median of the rounds: the first of a form also makes its masks."""
    for case, limit in STREAMS.items():
        over = [row["over_plain"] for row in rows if row.get("case") == case]
        yield bar(f"16 streams, {case}: over plain", statistics.median(over) if over else None, limit)


def bars_of_prefixes(rows):
    turns = [ms for row in rows if row.get("case", "").startswith("second turn, 4 ") for ms in row["ms"]]
    yield bar("second turn after 4,000 tokens: ms to its first token", statistics.median(turns) if turns else None, 20)
    seconds = {row["case"]: row["s"] for row in rows if "s" in row}
    gain = round(seconds["cache_prompt false"] / seconds["prefix cache"], 2) if len(seconds) == 2 else None
    yield bar("64 requests with one beginning of 2,000 tokens: throughput over that without the cache", gain, 4, False)


def bars_of_drafts(rows):
    for (kind, planted), limit in {("look-up", 0.8): 2.8, ("draft model", 0.8): 1.9, ("look-up", 0.001): 0.98,
                                   ("draft model", 0.001): 0.98}.items():
        gain = [row["gain"] for row in rows if (row["drafts of"], row["planted"]) == (kind, planted)]
        yield bar(f"drafts of {kind}, of which {planted} stand: gain", gain[0] if gain else None, limit, False)


def bars_of_soak(rows):
    row, = rows
    yield bar(f"soak of {row['clients']:,} connections: seconds without a wrong answer", row["seconds"], row["asked"],
              False)


class Parts:
    """What runs, each with what is left of the time."""

    def __init__(self, arguments):
        self.arguments, self.end, self.faults = arguments, time.monotonic() + arguments.seconds, []

    def run(self, command, env=None):
        """The lines that the command wrote, to its end or to that of the time, and whether it ended well."""
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, text=True,
                                       cwd=ROOT, start_new_session=True, env={**os.environ, **(env or {})})
            try:
                code = process.wait(max(1, self.end - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = "out of time"
                os.killpg(process.pid, 9)
                process.wait()
            out.seek(0)
            lines = out.read().splitlines()
        if code:
            self.faults.append(f"{' '.join(map(str, command))}: {code}: {' / '.join(lines[-6:])[-1500:]}")
        return lines, not code

    def server(self, *more):
        a = self.arguments
        lines, _ = self.run([sys.executable, ROOT / "bench/server.py", a.model, "--mpk", a.mpk, *more])
        return [json.loads(line) for line in lines if line.startswith("{")]

    def streams(self):
        return self.server("--what", "streams", "--rounds", 3, "--tokens", self.arguments.tokens, "--cases", "plain",
                           *STREAMS, f"--serve=--context=1024 --max-batch=20 --device={self.arguments.device}")

    def prefix(self):
        return self.server("--what", "turns", "shared", "--rounds", 3, "--serve=--context=6144 --max-batch=64 "
                           f"--kv-tokens=200000 --device={self.arguments.device}")

    def drafts(self):
        a, rows = self.arguments, []
        for planted in (0.8, 0.001):
            for kind, options in (("look-up", ["--speculate=ngram:4"]),
                                  ("draft model", ["--draft-model", a.draft_model, "--draft", 4])):
                lines, _ = self.run([a.mpk, "bench", a.model, "--random-weights=1", "--device", a.device, "-r", 2, "-n",
                                     a.tokens * 5 // 4, "--planted", planted, "--json", "--quiet", *options])
                rows += [{"drafts of": kind, "planted": planted, **json.loads(line)} for line in lines
                         if line.startswith('{"device"')]
        return rows

    def soak(self):
        a = self.arguments
        asked = int(min(a.soak, self.end - time.monotonic() - 30))  # a round ends when its requests have
        gpu = ["--gpu", a.soak_model] if a.device == "cuda" else []
        start = time.monotonic()
        lines, is_whole = self.run([sys.executable, ROOT / "tests/soak.py", asked, "--clients", a.clients, "--round",
                                    40, "--short", *gpu], {"MPK_BUILD": str(pathlib.Path(a.mpk).resolve().parent)})
        rounds = [line for line in lines if "put back" in line]
        counts = ast.literal_eval(lines[-1].partition("}")[0] + "}") if is_whole else {}
        return [{"clients": a.clients, "asked": asked, "rounds": rounds, "answers": counts,
                 "seconds": round(time.monotonic() - start, 1) if is_whole else 0}]


JUDGES = {"streams": bars_of_streams, "prefix": bars_of_prefixes, "drafts": bars_of_drafts, "soak": bars_of_soak}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--what", nargs="+", choices=JUDGES, default=list(JUDGES))
    p.add_argument("--mpk", default="build/mpk", type=lambda path: str(pathlib.Path(path).resolve()))
    p.add_argument("--model", default=ROOT / "models/qwen3-8b")
    p.add_argument("--draft-model", default=ROOT / "models/qwen3-0.6b")
    p.add_argument("--soak-model", default=ROOT / "models/qwen3-0.6b")
    p.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    p.add_argument("--seconds", type=float, default=420, help="of everything")
    p.add_argument("--soak", type=float, default=300, help="seconds of the soak, if so many are left")
    p.add_argument("--clients", type=int, default=1000, help="connections of the soak")
    p.add_argument("--tokens", type=int, default=256, help="of an answer of streams and drafts")
    p.add_argument("--out", type=pathlib.Path)
    arguments = p.parse_args()
    parts, report = Parts(arguments), {"bars": [], "rows": {}}
    for what in arguments.what:
        start = time.monotonic()
        rows = getattr(parts, what)()
        bars = [{**b, "part_s": round(time.monotonic() - start, 1)} for b in JUDGES[what](rows)]
        report = {"bars": report["bars"] + bars, "rows": {**report["rows"], what: rows}, "faults": parts.faults}
        for b in bars:
            print(json.dumps(b), flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(*parts.faults, sep="\n", end="")
    return not all(b["met"] for b in report["bars"])


if __name__ == "__main__":
    sys.exit(main())
