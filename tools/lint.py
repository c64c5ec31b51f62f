#!/usr/bin/env python3
"""Check the house rules that a script can check.

Input: every text file of the repository; output: one line for each finding, exit code 1 if any.  The rules: library
code calls nothing that aborts, prints or overruns; no unfinished work is marked in place of doing it, no conflict of a
merge is left; names say what a thing is; functions stay under 100 lines, files under 801, lines of C under 101 columns
and of all else under 121; a file opens with its purpose; a test can fail; files that a GPU unit may have together
declare no name twice.  One figure of the whole tree is printed and may not grow: statements with two `?`.
C is read by a few regular expressions, which the formatting of the house makes reliable: a function's body begins and
ends with a brace in the first column.
"""
import argparse
import ast
import pathlib
import re
import sys

import tree

MAX_FUNCTION_LINES = 100
MAX_CODE_COLUMNS, MAX_TEXT_COLUMNS = 100, 120  # of C and device code; of everything else
MAX_FILE_LINES = 800
MAX_DOUBLE_CHOICES = 1  # statements with two `?`, per 1,000 lines of all code of src, device and include
MEASURED = ("src/", "device/", "include/")
C_ENDINGS = (".c", ".h", ".cu", ".cuh")
CODE_ENDINGS = C_ENDINGS + (".py", ".sh", ".cmake", "CMakeLists.txt", "dev", ".ci/run")
TEXT_ENDINGS = CODE_ENDINGS + (".md", ".in")

BANNED_CALLS = {name: "library code returns a status" for name in ("abort", "exit", "_exit", "quick_exit", "assert")}
BANNED_CALLS |= {name: "library code does not print" for name in
                 ("printf", "vprintf", "fprintf", "vfprintf", "puts", "fputs", "putchar", "perror")}
BANNED_CALLS |= {name: "it can write past the end" for name in
                 ("gets", "strcpy", "strcat", "stpcpy", "sprintf", "vsprintf", "alloca")}
BANNED_CALLS |= {name: "it reads past an error" for name in ("atoi", "atol", "atoll", "atof")}
BANNED_CALLS |= {name: "it keeps state that all threads share" for name in ("strtok", "rand", "srand", "setlocale")}
# The command line is a program: it prints, and it may end.
CLI_MAY = {"exit", "_exit", "printf", "vprintf", "fprintf", "vfprintf", "puts", "fputs", "putchar", "perror"}
# Writing to a file that the caller opened is no printing to the user's terminal.
STREAM_CALLS = {"fprintf", "vfprintf", "fputs"}

# Joined here so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK")) + r")\b")
# What git leaves in a file whose two sides it could not merge; repeats, so that this file does not find itself.
CONFLICT = re.compile(r"^(?:<{7} |>{7} |={7}$)", re.M)
# As part of a longer identifier these still say nothing; the others may be plain English there (new_tokens).
EMPTY_PARTS = {"util", "utils", "helper", "helpers", "manager", "impl", "v2", "legacy", "misc"}
EMPTY_NAMES = EMPTY_PARTS | {"common", "new", "variant"}
FUNCTION = re.compile(r"^(?!struct|typedef|enum|union)\w[^;{}#]*?\b(\w+)\([^;{}]*\)\s*\n\{\n(.*?)^\}", re.S | re.M)


def blank(match):
    """The same text with everything but its line ends turned into spaces."""
    return re.sub(r"[^\n]", " ", match[0])


