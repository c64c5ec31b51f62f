"""bench/paper.py: its plan, what it computes, a whole run on the CPU, and failures that are rows and not ends."""

import json
import math
import pathlib
import re
import subprocess
import sys
import time

import pytest

import support

BENCH = support.ROOT / "bench"
sys.path.insert(0, str(BENCH))
import measured  # noqa: E402  the folder of bench/ is no package
import paper  # noqa: E402
import paper_figures  # noqa: E402
import rivals  # noqa: E402

TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 4, "intermediate_size": 512, "vocab_size": 2048,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def run(*words, code=0, mpk=support.MPK):
    done = subprocess.run([sys.executable, str(BENCH / "paper.py"), "--mpk", str(mpk), *map(str, words)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout


def test_help_names_every_section():
    text = run("--help")
    assert all(name in text for name in paper.SECTIONS) and "--time-budget" in text


def test_dry_run_prints_the_plan_and_runs_nothing(tmp_path):
    text = run("--dry-run", "--only", "latency", "--models", "qwen3-8b", "--batches", 4, "--rivals", "vllm", "--out",
               tmp_path / "out", mpk="/nowhere/mpk")
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    ours = [line for line in lines if line.startswith("  /nowhere/mpk bench")]
    assert len(ours) == 3 and sum("--mode=graph" in line for line in ours) == 2
    assert all("--batch 4" in line and "models/qwen3-8b" in line for line in ours)
    assert any('"vllm"' in line for line in lines) and not (tmp_path / "out").exists()


def test_variants_are_chosen():
    """What --variants leaves, in every section; JIT launch of unequal lengths generates less."""
    text = run("--dry-run", "--only", "ablation", "unequal", "linear", "context", "latency", "--models", "qwen3-8b",
               "--batches", 16, "--rivals", "--variants", "mpk", "no-preload", "launch=jit,no-carriers",
               "--unequal-generate", 200, mpk="/nowhere/mpk")
    ours = [line for line in text.splitlines() if "/nowhere/mpk bench" in line]
    assert not any("--mode" in line or "--coarse" in line or "--launch=aot" in line for line in ours)
    jit = [line for line in ours if "--launch=jit" in line]
    assert len(jit) == 2 and sorted(f"--generate {paper.JIT_TOKENS} " in line for line in jit) == [False, True]
    run("--dry-run", "--variants", "launch=never", code=2)


def test_mechanisms_differ_in_what_they_name(capsys):
    """Events and policies are compared without carriers, and each pair of neighbours in the table by one option."""
    words = {name: set(words) for name, words in paper.MECHANISMS.items()}
    assert len(words) == 8 == len({frozenset(w) for w in words.values()})
    for name, has in words.items():
        assert ("--coarse-events" in has) == ("coarse-events" in name) and ("--no-carriers" in has) == ("no-c" in name)
        assert "--no-carriers" in has or has <= {"--launch=aot", "--coarse-events"}
    ms = {name: {"median": 1.0 + i, "least": 1.0, "most": 9.0} for i, name in enumerate(["mpk", *words])}
    paper.paper_tables.TABLES["ablation"]([{"model": "m", "batch": 1, "ms": ms}])
    lines = [re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines()]
    rows = {tuple(line[2:4]): line[4:] for line in lines if line[0] == "m" and len(line) == 6}
    assert len(rows) == 6 and all(len(cells) == 2 for cells in rows.values())
    assert all((cells[0] == "-") == (key[0] != "aot") for key, cells in rows.items())


def test_wrong_use(tmp_path):
    run("--only", "flights", code=2)
    run(code=2, mpk=tmp_path / "none")
    run("--dry-run", "--models", tmp_path / "none", code=1)


def test_bytes_of_a_step():
    """The light column of known models, ms at 3.15 TB/s, context 576: weights and KV cache."""
    for name, batch, ms in (("qwen3-0.6b", 1, 0.400), ("qwen3-0.6b", 16, 0.714), ("llama-3.2-1b", 1, 0.791),
                            ("qwen3-1.7b", 16, 1.425), ("qwen3-8b", 1, 4.832), ("qwen3-8b", 16, 5.237),
                            ("qwen3-30b-a3b", 1, 1.949), ("qwen3-30b-a3b", 16, 12.92)):
        got = paper.Model(name).bytes_of_step([576] * batch) / 3.15e12 * 1e3
        assert math.isclose(got, ms, rel_tol=0.01), (name, batch, got)


def test_json_is_found_among_other_lines():
    assert paper.find_json('warming up\n{"a": 1}\n') == {"a": 1}
    assert paper.find_json('{\n  "a": [1,\n 2]\n}\n') == {"a": [1, 2]}
    assert paper.find_json('{"first": 1}\n{"last": 2}') == {"last": 2}
    assert paper.find_json("") is paper.find_json("{broken\nno object") is None


def test_medians_over_turns():
    """Variants alternate; one that fails is left out of later rounds and keeps its reason."""
    b, order, times = paper.Bench(paper.parse(["--mpk", sys.executable])), [], iter([3.0, 9.0, 1.0, 2.0])

    def timed(name, slow):
        def command():
            order.append(name)
            return {"failed": "why"} if name == "c" else {"t": next(times)}
        return command, slow
    got = b.take_turns({"a": timed("a", False), "b": timed("b", True), "c": timed("c", False)},
                       lambda r: {"median": r["t"], "least": r["t"] - 1, "most": r["t"] + 1}, rounds=3)
    assert order == ["a", "b", "c", "a", "a"]
    assert got == {"a": {"median": 2.0, "least": 0.0, "most": 4.0}, "b": {"median": 9.0, "least": 8.0, "most": 10.0},
                   "c": {"failed": "why"}}


def test_a_run_on_the_cpu(tiny, tmp_path):
    """A few sections with a tiny model: numbers, rows that failed with their reason, the same tables from the file."""
    out = tmp_path / "out"
    text = run("--only", "stages", "latency", "start", "schedule", "--models", tiny, "--device", "cpu", "--batches", 2,
               "--rivals", "--prompt", 8, "--generate", 200, "--runs", 2, "--rounds", 1, "--bandwidth", 0.03, "--out",
               out)
    result = json.loads((out / "paper.json").read_text())
    rows = {row["section"]: row for row in result["rows"]}
    assert list(rows) == ["stages", "latency", "start", "schedule"] and result["bytes_per_s"] == 3e10
    assert rows["stages"]["result"]["operators"] > 10
    ms = rows["latency"]["ms"]
    assert ms["mpk"]["least"] <= ms["mpk"]["median"] <= ms["mpk"]["most"] and ms["mpk"]["median"] > 0
    assert "for a GPU" in ms["graph"]["failed"]
    kinds = rows["schedule"]["result"]["profile"]["kinds"]
    assert "linear" in {kind["kind"] for kind in kinds} and all(kind["body_us"] > 0 for kind in kinds)
    assert math.isclose(sum(kind["share"] for kind in kinds), 1, abs_tol=1e-3)
    assert rows["start"]["cold"]["compile_ms"] > 0 and rows["start"]["cold"]["kernel_cached"] is False
    assert "Decode, ms a step" in text and "graph: failed: exit 1" in text and "\nOne step of " in text
    again = run("--only", "--models", tiny, "--device", "cpu", "--from", out / "paper.json", "--out",
                tmp_path / "again")
    tables = text[text.index("\nStages"):text.rindex("\n\n")]
    assert tables in again
    assert json.loads((tmp_path / "again" / "paper.json").read_text())["rows"] == result["rows"]


def test_a_time_budget_ends_the_run_but_not_the_report(tiny, tmp_path):
    begin = time.monotonic()
    text = run("--only", "latency", "ablation", "--models", tiny, "--device", "cpu", "--rivals", "--time-budget", 1,
               "--out", tmp_path)
    assert time.monotonic() - begin < 30
    assert "left out" in text and (tmp_path / "paper.json").exists()


def test_a_measurement_that_hangs_is_a_row(tiny, tmp_path):
    slow = tmp_path / "mpk"
    slow.write_text("#!/bin/sh\nsleep 60\n")
    slow.chmod(0o755)
    run("--only", "schedule", "--models", tiny, "--device", "cpu", "--batches", 1, "--rivals", "--timeout", 0.5,
        "--out", tmp_path, mpk=slow)
    row, = json.loads((tmp_path / "paper.json").read_text())["rows"]
    assert "not done in" in row["result"]["failed"]


def test_pytorch_beside(tiny, tmp_path):
    """Decode, prompt and product give times; saved weights give the logits of fp32 back, and bf16's are not far."""
    import numpy
    import torch
    model = dict(model=str(tiny), device="cpu")
    for result in (rivals.eager(**model, batch=2, prompt=4, generate=3, runs=2),
                   rivals.linear(device="cpu", rows=64, columns=32, batch=2, runs=2)):
        assert 0 < result["step_ms"]["least"] <= result["step_ms"]["median"] <= result["step_ms"]["most"]
    assert rivals.prompt(**model, tokens=5, runs=1)["first_token_ms"]["median"] > 0
    seed, ids = support.seed().randrange(99), [5, 9, 2]
    folder = rivals.weights(**model, folder=str(tmp_path / "w"), seed=seed)["folder"]
    numpy.save(tmp_path / "same.npy", rivals.true_logits(folder, "cpu", "float32", ids).numpy())
    numpy.save(tmp_path / "none.npy", numpy.zeros((3, TINY["vocab_size"]), numpy.float32))
    files = {name: str(tmp_path / f"{name}.npy") for name in ("same", "none")}
    results = rivals.logits(folder, "cpu", ids, files)["against_fp32"]
    assert results["same"]["kl"] == 0 and results["same"]["argmax"] == 1 and results["same"]["nll_distance"] == 0
    assert 0 < results["eager bf16"]["kl"] < 0.01 * results["none"]["kl"]
    assert math.isclose(results["none"]["nll"], math.log(TINY["vocab_size"]), rel_tol=1e-6)
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert math.isclose(rivals.compare(p, q, [0])["kl"], 0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel_tol=1e-6)


def test_figures(tmp_path):
    """One bar a variant: files where matplotlib is, a sentence where it is not."""
    row = {"section": "latency", "model": "m", "batch": 1, "light_ms": 0.4,
           "ms": {"mpk": {"median": 0.5, "least": 0.4, "most": 0.6}, "vLLM": {"median": 1.0, "least": 1.0, "most": 1.0},
                  "graph": {"failed": "why"}}}
    assert paper_figures.heights(row, "vLLM", True) == (0.5, (0, 0))
    assert paper_figures.heights(row, "graph", True) is None
    height, error = paper_figures.heights(row, "mpk", False)
    assert height == 0.5 and all(math.isclose(e, 0.1) for e in error)
    said = paper_figures.draw([row], pathlib.Path(tmp_path))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert "pip install matplotlib" in said
    else:
        assert "latency.png" in said and (tmp_path / "latency.png").stat().st_size > 1000


def test_measured_page_and_comparison(tmp_path, monkeypatch, capsys):
    record = {"system": "mpk", "machine": "a GPU", "date": "2026",
              "commit": "abc", "note": "", "bytes_per_s": 1e12,
              "decode": [{"model": "qwen3-0.6b", "batch": 2, "prompt": 64, "generate": 100, "ms": 2.5}],
              "prompts": [{"model": "qwen3-0.6b", "tokens": 512, "ms": 7}]}
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    monkeypatch.setattr(measured, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(measured, "ROOT", tmp_path)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(record))
    measured.main(["page"])
    light = paper.Model("qwen3-0.6b").bytes_of_step([114, 114]) / 1e9
    assert f"| qwen3-0.6b | 64, 100 | 2.500 ({2.5 / light:.2f}) |" in measured.PAGE.read_text()
    measured.main(["page", "--check"])
    record["decode"][0]["ms"] = 2
    new.write_text(json.dumps(record))
    with pytest.raises(SystemExit, match="out of date"):
        measured.main(["page", "--check"])
    measured.main(["compare", str(old), str(new)])
    assert "0.800" in capsys.readouterr().out
