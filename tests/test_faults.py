"""Nothing that a file, a user or the machine does makes mpk abort, hang, leak or lose: an error each time."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest

import support
import tiny

RANDOM = support.seed()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return tiny.mixture(tmp_path_factory.mktemp("mixture") / "model")


@pytest.fixture(scope="module")
def quantised(folder, tmp_path_factory):
    """The model of `folder` with matrices of layers in 8 bits, as compressed-tensors has them."""
    import safetensors.torch
    import torch
    copy = tmp_path_factory.mktemp("quantised") / "model"
    shutil.copytree(folder, copy)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for name, w in list(tensors.items()):
        if "proj" in name:
            scale = (w.abs().amax(1, keepdim=True) / 127).half()
            tensors[name] = (w / scale.float()).round().clamp(-127, 127).to(torch.int8)
            tensors[name + "_scale"] = scale
    safetensors.torch.save_file(tensors, copy / "model.safetensors")
    said = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    (copy / "config.json").write_text(json.dumps({**tiny.config_of(folder), "quantization_config": said}))
    return copy


@pytest.fixture(scope="module")
def lora(folder, tmp_path_factory):
    """An adapter of the model of `folder`, with an update, a length for each row, a tensor of its own and patterns."""
    import safetensors.torch
    import torch
    path = tmp_path_factory.mktemp("lora") / "adapter"
    path.mkdir()
    generator, head = torch.Generator().manual_seed(2), "base_model.model.model."
    w = safetensors.torch.load_file(folder / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    tensors = {f"{head}layers.1.mlp.up_proj.lora_A.weight": torch.randn(3, w.shape[1], generator=generator),
               f"{head}layers.1.mlp.up_proj.lora_B.weight": torch.randn(w.shape[0], 3, generator=generator),
               f"{head}layers.1.mlp.up_proj.lora_magnitude_vector": w.norm(dim=1),
               f"{head}norm.weight": torch.rand(w.shape[1], generator=generator)}
    safetensors.torch.save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_dora": True, "rank_pattern": {r"layers\.\d\.mlp.up_proj": 3},
        "alpha_pattern": {"q_proj": 1, "up_proj": 5}, "base_model_name_or_path": "tiny"}))
    return path


@pytest.fixture(scope="module")
def preload(tmp_path_factory):
    path = tmp_path_factory.mktemp("preload") / "fail_allocation.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, support.ROOT / "tests/fail_allocation.c"], check=True)
    return path


def fails_cleanly(*arguments, status=(1,), needle=None):
    """mpk ends with one of these exit codes, one line on stderr that starts with mpk:, and nothing odd."""
    r = subprocess.run([str(support.MPK), *map(str, arguments)], capture_output=True, timeout=60)
    errors = r.stderr.decode(errors="replace")
    assert r.returncode in status, (arguments, r.returncode, errors[-500:])
    if r.returncode:
        assert "mpk: " in errors, errors
        if needle:
            assert re.search(needle, errors), errors
    return errors


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    path.write_text('{"prompt": "in the", "max_tokens": 2, "id": ["a", 1.50], "stop": ["zz"], "ignore_eos": true}\n')
    return path


TEMPLATE = """{%- macro said(m) %}{{ m.role | upper }}: {{ m.content | trim | tojson }}{% endmacro %}
{%- set ns = namespace(n=0, seen=[]) %}
{%- for m in messages if m.content %}{% set ns.n = ns.n + x[0] %}{% set ns.seen = ns.seen + [m.role ~ ns.n] %}
{{- said(m) }}{% endfor %}{{ ns.seen | join(", ") }}{{ "%s" % x | length }}{{ bos_token }}"""


@pytest.mark.parametrize("arguments", [
    "run FOLDER -p PROMPT -n 3 --threads 2",
    "run MIXTURE -p PROMPT -n 3 --threads 2",
    "run QUANTISED -p PROMPT -n 3 --threads 2",
    "run QUANTISED --lora LORA -p PROMPT -n 3 --threads 2",
    "chat FOLDER -p PROMPT -s PROMPT -n 3 --temp 0 --threads 2 --chat-template TEMPLATE --set x=[1,2]",
    "tokenize FOLDER -p PROMPT --add-special",
    "tokenize GGUF/llama.gguf -p PROMPT",
    "tokenize GGUF/vocab.gguf -p PROMPT",
    "batch FOLDER REQUESTS --threads 1 --max-batch 1 --context 32 --quiet",
], ids=lambda arguments: "-".join(arguments.replace("/", " ").split()[:3:2]))
def test_every_allocation_may_fail(folder, mixture, quantised, lora, requests, preload, tmp_path, arguments):
    """An error that says memory, and nothing left behind; or the same answer, where mpk can do without."""
    log = tmp_path / "log"
    (tmp_path / "template").write_text(TEMPLATE)
    words = {"FOLDER": folder, "MIXTURE": mixture, "QUANTISED": quantised, "LORA": lora, "PROMPT": "in the é",
             "REQUESTS": requests, "TEMPLATE": tmp_path / "template"}
    command = [str(support.MPK)] + [str(words.get(word, word)) for word in arguments.split()]
    command = [word.replace("GGUF", str(support.ROOT / "tests/corpus/gguf")) for word in command]

    def run(fail_at):
        environment = {**os.environ, "LD_PRELOAD": str(preload), "MPK_FAIL_AT": str(fail_at), "MPK_FAIL_LOG": str(log)}
        r = subprocess.run(command, capture_output=True, timeout=60, env=environment)
        made, live = map(int, log.read_text().split())
        return r, made, live

    good, made, live = run(0)
    assert good.returncode == 0 and good.stdout and made > 50
    failed = 0
    step = max(1, made // (1500 if os.environ.get("MPK_THOROUGH") else 150))  # others in each run
    for n in range(1 + RANDOM.randrange(step), made + 1, step):
        r, _, left = run(n)
        says = r.stderr.decode(errors="replace")
        assert r.returncode in (0, 1), f"allocation {n}: exit code {r.returncode}\n{says}"
        assert left <= live, f"allocation {n}: {left} blocks not freed ({live} in a good run)\n{says}"
        if r.returncode == 0 and arguments.startswith("batch") and b'"error"' in r.stdout:
            says = "mpk: " + json.loads(r.stdout)["error"]
        elif r.returncode == 0:
            assert r.stdout == good.stdout, f"allocation {n}: another answer and no error"
            continue
        failed += 1
        assert re.search("mpk: .*(memory|cannot start a thread)", says, re.DOTALL), f"allocation {n}: {says}"
    assert failed > made / step / 2
    print(f"{made} allocations, every {step}th made to fail, {failed} ended in an error, the rest did without")


@pytest.mark.parametrize("kind, name", [("folder", "config.json"), ("folder", "model.safetensors"),
                                        ("folder", "tokenizer.json"), ("mixture", "config.json"),
                                        ("quantised", "config.json"), ("quantised", "model.safetensors"),
                                        ("mixture", "model.safetensors"),
                                        ("lora", "adapter_config.json"), ("lora", "adapter_model.safetensors")])
def test_damaged_files(kind, name, tmp_path, request):
    """Cut short or with flipped bits: an error or another text, never a crash."""
    folder = request.getfixturevalue(kind)
    base = [request.getfixturevalue("folder"), "--lora"] if kind == "lora" else []
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    original = (folder / name).read_bytes()
    for i in range(60):
        changed = bytearray(original)
        head = min(len(changed), 4000)
        if i % 3 == 0:
            del changed[RANDOM.randrange(len(changed)):]
        else:
            for _ in range(1 + i % 4):
                changed[RANDOM.randrange(head)] ^= 1 << RANDOM.randrange(8)
        (copy / name).write_bytes(changed)
        fails_cleanly("run", *base, copy, "-p", "in the", "-n", "2", "--ignore-eos", status=(0, 1))
    (copy / name).write_bytes(b"")
    fails_cleanly("run", *base, copy, "-p", "in the", "-n", "2")


@pytest.mark.parametrize("change, needle", [
    ({"hidden_size": 0}, "hidden"), ({"hidden_size": 10**12}, "hidden"), ({"num_attention_heads": 0}, "head"),
    ({"num_key_value_heads": 3}, "head"), ({"num_hidden_layers": -1}, "layer"),
    ({"num_hidden_layers": 3}, r"layers\.2\."),
    ({"vocab_size": 5}, "shape|dim|vocab"), ({"model_type": "mamba"}, "mamba"), ({"hidden_act": "relu6"}, "relu6"),
    ({"intermediate_size": 49}, "shape|dim"), ({"rms_norm_eps": "x"}, "rms_norm_eps"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ({"quantization_config": {"quant_method": "aqlm"}}, "quant_method.*aqlm"),
    ({"quantization_config": {"quant_method": "awq"}}, "bits.*of awq"),
])
def test_absurd_configs(folder, change, needle, tmp_path):
    copy = tmp_path / "model"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "config.json").write_text(json.dumps({**tiny.config_of(folder), **change}))
    fails_cleanly("run", copy, "-p", "in the", "-n", "2", needle="(?i)" + needle)


def test_missing_files_and_wrong_use(folder, tmp_path):
    fails_cleanly("run", tmp_path / "nothing", "-p", "x", needle="nothing")
    fails_cleanly("run", tmp_path, "-p", "x", needle="config.json")
    fails_cleanly("run", "/dev/null", "-p", "x")
    fails_cleanly("run", folder, "--no-such-flag", status=(2,), needle="no-such-flag")
    fails_cleanly("run", folder, "-n", "many", status=(2,), needle="many")
    fails_cleanly("no-such-verb", status=(2,), needle="no-such-verb")
    fails_cleanly("compile", folder, "-o", "/dev/full", needle="No space left")
    fails_cleanly("score", folder, "--tokens", "/dev/null")
    (tmp_path / "ids").write_text("1 2 99999")
    fails_cleanly("score", folder, "--tokens", tmp_path / "ids", needle="99999")
    (tmp_path / "ids").write_text("1 2 3")
    fails_cleanly("score", folder, "--tokens", tmp_path / "ids", "--logits", "/dev/full", needle="No space left")


def test_interrupt_ends_cleanly(folder):
    """Ctrl-C in the middle of a long generation: a prompt end, not a hang."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        p = subprocess.Popen([str(support.MPK), "run", str(folder), "-p", "in the", "-n", "100000", "--ignore-eos"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.stdout.read(4)
        p.send_signal(signal_number)
        p.communicate(timeout=20)
        assert p.returncode is not None and p.returncode != -signal.SIGSEGV and p.returncode != -signal.SIGABRT


def test_bad_requests_do_not_spoil_the_good(folder, tmp_path):
    lines = ['{"prompt": "in the", "max_tokens": 2, "ignore_eos": true}', "not json", "[]", "{}",
             '{"prompt": 5}', '{"tokens": [1, "x"]}',
             '{"tokens": [1, 99999]}', '{"tokens": [-1]}', '{"prompt": "x", "max_tokens": -4}',
             '{"prompt": "x", "temperature": -1}',
             '{"prompt": "x", "top_p": 7}', '{"prompt": "x", "max_tokens": 10000000}',
             '{"prompt": "", "max_tokens": 3}', "",
             '{"prompt": "the", "max_tokens": 3, "stop": ["z"], "ignore_eos": true}']
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text("\n".join(lines) + "\n")
    support.mpk("batch", folder, path, "-o", out)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    kept = [line for line in lines if line]
    assert len(answers) == len(kept)
    for line, answer in zip(kept, answers):
        good = line.startswith(('{"prompt": "in', '{"prompt": "the'))
        if good:
            assert "error" not in answer and answer["tokens"], (line, answer)
        elif line != '{"prompt": "", "max_tokens": 3}':
            assert answer.get("error"), (line, answer)
