"""torch.compile(backend="mpk") and the Python face of the engine: against eager PyTorch, on the CPU."""

import gc
import importlib.util
import os
import subprocess
import sys
import threading
import warnings

import pytest

import support  # before mpk, which it finds

import torch
import transformers

import mpk
import tiny
import torch_nets
from mpk import backend, shapes

transformers.logging.set_verbosity_error()


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(support.seed().randrange(2**31))
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(fn, **more):
    """fn compiled, and the list in which the backend notes what it made."""
    reports = []
    return torch.compile(fn, backend=backend.mpk, options=backend.Options(threads=2, reports=reports), **more), reports


def tensors(value):
    return [
        v
        for v in torch.utils._pytree.tree_leaves(dict(value) if hasattr(value, "keys") else value)
        if isinstance(v, torch.Tensor)
    ]


def is_whole(reports, graphs=1):
    return [(len(r.programs), r.fallbacks) for r in reports] == [(1, {})] * graphs


def assert_near(got, expected, relative=1e-4):
    got, expected = tensors(got), tensors(expected)
    assert len(got) == len(expected) > 0
    for g, x in zip(got, expected):
        assert g.shape == x.shape and g.dtype == x.dtype
        assert (g - x).abs().max() <= relative * x.abs().max()


# ---- models ----


@pytest.mark.parametrize("name", [*torch_nets.DECODERS, *torch_nets.OTHERS])
@pytest.mark.draws(8)
def test_model_is_one_program(name):
    net, arguments = torch_nets.model(name)
    fn, reports = compiled(net)
    got = fn(**arguments)
    assert is_whole(reports), [r.fallbacks for r in reports]
    assert_near(got, net(**arguments))


def greedy(net, step, prompt, n, window):
    """Tokens after a prompt: eager for the prompt, `step` for each token."""
    cache, out = transformers.StaticCache(config=net.config, max_cache_len=window), []
    logits = net(prompt, past_key_values=cache, use_cache=True).logits
    for i in range(n):
        out.append(logits[:, -1:].argmax(-1))
        position = {"position_ids": torch.full((1, 1), prompt.shape[1] + i)}
        logits = step(out[-1], past_key_values=cache, use_cache=True, **position).logits
    return torch.cat(out, 1)


@pytest.mark.parametrize("name", torch_nets.DECODERS)
@pytest.mark.draws(4)
def test_greedy_tokens_with_a_static_cache(name):
    net = torch_nets.DECODERS[name]().eval()
    prompt = torch_nets.token_ids(1, 6)["input_ids"]
    expected = greedy(net, net, prompt, 6, 16)
    fn, reports = compiled(net)
    assert torch.equal(greedy(net, fn, prompt, 6, 16), expected)
    assert all(not r.fallbacks for r in reports), [r.fallbacks for r in reports]


def test_a_decode_step_is_recognised():
    """Norms, rotations, grouped heads and products of one input are whole operators, whatever PyTorch made of them."""
    net = torch_nets.DECODERS["qwen3"]().eval()
    cache = transformers.StaticCache(config=net.config, max_cache_len=16)
    net(torch_nets.token_ids(1, 6)["input_ids"], past_key_values=cache, use_cache=True)
    told = mpk.explain(
        net, torch.tensor([[5]]), past_key_values=cache, use_cache=True, position_ids=torch.tensor([[6]])
    )
    layers = net.config.num_hidden_layers
    assert told.launches == 1 and not told.fallbacks
    assert told.kinds["rotate"] == told.kinds["rms_norm"] == 2 * layers and told.kinds["sdpa"] == layers
    assert told.kinds["linear"] == 4 * layers + 1 and told.kinds["embedding"] == 1
    assert not {"reduce", "silu", "copy", "expand"} & set(told.kinds)


@pytest.mark.parametrize("name", torch_nets.MODULES)
def test_module_is_one_program(name):
    net, x = torch_nets.MODULES[name]()
    net.eval()
    fn, reports = compiled(net)
    got = fn(x)
    assert is_whole(reports), [r.fallbacks for r in reports]
    assert_near(got, net(x))


