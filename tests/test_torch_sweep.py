"""tools/torch_sweep.py: a sweep over models that can be interrupted and resumed, and its table."""

import json
import os
import subprocess
import sys

import pytest

import support

pytest.importorskip("transformers")
TOOL = support.ROOT / "tools" / "torch_sweep.py"


def sweep(*arguments):
    environment = {"MPK_LIBRARY": str(support.BUILD / "libmpk.so"), **os.environ}
    return subprocess.run([sys.executable, TOOL, *arguments], capture_output=True, text=True, env=environment)


def test_a_sweep_is_resumed(tmp_path):
    out, table = tmp_path / "rows.jsonl", tmp_path / "table.md"
    first = sweep("--out", out, "gpt2")
    assert first.returncode == 0 and "1/1 gpt2: agreed" in first.stdout, first.stdout + first.stderr
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["programs"] == row["graphs"] == 1 and row["difference"] < 1e-4
    second = sweep("--out", out, "--write", table, "--seconds", "0", "gpt2", "bert")
    assert "gpt2" not in second.stdout and "bert: slow more than 0 s" in second.stdout
    assert "| `gpt2` | agreed | 1 | 1 |" in table.read_text() and "| slow | 1 |" in table.read_text()


def test_what_is_wrong_is_told(tmp_path):
    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps({"name": "x", "status": "wrong", "reason": ""}) + "\n")
    assert sweep("--out", out, "--table-only").returncode == 1