def code_only(text):
    """C without comments, strings and character constants; lines and columns stay where they were."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def functions(code):
    """(name, first line, last line, body) of each function: its braces stand in the first column."""
    for match in FUNCTION.finditer(code):
        yield match[1], line_of(code, match.start(2)) - 1, line_of(code, match.end()), match[2]


def check_calls(name, code):
    if not name.startswith("src/") or name.endswith(("_test.c", "_fuzz.c")):
        return
    allowed = CLI_MAY if name.startswith("src/cli/") else set()
    for match in re.finditer(r"(?<![\w.>])(\w+)\s*\(\s*(\w*)", code):
        call, first = match[1], match[2]
        if call not in BANNED_CALLS or call in allowed:
            continue
        if call in STREAM_CALLS and first not in ("stdout", "stderr"):
            continue
        yield f"{name}:{line_of(code, match.start())}: {call}(): {BANNED_CALLS[call]}"


def check_unfinished(name, text):
    for match in UNFINISHED.finditer(text):
        yield f"{name}:{line_of(text, match.start())}: {match[1]}: finish it, or file it as an issue"


def check_conflicts(name, text):
    for match in CONFLICT.finditer(text):
        yield f"{name}:{line_of(text, match.start())}: a conflict of a merge: take one side, or both"


def check_file_name(name):
    stem = name.rsplit("/", 1)[-1].split(".")[0]
    for part in re.split(r"[_-]", stem):
        if part.lower() in EMPTY_NAMES:
            yield f"{name}: '{part}' in a file name does not say what the file is for"


def check_identifiers(name, code):
    for match in re.finditer(r"\b[a-z_][a-z0-9_]*\b", code):
        word = match[0]
        if word in EMPTY_NAMES or EMPTY_PARTS.intersection(word.split("_")):
            yield f"{name}:{line_of(code, match.start())}: '{word}' does not say what it is"


def check_lengths(name, text, code):
    most = MAX_CODE_COLUMNS if name.endswith(C_ENDINGS) else MAX_TEXT_COLUMNS
    for i, line in enumerate(text.split("\n"), 1):
        line = re.sub(r" *\\$", "", line)
        if len(line) > most:
            yield f"{name}:{i}: {len(line)} columns, at most {most}"
    n_lines = text.count("\n")
    if n_lines > MAX_FILE_LINES:
        yield f"{name}:{n_lines}: {n_lines} lines, at most {MAX_FILE_LINES}: it comes apart along a seam"
    for function, first, last, _ in functions(code) if name.endswith(C_ENDINGS) else ():
        if last - first + 1 > MAX_FUNCTION_LINES:
            yield f"{name}:{first}: {function} has {last - first + 1} lines, at most {MAX_FUNCTION_LINES}"


def garbled_lines(comment):
    """Indexes of lines of a block comment where a formatter seems to have run the rows of a table together.

    Either a row's second column stands in the middle of running text (a gap of three spaces beyond column 40 of a line
    that is not indented), or an indented row that fills its line goes on at the margin without a new sentence.
    """
    rows = [re.sub(r"^\s*/?\*+", "", line).removesuffix("*/").rstrip() for line in comment.split("\n")]
    for i, row in enumerate(rows):
        running = re.match(r" \S", row)
        if running and re.search(r"\S {3,}\S", row[40:]):
            yield i
        elif re.match(r" [^A-Z\s]", row) and i and rows[i - 1].startswith("   ") and len(rows[i - 1]) > 104:
            yield i


def check_tables(name, text):
    for comment in re.finditer(r"/\*.*?\*/", text, re.S):
        for i in garbled_lines(comment[0]):
            yield f"{name}:{line_of(text, comment.start()) + i}: rows of a table or a list have run together"


def check_opening(name, text):
    body = re.sub(r"\A#!.*\n", "", text).lstrip()
    opening = ("/*", "//") if name.endswith(C_ENDINGS) else ("#", '"""')
    if body and not body.startswith(opening):
        yield f"{name}:1: no comment says what the file is for"


def add_beds(root, code, text):
    """The code of a test with that of the NAME_bed.h that it includes, for its functions assert too."""
    for bed in re.findall(r'#include "(\w+_bed\.h)"', text):
        path = root / "tests" / bed
        code += code_only(path.read_text()) if path.exists() else ""
    return code


