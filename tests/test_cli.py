"""The command as a user meets it: every verb, its help, exit codes, bad input, full disks, closed pipes, any bytes."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import numpy
import pytest

import support
import tiny

import mpk  # support knows where it is

VERBS = ["run", "chat", "serve", "batch", "score", "tokenize", "quantize", "perplexity", "compile", "inspect", "opt",
         "bench", "doctor"]
CONFIGURATION = support.ROOT / "models" / "qwen3-0.6b"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("cli") / "model")


def fails(*arguments, code, needle, stdin=b"", env=None):
    """Nothing on standard output, one line on standard error that has the needle."""
    out, errors = support.mpk(*arguments, code=code, stdin=stdin, env=env)
    assert out == b""
    assert errors.startswith("mpk: ") and errors.count("\n") == 1, errors
    assert re.search(needle, errors), errors


# ---- help and wrong usage ----

def test_help_lists_verbs_and_flags():
    out, _ = support.mpk("--help")
    assert all(f"mpk {verb} " in out.decode() for verb in VERBS)
    assert re.fullmatch(rb"mpk \d+\.\d+\.\d+\n", support.mpk("--version")[0])
    for verb in VERBS:
        text = support.mpk(verb, "--help")[0].decode()
        assert text.startswith(f"mpk {verb}") and "--help" in text
        for flag in re.findall(r"^  (?:-\w, )?--([a-z-]+)", text, re.M):
            if flag not in ("help",):
                _, errors = support.mpk(verb, f"--{flag}=", code=None)
                assert f"there is no option --{flag}" not in errors


def test_wrong_usage(model):
    assert "mpk run" in support.mpk(code=2)[1]
    fails("fly", code=2, needle="no verb 'fly'")
    fails("run", model, "--fly", code=2, needle="--fly")
    fails("run", model, "-Z", code=2, needle="-Z")
    fails("run", model, "-n", code=2, needle="-n|--max-tokens")
    fails("run", model, "-n", "0", "-p", "x", code=2, needle="'0'")
    fails("run", model, "-n", "-3", "-p", "x", code=2, needle="'-3'")
    fails("run", model, "--temp", "hot", "-p", "x", code=2, needle="hot")
    fails("run", model, "--top-p=1.5", "-p", "x", code=2, needle="1.5")
    fails("run", model, "--ops=some", "-p", "x", code=2, needle="full|paper|none")
    fails("run", model, "--step-tokens=48", "-p", "x", code=2, needle="power of two")
    fails("run", model, "--ignore-eos=yes", "-p", "x", code=2, needle="takes no value")
    fails("run", model, "--degree=linear", "-p", "x", code=2, needle="linear:1=8")
    fails("run", model, code=2, needle="-p TEXT")
    fails("run", model, "-p", "x", "-f", "y", code=2, needle="-p TEXT")
    fails("run", model, "x", code=2, needle="'x'")
    fails("tokenize", code=2, needle="MODEL")
    fails("batch", model, code=2, needle="REQUESTS")
    fails("compile", model, code=2, needle="-o FILE")
    fails("score", model, code=2, needle="--tokens")
    fails("opt", code=2, needle="--pass")
    fails("inspect", model, "--dot", "--stats", code=2, needle="exclude")
    fails("inspect", model, "--part=lm_head", code=2, needle="--part says nothing without --dot")
    for pooling in ("last", "mean"):
        fails("serve", model, f"--pooling={pooling}", code=2, needle="--pooling says nothing without --embeddings")
    fails("quantize", model, "-o", "/dev/null", "--type=q8_0", "--windows=3", code=2,
          needle=r"--windows says nothing without --calibrate\|report")


def test_run_without_a_model_tells_where_to_get_one():
    fails("run", code=2, needle="dev demo|demo model is at")


# ---- run and chat ----

def test_run_streams_and_ends(model, tmp_path):
    out, errors = support.mpk("run", model, "-p", "in the", "-n", "5", "--ignore-eos")
    assert out.endswith(b"\n")
    out.decode()  # valid UTF-8
    assert re.search(r"mpk: load .* prompt \d+ tokens, .* tokens/s; decode 5 tokens, .* tokens/s; length", errors)
    again, errors = support.mpk("run", model, "-", "-n", "5", "--ignore-eos", "--quiet", stdin=b"in the")
    assert again == out and errors == ""
    (tmp_path / "prompt").write_bytes(b"in the")
    assert support.mpk("run", model, "-f", tmp_path / "prompt", "-n5", "--ignore-eos")[0] == out
    assert support.mpk("run", "-n=5", code=2)[0] == b""
    echoed = support.mpk("run", model, "-p", "in the", "-n", "5", "--ignore-eos", "--echo")[0]
    assert echoed == b"in the" + out
    for threads in (1, 3, 8):
        assert support.mpk("run", model, "-p", "in the", "-n", "5", "--ignore-eos", "--threads", threads)[0] == out


def test_run_samples_by_seed(model):
    def draw(seed):
        return support.mpk("run", model, "-p", "in", "-n", "12", "--temp", "1.5", "--seed", seed, "--ignore-eos")[0]
    assert draw(1) == draw(1)
    assert len({draw(s) for s in range(6)}) > 1


CHAT = ("{% if messages[0].role == 'system' %}{{ messages[0].content }}|{% endif %}"
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{{ mark }}{% endfor %}"
        "{% if messages[-1].content == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}")


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """The model with a chat template and suggestions for sampling."""
    folder = tiny.model(tmp_path_factory.mktemp("chat") / "model")
    (folder / "chat_template.jinja").write_text(CHAT)
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 1.5, "top_k": 50}')
    return folder


def continued(model, prompt, n):
    """What follows a prompt that brings its own special tokens, of which the template here has none."""
    ids = support.mpk("tokenize", model, "-p", prompt)[0].decode().split()
    line = json.dumps({"tokens": [int(i) for i in ids], "max_tokens": n})
    return json.loads(support.mpk("batch", model, "-", "-q", stdin=line.encode())[0])["text"]


def test_chat_remembers_what_was_said(chat_model):
    options = ["--temp", "0", "-n", "6", "--set", "mark=:", "-q"]
    out, _ = support.mpk("chat", chat_model, *options, stdin=b"in\nthe\\\nend\n")
    first = continued(chat_model, "in:", 6)
    second = continued(chat_model, f"in:{first}:the\nend:", 6)
    assert out.decode() == f"{first}\n{second}\n"
    assert support.mpk("chat", chat_model, *options, "-p", "in")[0].decode() == f"{first}\n"
    told = support.mpk("chat", chat_model, *options, "-p", "in", "-s", "the")[0].decode()
    assert told == continued(chat_model, "the|in:", 6) + "\n"


def test_chat_samples_as_suggested(chat_model):
    def draw(*options):
        return support.mpk("chat", chat_model, "-p", "in", "-n", "20", *options)[0]
    assert draw("--seed", "1") == draw("--seed", "1") == draw("--seed", "1", "--temp", "1.5", "--top-k", "50")
    assert len({draw("--seed", s) for s in range(5)}) > 1
    assert draw("--seed", "1", "--top-k", "1") == draw("--temp", "0")


def test_chat_says_what_is_wrong(chat_model, model, tmp_path):
    fails("chat", model, "-p", "in", code=1, needle="chat template")
    fails("chat", chat_model, "-p", "bad", code=1, needle="no bad words")
    fails("chat", chat_model, "-p", "in", "--set", "mark", code=2, needle="NAME=VALUE")
    (tmp_path / "t").write_text("{% for %}")
    fails("chat", chat_model, "-p", "in", "--chat-template", tmp_path / "t", code=1, needle="line 1")
    fails("chat", chat_model, "-p", "the " * 400, code=1, needle="context of 256")


def test_chat_at_a_terminal(chat_model):
    """A message that fails leaves the conversation as it was; /clear empties it; Ctrl-D ends."""
    user, own = os.openpty()
    p = subprocess.Popen([support.MPK, "chat", chat_model, "--temp", "0", "-n", "4", "-q"], stdin=own,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.write(user, b"in\nbad\nthe\n/clear\nin\n/what\n\x04")
    out, errors = p.communicate(timeout=60)
    os.close(user)
    os.close(own)
    first = continued(chat_model, "in", 4)
    second = continued(chat_model, f"in{first}the", 4)
    assert p.returncode == 0
    assert out.decode() == f"> {first}\n> > {second}\n> > {first}\n> > \n"
    assert b"no bad words" in errors and b"/clear" in errors


def test_stop_text(model):
    whole = support.mpk("run", model, "-p", "in the", "-n", "40", "--ignore-eos")[0].decode()[:-1]
    stop = whole[len(whole) // 2:][:2]
    out, errors = support.mpk("run", model, "-p", "in the", "-n", "40", "--ignore-eos", "--stop", stop)
    assert out.decode()[:-1] == whole[:whole.index(stop)]
    assert "; stop" in errors


@pytest.mark.parametrize("prompt", [b"\xff\xfe", b"caf\xe9", b"\xf0\x9f\x98", "\U0001f600 é \u202e".encode(), b"a\x00b",
                                    b" "])
def test_prompts_of_any_bytes(model, prompt, tmp_path):
    out, _ = support.mpk("run", model, "-", "-n", "3", "--ignore-eos", stdin=prompt)
    out.decode()
    if b"\x00" not in prompt:
        command = [os.fsencode(support.MPK), b"run", os.fsencode(model), b"-p", prompt, b"-n", b"3", b"--ignore-eos"]
        r = subprocess.run(command, capture_output=True, timeout=60)
        assert r.returncode == 0 and r.stdout == out


def test_long_prompts_are_refused_with_numbers(model):
    fails("run", model, "-p", "the " * 400, code=1, needle=r"context of 256")
    fails("run", model, "-p", "x", "--context", "5000", code=1, needle="256")
    out, errors = support.mpk("run", model, "-p", "the " * 50, "-n", "4000", "--ignore-eos")
    assert "length" in errors


def test_missing_and_unreadable_models(model, tmp_path):
    fails("run", tmp_path / "nothing", "-p", "x", code=1, needle="nothing.*No such file")
    for content in (b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"mpkimage", b"mpkimage" + b"\x01" * 500,
                    b"{}"):
        path = tmp_path / "broken"
        path.write_bytes(content)
        fails("run", path, "-p", "x", code=1, needle="broken")
    os.mkfifo(tmp_path / "pipe")  # which nobody writes to
    for command in (["run", tmp_path / "pipe", "-p", "x"], ["tokenize", tmp_path / "pipe", "-p", "x"],
                    ["compile", tmp_path / "pipe", "-o", tmp_path / "image"]):
        fails(*command, code=1, needle="not a regular file")
    fails("run", model, "-f", tmp_path / "nothing", code=1, needle="nothing")
    fails("run", model, "-f", tmp_path, code=1, needle="directory")
    fails("run", CONFIGURATION, "-p", "x", code=1, needle="random-weights|tokenizer")


def test_logits_that_are_no_numbers(tmp_path):
    """Told, and the file with the logits is there to be looked at."""
    def spoil(net):
        net.model.norm.weight[3] = float("nan")
    bad = tiny.model(tmp_path / "bad", change=spoil)
    fails("score", bad, "-p", "in the thing", "--logits", tmp_path / "out.npy", code=1,
          needle="the first of them token 1, have a log probability that is not finite")
    assert numpy.isnan(numpy.load(tmp_path / "out.npy")).all()


# ---- output that cannot be written ----

def test_full_disk(model, tmp_path):
    requests = tmp_path / "requests.jsonl"
    requests.write_text('{"prompt": "in", "max_tokens": 2}\n')
    for command in (["run", model, "-p", "in", "-n", "2"], ["tokenize", model, "-p", "in"], ["batch", model, requests],
                    ["score", model, "-p", "in the"], ["inspect", model], ["doctor"], ["--help"]):
        with open("/dev/full", "wb") as full:
            r = subprocess.run([support.MPK, *map(str, command)], stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert r.returncode == 1, command
        assert b"No space left" in r.stderr, command
    fails("batch", model, requests, "-o", "/dev/full", code=1, needle="/dev/full.*No space left")
    fails("batch", model, requests, "-o", tmp_path / "no" / "file", code=1, needle="No such file")
    fails("compile", model, "-o", tmp_path / "no" / "file", code=1, needle="No such file")


def test_files_that_may_not_grow(model, tmp_path):
    """A limit of their size is an error like a full disk, not the end by a signal, and nothing is left behind."""
    for command in (["compile", model], ["quantize", model, "--type", "q8_0"]):
        r = subprocess.run([support.MPK, *map(str, command), "-o", str(tmp_path / "out")], stderr=subprocess.PIPE,
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)), timeout=60)
        assert r.returncode == 1 and b"File too large" in r.stderr, (command, r)
        assert not list(tmp_path.iterdir())


def test_what_is_read_is_not_written_over(model, tmp_path):
    """Not by another name of it either; the file stays as it was."""
    own = tmp_path / "own"
    shutil.copytree(model, own)
    weights = own / "model.safetensors"
    requests, link = tmp_path / "requests.jsonl", tmp_path / "link"
    requests.write_text('{"prompt": "in", "max_tokens": 2}\n')
    link.symlink_to(requests)
    hard, text, program = tmp_path / "hard", tmp_path / "text", tmp_path / "program"
    hard.hardlink_to(requests)
    for out in (requests, link, hard):
        fails("batch", own, requests, "-o", out, code=2, needle="is a file that is read here")
    with open(requests, "rb") as at:
        r = subprocess.run([support.MPK, "batch", own, "-", "-o", requests], stdin=at, capture_output=True, timeout=60)
        assert r.returncode == 2 and b"is a file that is read here" in r.stderr
    assert requests.read_text().startswith('{"prompt"')
    support.mpk("compile", own, "-o", tmp_path / "image", "-q")
    (tmp_path / "weights").hardlink_to(weights)
    names = sorted(p.name for p in own.iterdir())
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(names)
    for out in [*(own / name for name in names if name != "generation_config.json"), tmp_path / "weights"]:
        before = out.read_bytes()
        fails("compile", own, "-o", out, code=1, needle="is a file of the model that is read")
        fails("batch", own, requests, "-o", out, code=1, needle="is a file of the model that is read")
        fails("quantize", own, "-o", out, "--type", "q8_0", code=1, needle="is a file of the model that is read")
        for model_or_image in (own, tmp_path / "image"):
            fails("score", model_or_image, "-p", "in the", "--logits", out, code=1,
                  needle="is a file of the model that is read")
        assert out.read_bytes() == before
    before = (tmp_path / "image").read_bytes()
    fails("score", tmp_path / "image", "-p", "in the", "--logits", tmp_path / "image", code=1,
          needle="is a file of the model that is read")
    assert (tmp_path / "image").read_bytes() == before
    text.write_text("in the thing " * 300)
    for option in ("--calibrate", "--report"):
        fails("quantize", own, "-o", text, "--type", "q8_0", option, text, code=2, needle="is a file that is read here")
    fails("score", own, "-f", text, "--logits", text, code=2, needle="is a file that is read here")
    program.write_bytes(support.mpk("inspect", own, "--program")[0])
    fails("opt", "--pass=simplify", program, "-o", program, code=2, needle="is a file that is read here")
    assert text.read_text().startswith("in the") and program.stat().st_size
    support.mpk("score", own, "-p", "in the", "--logits", tmp_path / "out.npy")
    support.mpk("score", own, "-p", "in the", "--logits", tmp_path / "out.npy")  # its own file of before
    fails("quantize", own, "-o", tmp_path / "q", "--type", "q8_0", "--calibrate", "-", "--report", "-", code=2,
          needle="cannot both read standard input")


def test_a_prompt_that_is_given_twice(model):
    line = b'{"tokens": [1], "tokens": [2], "max_tokens": 1}\n'
    assert "two members" in json.loads(support.mpk("batch", model, "-", "-q", stdin=line)[0])["error"]


def test_a_token_that_the_model_has_not(model, tmp_path):
    # at 63 and 64: where a chunk ends its last row is asked for the first id of the next
    for at in (0, 63, 64, 65):
        ids = tmp_path / "ids.txt"
        ids.write_text(" ".join("2147483647" if i == at else "5" for i in range(70)))
        fails("score", model, "--tokens", ids, code=1, needle=f"token {at} is 2147483647")


def test_a_quiet_score_shows_no_progress(model):
    shown = {}
    for quiet in ([], ["-q"]):
        user, own = os.openpty()
        r = subprocess.run([support.MPK, "score", str(model), "-p", "in the", *quiet], stderr=own,
                           stdout=subprocess.PIPE, timeout=60)
        assert r.returncode == 0
        os.write(own, b"end\n")
        shown[bool(quiet)] = os.read(user, 1 << 16)
        os.close(user)
        os.close(own)
    assert b"scored" in shown[False] and b"scored" not in shown[True]


def test_closed_pipe(model):
    p = subprocess.Popen([support.MPK, "run", str(model), "-p", "in", "-n", "200", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.close()
    errors = p.stderr.read()
    assert p.wait(timeout=60) == 1
    assert b"Broken pipe" not in errors


def test_interrupt_keeps_what_has_come(model):
    p = subprocess.Popen([support.MPK, "run", str(model), "-p", "in", "--context=256", "--temp=1", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    out, errors = p.communicate(timeout=60)
    assert p.returncode == 0 and first and (b"cancelled" in errors or b"length" in errors)


# ---- batch ----

def batch(model, tmp_path, lines, *options, code=0):
    requests, answers = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    requests.write_bytes(b"".join(line + b"\n" for line in lines))
    _, errors = support.mpk("batch", model, requests, "-o", answers, *options, code=code)
    return [json.loads(line) for line in answers.read_text().splitlines()], errors


def test_batch_keeps_order_and_marks_bad_lines(model, tmp_path):
    good = {"prompt": "in the", "max_tokens": 4, "ignore_eos": True}
    lines = [json.dumps({**good, "id": 1}).encode(), b"no json", b'{"prompt": "a", "temprature": 1}',
             b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a", "tokens": [1]}', b'{"tokens": []}', b"", b'"text"',
             b'{"prompt": "\xff"}', b'{"tokens": [999999]}',
             json.dumps({**good, "id": {"any": "thing"}}).encode(), json.dumps({**good, "max_tokens": 10**6}).encode(),
             json.dumps({**good, "prompt": "the " * 300}).encode(), json.dumps({**good, "stop": [""]}).encode(),
             json.dumps(good).encode()]
    answers, errors = batch(model, tmp_path, lines)
    assert [("error" in a) for a in answers] == [False, *[True] * 8, False, *[True] * 3, False]
    assert answers[0]["id"] == 1 and answers[9]["id"] == {"any": "thing"} and "id" not in answers[-1]
    assert answers[0]["tokens"] == answers[9]["tokens"] == answers[-1]["tokens"]
    assert answers[0]["finish_reason"] == "length" and len(answers[0]["tokens"]) == 4
    assert "14 requests, 11 errors" in errors
    assert all(len(a["error"]) > 10 for a in answers if "error" in a)


def test_batch_reads_standard_input_and_many_lines(model):
    lines = b"".join(b'{"tokens": [%d, 7], "max_tokens": 3, "ignore_eos": true}\n' % (i % 50) for i in range(300))
    out, _ = support.mpk("batch", model, "-", "--max-batch", "4", stdin=lines)
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 300
    assert all(answers[i]["tokens"] == answers[i % 50]["tokens"] for i in range(300))
    assert support.mpk("batch", model, "-", stdin=b"")[0] == b""
    fails("batch", model, "/nothing", code=1, needle="/nothing")


def test_batch_answers_before_the_input_ends(model):
    """Who writes into a pipe gets each answer before the next request is written; the last line has no end."""
    p = subprocess.Popen([support.MPK, "batch", str(model), "-", "-q"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for i in range(3):
        p.stdin.write(b'{"prompt": "in", "max_tokens": 5, "id": %d}\n\n{"prompt":' % i)
        p.stdin.flush()
        answer = json.loads(p.stdout.readline())
        assert answer["id"] == i and len(answer["tokens"]) <= 5
        p.stdin.write(b' "the", "max_tokens": 1, "id": "half"}' + (b"\n" if i < 2 else b""))
        p.stdin.flush()
        if i < 2:
            assert json.loads(p.stdout.readline())["id"] == "half"
    p.stdin.close()
    assert json.loads(p.stdout.read())["id"] == "half"
    assert p.wait(timeout=60) == 0


def test_batch_text_is_that_of_the_tokens(model, tmp_path):
    request = {"prompt": "in the", "max_tokens": 30, "temperature": 1.2, "ignore_eos": True}
    lines = [json.dumps({**request, "seed": s}).encode() for s in range(20)]
    answers, _ = batch(model, tmp_path, lines)
    special = {256 + 5, 256 + 6}  # <s> and </s> give no text
    for a in answers:
        ids = " ".join(str(t) for t in a["tokens"] if t not in special)
        assert support.mpk("tokenize", model, "--decode", "-p", ids)[0].decode() == a["text"]


# ---- the other verbs ----

def test_tokenize(model, tmp_path):
    for text in (b"in the", "é \U0001f600  x\n".encode(), b""):
        ids = support.mpk("tokenize", model, "-", stdin=text)[0]
        assert ids.endswith(b"\n") and ids.count(b"\n") == 1
        assert support.mpk("tokenize", model, "--decode", "-", stdin=ids)[0] == text
    plain = support.mpk("tokenize", model, "-p", "in")[0].split()
    assert len(support.mpk("tokenize", model, "-p", "in", "--add-special")[0].split()) == len(plain) + 1
    fails("tokenize", model, "--decode", "-p", "1 two", code=1, needle="word 2")
    fails("tokenize", model, "--decode", "-p", "99999", code=1, needle="99999")
    fails("tokenize", CONFIGURATION, "-p", "x", code=1, needle="tokenizer")


def test_score(model, tmp_path):
    ids, logits = tmp_path / "ids", tmp_path / "logits.npy"
    ids.write_text("1, 2\n3 4 5 " + "6 7 " * 60)
    out = json.loads(support.mpk("score", model, "--tokens", ids, "--logits", logits, "--json")[0])
    rows = numpy.load(logits)
    assert rows.dtype == numpy.float32 and rows.shape[0] == out["tokens"] == 125
    tokens = [int(t) for t in ids.read_text().replace(",", " ").split()]
    p = rows.astype(float) - numpy.log(numpy.exp(rows.astype(float)).sum(-1, keepdims=True))
    expected = sum(p[i, tokens[i + 1]] for i in range(124))
    assert abs(out["log_likelihood"] - expected) < 1e-4 * abs(expected)
    assert abs(out["perplexity"] - numpy.exp(-expected / 124)) < 1e-3 * out["perplexity"]
    assert b"perplexity" in support.mpk("score", model, "-p", "in the")[0]
    fails("score", model, "-p", "the " * 500, code=1, needle="256")


def test_compile_and_run_the_image(model, tmp_path):
    image = tmp_path / "image"
    expected = support.mpk("run", model, "-p", "in the", "-n", "6", "--ignore-eos")[0]
    assert support.mpk("compile", model, "-o", image, "--threads", "2", "--max-batch", "4")[0] == b""
    assert support.mpk("run", image, "-p", "in the", "-n", "6", "--ignore-eos")[0] == expected
    assert support.mpk("tokenize", image, "-p", "in")[0] == support.mpk("tokenize", model, "-p", "in")[0]
    assert support.mpk("inspect", image, "--stats")[0]
    fails("run", image, "-p", "x", "--threads", "3", code=1, needle="threads")
    fails("compile", image, "-o", tmp_path / "second", code=1, needle="image")
    data = image.read_bytes()
    for n in (4, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:n])
        fails("run", tmp_path / "cut", "-p", "x", code=1, needle="cut")
    for at in (9, 60, 200, len(data) // 2, len(data) - 5):
        flipped = bytearray(data)
        flipped[at] ^= 4
        (tmp_path / "flipped").write_bytes(flipped)
        fails("run", tmp_path / "flipped", "-p", "x", code=1, needle="flipped")


def test_images_know_their_model(tmp_path):
    folder, image = tiny.model(tmp_path / "model"), tmp_path / "image"
    support.mpk("compile", folder, "-o", image)
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-100] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    fails("run", image, "-p", "x", code=1, needle="changed")


def test_devices(model):
    fails("run", model, "-p", "x", "--device", "gpu", code=1, needle="there is no device 'gpu'")
    fails("inspect", model, "--target", "sm_10", code=1, needle="sm_90a")
    fails("inspect", model, "--target", "sm_80", "--device", "cpu", code=1, needle="the device is the CPU")
    fails("inspect", model, "--target", "sm_90a", "--activations=i8", code=1, needle="i8.*CPU")
    fails("bench", model, "--mode", "graph", "--device", "cpu", code=1, needle="for a GPU")
    fails("bench", model, "--mode", "graph", "--profile", "--device", "cpu", code=1, needle="profile.*one kernel")
    for target, workers in ("sm_80", 108), ("sm_90a", 132):
        report = json.loads(support.mpk("inspect", model, "--target", target, "--json")[0])
        assert report["memory"]["device"].startswith(target)
        assert {graph["workers"] for graph in report["graphs"]} == {workers}
        memory = report["memory"]
        parts = ("weights", "kv", "inputs_and_outputs", "activations", "carried", "tables", "staging")
        assert memory["total_bytes"] == sum(memory[part + "_bytes"] for part in parts)


def test_images_for_a_gpu_hold_the_kernel(model, tmp_path):
    image, keep = tmp_path / "image", tmp_path / "keep"
    found = json.loads(support.mpk("doctor", "--json")[0])
    if any(entry["subject"] == "nvrtc" and entry["found"].startswith("none") for entry in found):
        pytest.skip("no NVRTC here")
    support.mpk("compile", model, "-o", image, "--target", "sm_80", "--max-batch", "1", "--step-tokens", "1",
                "--keep", keep)
    code = (keep / "mpk.cu.cubin").read_bytes()
    assert code.startswith(b"\x7fELF") and image.read_bytes().endswith(code)
    assert json.loads(support.mpk("inspect", image, "--json")[0])["memory"]["device"].startswith("sm_80")
    fails("run", image, "-p", "x", "--device", "cpu", code=1, needle="compiled for sm_80")
    assert re.search(r"split_how split = \{how, \d+, \d+, 0\}", (keep / "mpk.cu").read_text())
    fails("inspect", image, "--batch-invariant", code=1, needle="compiled without batch_invariant")
    image.write_bytes(image.read_bytes()[:-1] + b"?")
    fails("run", image, "-p", "x", code=1, needle="damaged")
    support.mpk("compile", model, "-o", image, "--target", "sm_80", "--max-batch", "1", "--step-tokens", "1",
                "--keep", keep, "--batch-invariant")
    assert re.search(r"split_how split = \{how, \d+, \d+, [1-9]\d*\}", (keep / "mpk.cu").read_text())
    support.mpk("inspect", image, "--batch-invariant")


def stats_of(*arguments):
    return json.loads(support.mpk("inspect", *arguments, "--stats", "--json")[0])


def test_inspect(model):
    text = support.mpk("inspect", model)[0].decode()
    assert "kv_bytes" in text and "graphs" in text
    stats = stats_of(CONFIGURATION, "--workers", "132", "--batch", "1")
    for key in ("operators", "tasks", "tasks_per_operator", "events", "pairs", "fusion", "normalize_tasks",
                "successor_bytes_list", "successor_bytes_range", "compile_ms", "verify_ms"):
        assert isinstance(stats[key], (int, float)), key
    assert stats["tasks"] > 132 and stats["events"] < stats["tasks"]
    assert stats_of(CONFIGURATION, "--ops=paper", "--batch", "4")["operators"] == 8 * 28 + 5
    whole = json.loads(support.mpk("inspect", model, "--json")[0])
    assert whole["memory"]["kv_bytes"] > 0 and [g["tokens"] for g in whole["graphs"]][:3] == [1, 2, 4]
    assert support.mpk("inspect", model, "--dot")[0].startswith(b"digraph")
    fails("inspect", model, "--dot", "--part", "nothing-like-it", code=1, needle="nothing-like-it")
    assert stats_of(model, "--workers=2", "--degree=linear:1=5")["tasks"] != stats_of(model, "--workers=2")["tasks"]


def test_opt(model, tmp_path):
    program = support.mpk("inspect", model, "--program", "--batch", "2")[0]
    names = [line.split("\t")[0] for line in support.mpk("opt", "--list")[0].decode().splitlines()]
    assert {"fuse_ops", "decompose", "depend", "fuse_events", "label_launch", "normalize", "linearize",
            "assign"} <= set(names)
    assert "linear(" in support.mpk("opt", "--operators")[0].decode()
    fused = support.mpk("opt", "--pass=fuse_ops", stdin=program)[0]
    assert 0 < len(fused) < len(program)
    step = support.mpk("opt", "--pass=decompose,depend", "--workers", "3", stdin=fused)[0]
    (tmp_path / "fused").write_bytes(fused)
    support.mpk("opt", "--pass=decompose", "--workers", "3", "-o", tmp_path / "tasks", tmp_path / "fused")
    assert support.mpk("opt", "--pass=depend", "--workers", "3", tmp_path / "tasks")[0] == step
    fails("opt", "--pass=fly", code=1, needle="fly", stdin=program)
    fails("opt", "--pass=fuse_ops", code=1, needle="line|:", stdin=b"%a = nothing(")


def test_a_configuration_alone_is_a_model(tmp_path):
    """With random weights every verb works, and the same seed makes the same model."""
    folder = tmp_path / "model"
    folder.mkdir()
    config = json.loads((CONFIGURATION / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "vocab_size": 1000}))

    def made(seed):
        return support.mpk("run", folder, f"--random-weights={seed}", "-p", "é x", "-n", "8", "--ignore-eos")[0]
    assert made(1) == made(1) != made(2)
    score = json.loads(support.mpk("score", folder, "--random-weights=1", "-p", "a text", "--json")[0])
    assert score["tokens"] == 6 and score["perplexity"] > 1
    out = support.mpk("batch", folder, "-", "--random-weights=1", stdin=b'{"prompt": "a", "max_tokens": 3}\n')[0]
    assert len(json.loads(out)["tokens"]) == 3
    support.mpk("bench", folder, "--random-weights=1", "--generate", "4", "--runs", "1")
    support.mpk("compile", folder, "--random-weights=1", "-o", tmp_path / "image")
    assert support.mpk("run", tmp_path / "image", "-p", "é x", "-n", "8", "--ignore-eos")[0] == made(1)
    tiny.tokenizer(folder)  # the model's own comes first: <s>, a, ␣, t, e, x, t
    assert json.loads(support.mpk("score", folder, "--random-weights=1", "-p", "a text", "--json")[0])["tokens"] == 7
    large = ["--random-weights=1", "--context=40000", "--kv-tokens=4000000"]
    fails("run", CONFIGURATION.parent / "qwen3-8b", *large, "-p", "x", code=1, needle="GiB.*free|free.*GiB")


def test_no_tokenizer_is_made_up_beside_weights(tmp_path):
    """A folder that has weights is a model of its own: made-up numbers in their place bring no made-up texts."""
    folder = tiny.model(tmp_path / "model")
    for path in folder.glob("*token*"):
        path.unlink()
    fails("run", folder, "--random-weights=1", "-p", "x", code=1, needle="tokenizer")


def mixture(folder, **more):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_act="silu", hidden_size=256, head_dim=64,
        intermediate_size=256, moe_intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, num_experts=64,
        num_experts_per_tok=4, num_hidden_layers=8, norm_topk_prob=True, vocab_size=4096, torch_dtype="bfloat16",
        max_position_embeddings=2048, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6,
        rope_theta=10000.0) | more))
    return folder


def test_bench_counts_experts(tmp_path):
    """What a step of a mixture hit, as the chosen routing says it must be, and the bytes of that."""
    folder, seed = mixture(tmp_path / "mixture"), support.seed().randrange(1000000)

    def experts(routing, tokens, *more):  # the only step is that of one prompt, whose tokens are drawn
        options = ["--routing", routing, "--batch", "1", "--generate", "1", "--prompt", tokens, "--runs", "1",
                   "--seed", seed, "--experts", "--bandwidth", "0.5", "--json", *more]
        return json.loads(support.mpk("bench", folder, f"--random-weights={seed}", *options)[0])["experts"]
    even, zipf, same = (experts(routing, 16) for routing in ("even", "zipf", "same"))
    expected = 64 * (1 - (1 - 4 / 64) ** 16)
    assert abs(even["hit"] - expected) < 0.2 * expected and even["layers"] == 8 and even["of_layer"] == 64
    assert 4 < zipf["hit"] < 0.8 * even["hit"] and same["hit"] == 4 and same["of_token"] == 4 and same["tokens"] == 16
    assert experts("random", 1)["hit"] == experts("zipf", 1)["hit"] == 4
    assert experts("random", 16)["hit"] > 4
    expert = 2 * 3 * 256 * 32 * 8
    assert abs(even["weight_bytes"] - same["weight_bytes"] - (even["hit"] - 4) * expert) < 1e-6 * even["weight_bytes"]
    plain = 8 * (256 * 64 * (2 * 4 + 2 * 2) + 64 * 256) + 4096 * 256  # attention, routers, the vocabulary
    assert 0 < same["weight_bytes"] - 2 * plain - 4 * expert < 0.01 * same["weight_bytes"]  # norms and biases
    assert abs(even["light_ms"] - even["weight_bytes"] / 0.5e9) < 1e-3
    text = support.mpk("bench", folder, "--random-weights=1", "--routing=same", "-n", "3", "-b", "3", "--runs", "1",
                       "--experts")[0].decode()
    assert re.search(r"^experts +4\.0 of 64 hit a layer by 3 tokens; such a step reads 0\.01 GB of", text, re.M)
    assert experts("same", 16, "--step-tokens", "8")["tokens"] == 8  # no step holds more


def test_made_up_routing(tmp_path, model):
    """It is of random mixtures alone, and an image keeps it."""
    folder, image = mixture(tmp_path / "mixture", num_hidden_layers=2), tmp_path / "image"
    fails("bench", folder, "--routing=even", code=1, needle="ask for random_weights")
    fails("bench", model, "--random-weights=1", "--routing=even", code=1, needle="this model has its own")
    fails("bench", CONFIGURATION, "--random-weights=1", "--routing=even", code=1, needle="mixtures of experts")
    fails("bench", folder, "--random-weights=1", "--routing=odd", code=2, needle="routing")
    fails("bench", folder, "--random-weights=1", "--bandwidth=3", code=2, needle="--experts")
    support.mpk("compile", folder, "--random-weights=3", "--routing=same", "--experts", "-o", image)
    short = ["--generate", "4", "--runs", "1", "--experts", "--json"]
    assert json.loads(support.mpk("bench", image, "--batch", "8", *short)[0])["experts"]["hit"] == 4
    assert json.loads(support.mpk("bench", image, "--routing=zipf", "--batch", "8", "--prompt", "1", "-n", "1",
                                  *short[2:])[0])["experts"]["hit"] > 4
    support.mpk("compile", folder, "--random-weights=3", "-o", image)
    fails("bench", image, "--routing=zipf", code=1, needle="compiled without random_routing")
    fails("bench", image, "--experts", code=1, needle="compiled without count_experts")
    with mpk.LLM(folder, random_weights=True, random_routing="zipf") as llm:
        assert len(llm.generate([[1, 2, 3]], mpk.SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4
    with pytest.raises(mpk.ArgumentError, match="random_routing"):
        mpk.LLM(folder, random_weights=True, random_routing="odd")


def test_bench(model):
    options = ["--prompt", "20", "--generate", "100", "--batch", "3", "--runs", "2", "--json"]
    result = json.loads(support.mpk("bench", model, *options)[0])
    times = result["ms_per_token"]
    assert 0 <= times["p10"] <= times["median"] <= times["p90"]  # a tiny model's tokens may come many at a time
    assert result["prompt_tokens_per_s"] > 0 and result["decode_tokens_per_s"] >= 0
    assert result["first_token_ms"]["p10"] > 0 and result["open_to_first_token_ms"] > result["open_ms"] > 0
    assert result["prompts"] == [20] * 3 and result["profile"] is None and result["kernel_cached"] is False
    assert result["experts"] is None
    drawn = ["--prompt", "10-60", "--generate", "2", "--batch", "8", "--runs", "1", "--json"]
    lengths = [json.loads(support.mpk("bench", model, *drawn, "--seed", seed)[0])["prompts"] for seed in (1, 1, 2)]
    assert lengths[0] == lengths[1] != lengths[2] and len(set(lengths[0])) > 2
    assert all(10 <= n <= 60 for n in lengths[0] + lengths[2])
    # the first of two answers ends while the second prompt is still on its way
    short = ["--prompt", "60", "--generate", "2", "--batch", "2", "--runs", "1", "--step-tokens", "4"]
    assert json.loads(support.mpk("bench", model, *short, "--json")[0])["step_ms"] is None
    assert b"-n 2 is too few" in support.mpk("bench", model, *short)[0]
    for wrong in ("0", "60-10", "10-", "x", "-5", "99999999999"):
        fails("bench", model, f"--prompt={wrong}", code=2, needle="--prompt")
    text = support.mpk("bench", CONFIGURATION.parent / "llama-3.2-1b", "--help")[0]
    assert b"--runs" in text


def test_doctor():
    text = support.mpk("doctor")[0].decode()
    assert "processor" in text and "memory" in text and "demo model" in text
    empty = {"XDG_CACHE_HOME": "/nowhere", "PATH": "/nowhere"}
    findings = json.loads(support.mpk("doctor", "--json", env=empty)[0])
    needs = {f["subject"]: f.get("need") for f in findings}
    assert "portable code runs" in support.mpk("doctor", env={"MPK_ISA": "none"})[0].decode()
    fails("doctor", code=1, needle="expected none, ", env={"MPK_ISA": "avx3"})
    assert "dev demo" in needs["demo model"] and "graphviz" in needs["graphviz"]


def test_doctor_on_gpus(tmp_path):
    """With the tests' stand-in for a driver: GPUs, the compiler and the cache of kernels."""
    fake = support.BUILD / "tests" / "libfake_cuda.so"
    env = {"MPK_LIBCUDA": str(fake), "MPK_CACHE": str(tmp_path), "MPK_NVRTC": "/nowhere/libnvrtc.so.13"}

    def findings(words):
        found = {}
        for f in json.loads(support.mpk("doctor", "--json", env=env | {"MPK_FAKE_CUDA": words})[0]):
            found.setdefault(f["subject"], []).append(f)
        return found

    good = findings("gpus:2")
    assert good["gpu driver"][0]["found"] == "CUDA 13.0"
    assert [f["found"].split(",")[0] for f in good["gpu"]] == ["Fake GPU 0", "Fake GPU 1"]
    assert "runs code for sm_90a" in good["gpu"][0]["found"]
    assert good["gpu links"][0]["found"] == "each GPU reaches all others: --gpus works with all"
    links = {words: findings(words)["gpu links"][0]["found"]
             for words in ("gpus:2,links:0", "gpus:2,atomics:0", "gpus:4,island:2")}
    assert links["gpus:2,links:0"].startswith("no GPU reaches another")
    assert "not with atomic operations" in links["gpus:2,atomics:0"]
    assert links["gpus:4,island:2"].startswith("GPU 0 reaches 1; GPU 1 reaches 0; GPU 2 reaches 3; GPU 3 reaches 2:")
    assert "gpu links" not in findings("gpus:1")
    assert "MPK_NVRTC=/nowhere" in good["nvrtc"][0]["need"]
    assert "nvjitlink" not in good  # it is looked for where NVRTC is
    assert f"0, and 0 whole programs, in the cache {tmp_path}" in good["kernels"][0]["found"]
    assert "sm_80, translated by the driver" in findings("capability:120")["gpu"][0]["found"]
    assert "too old" in findings("capability:75")["gpu"][0]["need"]
    assert "update" in findings("version:11000")["gpu"][0]["need"]
    assert "reboot" in findings("fail:cuInit:1:803")["gpu"][0]["need"]
    (tmp_path / f"{0:032x}.kernel").write_bytes(b"compiled")
    (tmp_path / f"{1:032x}.program").write_bytes(b"whole")
    assert "1, and 1 whole programs, in the cache" in findings("")["kernels"][0]["found"]
    support.mpk("doctor", "--clear-kernels", env=env)
    assert not list(tmp_path.iterdir())
    env["MPK_LIBCUDA"] = "/nowhere/libcuda.so.1"
    assert "need" not in findings("")["gpu"][0]


def test_idle_costs_nothing(model):
    """An engine that waits for requests sleeps."""
    p = subprocess.Popen([support.MPK, "batch", str(model), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL)
    p.stdin.write(b'{"prompt": "in", "max_tokens": 2}\n' * 200)
    p.stdin.flush()
    for _ in range(200):
        assert p.stdout.readline()

    def used():  # hundredths of a second
        fields = open(f"/proc/{p.pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    before = used()
    time.sleep(2)
    assert used() - before <= 20  # a thread that polls would take 200
    p.stdin.close()
    assert p.stdout.read() == b""
    assert p.wait(timeout=60) == 0
