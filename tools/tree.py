"""The files of the repository, for the tools that check them.

Input: the folder; output: paths relative to it, sorted; what git ignores is left out.  Cost: one call of git.
"""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def files(root, *endings):
    """Every file of root that exists, tracked or new, whose name ends in one of endings (all files if none)."""
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
                             check=True, capture_output=True, text=True).stdout
    names = sorted(name for name in set(listing.split("\0")) if name and (root / name).is_file())
    return [name for name in names if not endings or name.endswith(endings)]


def read(root, name):
    """The text of a file; bytes that are no UTF-8 become replacement characters."""
    return (root / name).read_text(encoding="utf-8", errors="replace")


def report(findings, what):
    """Print the findings, one a line, and what was checked; return the exit code."""
    for finding in findings:
        print(finding)
    print(f"{what}: {len(findings)} found" if findings else f"{what}: ok")
    return 1 if findings else 0