def check_c_tests(name, code):
    """Each cmocka test must be able to fail: it asserts, or calls a function of its file or its bed that does."""
    if not name.endswith("_test.c"):
        return
    # A macro of the file that asserts counts as a function that does.
    bodies = {match[1]: match[2] for match in re.finditer(r"#\s*define (\w+)\(((?:[^\n]*\\\n)*[^\n]*)", code)}
    bodies |= {function: body for function, _, _, body in functions(code)}
    lines = {function: first for function, first, _, _ in functions(code)}
    asserting = {f for f, body in bodies.items() if re.search(r"\b(assert_|check_|expect_|fail_msg|fail\b)", body)}
    while True:
        calls = {f for f, body in bodies.items() if asserting.intersection(re.findall(r"\w+", body))}
        if calls <= asserting:
            break
        asserting |= calls
    for match in re.finditer(r"^static void (\w+)\(void \*\*\w*\)\s*\n\{", code, re.M):
        if match[1] in bodies and match[1] not in asserting:
            yield f"{name}:{lines[match[1]]}: the test {match[1]} asserts nothing: it cannot fail"


def check_py_tests(name, text):
    if not re.search(r"(^|/)test_\w+\.py$", name):
        return
    parsed = ast.parse(text, name)
    defined = {node.name: node for node in ast.walk(parsed) if isinstance(node, ast.FunctionDef)}

    def asserts(node, seen):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Assert):
                return True
            if isinstance(inner, ast.Call):
                called = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
                if called in ("raises", "fail") or called.startswith(("assert", "check")):
                    return True
                if called in defined and called not in seen and asserts(defined[called], seen | {called}):
                    return True
        return False

    for function, node in defined.items():
        if function.startswith("test_") and not asserts(node, {function}):
            yield f"{name}:{node.lineno}: the test {function} asserts nothing: it cannot fail"


def check_file(root, name):
    text = tree.read(root, name)
    code = code_only(text) if name.endswith(C_ENDINGS) else ""
    yield from check_unfinished(name, text)
    yield from check_conflicts(name, text)
    yield from check_file_name(name)
    if not name.endswith(CODE_ENDINGS):
        return
    yield from check_lengths(name, text, code)
    yield from check_opening(name, text)
    if name.endswith(C_ENDINGS):
        yield from check_tables(name, text)
    yield from check_calls(name, code)
    yield from check_identifiers(name, code)
    yield from check_c_tests(name, add_beds(root, code, text))
    yield from check_py_tests(name, text)


def check_measures(root, names):
    """What holds of the tree as a whole; the figure is printed."""
    n_code = n_double = 0
    for name in names:
        if not name.startswith(MEASURED) or not name.endswith(C_ENDINGS):
            continue
        text = tree.read(root, name)
        code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, code_only(text), flags=re.M)
        n_code += sum(bool(line.strip()) for line in code.split("\n"))
        n_double += sum(part.count("?") >= 2 for part in re.split("[;{}]", code))
    double = 1000 * n_double / max(n_code, 1)
    print(f"two ? in a statement: {double:.2f} per 1,000 lines (at most {MAX_DOUBLE_CHOICES})")
    if double > MAX_DOUBLE_CHOICES:
        yield f"{n_double} statement(s) with two ?, {double:.2f} per 1,000 lines, at most {MAX_DOUBLE_CHOICES}"


def check_unit_names(root, names):
    """Constants and structs at file scope that two files of one GPU unit would both declare: any two may meet there."""
    seen = {}
    for name in names:
        if not name.startswith(("device/", "src/shape/")) or not name.endswith((".cuh", ".h")):
            continue
        code = code_only(tree.read(root, name))
        found = re.findall(r"^(?:struct|union) (\w+) \{", code, re.M)
        for constants in re.findall(r"^enum\b[^{;]*\{(.*?)\};$", code, re.S | re.M):
            found += re.findall(r"(?:^|,)\s*([A-Z]\w*)", constants)
        for word in dict.fromkeys(found):
            if seen.setdefault(word, name) != name:
                yield f"{name}: {word} is declared in {seen[word]} too, and a GPU unit may have both"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=tree.ROOT)
    root = parser.parse_args().root
    names = [n for n in tree.files(root, *TEXT_ENDINGS) if not n.startswith("tests/corpus/")]
    findings = [finding for name in names for finding in check_file(root, name)]
    findings += check_measures(root, names)
    findings += check_unit_names(root, names)
    return tree.report(findings, f"house rules, {len(names)} files")


if __name__ == "__main__":
    sys.exit(main())
