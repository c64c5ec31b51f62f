"""The checks of tools/ catch what they are for: a small repository is sound, then one fault at a time is planted."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parent.parent / "tools"

# A fake mpk that knows one verb with one flag.
MPK = """#!/bin/sh
# answers --help as mpk does
case "$1" in
run) echo "usage: mpk run MODEL [-p TEXT] [-n N] [--temp X]" ;;
--help) echo "verbs: run" ;;
*) echo "mpk: no verb $1" >&2; exit 2 ;;
esac
"""

SOUND = {
    "src/base/text.h": "/* text.h - text. */\nint text_count(const char *s);\n",
    "src/base/text.c": '/* text.c - text. */\n#include "base/text.h"\n\n#include <string.h>\n\n'
                       "int text_count(const char *s)\n{\n    return (int)strlen(s); /* no assert(s) */\n}\n",
    "src/base/text_test.c": '/* text_test.c - counts. */\n#include "check.h"\n\nstatic void two(int n)\n{\n'
                            "    assert_int_equal(n, 2);\n}\n\nstatic void counts(void **state)\n{\n    two(2);\n}\n",
    "src/ir/graph.h": '/* graph.h - a graph. */\n#include "base/text.h"\n',
    "src/rt/rt_queue.h": '/* rt_queue.h - a queue. */\n#include "rt/rt_port.h"\n',
    "src/rt/rt_port.h": "/* rt_port.h - types. */\n#include <stdint.h>\n",
    "src/cli/main.c": '/* main.c - the command. */\n#include <stdio.h>\n\n#include "base/text.h"\n'
                      '#include "mpk/mpk.h"\n\nint main(void)\n{\n    printf("x");\n    return 0;\n}\n',
    "tools/nvrtc_unit.cu": '/* nvrtc_unit.cu - a kernel. */\nextern "C" __global__ void rt_all(void) {}\n',
    "include/mpk/mpk.h": "/* mpk.h - the public face. */\n",
    "tests/check.h": "/* check.h - what tests assert. */\n",
    "tests/test_one.py": '"""One test."""\n\n\ndef test_one():\n    assert 1 == 1\n',
    "README.md": "# A\n\n[rules](CONTRIBUTING.md#the-rules), `src/base/text.c`, `src/op/NAME.c`\n\n"
                 "```sh\n./dev check\nmpk run MODEL -n 3 --temp 0.5 -p \"a --flag in a prompt\"\n```\n",
    "CONTRIBUTING.md": "# B\n\n## The rules\n",
    "dev": "#!/bin/bash\n# dev - chores.\ncmd_check() { #: check\n    :\n}\n",
    "mpk": MPK,
}


@pytest.fixture
def sound(tmp_path):
    for name, text in SOUND.items():
        write(tmp_path, name, text)
    (tmp_path / "mpk").chmod(0o755)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def write(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def run(tool, root, *options):
    done = subprocess.run([sys.executable, str(TOOLS / tool), "--root", str(root), *options], capture_output=True,
                          text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, timeout=300)
    return done.returncode, done.stdout + done.stderr


def check_caught(tool, root, needle, *options):
    code, said = run(tool, root, *options)
    assert code == 1 and needle in said, said


def check_sound(tool, root, *options):
    code, said = run(tool, root, *options)
    assert code == 0, said


@pytest.mark.parametrize("tool", ["check_rooms.py", "lint.py", "check_docs.py"])
def test_a_sound_tree_passes(sound, tool):
    check_sound(tool, sound, *(["--mpk", str(sound / "mpk")] if tool == "check_docs.py" else []))


ROOM_FAULTS = {
    "upwards": ("src/base/up.c", '#include "ir/graph.h"\n', 'src/base/up.c:2: "ir/graph.h": base may not see ir'),
    "sideways": ("src/load/side.c", '#include "tgraph/tgraph.h"\n', "load may not see tgraph"),
    "rt-base": ("src/rt/rt_bad.h", '#include "base/text.h"\n', "rt may not see base"),
    "rt-public": ("src/rt/rt_bad.h", '#include "mpk/mpk.h"\n', "depends on nothing"),
    "shape-base": ("src/shape/bad_shape.h", '#include "base/text.h"\n', "shape may not see base"),
    "shape-libc": ("src/shape/bad_shape.h", "#include <stddef.h>\n", "shape names no system header"),
    "rt-libc": ("src/rt/rt_bad.h", "#include <string.h>\n", "no system header"),
    "cli": ("src/cli/run.c", '#include "ir/graph.h"\n', "cli may not see ir"),
    "low-sees-rt": ("src/ir/low.c", '#include "rt/rt_queue.h"\n', "ir may not see rt"),
    "no-room": ("src/base/bare.c", '#include "text.h"\n', "write the room"),
    "no-test": ("src/base/bare.c", '#include "check.h"\n', "write the room"),
    "no-test-header": ("src/base/bare_test.c", '#include "absent.h"\n', "write the room"),
    "unknown-room": ("src/attic/old.c", "", "room attic"),
    "ptx-tile": ("device/ptx/low.cuh", '#include "tile/ring.cuh"\n', "low.cuh:2: \"tile/ring.cuh\": ptx may not"),
    "task-role": ("device/task/body.cuh", '#include "role/clerk.cuh"\n', "task may not see role"),
    "role-kernel": ("device/role/clerk.cuh", '#include "kernel.cuh"\n', "role may not see device/"),
    "device-host": ("device/task/body.cuh", '#include "gen/source.h"\n', "task may not see gen"),
    "role-shape": ("device/role/clerk.cuh", '#include "shape/fields.h"\n', "role may not see shape"),
    "device-room": ("device/attic/old.cuh", "", "room attic"),
    "assembly": ("device/tile/fast.cuh", 'void f(void)\n{\n    asm volatile("trap;");\n}\n', "fast.cuh:4: inline"),
    "rt-assembly": ("src/rt/rt_bad.h", 'void f(void)\n{\n    asm("trap;");\n}\n', "inline assembly"),
    "engine-target": ("src/engine/e.c", '#include "cuda/cuda.h"\n', "sees a target through host/target.h"),
    "engine-word": ("src/engine/e.c", "int is_gpu;\n", "e.c:2: 'gpu': what a target is stands in its record"),
    "same-name": ("src/ir/text.c", "", "same file name"),
}


@pytest.mark.parametrize("fault", ROOM_FAULTS)
def test_rooms(sound, fault):
    name, text, needle = ROOM_FAULTS[fault]
    write(sound, name, "/* what it is for. */\n" + text)
    check_caught("check_rooms.py", sound, needle)


def function(body, name="f"):
    return f"int {name}(int n)\n{{\n{body}\n}}\n"


LINT_FAULTS = {
    "abort": ("src/ir/a.c", function("    abort();"), "src/ir/a.c:4: abort()"),
    "exit": ("src/ir/a.c", function("    exit(1);"), "exit()"),
    "assert": ("src/ir/a.c", function("    assert(n);"), "assert()"),
    "print": ("src/ir/a.c", function('    printf("%d", n);'), "printf()"),
    "stderr": ("src/ir/a.c", function('    fprintf(stderr, "x");'), "fprintf()"),
    "strcpy": ("src/ir/a.c", function("    strcpy(a, b);"), "strcpy()"),
    "sprintf": ("src/ir/a.c", function('    sprintf(a, "x");'), "sprintf()"),
    "strtok": ("src/ir/a.c", function('    strtok(a, "x");'), "strtok()"),
    "atoi": ("src/ir/a.c", function("    return atoi(a);"), "atoi()"),
    "gets": ("src/ir/a.c", function("    gets(a);"), "gets()"),
    "cli-abort": ("src/cli/a.c", function("    abort();"), "abort()"),
    "conflict": ("src/ir/a.c", "/* a.c - a file. */\n" + "<" * 7 + " HEAD\n", "a conflict of a merge"),
    "unfinished": ("src/ir/a.c", "/* TO" "DO: the rest */\n", "finish it"),
    "file-name": ("src/ir/graph_util.c", "int x;\n", "does not say what the file is for"),
    "identifier": ("src/ir/a.c", function("    return frobnicate_impl;"), "'frobnicate_impl'"),
    "long-function": ("src/ir/a.c", function("\n".join(["    n++;"] * 100)), "at most 100"),
    "long-file": ("src/ir/a.c", "int x;\n" * 801, "at most 800"),
    "two-choices": ("src/ir/a.c", function("    return n ? 1 : n == 2 ? 2 : 3;"), "1 statement(s) with two ?"),
    "long-line": ("src/ir/a.c", "int " + "x" * 100 + ";\n", "at most 100"),
    "long-python": ("tools/a.py", "x = 1  # " + "x" * 120 + "\n", "at most 120"),
    "table-row": ("src/ir/a.c", "/* Rows.\n *   one    i32[T]   the first, with a remark rising two    i32[R]\n"
                  " * live=rows     which token each row of logits belongs to three   f32[R]\n */\n", "run together"),
    "table-end": ("src/ir/a.c", "/* Rules.\n *   - " + "x" * 103 + "\n * goes on\n */\n", "run together"),
    "idle-test": ("src/ir/a_test.c", "static void idles(void **state)\n{\n    (void)state;\n}\n", "idles asserts"),
    "idle-python": ("tests/test_two.py", "def test_two():\n    print(1)\n", "test_two asserts nothing"),
}


@pytest.mark.parametrize("fault", LINT_FAULTS)
def test_lint(sound, fault):
    name, text, needle = LINT_FAULTS[fault]
    opening = '"""What it is for."""\n' if name.endswith(".py") else "/* what it is for. */\n"
    write(sound, name, opening + text)
    check_caught("lint.py", sound, needle)


def test_lint_finds_names_that_meet_in_a_unit(sound):
    write(sound, "src/shape/a_shape.h", "/* a_shape.h - a. */\nenum { A_ROWS = 4, A_SIZE };\n")
    write(sound, "device/task/b.cuh", "/* b.cuh - b. */\nenum {\n    B_SIZE, /* A_SIZE */\n    A_ROWS\n};\n")
    check_caught("lint.py", sound, "A_ROWS is declared in")


def test_lint_wants_a_purpose(sound):
    write(sound, "src/ir/a.c", "int x;\n")
    check_caught("lint.py", sound, "what the file is for")


def test_lint_takes_tables(sound):
    row = " *   one    i32[T]    " + "x" * 75
    write(sound, "src/ir/a.c",
          "/* Rows.\n" + row + "\n *          its second line\n" + row + "\n * What follows.\n */\n")
    check_sound("lint.py", sound)


def test_lint_reads_no_comments_or_strings(sound):
    write(sound, "src/ir/a.c", '/* abort() */\nconst char *x = "exit(1)"; // gets()\n')
    check_sound("lint.py", sound)


def list_mutants(*options):
    done = subprocess.run([sys.executable, str(TOOLS / "mutate.py"), "--list", *options], check=True, timeout=300,
                          capture_output=True, text=True)
    return done.stdout.splitlines()


def test_mutants_are_drawn_by_seed_and_room():
    first = list_mutants("--n", "12", "--seed", "3", "--rooms", "device", "pass", "rt")
    assert first == list_mutants("--n", "12", "--seed", "3", "--rooms", "device", "pass", "rt")
    for room in ("device/", "src/pass/", "src/rt/"):
        assert sum(line.startswith(room) for line in first) == 4
    assert first != list_mutants("--n", "12", "--seed", "4", "--rooms", "device", "pass", "rt")


def test_mutants_that_are_called_equivalent_exist():
    sys.path.insert(0, str(TOOLS))
    import mutate

    lines = [line.split("  # ")[0].strip() for line in mutate.EQUIVALENT.read_text().splitlines()]
    paths = {line.split(": ")[0] for line in lines}
    known = {f"{m.path}: {m.words()}".strip() for path in paths for m in mutate.mutants_of(path)}
    assert lines and set(lines) <= known, set(lines) - known


DOC_FAULTS = {
    "link": ("[x](docs/gone.md)\n", "README.md:1: link to docs/gone.md"),
    "heading": ("[x](CONTRIBUTING.md#gone)\n", "no such heading"),
    "path": ("`src/base/gone.c`\n", "no such path"),
    "file": ("`gone.c`\n", "no such file"),
    "dev-verb": ("```sh\n./dev fly\n```\n", "./dev fly: no such verb"),
    "dev-span": ("say `./dev fly`\n", "./dev fly: no such verb"),
    "mpk-verb": ("```sh\n./dev check && build/mpk fly x\n```\n", "mpk fly: no such verb"),
    "mpk-flag": ("```sh\n$ mpk run MODEL \\\n    --warp 9\n```\n", "mpk run --warp"),
    "mpk-span": ("say `mpk run --warp=9`\n", "mpk run --warp"),
}


@pytest.mark.parametrize("fault", DOC_FAULTS)
def test_docs(sound, fault):
    text, needle = DOC_FAULTS[fault]
    write(sound, "README.md", text)
    check_caught("check_docs.py", sound, needle, "--mpk", str(sound / "mpk"))


def test_nvrtc_compiles_what_both_compilers_take(sound):
    write(sound, "src/rt/rt_port.h", "typedef unsigned int rt_u32;\n#define RT_FN static inline __device__\n")
    write(sound, "src/rt/rt_queue.h", '#include "rt/rt_port.h"\nRT_FN rt_u32 rt_next(rt_u32 i) { return i + 1; }\n')
    check_sound("nvrtc_check.py", sound)


def test_nvrtc_refuses_c_only(sound):
    write(sound, "src/rt/rt_port.h", "#include <stdint.h>\n")
    check_caught("nvrtc_check.py", sound, "FAILED")


def test_nvrtc_wants_headers(sound):
    for header in (sound / "src/rt").iterdir():
        header.unlink()
    check_caught("nvrtc_check.py", sound, "no headers")


def dev(*words):
    done = subprocess.run([str(TOOLS.parent / "dev"), *words], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_dev_lists_its_verbs():
    code, listed, _ = dev("help")
    defined = re.findall(r"^cmd_([\w-]+)\(\)", (TOOLS.parent / "dev").read_text(), re.M)
    assert code == 0 and len(defined) > 10
    assert [line.split()[0] for line in listed.splitlines()[2:]] == defined


def test_dev_refuses_other_verbs():
    code, printed, said = dev("fly")
    assert (code, printed) == (2, "") and "no verb fly" in said


SAMPLED = '''"Kernel Name","mpk_kernel",
"Address","Source","# Samples","stall_wait","stall_selected","stall_wait (Not Issued)"
"0x10","FADD R1, R1, R2","4","3","1","2"
"0x20","LDS R1, [R2]","0","0","0","0"
"0x30","EXIT","1","","1",""
'''
INLINED = """.text.mpk_kernel:
        //## File "mpk.cu", line 3 inlined at "mpk.cu", line 8
        //## File "mpk.cu", line 8
        /*0000*/                   FADD R1, R1, R2 ;
        /*0010*/                   LDS R1, [R2] ;
        //## File "mpk.cu", line 9
        /*0020*/                   EXIT ;
"""
KERNEL = """MPK_FN float inner(float x)
{
    return x + x;
}
extern "C" __global__ void outer(float *x)
{
    float y = *x;
    y = inner(y);
}
"""


def sampled(folder, sass):
    files = {"samples.csv": SAMPLED, "kernel.cu": KERNEL, "kernel.sass": sass}
    for name, text in files.items():
        (folder / name).write_text(text)
    return subprocess.run([sys.executable, TOOLS / "warp_samples.py", *(folder / name for name in files)],
                          capture_output=True, text=True)


def test_samples_of_warps_are_shown_by_function(tmp_path):
    shown = sampled(tmp_path, INLINED)
    assert shown.returncode == 0
    assert [line.split() for line in shown.stdout.splitlines()] == [
        "100.00 outer [3] wait 60.0 selected 40.0".split(), "80.00 inner [2] wait 60.0 selected 20.0".split()]
    other = sampled(tmp_path, INLINED.replace("EXIT", "NOP ;\n        /*0030*/                   EXIT"))
    assert other.returncode and "3 instructions" in other.stderr and "4: compile the source" in other.stderr