PADDING = torch.tensor([[False] * 5, [False, False, True, True, True]])


@pytest.mark.parametrize("masks", [{"src_key_padding_mask": PADDING}, {"mask": torch.eye(5).bool().expand(8, 5, 5)}])
def test_masks_of_an_encoder(masks):
    """nn.TransformerEncoder makes numbers of them, which its fused layer takes for truth values."""
    net = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    x, fn = torch.randn(2, 5, 32), compiled(net, fullgraph=True)[0]
    got, expected = fn(x, **masks), net(x, **masks)
    rows = ~PADDING if "src_key_padding_mask" in masks else torch.ones(2, 5, dtype=torch.bool)
    assert_near(got[rows], expected[rows])  # padding is zeros in eager, whose tensors are nested


# ---- mutation and aliases ----


def adds_in_place(x):
    x.add_(1)
    return x * 2


def returns_the_old_value(x):
    y = x.clone()
    x.mul_(2)
    return y


def swaps(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x + y


def writes_a_slice(x, y):
    x[1:3] = y[:2]
    return x.relu()


def writes_through_a_view(x):
    x.t()[::2].add_(1)
    return x.t()


def returns_its_argument(x):
    return x, x[1:], x.t()


def copies_into_a_cache(x, y):
    x.index_copy_(0, torch.tensor([2, 0]), y[:2])
    return x.sum(-1)


@pytest.mark.parametrize(
    "fn",
    [
        adds_in_place,
        returns_the_old_value,
        swaps,
        writes_a_slice,
        writes_through_a_view,
        returns_its_argument,
        copies_into_a_cache,
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced"])
def test_changed_arguments(fn, layout):
    def make():
        x = torch.arange(24.0).reshape(4, 6)
        return {"contiguous": x[:, :4].contiguous(), "transposed": x[:, :4].contiguous().t(), "sliced": x[:, 1:5]}[
            layout
        ]

    count = fn.__code__.co_argcount
    ours, theirs = [make() * (i + 1) if i else make() for i in range(count)], [
        make() * (i + 1) if i else make() for i in range(count)
    ]
    fast, reports = compiled(fn)
    for _ in range(2):
        got, expected = fast(*ours), fn(*theirs)
        torch.testing.assert_close(tensors(got), tensors(expected))
        torch.testing.assert_close(ours, theirs)
    assert all(not r.fallbacks for r in reports)


def test_a_cache_is_written_in_place():
    cache = torch.zeros(4, 8)
    fn, reports = compiled(lambda c, i, v: c.index_copy_(0, i, v).sum())
    fn(cache, torch.tensor([1]), torch.ones(1, 8))
    kinds = reports[0].programs[0].describe()["kinds"]
    assert cache.sum() == 8 and kinds.get("index_put") == 1 and "slice_scatter" not in kinds


def test_results_have_the_strides_of_eager():
    def fn(x):
        return x.t() * 2, (x + 1).transpose(0, 1), x.unsqueeze(0).expand(3, -1, -1) + 0

    x = torch.randn(4, 5)
    fast, _ = compiled(fn)
    assert [t.stride() for t in fast(x)] == [t.stride() for t in fn(x)]


# ---- shapes and dtypes ----


def test_shapes_that_change():
    def fn(x, n):
        return (x @ x.t()).softmax(-1)[:, :n], x.shape[0] + 1

    fast, reports = compiled(fn, dynamic=True)
    for rows in (3, 5, 7, 3, 5):
        x = torch.randn(rows, 4)
        got, expected = fast(x, rows - 1), fn(x, rows - 1)
        torch.testing.assert_close(got, expected)
    assert is_whole(reports, 3)


def test_numbers_that_change_need_no_program_each():
    def fn(x, n, k):
        return x * n + torch.arange(4) + k, n + 1, x[:, :k]

    fast, reports = compiled(fn, dynamic=True)
    for n in (3, 4, 5, 6):
        x = torch.randn(3, 4)
        got, expected = fast(x, n, 2), fn(x, n, 2)
        torch.testing.assert_close(got, expected)
        assert type(got[1]) is int
    assert is_whole(reports)


def test_results_that_are_views_share_memory():
    fast, _ = compiled(lambda x: (x[1:].t(), x.view(-1), x + 1))
    x = torch.zeros(4, 3)
    rows, flat, _ = fast(x)
    x.fill_(5)
    assert torch.equal(rows, torch.full((3, 3), 5.0)) and torch.equal(flat, torch.full((12,), 5.0))


def test_the_cache_of_shapes_is_bounded(monkeypatch):
    monkeypatch.setattr(shapes, "CACHED_SHAPES", 2)
    fast, reports = compiled(lambda x: x * 2 + 1, dynamic=True)
    threads = len(os.listdir("/proc/self/task"))
    for rows in (2, 3, 4, 5, 6, 2):
        assert torch.equal(fast(torch.ones(rows)), torch.full((rows,), 3.0))
    assert len(reports) == 6
    reports.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/task")) <= threads + 2 * 2


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool]
)
def test_dtypes(dtype):
    def fn(x, y):
        return x + y, (x * y).sum(-1), torch.where(x > y, x, y), x.to(torch.float32).mean()

    x, y = (torch.randint(0, 2 if dtype is torch.bool else 9, (3, 5)).to(dtype) for _ in range(2))
    fast, reports = compiled(fn)
    torch.testing.assert_close(fast(x, y), fn(x, y))
    assert is_whole(reports)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-5, -0.5])
