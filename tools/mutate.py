#!/usr/bin/env python3
"""Which small faults do the tests not notice?

    tools/mutate.py --n 40                       of all rooms, as many of each
    tools/mutate.py --rooms pass rt --seed 3     others, in two rooms
    tools/mutate.py --rooms op --list            what would be changed; builds nothing
    tools/mutate.py --n 150 --minutes 30         as far as it comes; the same command goes on

A mutant is one small change in a condition: a comparison off by one or turned round, a part of an && or || left out,
a CHECK that never fails.  The sources are copied to .cache/mutate/tree and compiled at once, each mutant after a test
of the environment variable MPK_MUTANT.  Each test, of whatever room, then runs once without a mutant; it notes the
conditions it came to and how long it took.  A mutant is given to all tests that come to its condition, the quickest
first, until one fails or takes far longer than it did; to those in Python (but SLOW_PYTHON) only in PYTHON_ROOMS.  The
same seed, rooms and sources give the same mutants, and tests draw by that seed unless MPK_SEED is set.

Printed for each: the test that noticed, or SURVIVES, or UNREACHED if no test comes to the condition, or "equivalent" if
tools/mutate_equivalent.txt names it.  A survivor is a test that is missing, a condition that nothing needs, or a mutant
that changes nothing that can be seen.  Results are kept in .cache/mutate/results.json, and a mutant of an unchanged
file is not run again, unless --again says so (all of them) or --alive (survivors, after a change of tests).

Not covered: device/ptx, device/role, the three files above them and rt_atomic_cuda.h, which no test without a GPU runs;
memory orders, which only the thread sanitizer sees; what only tests of SLOW_PYTHON notice.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / ".cache" / "mutate"
TREE = COPY / "tree"
RESULTS = COPY / "results.json"
SOUND = COPY / "sound.json"
BIN = COPY / "bin"
EQUIVALENT = ROOT / "tools" / "mutate_equivalent.txt"
ROOMS = ("base", "carriers", "cli", "cpu", "cuda", "device", "engine", "gen", "grammar", "host", "image", "ir", "jinja",
         "load", "model", "net", "op", "pass", "rt", "super", "tgraph")
# Rooms that tests in Python come to by what a user sees; other rooms have tests of their own, in C.
PYTHON_ROOMS = ("cli", "engine", "grammar", "host", "jinja", "load", "model", "net")
# Tests in Python that come to no code of ours, or spend most of their time in what is not ours.
SLOW_PYTHON = re.compile("test_(torch|tools|sanitize|paper|soak|demo_model|llama_cpp|ray_serve|families|models|"
                         "quantize(?!d)|gguf_formats|perplexity|serve_(langchain|litellm))")
VENV = ROOT / ".cache" / "venv" / "bin"  # ./dev setup makes it
CONTEXT = 30  # characters shown around a change
MOST_BYTES = 16 << 30  # of address space, for a test that a mutant lets run wild
SKIP = 77  # the exit status of a test that lacks something: SKIP_RETURN_CODE in cmake/tests.cmake
ALIVE = ("SURVIVES", "UNREACHED")
LEAST_SECONDS, TIMES_SLOWER = 20, 8  # a mutant hangs if its test takes longer than it did without
SKIPPED = re.compile(r"_(test|fuzz)\.c$|rt_atomic_cuda\.h$")
WORD = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',
                  re.S | re.M)
START = re.compile(r"\b(?:if|while)\s*(?=\()|\bCHECK(?=\()|"
                   r"\breturn\b(?=[^;{}]*(?:&&|\|\||[<>=!]=|[^-<>]>[^>]|[^<]<[^<]))")
# What is no condition: functions that the compiler computes, and the arguments of templates.
CONSTANT = re.compile(r"\bconstexpr \w+ \w+\(.*?\n\}|(?<=\w)<[\w, ]+>(?=::|\()", re.S)
COMPARE = re.compile(r"(?<![<>=!\-])(<=|>=|==|!=|<|>)(?![<>=])")
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# Stands before the text of a file with mutants.  It is no #include: src/gen puts together the headers that kernels
# share, and knows only our files.
SWITCH = """#ifndef MUTATE_H
#define MUTATE_H
#ifdef __CUDACC_RTC__
#define mutant(n) 0
#else
#include <stdio.h>
#include <stdlib.h>
static inline void mutant_note(int n)
{
    static unsigned char seen[4096];
    const char *path = getenv("MPK_MUTANTS_REACHED");
    FILE *file = path && !seen[n] ? fopen(path, "a") : 0;
    seen[n] = 1;
    if (file) {
        fprintf(file, "%d\\n", n);
        fclose(file);
    }
}
static inline int mutant(int n)
{
    static int chosen = -1;
    if (chosen < 0) {
        const char *word = getenv("MPK_MUTANT");
        chosen = word ? (int)strtol(word, 0, 10) : 0;
    }
    if (!chosen)
        mutant_note(n);
    return chosen == n;
}
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wint-in-bool-context"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif
#endif
"""
# Of a test's command line "c++ ... -o OBJECT CODE ...": OBJECT by its preprocessed text.
COMPILER = """#!/bin/bash
set -eu
object= before=()
for word; do [ "${{last-}}" != -o ] || object=$word; last=$word; done
for word; do case $word in -shared|-o|"$object") ;; *) before+=("$word") ;; esac; done
key=$({real} -E -P "${{before[@]}}" 2>/dev/null | sha256sum | cut -c1-64)
mkdir -p {kept}
if [ ! -e {kept}/$key ]; then
    {real} "$@"
    cp "$object" {kept}/$key.$$ && mv {kept}/$key.$$ {kept}/$key
