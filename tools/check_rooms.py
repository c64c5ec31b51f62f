#!/usr/bin/env python3
"""Check that the rooms of src/ and device/ include only what lies below them.

Input: the #include lines of src/ and device/; output: one line for each that breaks the order, exit code 1 if any.
The order is that of docs/design.md: a room may include itself, rooms above its own line in ORDER, and nothing beside it
on the same line.  The runtime (rt) stands alone; the server (net) and the command line see the public headers and
base, the command line the server too.  DEVICE_SEES does the same for the code of GPUs, where inline assembly stands in
ptx alone, and in the runtime's ports.  The engine knows targets by their records: it neither includes the rooms of one
nor names what stands behind it.  File names are unique in the repository, so that a name in a message says which
file is meant.
"""
import argparse
import pathlib
import re
import sys

import tree

# Lowest first; rooms on one line do not see each other.
ORDER = [["base", "shape"], ["ir", "jinja", "grammar"], ["op"], ["model", "super"], ["load", "tgraph"], ["image"],
         ["gen", "pass"], ["host"], ["cpu", "cuda"], ["engine"]]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
# rt is seen by what builds its descriptors and by what runs them, and sees nothing itself.
SEES_RT = {"image", "gen", "pass", "host", "cpu", "cuda", "engine"}
# Targets, which the engine sees through src/host/target.h alone; its tests start them.
TARGETS = {"cpu", "cuda"}
TARGET_WORDS = re.compile(r"cuda|gpu(?!s\b)|nvrtc|nvidia|\bsm_\d", re.I)  # gpus: the public option
ONLY_PUBLIC = {"net": {"base"}, "cli": {"base", "net"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.M)
# Only these two may name a system header: they hide the compiler from the rest of rt.
RT_PORTS = {"src/rt/rt_port.h", "src/rt/rt_atomic.h"}
# What each folder of device/ sees besides itself; the last row is device/ itself.
DEVICE_SEES = {"ptx": {"rt"}, "tile": {"ptx", "rt", "op"}, "task": {"tile", "ptx", "rt", "op", "shape"},
               "role": {"tile", "ptx", "rt"}, "": {"role", "tile", "ptx", "rt"}}
ASSEMBLY = re.compile(r"\basm\b(?=\s*(?:volatile\s*)?\()")
# The runtime's own: both compilers read rt, so it cannot ask device/ptx.
ASSEMBLY_PORTS = {"src/rt/rt_port.h", "src/rt/rt_atomic_cuda.h"}


def allowed(room, other):
    """May a file of this room include a header of the other?"""
    if other == room:
        return True
    if room in ONLY_PUBLIC:
        return other in ONLY_PUBLIC[room]
    if other == "rt":
        return room in SEES_RT
    if room not in RANK or other not in RANK:
        return False
    return RANK[other] < RANK[room]


def is_test(name):
    return name.endswith(("_test.c", "_fuzz.c"))


def check_include(name, room, kind, target, test_headers):
    """A sentence if the file of this room may not include the target, else None.

    test_headers: the names of the headers in tests/, which the tests of a room include without a folder.
    """
    head, _, rest = target.partition("/")
    if kind == "<":
        if room in ("rt", "shape") and name not in RT_PORTS and not is_test(name):
            return f"<{target}>: {room} names no system header outside {', '.join(sorted(RT_PORTS))}"
        return None
    if head == "mpk":
        return f'"{target}": the runtime depends on nothing' if room == "rt" and not is_test(name) else None
    if not rest:
        return None if is_test(name) and target in test_headers else f'"{target}": write the room, "ROOM/{target}"'
    if room == "rt" and is_test(name) and head == "base":
        return None
    if room == "engine" and head in TARGETS and not is_test(name):
        return f'"{target}": the engine sees a target through host/target.h'
    return None if allowed(room, head) else f'"{target}": {room} may not see {head}'


def check_words(name, text):
    """Findings of one file: words of a target in the engine, as (where in the text, sentence)."""
    if not name.startswith("src/engine/") or is_test(name):
        return []
    return [(match.start(), f"'{match[0]}': what a target is stands in its record (src/host/target.h)")
            for match in TARGET_WORDS.finditer(text)]


def check_order(root):
    findings = []
    names = tree.files(root, ".c", ".h")
    test_headers = {name.removeprefix("tests/") for name in names if name.startswith("tests/")}
    for name in names:
        parts = pathlib.PurePosixPath(name).parts
        if parts[0] != "src" or len(parts) < 3:
            continue
        if parts[1] not in RANK and parts[1] not in ONLY_PUBLIC and parts[1] != "rt":
            findings.append(f"{name}: the room {parts[1]} is not in ORDER of tools/check_rooms.py")
            continue
        text = tree.read(root, name)
        for match in INCLUDE.finditer(text):
            fault = check_include(name, parts[1], match[1], match[2], test_headers)
            if fault:
                findings.append(f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {fault}")
        findings += [f"{name}:{text.count(chr(10), 0, at) + 1}: {fault}" for at, fault in check_words(name, text)]
    return findings


def check_device_include(room, target):
    """A sentence if a file of this folder of device/ may not include the target, else None."""
    head, _, rest = target.partition("/")
    if not rest:  # a file of device/ itself
        return None if not room else f'"{target}": {room} may not see device/'
    return None if head == room or head in DEVICE_SEES[room] else f'"{target}": {room or "device/"} may not see {head}'


def check_device_file(name, text):
    """Findings of one file of device/, as (where in the text, sentence)."""
    parts = pathlib.PurePosixPath(name).parts
    room = parts[1] if len(parts) > 2 else ""
    if room not in DEVICE_SEES:
        return [(0, f"the room {room} is not in DEVICE_SEES of tools/check_rooms.py")]
    faults = [(match.start(), check_device_include(room, match[2])) for match in INCLUDE.finditer(text)]
    return [fault for fault in faults if fault[1]]


def check_assembly(name, text):
    """Findings of inline assembly where there should be none, likewise."""
    if name.startswith("device/ptx/") or name in ASSEMBLY_PORTS:
        return []
    return [(match.start(), "inline assembly stands in device/ptx") for match in ASSEMBLY.finditer(text)]


def check_device(root):
    findings = []
    for name in tree.files(root, ".cuh", ".h"):
        is_device = name.startswith("device/")
        if not is_device and not name.startswith("src/rt/"):
            continue
        text = tree.read(root, name)
        faults = (check_device_file(name, text) if is_device else []) + check_assembly(name, text)
        findings += [f"{name}:{text.count(chr(10), 0, at) + 1}: {fault}" for at, fault in faults]
    return findings


def check_unique(root):
    """Names of sources, tests and tools; public headers are always written mpk/NAME.h and may repeat one."""
    seen, findings = {}, []
    for name in tree.files(root, ".c", ".h", ".cu", ".cuh", ".py", ".sh"):
        if name.startswith(("include/", "tests/corpus/")) or name.endswith("__init__.py"):
            continue
        last = name.rsplit("/", 1)[-1]
        if last in seen:
            findings.append(f"{name}: {seen[last]} has the same file name")
        seen[last] = name
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=tree.ROOT)
    root = parser.parse_args().root
    return tree.report(check_order(root) + check_device(root) + check_unique(root), "rooms and file names")


if __name__ == "__main__":
    sys.exit(main())
