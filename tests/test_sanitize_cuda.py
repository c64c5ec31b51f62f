"""tools/sanitize_cuda.py: what it reads out of compute-sanitizer's words, and that what is new fails a run."""

import pathlib
import subprocess
import sys

import support

TOOL = support.ROOT / "tools" / "sanitize_cuda.py"
sys.path.insert(0, str(TOOL.parent))
import sanitize_cuda  # noqa: E402  the folder of tools/ is no package

SOURCE = """/* ptx.cuh - x */
MPK_FN void ptx_copy_bulk_once(void *to)
{
    copy(to);
}
template <int N> MPK_FN void body(char *s)
{
    use(s);
}
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at ptx_copy_bulk_once(void *)+0x10 in mpk.cu:4
=========     and Read access at void body<1>(char *)+0x20 in mpk.cu:8 [12 hazards]
=========     and Read access at void body<1>(char *)+0x40 in mpk.cu:8 [3 hazards]
=========
"""
RACE_WITHIN = RACE.replace("mpk.cu:4", "mpk.cu:9")
MEMORY = """========= Invalid __global__ write of size 4 bytes
=========     at void body<1>(char *)+0x20 in mpk.cu:8
=========     by thread (7,0,0) in block (0,0,0)
"""
CHECK_CUDA = """#!/bin/sh
[ -n "$MPK_KEEP" ] && mkdir -p "$MPK_KEEP" && cat >"$MPK_KEEP/mpk.cu" <<'END'
%sEND
echo "$MPK_PATIENCE $1"; [ -z "$FAIL" ]
"""


def test_what_is_read():
    source = sanitize_cuda.Source(SOURCE)
    assert [source.function(n) for n in (1, 4, 8, 99, None)] == ["?", "ptx_copy_bulk_once", "body", "?", "?"]
    assert sanitize_cuda.hazards(RACE, source) == {("body", "ptx_copy_bulk_once"): 15}
    found = sanitize_cuda.reports(MEMORY + "========= ERROR SUMMARY: 1 error\n", source)
    assert found == {"Invalid __global__ write of size 4 bytes (body)": 1}
    assert sanitize_cuda.summary_of("========= RACECHECK SUMMARY: 53 hazards displayed (53 errors)\n") == 53
    assert sanitize_cuda.summary_of(RACE) is None


def test_the_table_of_the_document():
    known = sanitize_cuda.known_pairs((support.ROOT / "docs" / "gpu.md").read_text())
    assert sanitize_cuda.is_known(("attention_tokens", "ptx_copy_bulk_once"), known)
    assert sanitize_cuda.is_known(("ptx_load_flag", "ptx_store_flag"), known)
    assert not sanitize_cuda.is_known(("stream_put", "stream_total"), known)
    assert not sanitize_cuda.is_known(("ptx_load_flag", "stream_put"), known)
    device = "".join(path.read_text() for path in (support.ROOT / "device").rglob("*.cuh"))
    for pair in known:  # names of functions that are there
        assert all(name.rstrip("*") in device for name in pair), pair


def run(folder, output, **env):
    """The tool with stand-ins: a check_cuda, and a compute-sanitizer that says `output`."""
    for name, text in (("check_cuda", CHECK_CUDA % SOURCE), ("compute-sanitizer", f"#!/bin/sh\ncat {folder}/said\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "said").write_text(output)
    done = subprocess.run([sys.executable, str(TOOL), str(folder / "check_cuda"), "--out", str(folder / "out"),
                           "--tools", "racecheck", "memcheck"], capture_output=True, text=True, timeout=60,
                          env={"PATH": f"{folder}:/usr/bin:/bin", **env})
    return done.returncode, done.stdout


def test_runs(tmp_path: pathlib.Path):
    end = "========= RACECHECK SUMMARY: {0} hazards displayed\n"
    code, text = run(tmp_path, end.format(0))
    assert code == 0 and "2 of 2 tools found nothing new" in text
    code, text = run(tmp_path, RACE + end.format(1))
    assert code == 1 and "known        15 body and ptx_copy_bulk_once" in text  # of memcheck the same words are new
    assert text.count("passed") == 2 and "1 of 2" in text
    code, text = run(tmp_path, RACE_WITHIN + end.format(1))
    assert code == 1 and "NEW          15 body and body" in text and "0 of 2" in text
    code, text = run(tmp_path, RACE)
    assert code == 1 and "did not come to its end" in text
    code, text = run(tmp_path, end.format(2))
    assert code == 1 and "0 of 2" in text  # counted, but nothing that can be read
    code, text = run(tmp_path, "", FAIL="1")
    assert code == 1 and text.startswith("without a tool: failed")
