#!/usr/bin/env python3
"""Check that README, CONTRIBUTING and docs/ tell no lies that a script can find.

Input: the Markdown files, the tree, and the help texts of mpk and ./dev; output: one line for each lie, exit code 1 if
any.  A lie is a relative link to no file or heading, a path in backticks that does not exist, a ./dev verb or an mpk
verb that is not there, or a flag that the verb's --help does not list.
"""
import argparse
import functools
import pathlib
import re
import subprocess
import sys

import tree

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
# What looks like a path of this repository: it begins with one of its folders, or is a file with an ending of ours.
ENDINGS = (".c", ".h", ".md", ".py", ".sh", ".cmake", ".json", ".txt")
# What a shell takes as one word: flags in it are text.
QUOTED = re.compile(r'"[^"\n]*"|\'[^\'\n]*\'')
# mpk with a verb, at the start of a command; flags up to the end of it.
COMMAND = re.compile(r"(?:^|[|&;(]|\$ )\s*(?:[A-Z_]+=\S+\s+)*((?:\S*/)?mpk|\./dev)((?:[ \t]+[^\s|&;)#]+)*)", re.M)


def documents(root):
    return [n for n in tree.files(root, ".md") if "/" not in n or n.startswith("docs/")]


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def anchors(text):
    """The fragments that headings of a Markdown file get."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", text), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")
        found.add(slug)
    return found


def check_links(root, name, text):
    folder = (root / name).parent
    for match in LINK.finditer(text):
        target, _, fragment = match[1].partition("#")
        if re.match(r"[a-z]+:", match[1]):
            continue
        path = folder / target if target else root / name
        if not path.exists():
            yield match.start(), f"link to {match[1]}: no such file"
        elif fragment and path.suffix == ".md" and fragment not in anchors(path.read_text(encoding="utf-8")):
            yield match.start(), f"link to {match[1]}: no such heading"


def is_repository_path(root, word):
    """Does this word claim to be a file or folder of ours?  Capitals stand for a name (src/op/NAME.c)."""
    if not re.fullmatch(r"[\w.\-/]+", word) or re.search(r"(^|[/_.])[A-Z]{3,}", word.replace("README", "")):
        return False
    head, slash, _ = word.partition("/")
    if slash:
        return head in {p.name for p in root.iterdir()} and not head.startswith("build")
    return False


def check_paths(root, name, text):
    known = set(tree.files(root))
    last_names = {n.rsplit("/", 1)[-1] for n in known}
    for match in SPAN.finditer(FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)):
        word = match[1].rstrip("/").removeprefix("./")
        if is_repository_path(root, word) and not (root / word).exists():
            yield match.start(), f"`{match[1]}`: no such path"
        elif "/" not in word and re.fullmatch(r"[a-z]\w*\.[ch]", word) and word not in last_names:
            yield match.start(), f"`{match[1]}`: no such file"


@functools.lru_cache(maxsize=None)
def help_of(mpk, verb):
    """The help text of a verb of mpk, or None if it has no such verb."""
    run = subprocess.run([mpk, verb, "--help"] if verb else [mpk, "--help"], capture_output=True, text=True, timeout=60)
    return run.stdout + run.stderr if run.returncode == 0 else None


def dev_verbs(root):
    return set(re.findall(r"^cmd_([\w-]+)\(\)", tree.read(root, "dev"), re.M))


def check_mpk(mpk, words):
    """A sentence for each verb or flag of one mpk command that mpk does not know."""
    verb = words[0] if words else ""
    if not verb or verb.startswith("-"):
        return
    if not re.fullmatch(r"[a-z]+", verb):
        return
    known = help_of(str(mpk), verb)
    if known is None:
        yield f"mpk {verb}: no such verb"
        return
    for flag in words[1:]:
        flag = re.split(r"[=\]\[]", flag.strip("[]"))[0]
        if re.fullmatch(r"--?[a-z][a-z0-9-]*", flag) and not re.search(rf"(?<![\w-]){flag}(?![\w-])", known):
            yield f"mpk {verb} {flag}: mpk {verb} --help knows no such flag"


def commands(text):
    """(offset, program, words) of each mpk and ./dev command in code blocks and spans."""
    for fence in FENCE.finditer(text):
        if fence[1] not in ("", "sh", "bash", "console", "shell"):
            continue
        body = QUOTED.sub(lambda m: '"' + "x" * (len(m[0]) - 2) + '"', fence[2].replace("\\\n", "  "))
        for match in COMMAND.finditer(body):
            yield fence.start(2) + match.start(1), match[1], match[2].split()
    for span in SPAN.finditer(FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)):
        match = COMMAND.match(span[1])
        if match and match[2]:
            yield span.start(), match[1], match[2].split()


def check_commands(root, mpk, text):
    verbs = dev_verbs(root)
    for offset, program, words in commands(text):
        if program == "./dev":
            verb = words[0] if words else ""
            if re.fullmatch(r"[a-z-]+", verb) and verb not in verbs:
                yield offset, f"./dev {verb}: no such verb"
        elif mpk:
            for fault in check_mpk(mpk, words):
                yield offset, fault


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=tree.ROOT)
    parser.add_argument("--mpk", type=pathlib.Path, help="the built command; without it mpk's verbs go unchecked")
    args = parser.parse_args()
    if args.mpk and not args.mpk.is_file():
        return tree.report([f"{args.mpk} is not there: build it first (./dev build)"], "documents")
    names, findings = documents(args.root), []
    for name in names:
        text = tree.read(args.root, name)
        for check in (check_links(args.root, name, text), check_paths(args.root, name, text),
                      check_commands(args.root, args.mpk and args.mpk.resolve(), text)):
            findings += [f"{name}:{line_of(text, offset)}: {fault}" for offset, fault in check]
    return tree.report(findings, f"documents, {len(names)} files")


if __name__ == "__main__":
    sys.exit(main())
