#!/usr/bin/env python3
"""Run check_cuda's smallest model under compute-sanitizer, one tool after the other, and say what is new.

    tools/sanitize_cuda.py .cache/check-cuda/check_cuda                    memcheck, racecheck, synccheck, initcheck
    tools/sanitize_cuda.py .cache/check-cuda/check_cuda --tools racecheck  one of them

Input: check_cuda, a GPU, and compute-sanitizer (of PATH, or of /usr/local/cuda*); the table of docs/gpu.md, "Under the
sanitizers", which names pairs of functions between which racecheck cannot see what orders them.  Output: a line for
each tool, under it what it has reported, hazards by pair of functions; exit code 1 if a run fails or is cut off, or if
something is reported that the table does not name.  Without a GPU it says so and exits with 0.

The kernel is compiled once, before, without a tool; its source stays in --out, so that a line can be looked at.
"""
import argparse
import collections
import fnmatch
import glob
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ITEM = "qwen3-bf16-small"
PATIENCE = 20  # time limits of check_cuda are so many times as long
TOOLS = {
    "memcheck": [],
    # A block has more barriers than the tool finds in the source, where they are made in loops.
    "racecheck": ["--num-cuda-barriers=256", "--kernel-name=kernel_name=mpk_kernel", "--print-limit=10000"],
    "synccheck": ["--num-cuda-barriers=256"],
    "initcheck": [],
}
ROW = re.compile(r"^\| `([\w*]+)` \| ((?:`[\w*]+`(?:, )?)+) \| (.+) \|$", re.M)
FUNCTION = re.compile(r"^(?:template\b.*?> )?(?:MPK_FN|RT_FN|static|extern|__device__|__global__|inline)\b.*?"
                      r"\b(\w+)\s*\(")
BOUNDS = re.compile(r"__launch_bounds__\(.*?\)")
ACCESS = re.compile(r"^=+ +(?:\w+: Race reported between|and) (?:Write|Read) access at .*?(?: in \S+?:(\d+))?"
                    r"(?: \[(\d+) hazards\])?\s*$")
REPORT = re.compile(r"^=+ (?!COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY)(\S.*)$")
PLACE = re.compile(r"^=+ +at .* in \S+?:(\d+)\s*$")


# ---- what is known ----

def known_pairs(document):
    """(pattern, pattern) of functions, from the table's rows."""
    return [(row[1], other) for row in ROW.finditer(document) for other in re.findall(r"`([\w*]+)`", row[2])]


def is_known(pair, known):
    return any(fnmatch.fnmatchcase(a, p) and fnmatch.fnmatchcase(b, q) for p, q in known for a, b in (pair, pair[::-1]))


# ---- what a tool says ----

class Source:
    """The kernel's source: which function a line belongs to."""

    def __init__(self, text):
        self.functions, name = [], "?"
        for line in text.splitlines():
            found = FUNCTION.match(BOUNDS.sub("", line))
            name = found[1] if found else name
            self.functions.append(name)

    def function(self, line):
        return self.functions[int(line) - 1] if line and int(line) <= len(self.functions) else "?"


def hazards(output, source):
    """(function, function) -> hazards, the two in the order of the alphabet, of racecheck's analysis."""
    pairs, first = collections.Counter(), None
    for line in output.splitlines():
        found = ACCESS.match(line)
        if not found:
            continue
        here = source.function(found[1])
        if "Race reported" in line:
            first = here
        else:
            pairs[tuple(sorted((first, here)))] += int(found[2] or 1)
    return pairs


def reports(output, source):
    """What the other tools have reported: "words (function)" -> how often."""
    found, words = collections.Counter(), None
    for line in output.splitlines():
        report, place = REPORT.match(line), PLACE.match(line)
        if report:
            if words:
                found[words] += 1
            words = report[1]
        elif place and words:
            found[f"{words} ({source.function(place[1])})"] += 1
            words = None
    if words:
        found[words] += 1
    return found


def summary_of(output):
    """How many errors the tool counts; None: it has not come to its end."""
    found = re.findall(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output, re.M)
    return sum(map(int, found)) if found else None


# ---- running ----

def find_sanitizer():
    found = shutil.which("compute-sanitizer")
    for path in sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"), reverse=True):
        found = found or path
    if not found:
        sys.exit("sanitize_cuda.py: no compute-sanitizer in PATH or /usr/local/cuda*/bin: NVIDIA's package "
                 "cuda-sanitizer brings it")
    return found


def run(command, seconds, env, log):
    """Exit code (None: cut off) and output, which also goes to a file; all processes of the command end with it."""
    with open(log, "w+", encoding="utf-8", errors="replace") as out, \
            subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out,
                             stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True) as process:
        try:
            code = process.wait(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            code = None
    return code, pathlib.Path(log).read_text(encoding="utf-8", errors="replace")


def last_words(output):
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("=")]
    return lines[-1][:200] if lines else "not a word"


def check_tool(tool, command, options, env, source, known):
    """Run one tool, print what it says.  True: nothing that is new."""
    begin = time.monotonic()
    code, output = run([*command, f"--tool={tool}", *TOOLS[tool], options.check_cuda, ITEM], options.seconds, env,
                       options.out / f"{tool}.txt")
    counted = summary_of(output)
    found = hazards(output, source) if tool == "racecheck" else reports(output, source)
    new = {what: n for what, n in found.items() if tool != "racecheck" or not is_known(what, known)}
    failed = code is None and f"cut off after {options.seconds} s" or code and f"failed: {last_words(output)}" or \
        counted is None and "did not come to its end"
    print(f"{tool}: {failed or 'passed'}, {time.monotonic() - begin:.1f} s, {counted or 0} reports, {len(new)} of "
          f"{len(found)} kinds not known", flush=True)
    for what, n in sorted(found.items(), key=lambda item: -item[1]):
        words = " and ".join(what) if tool == "racecheck" else what
        print(f"  {'NEW  ' if what in new else 'known'} {n:9} {words}")
    return not failed and not new and (not counted or tool == "racecheck" and bool(found))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("check_cuda", type=pathlib.Path, help="the program")
    p.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS), metavar="NAME",
                   help=f"of {', '.join(TOOLS)}")
    p.add_argument("--seconds", type=float, default=180, metavar="N", help="limit of one run")
    p.add_argument("--out", type=pathlib.Path, metavar="FOLDER",
                   help="for the tools' words, the kernel and its source; else a temporary one")
    options = p.parse_args()
    keeps = options.out is not None
    options.out = (options.out or pathlib.Path(tempfile.mkdtemp(prefix="mpk-sanitize-"))).resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        return sanitize(options)
    finally:
        if not keeps:
            shutil.rmtree(options.out, ignore_errors=True)


def sanitize(options):
    env = {"MPK_PATIENCE": str(PATIENCE), "MPK_CACHE": str(options.out / "cache")}
    code, output = run([options.check_cuda, ITEM], options.seconds, {**env, "MPK_KEEP": str(options.out / "kernel")},
                       options.out / "plain.txt")
    if code == 0 and output.startswith("skipped"):
        print(output.strip())
        return 0
    if code != 0:
        print(f"without a tool: {'cut off' if code is None else 'failed'}: {output[-1000:]}")
        return 1
    command = [find_sanitizer(), "--require-cuda-init=no"]
    source = Source((options.out / "kernel" / "mpk.cu").read_text(encoding="utf-8"))
    known = known_pairs((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"))
    passed = [check_tool(tool, command, options, env, source, known) for tool in options.tools]
    print(f"{sum(passed)} of {len(passed)} tools found nothing new")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