fi
cp {kept}/$key "$object"
"""


def room_of(path):
    """The folder, but for files whose faults are looked for by themselves."""
    if path == "src/cuda/carriers.c":
        return "carriers"
    return "device" if path.startswith("device/") else path.split("/")[1]


class Mutant:
    """Characters [at, end) of a file, and what stands there instead."""

    def __init__(self, path, text, at, end, changed, is_truth):
        self.path, self.at, self.end, self.changed = path, at, end, changed
        self.is_truth = is_truth  # whether it holds is all that counts, whatever its type is
        self.line = text.count("\n", 0, at) + 1
        self.original = text[at:end]
        place = f"{path} {at} {end} {changed} {text}"
        self.key = hashlib.sha256(place.encode()).hexdigest()
        self.room = room_of(path)

    def __str__(self):
        return f"{self.path}:{self.line}: {self.words()}"

    def words(self):
        old, new = (" ".join(words.split()) for words in (self.original, self.changed))
        same = len(os.path.commonprefix([old, new]))
        rest = len(os.path.commonprefix([old[same:][::-1], new[same:][::-1]]))
        first, end = max(0, same - CONTEXT), len(old) - rest + CONTEXT
        return f"{old[first:end]}  ->  {new[first:len(new) - rest + CONTEXT]}"


def blank(text):
    """The text with comments, strings and preprocessor lines as spaces, so that places stay."""
    return WORD.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def closing(text, at):
    """Where the parenthesis that opens at `at` is closed."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def cut(text, at, end, separator):
    """The parts of [at, end) between separators outside parentheses, as pairs of places."""
    depth, parts, first, i = 0, [], at, at
    while i < end:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[i], 0)
        if depth == 0 and text.startswith(separator, i):
            parts.append((first, i))
            first = i + len(separator)
            i = first
            continue
        i += 1
    return [*parts, (first, end)]


def conditions(text):
    """What is tested: [at, end), whether of a CHECK, whether only its truth counts."""
    for start in START.finditer(text):
        word = start.group(0).strip()
        if word == "return":
            yield start.end(), text.index(";", start.end()), False, False
        elif word == "CHECK":
            parts = cut(text, start.end() + 1, closing(text, start.end()), ",")
            if len(parts) > 2:
                yield *parts[1], True, True
        else:
            yield start.end() + 1, closing(text, start.end()), False, True


def mutants_of(path):
    source = (ROOT / path).read_text()
    text = CONSTANT.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), blank(source))
    for at, end, is_check, is_truth in conditions(text):
        if "{" in text[at:end] or "?" in text[at:end]:
            continue
        whole = source[at:end]
        if is_check:
            yield Mutant(path, source, at, end, "1", True)
        for m in COMPARE.finditer(text, at, end):
            changed = whole[:m.start() - at] + OTHER[m.group(1)] + whole[m.end() - at:]
            yield Mutant(path, source, at, end, changed, is_truth)
        for separator in ("&&", "||"):
            parts = cut(text, at, end, separator)
            for i in range(len(parts) if len(parts) > 1 else 0):
                kept = [source[a:b].strip() for k, (a, b) in enumerate(parts) if k != i]
                yield Mutant(path, source, at, end, f" {separator} ".join(kept), True)


def choose(args):
    """n mutants, as many of each room as of any other while it has some, no two in one condition."""
    paths = [p for p in tree.files(ROOT) if re.match(r"src/\w+/[\w.]+\.[ch]$|device/(task|tile)/\w+\.cuh$", p)
             and not SKIPPED.search(p) and room_of(p) in args.rooms and (not args.files or re.search(args.files, p))]
    waiting = {room: [] for room in args.rooms}
    for path in sorted(paths):
        waiting[room_of(path)] += mutants_of(path)
    chosen, taken = [], {}
    for room in args.rooms:
        random.Random(f"{args.seed} {room}").shuffle(waiting[room])
    while len(chosen) < args.n and any(waiting.values()):
        for room in args.rooms:
            while waiting[room] and len(chosen) < args.n:
                m = waiting[room].pop()
                ranges = taken.setdefault(m.path, [])
                if all(m.end <= at or end <= m.at for at, end in ranges):
                    ranges.append((m.at, m.end))
                    chosen.append(m)
                    break
    return sorted(chosen, key=lambda m: (m.path, m.at))