def test_layer_norm_is_one_operator(dtype, eps):
    def fn(x, w, b):
        return torch.nn.functional.layer_norm(x, (40,), w, b, eps)

    x, w, b = torch.randn(3, 40, dtype=dtype), torch.randn(40, dtype=dtype), torch.randn(40, dtype=dtype)
    fast, reports = compiled(fn)
    torch.testing.assert_close(fast(x, w, b), fn(x, w, b), equal_nan=True)
    kinds = reports[0].programs[0].describe()["kinds"]
    assert is_whole(reports) and kinds.pop("layer_norm") == 1 and set(kinds) <= {"copy"}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode):
    def fn(table, ids, offsets):
        return torch.nn.functional.embedding_bag(ids, table, offsets, mode=mode, padding_idx=3)

    table, ids = torch.randn(9, 5), torch.tensor([1, 3, 8, 1, 3, 3, 0])
    fast, reports = compiled(fn)
    for offsets in [0, 2, 2, 4], [0, 0, 6, 7]:
        torch.testing.assert_close(fast(table, ids, torch.tensor(offsets)), fn(table, ids, torch.tensor(offsets)))
    assert is_whole(reports)


def test_segments_and_cells():
    def fn(x, lengths, edges):
        mean = torch.segment_reduce(x, "mean", lengths=lengths, unsafe=True)
        most = torch.segment_reduce(x, "max", lengths=lengths, unsafe=True, initial=0.0)
        return mean, most, *torch.histogram(x, edges, density=True), torch.nonzero_static(x > 0, size=4)

    x = torch.tensor([0.5, -1.0, 2.0, 0.25, 3.0, -0.5])
    fast, reports = compiled(fn)
    for lengths in [1, 0, 5], [2, 4, 0]:
        arguments = x, torch.tensor(lengths), torch.tensor([-1.0, 0.0, 0.5, 3.0])
        torch.testing.assert_close(fast(*arguments), fn(*arguments), equal_nan=True)
    assert is_whole(reports)


def test_no_elements():
    def fn(x):
        return torch.cat([x, x[:0]]), x[:0].sum(), x[:0] * 2

    x = torch.randn(3, 2)
    fast, _ = compiled(fn)
    torch.testing.assert_close(fast(x), fn(x))


# ---- what is not supported, and wrong use ----


