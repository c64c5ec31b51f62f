#!/usr/bin/env python3
"""Which small faults do the tests not notice?

    tools/mutate.py --n 40                       of all rooms
    tools/mutate.py --rooms pass tgraph --seed 3 others, in two rooms
    tools/mutate.py --rooms op --list            what would be changed; builds nothing

A mutant is one small change in a condition: a comparison off by one or turned round, a part of an && or || left out,
a CHECK that never fails.  The sources are copied to .cache/mutate, all mutants are compiled at once, each behind a test
of the environment variable MPK_MUTANT, and for each one the tests of its room run until one fails.  The same seed,
rooms and sources give the same mutants.  A survivor is a test that is missing, a condition that nothing needs, or a
mutant that changes nothing that can be seen.

Not covered: src/rt and device, which other compilers read as text.
"""
import argparse
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys

import tree

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / ".cache" / "mutate"
BUILD = COPY / "build"
# The tests that run for a fault in a room, as ctest's -R takes them; the quick ones alone (-LE slow).
TESTS = {
    "base": "base_test|json_test|load_test", "cpu": "^(body_test|engine_test|stress_test)$",
    "cuda": "cuda_|cache_test|driver_test|nvrtc_test|decode_graph|one_kernel",
    "engine": "engine|decode_graph|one_kernel|watch|company",
    "gen": "arch_test|source_test|gpu_bodies|decode_graph|body_emulated",
    "host": "books|engine_test|rt_serve|cuda_serve",
    "image": "verify_test|engine_test|cuda_test|stress", "ir": "ir_test|op_test|numbers_test|golden|operators",
    "jinja": "jinja", "load": "gguf|hf_config|load_test|safetensors|experts|tokenizer",
    "model": "model_test|hf_config|gguf|fuse_ops", "net": "net_",
    "op": "op_test|ir_test|numbers|aten|fuse|body_test|gpu_bodies|pass_test",
    "pass": "golden|fuse|recognise|decompose|verify|gpu_bodies|pass_test|decode_graph",
    "tgraph": "verify_test|golden|decompose|pass_test|stress",
}
CONTEXT = 30  # characters shown around a change
MOST_BYTES = 16 << 30  # of address space, for a test that a mutant lets run wild
SKIPPED = re.compile(r"_(test|fuzz)\.c$")
WORD = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*',
                  re.S | re.M)
START = re.compile(r"\b(?:if|while)\s*(?=\()|\bCHECK(?=\()|"
                   r"\breturn\b(?=[^;{}]*(?:&&|\|\||[<>=!]=|[^-<>]>[^>]|[^<]<[^<]))")
COMPARE = re.compile(r"(?<![<>=!\-])(<=|>=|==|!=|<|>)(?![<>=])")
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SWITCH = """#ifndef MUTATE_H
#define MUTATE_H
#include <stdlib.h>
static inline int mutant(int n)
{
    static int chosen = -1;
    if (chosen < 0) {
        const char *word = getenv("MPK_MUTANT");
        chosen = word ? atoi(word) : 0;
    }
    return chosen == n;
}
#endif
"""


class Mutant:
    """Characters [at, end) of a file, and what stands there instead."""

    def __init__(self, path, text, at, end, changed):
        self.path, self.at, self.end, self.changed = path, at, end, changed
        self.line = text.count("\n", 0, at) + 1
        self.original = text[at:end]

    def __str__(self):
        old, new = (" ".join(words.split()) for words in (self.original, self.changed))
        same = len(os.path.commonprefix([old, new]))
        rest = len(os.path.commonprefix([old[same:][::-1], new[same:][::-1]]))
        first, end = max(0, same - CONTEXT), len(old) - rest + CONTEXT
        return f"{self.path}:{self.line}: {old[first:end]}  ->  {new[first:len(new) - rest + CONTEXT]}"


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
    """Places of what is tested: [at, end, is_check)."""
    for start in START.finditer(text):
        word = start.group(0).strip()
        if word == "return":
            yield start.end(), text.index(";", start.end()), False
        elif word == "CHECK":
            parts = cut(text, start.end() + 1, closing(text, start.end()), ",")
            if len(parts) > 2:
                yield *parts[1], True
        else:
            yield start.end() + 1, closing(text, start.end()), False


