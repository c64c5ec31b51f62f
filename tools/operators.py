#!/usr/bin/env python3
"""Write docs/operators.md from the records in src/op, or check that it is up to date (--check: exit code 1 if not).

Input: the C files of src/op that define an op_def, and the headers there that they include; output: one section for
each operator: the summary, the operands, the opening comment of the file, the attributes with their defaults.  The
tables are read by regular expressions, which the one way in which records are written makes reliable.
"""
import argparse
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRESENCE = {"0": "", "OP_OPTIONAL": "optional", "OP_VARIADIC": "one or more"}
ATTRIBUTE = re.compile(r'SHAPE_(INT|REAL|WORD|NEEDED|LIST)\("(\w+)"(?:,\s*("[^"]*"|[^)]+))?\)')
KINDS = {"INT": "whole number", "REAL": "number", "WORD": "text", "FLOAT": "number", "STR": "text",
         "INTS": "list of whole numbers", "LIST": "list of whole numbers"}
HEAD = """# Operators

Every operator that there is, written by `tools/operators.py` from the records in `src/op`. How operators are written
down is said in [the text form](text-form.md); here `?` marks an optional input, `...` one or more. Dimension letters:
T tokens in this step, R rows of logits, D hidden, H query heads, G KV heads, K head size, V vocabulary, B requests,
P tokens per KV page.

"""


def table(source, name):
    """The text between the braces of a static table of the record: NAME, or of a header HEADER_NAME."""
    start = re.search(r"\b(?:\w+_)?" + name + r"\[\] = \{", source)
    if not start:
        return ""
    depth, at = 1, start.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(source[at], 0)
        at += 1
    return source[start.end():at - 1]


def operands(text):
    return [(name, PRESENCE[presence]) for name, presence in re.findall(r'\{"(\w+)",\s*(\w+)\}', text)]


def attributes(text, shared):
    for name, rows in shared.items():
        text = text.replace(name, rows)
    return [(name, KINDS[value if kind == "NEEDED" else kind], "needed" if kind == "NEEDED" else value or "none")
            for kind, name, value in ATTRIBUTE.findall(text)]


def prose(text):
    """A paragraph of a comment as Markdown: wrapped, nothing taken for markup; what is indented stays as it is."""
    if text.startswith("  "):
        return re.sub(r"(?m)^ +", "    ", text)
    return textwrap.fill(text.replace("*", "\\*").replace("<", "&lt;"), 110)


def comment(source):
    """The opening comment without the file's name."""
    body = re.search(r"/\* [\w.]+ - (.*?) ?\*/", source, re.S).group(1)
    lines = [re.sub(r"^ \* ?", "", line).rstrip() for line in body.split("\n")]
    return "\n\n".join(prose(p) for p in re.split(r"\n\n+", "\n".join(lines).strip()))


def with_headers(source):
    """The source, and after it the headers of src/op that it includes."""
    names = re.findall(r'#include "(op/[\w.]+)"', source)
    return "\n".join([source, *((ROOT / "src" / name).read_text() for name in names)])


def literal(source, field):
    """The text of a field of the record, which may be cut into several literals."""
    return "".join(re.findall(r'"([^"]*)"', re.search(r"\." + field + r'\s*=\s*((?:"[^"]*"\s*)+)', source).group(1)))


def section(source, shared):
    everything = with_headers(source)
    name, summary = (literal(source, field) for field in ("name", "summary"))
    ins, outs = (operands(table(everything, field)) for field in ("in", "out"))
    shown = ", ".join(n + ("?" if p == "optional" else " ..." if p else "") for n, p in ins)
    text = f"## {name}\n\n{prose(summary)}\n\n```text\n{', '.join(n for n, _ in outs)} = {name}({shown})\n```\n\n"
    text += comment(source) + "\n\n"
    rows = attributes(table(everything, "attributes"), shared)
    if rows:
        text += "| attribute | type | default |\n|---|---|---|\n"
        text += "".join(f"| `{n}` | {kind} | {value} |\n" for n, kind, value in rows) + "\n"
    return name, text


def document():
    shared = {name: re.search(r"#define " + name + r"\b(.*?)\n\n", (ROOT / "src/op" / file).read_text(), re.S).group(1)
              for name, file in (("ROPE_ATTRIBUTE_ROWS", "rope.h"), ("POOL_RECORD", "pool.h"),
                                  ("ROTATED_ATTRIBUTE_ROWS", "rotated.h"))}
    sources = [path.read_text() for path in sorted((ROOT / "src/op").glob("*.c"))]
    sections = dict(section(s, shared) for s in sources if re.search(r"^const op_def op_", s, re.M))
    index = textwrap.fill(", ".join(f"[{name}](#{name})" for name in sorted(sections)), 120)
    return HEAD + index + ".\n\n" + "".join(sections[name] for name in sorted(sections)).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    check, path = parser.parse_args().check, ROOT / "docs/operators.md"
    if not check:
        path.write_text(document())
    elif not path.exists() or path.read_text() != document():
        print("docs/operators.md is out of date: run tools/operators.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