def write(path, text):
    """Only what differs, so that only that is compiled again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def write_copy(mutants):
    """The tree, with mutant number i + 1 of src after a switch."""
    paths = tree.files(ROOT)
    known = set(paths)
    for old in TREE.glob("*/**/*"):
        path = old.relative_to(TREE).as_posix()
        if old.is_file() and path not in known and not path.startswith("build/"):
            old.unlink()
    for path in paths:
        to = TREE / path
        to.parent.mkdir(parents=True, exist_ok=True)
        of_file = [(i + 1, m) for i, m in enumerate(mutants) if m.path == path]
        if of_file:
            text = (ROOT / path).read_text()
            for number, m in reversed(of_file):
                truth = "!!" if m.is_truth else ""
                switch = f" mutant({number}) ? {truth}({m.changed}) : {truth}({m.original})"
                text = text[:m.at] + switch + text[m.end:]
            write(to, SWITCH + text)
        elif not to.exists() or to.read_bytes() != (ROOT / path).read_bytes():
            shutil.copy2(ROOT / path, to)


def write_compiler():
    """A c++ that keeps what it made: the tests of emulated bodies compile the same text for each mutant."""
    BIN.mkdir(parents=True, exist_ok=True)
    compiler = BIN / "c++"
    compiler.write_text(COMPILER.format(real=shutil.which("c++"), kept=COPY / "objects"))
    compiler.chmod(0o755)


def call(*command):
    cache = {"CMAKE_C_COMPILER_LAUNCHER": "ccache"} if shutil.which("ccache") else {}
    result = subprocess.run(command, cwd=TREE, capture_output=True, text=True, env={**os.environ, **cache})
    if result.returncode:
        first = re.search(r"^.*error:.*$", result.stdout, re.M)
        sys.exit(f"mutate.py: {' '.join(map(str, command[:4]))} failed:\n"
                 f"{first.group(0) if first else ''}\n{result.stdout[-2000:]}{result.stderr[-1000:]}")
    return result.stdout


def list_tests(args):
    """What ctest says of its tests."""
    return json.loads(call("ctest", "--test-dir", TREE / "build", *([] if args.slow else ["-LE", "slow"]),
                           "--no-tests=error", "--show-only=json-v1"))["tests"]


def list_python(mutants):
    """The tests in Python, as ctest would say them, if a mutant is for them."""
    if not any(m.room in PYTHON_ROOMS for m in mutants):
        return []
    if not (VENV / "python").exists():
        sys.exit(f"mutate.py: tests in Python need {VENV}: run ./dev setup")
    names = sorted(path.stem for path in (TREE / "tests").glob("test_*.py") if not SLOW_PYTHON.match(path.stem))
    environment = [f"MPK_BUILD={TREE / 'build'}", f"PATH={VENV}:{os.environ['PATH']}", "OMP_NUM_THREADS=1",
                   f"PYTHONPYCACHEPREFIX={COPY / 'bytecode'}"]
    return [{"name": name, "command": [str(VENV / "python"), "-m", "pytest", "-qx", "-p", "no:cacheprovider",
                                       f"tests/{name}.py"],
             "properties": [{"name": "WORKING_DIRECTORY", "value": str(TREE)},
                            {"name": "ENVIRONMENT", "value": environment}]} for name in names]


def build():
    call("cmake", "--preset", "release")
    call("cmake", "--build", "--preset", "release")


class Test:
    """One test of ctest, and what it does without a mutant."""

    def __init__(self, said):
        properties = {p["name"]: p["value"] for p in said["properties"]}
        self.name, self.command = said["name"], said["command"]
        self.folder = properties["WORKING_DIRECTORY"]
        self.environment = dict(word.split("=", 1) for word in properties["ENVIRONMENT"])
        self.seconds, self.reached = 0.0, frozenset()
        self.is_python = self.command[0] == str(VENV / "python")
        is_script = not self.command[0].startswith(str(TREE))
        self.binaries = [TREE / "build" / "libmpk.so", TREE / "build" / "mpk"] if is_script else self.command[:1]

    def run(self, seconds, **variables):
        """Its exit status; None if it takes longer."""
        environment = {**os.environ, **self.environment, **variables}
        environment["PATH"] = f"{BIN}:{VENV}:{environment['PATH']}"  # of VENV, as in ./dev check: NVRTC
        process = subprocess.Popen(self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=bound_memory,
                                   env=environment)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def run_sound(self, seconds):
        """Without a mutant: which it comes to.  A test that fails already notices none, and is left out."""
        with tempfile.NamedTemporaryFile("r", prefix="reached-", dir=COPY) as said:
            begin = time.monotonic()
            status = self.run(seconds, MPK_MUTANT="0", MPK_MUTANTS_REACHED=said.name)
            self.seconds, self.reached = time.monotonic() - begin, frozenset(map(int, said.read().split()))
            if status not in (0, SKIP):
                print(f"{self.name} fails without a mutant ({status}) and is left out", flush=True)
                self.reached = frozenset()


def bound_memory():
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def digest(paths):
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()


def find_tests(mutants, args):
    """The tests, the quickest first, each run once without a mutant unless it is known."""
    tests = [Test(said) for said in list_tests(args) + list_python(mutants)]
    known = json.loads(SOUND.read_text()) if SOUND.exists() else {}
    beside = {is_python: digest([TREE / p for p in sorted(tree.files(ROOT)) if re.match(pattern, p)])
              for is_python, pattern in ((False, r"device/|tests/.*\.cuh$"), (True, r"tests/.*\.py$"))}
    lock = threading.Lock()

    def look(test):
        key = test.name + digest(map(pathlib.Path, test.binaries)) + beside[test.is_python]
        if key not in known:
            test.run_sound(args.timeout)
            with lock:
                known[key] = [test.seconds, sorted(test.reached)]
                SOUND.write_text(json.dumps(known))
        test.seconds, test.reached = known[key][0], frozenset(known[key][1])

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(look, tests))
    return sorted(tests, key=lambda test: test.seconds)


def try_one(number, m, tests, args):
    """The test that notices the mutant, "SURVIVES" or "UNREACHED"."""
    seen = [t for t in tests if number in t.reached and (m.room in PYTHON_ROOMS or not t.is_python)]
    for test in seen:
        if test.run(min(args.timeout, LEAST_SECONDS + TIMES_SLOWER * test.seconds),
                    MPK_MUTANT=str(number)) not in (0, SKIP):
            return test.name
    return "SURVIVES" if seen else "UNREACHED"


def is_equivalent(m):
    """Is the mutant named as one that changes nothing?  A line: file: old  ->  new  # why"""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return any(line.split("  # ")[0].strip() == f"{m.path}: {m.words()}".strip() for line in lines)