def mutants_of(path):
    source = (ROOT / path).read_text()
    text = blank(source)
    for at, end, is_check in conditions(text):
        if "{" in text[at:end] or "?" in text[at:end]:
            continue
        whole = source[at:end]
        if is_check:
            yield Mutant(path, source, at, end, "1")
        for m in COMPARE.finditer(text, at, end):
            yield Mutant(path, source, at, end, whole[:m.start() - at] + OTHER[m.group(1)] + whole[m.end() - at:])
        for separator in ("&&", "||"):
            parts = cut(text, at, end, separator)
            for i in range(len(parts) if len(parts) > 1 else 0):
                kept = [source[a:b].strip() for k, (a, b) in enumerate(parts) if k != i]
                yield Mutant(path, source, at, end, f" {separator} ".join(kept))


def choose(args):
    """n mutants, no two in one condition."""
    paths = [p for p in tree.files(ROOT) if re.match(r"src/(\w+)/[\w.]+\.[ch]$", p) and not SKIPPED.search(p)
             and p.split("/")[1] in args.rooms]
    everything = [m for path in sorted(paths) for m in mutants_of(path)]
    random.Random(args.seed).shuffle(everything)
    chosen, taken = [], {}
    for m in everything:
        ranges = taken.setdefault(m.path, [])
        if len(chosen) < args.n and all(m.end <= at or end <= m.at for at, end in ranges):
            ranges.append((m.at, m.end))
            chosen.append(m)
    return sorted(chosen, key=lambda m: (m.path, m.at))


def write_copy(mutants):
    """The tree, with mutant number i + 1 behind a switch."""
    for path in tree.files(ROOT):
        to = COPY / "tree" / path
        to.parent.mkdir(parents=True, exist_ok=True)
        text = None
        of_file = [(i + 1, m) for i, m in enumerate(mutants) if m.path == path]
        if of_file:
            text = (ROOT / path).read_text()
            for number, m in reversed(of_file):
                text = f"{text[:m.at]} mutant({number}) ? ({m.changed}) : ({m.original}){text[m.end:]}"
        if text is None:
            if not to.exists() or to.read_bytes() != (ROOT / path).read_bytes():
                shutil.copy2(ROOT / path, to)
        elif not to.exists() or to.read_text() != text:
            to.write_text(text)
    (COPY / "mutate.h").write_text(SWITCH)


def build():
    flags = f"-include {COPY / 'mutate.h'} -w"
    subprocess.run(["cmake", "-S", COPY / "tree", "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    f"-DCMAKE_C_FLAGS={flags}", "-DMPK_WERROR=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD], check=True, stdout=subprocess.DEVNULL)


def run(number, room, seconds):
    """The test that notices mutant `number`, or None."""
    result = subprocess.run(["ctest", "--test-dir", BUILD, "-R", TESTS[room], "-LE", "slow|fuzz", "-j2",
                             "--stop-on-failure", "--timeout", str(seconds)], capture_output=True, text=True,
                            env={**os.environ, "MPK_MUTANT": str(number)},
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES)))
    failed = re.search(r"^\s*\d+ - (\S+) \(", result.stdout, re.M)
    if result.returncode == 0:
        return None
    return failed.group(1) if failed else f"ctest: {result.stdout[-200:]}{result.stderr[-200:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--n", type=int, default=40, help="how many mutants (40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="+", choices=sorted(TESTS), default=sorted(TESTS), metavar="ROOM")
    parser.add_argument("--timeout", type=int, default=120, metavar="SECONDS", help="of one test (120)")
    parser.add_argument("--list", action="store_true", help="only print the mutants")
    args = parser.parse_args()
    mutants = choose(args)
    if args.list:
        print(*mutants, sep="\n")
        return 0
    write_copy(mutants)
    build()
    for room in args.rooms:
        noticed = run(0, room, args.timeout)
        if noticed:
            sys.exit(f"mutate.py: without a mutant {noticed} fails already (tests of {room})")
    survivors = []
    for i, m in enumerate(mutants):
        noticed = run(i + 1, m.path.split("/")[1], args.timeout)
        print(f"{noticed or 'SURVIVES'}: {m}", flush=True)
        if not noticed:
            survivors.append(m)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