def test_the_rest_runs_in_eager_with_one_warning():
    def fn(x):
        return torch.linalg.det(x @ x.t()) + x.sin().sum()

    # Small whole numbers: the product is exact, so that det, which may cancel, starts from the same bits both ways.
    x = torch.randint(-3, 4, (4, 4)).float()
    fast, reports = compiled(fn)
    backend._warned.clear()
    with pytest.warns(UserWarning, match="PyTorch runs aten._linalg_det.default"):
        torch.testing.assert_close(fast(x), fn(x))
    assert reports[0].programs and list(reports[0].fallbacks) == ["aten._linalg_det.default"]
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(fn, backend=backend.mpk)(x)


def test_random_numbers_are_those_of_eager():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5) * 2

    fast, _ = compiled(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(3)
        got = fast(torch.ones(100))
    torch.manual_seed(3)
    assert torch.equal(got, fn(torch.ones(100)))


def test_a_program_that_the_compiler_refuses_runs_in_eager(monkeypatch):
    def refuse(*_):
        raise mpk.LimitError("too many tasks")

    monkeypatch.setattr("mpk.graph.Graph.compile", refuse)
    fast, reports = compiled(lambda x: x * 2)
    with pytest.warns(UserWarning, match="the whole graph"):
        assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(fast(torch.ones(3)), torch.full((3,), 2.0)) and not reports[0].programs


@pytest.mark.parametrize(
    "options, told",
    [
        ({"threads": -1}, "threads is -1, expected a whole number"),
        ({"threads": 1025}, "from 1 to 1024"),
        ({"threads": "2"}, "threads is '2'"),
        ({"threads": True}, "threads is True"),
        ({"profile": 1}, "profile is 1, expected True or False"),
        ({"thread": 1}, "unknown option 'thread'; the options are threads, profile, collectives, reports"),
        ({"collectives": "no"}, "option collectives is 'no', expected True or False"),
        ([1], "expected a dictionary"),
    ],
)
def test_wrong_options_are_told(options, told):
    with pytest.raises(Exception, match=told):
        torch.compile(lambda x: x * 2, backend=backend.mpk, options=options)(torch.ones(3))


def test_nothing_is_printed_at_exit():
    """Python empties modules when it ends; programs may still be there."""
    code = """
import torch
from mpk import backend

@torch.compile(backend=backend.mpk, options={"threads": 2})
def fn(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1

with torch.no_grad():
    print(fn(torch.ones(1)).item())
"""
    environment = {**os.environ, "PYTHONPATH": str(support.ROOT / "python")}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (run.stdout, run.stderr) == ("3.0\n", "")


def test_roots_of_infinity():
    x = torch.tensor([-torch.inf, torch.inf, 4.0, -1.0, 0.0])
    for exponent in (0.5, -0.5, 2, 1.5):
        fast, reports = compiled(lambda x, n=exponent: x**n)
        torch.testing.assert_close(fast(x), x**exponent, equal_nan=True)
        whole = torch.tensor([4, 9])
        torch.testing.assert_close(fast(whole), whole**exponent)
        assert is_whole(reports, 2)


def test_training_is_refused():
    net = torch.nn.Linear(3, 3)
    with torch.enable_grad(), pytest.raises(Exception, match=r"torch\.no_grad\(\)"):
        compiled(net)[0](torch.randn(2, 3))
    with torch.enable_grad():
        assert not compiled(net.requires_grad_(False))[0](torch.randn(2, 3)).requires_grad


def test_weights_that_change_or_move():
    net = torch.nn.Linear(4, 4)
    fast, _ = compiled(net)
    x = torch.randn(2, 4)
    fast(x)
    net.weight.mul_(2)
    torch.testing.assert_close(fast(x), net(x))
    net.weight.data = torch.randn(4, 4)
    torch.testing.assert_close(fast(x), net(x))


def test_freed_storage_is_an_error():
    fast, _ = compiled(lambda x: x + 1)
    x = torch.randn(4)
    fast(x)
    x.untyped_storage().resize_(0)
    with pytest.raises(mpk.Error):
        fast(x)
    x.untyped_storage().resize_(8)
    with pytest.raises(mpk.Error, match="freed"):
        fast(x)


def test_another_dtype_or_device_is_compiled_anew_or_runs_in_eager():
    fast, _ = compiled(lambda x: x + 1)
    assert fast(torch.ones(3)).dtype is torch.float32
    assert fast(torch.ones(3, dtype=torch.float64)).dtype is torch.float64
    assert fast(torch.ones(3, device="meta")).device.type == "meta"
    assert torch.equal(fast(torch.ones(3, dtype=torch.complex64)), torch.full((3,), 2 + 0j))


def test_many_threads_call_one_function():
    fast, _ = compiled(lambda x: (x * 2).sum(-1))
    fast(torch.ones(4, 5))
    wrong = []

    def call(i):
        with torch.no_grad():
            for _ in range(50):
                if not torch.equal(fast(torch.full((4, 5), float(i))), torch.full((4,), 10.0 * i)):
                    wrong.append(i)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_is_told():
    fast, _ = compiled(lambda x: x * 2)
    fast(torch.ones(3))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fast(torch.ones(3))
        except mpk.Error as problem:
            status = 0 if "forked" in str(problem) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


RESIZED = [("nearest", 2), ("nearest-exact", 1), ("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2)]


@pytest.mark.parametrize("mode, axes", RESIZED)
def test_resizing_is_one_operator(mode, axes):
    def resize(x):
        return torch.nn.functional.interpolate(x, scale_factor=2.3, mode=mode)

    kernels = dict(torch.ops.aten.upsample_bilinear2d.vec.py_kernels)
    x = torch.randn(2, 3, *(5, 7, 4)[:axes])
    told = mpk.explain(resize, x)
    assert told.kinds == {"upsample": 1}
    torch.testing.assert_close(told.result, resize(x))
    assert torch.ops.aten.upsample_bilinear2d.vec.py_kernels == kernels, "other backends see another dispatch"


def test_explain():
    told = mpk.explain(lambda x: torch.linalg.det(x) + x.sin().sum(), torch.randn(4, 4))
    assert told.graphs == 1 and told.launches >= 1 and told.tasks >= 1 and told.kinds.get("reduce") == 1
    assert "aten._linalg_det.default" in told.fallbacks and "aten._linalg_det.default" in str(told)


def test_explain_tells_the_code_of_each_kind():
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    told = mpk.explain(net, torch.randn(3, 8))
    (code,) = told.code
    assert {k["kind"] for k in code} == set(told.kinds) and sum(k["tasks"] for k in code) == told.tasks
    assert all(k["body"] in str(told) and not k["programs"] for k in code)


def test_products_of_columns_with_rows_are_multiplications():
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.randn(3, 5, 1).to(dtype), torch.randn(3, 1, 7).to(dtype)
        told = mpk.explain(torch.bmm, a, b)
        assert told.kinds == {"mul": 1} and torch.equal(told.result, torch.bmm(a, b))


def test_a_cpu_has_a_profile():
    x = torch.randn(4)
    told = mpk.explain(torch.neg, x, profile=True)
    (profile,) = told.profile
    (kind,) = profile["kinds"]
    assert torch.equal(told.result, -x) and kind["tasks"] == told.tasks and 0 < kind["body_us"] <= kind["longest_us"]
    assert "us of a launch" in str(told)


@pytest.mark.parametrize("name", ["generate", "vision", "module"])
def test_example(name):
    if "mpk" not in torch._dynamo.list_backends():  # the package is not installed, only in the path
        torch._dynamo.register_backend(backend.mpk, name="mpk")
    path = support.ROOT / "examples" / f"torch_{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main()


# ---- the engine ----


def test_generate_and_stream(tmp_path):
    with mpk.LLM(tiny.model(tmp_path / "m"), threads=2, context_tokens=64, batch_invariant=True) as llm:
        wanted = mpk.SamplingParams(max_tokens=9)
        first, second = llm.generate(["the end", [5, 6, 7]], wanted)
        assert first.finish in ("length", "stop") and len(first.token_ids) <= 9 and second.prompt == [5, 6, 7]
        pieces = list(llm.stream("the end", wanted))
        assert [i for p in pieces for i in p.token_ids] == first.token_ids
        assert "".join(p.text for p in pieces) == first.text and pieces[-1].finish == first.finish
        assert llm.detokenize(llm.tokenize("the end", add_special=False)) == "the end"
        assert llm.describe()["vocab_size"] > 256


def test_chat(tmp_path):
    folder = tiny.model(tmp_path / "m")
    template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}{{ tools | length }}{{ word }}"
    (folder / "chat_template.jinja").write_text(template + "{% if add_generation_prompt %}a{% endif %}")
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.6, "top_p": 0.9}')
    with mpk.LLM(folder, threads=2, context_tokens=64, batch_invariant=True) as llm:
        said = [{"role": "user", "content": "the é"}, {"role": "bot", "content": "in"}]
        assert llm.chat_prompt(said, tools=[{}, {}], variables={"word": "!"}) == "uthe ébin2!a"
        assert llm.chat_prompt(said, tools=[], answer=False) == "uthe ébin0"
        assert llm.chat_prompt(said, chat_template="{{ messages[1].role }}") == "bot"
        wanted = mpk.SamplingParams(max_tokens=5, ignore_eos=True)
        one, two = llm.chat([said, said[:1]], wanted, tools=[])
        assert one.prompt == "uthe ébin0a" and len(one.token_ids) == 5
        assert llm.chat(said, wanted, tools=[])[0].token_ids == one.token_ids
        ids = llm.tokenize(two.prompt, add_special=False)
        assert llm.generate([ids], wanted)[0].token_ids == two.token_ids
        suggested = llm.suggested()
        assert abs(suggested.temperature - 0.6) < 1e-6 and abs(suggested.top_p - 0.9) < 1e-6 and suggested.top_k == 0
        with pytest.raises(mpk.FileError, match="messages"):
            llm.chat([[]], wanted)
        with pytest.raises(mpk.ArgumentError, match="NUL"):
            llm.chat_prompt(said, chat_template="\0")
    with mpk.LLM(tiny.model(tmp_path / "plain"), threads=2, context_tokens=64) as llm:
        with pytest.raises(mpk.UnsupportedError, match="chat template"):
            llm.chat([{"role": "user", "content": "the"}], wanted)


def test_wrong_use_of_the_engine(tmp_path):
    with pytest.raises(mpk.FileError, match="no_such_model"):
        mpk.LLM("/no_such_model")
    with pytest.raises(mpk.ArgumentError, match="kv_dtype"):
        mpk.LLM("/no_such_model", kv_dtype="f8")
    llm = mpk.LLM(tiny.model(tmp_path / "m"), threads=2, context_tokens=64)
    for prompt, params, error in (
        ([10**6], {}, mpk.ArgumentError),
        ("", {"raw_prompt": True}, mpk.ArgumentError),
        ("x", {"temperature": -1}, mpk.ArgumentError),
        ("x", {"max_tokens": -1}, mpk.ArgumentError),
        ([1.5], {}, TypeError),
        ([5] * 100, {}, mpk.LimitError),
    ):
        with pytest.raises(error):
            llm.generate([prompt], mpk.SamplingParams(**params))
    stream = llm.stream("the", mpk.SamplingParams(ignore_eos=True))
    llm.close()
    with pytest.raises(mpk.ArgumentError, match="closed"):
        next(stream)
    with pytest.raises(mpk.ArgumentError, match="closed"):
        llm.generate("the")


def test_the_package_needs_no_torch():
    code = "import sys, mpk; mpk.SamplingParams(); print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(support.ROOT / "python")}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.stdout == "False\n", run.stderr