def try_all(mutants, args):
    """Each with what it came to, or with None if time ran out before."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    end, lock = time.monotonic() + 60 * args.minutes, threading.Lock()
    wanted = (*ALIVE, None) if args.alive else (None,)
    is_open = [not is_equivalent(m) and (args.again or results.get(m.key) in wanted) for m in mutants]
    tests = find_tests([m for m, is_it in zip(mutants, is_open) if is_it], args) if any(is_open) else []

    def look(i):
        m = mutants[i]
        if is_equivalent(m):
            return "equivalent"
        if is_open[i] and time.monotonic() > end:
            return None
        known = try_one(i + 1, m, tests, args) if is_open[i] else results[m.key]
        with lock:
            print(f"{known}: {m}", flush=True)
            results[m.key] = known
            RESULTS.write_text(json.dumps(results, indent=0))
        return known

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        return list(zip(mutants, pool.map(look, range(len(mutants)))))


def report(outcomes):
    """A line for each room, and one for all."""
    rooms = collections.defaultdict(collections.Counter)
    for m, known in outcomes:
        what = {**dict.fromkeys(ALIVE, "survive"), "equivalent": "equivalent", None: "not run"}.get(known, "killed")
        for room in (m.room, "all"):
            rooms[room][what] += 1
    for room in [*sorted(set(rooms) - {"all"}), *(["all"] if rooms else [])]:
        counts = ", ".join(f"{n} {what}" for what, n in sorted(rooms[room].items()))
        print(f"{room}: {sum(rooms[room].values())} drawn: {counts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, default=40, help="how many mutants (40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=ROOMS, metavar="ROOM")
    parser.add_argument("--files", metavar="REGEX", help="only in files whose path matches")
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS", help="of one test (600)")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no mutant after so many (no limit)")
    parser.add_argument("--again", action="store_true", help="also those whose result is known")
    parser.add_argument("--alive", action="store_true", help="also those that survived")
    parser.add_argument("--slow", action="store_true", help="with the tests that say they are slow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="tests at a time (a processor each)")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    args = parser.parse_args()
    mutants = choose(args)
    if args.list:
        print(*mutants, sep="\n")
        return 0
    os.environ.setdefault("MPK_SEED", str(args.seed))  # for tests that draw: they come to the same conditions each time
    write_copy(mutants)
    write_compiler()
    build()
    report(try_all(mutants, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
