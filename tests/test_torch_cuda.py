"""torch.compile(backend="mpk") on a GPU: against eager PyTorch on the same GPU.  Skipped where there is none."""

import gc
import importlib.util
import threading
import time
import warnings

import pytest

import support  # before mpk, which it finds

import torch
import transformers

import mpk
import torch_nets
from mpk import backend, gpu

transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
    reason="no NVIDIA GPU of compute capability 8.0 or later that PyTorch can use",
)
GPU = "cuda:0"
HALF = {torch.float32: 1e-4, torch.bfloat16: 4e-2}  # of the largest value: what rounding in another order may cost


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(support.seed().randrange(2**31))
    torch._dynamo.reset()
    backend._warned.clear()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("default", module="torch|transformers")
        yield
    torch.cuda.synchronize()
    torch._dynamo.reset()


def compiled(fn, **more):
    """fn compiled, and the list in which the backend notes what it made."""
    reports = []
    return torch.compile(fn, backend=backend.mpk, options=backend.Options(reports=reports), **more), reports


def tensors(value):
    leaves = torch.utils._pytree.tree_leaves(dict(value) if hasattr(value, "keys") else value)
    return [v for v in leaves if isinstance(v, torch.Tensor)]


def is_whole(reports, graphs=1):
    """One program and no fallback in each graph; that is also the number of launches."""
    return [(len(r.programs), r.fallbacks) for r in reports] == [(1, {})] * graphs


def assert_near(got, expected, relative):
    got, expected = tensors(got), tensors(expected)
    assert len(got) == len(expected) > 0
    for g, x in zip(got, expected):
        assert g.shape == x.shape and g.dtype == x.dtype and g.device == x.device
        worst = (g.double() - x.double()).abs().max()
        assert worst <= relative * x.abs().max().double(), f"{worst} of {x.abs().max()}"


def moved(value, dtype):
    """Tensors on the GPU; floats as dtype."""
    if isinstance(value, dict):
        return {k: moved(v, dtype) for k, v in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(GPU, dtype if value.is_floating_point() else value.dtype)


# ---- models ----


@pytest.mark.parametrize("dtype", HALF, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "gemma3", "mixtral", "bert", "t5_encoder", "vit"])
def test_model_is_one_launch(name, dtype):
    net, arguments = torch_nets.model(name)
    net, arguments = net.to(GPU, dtype), moved(arguments, dtype)
    fn, reports = compiled(net)
    got = fn(**arguments)
    assert is_whole(reports), [r.fallbacks for r in reports]
    assert_near(got, net(**arguments), HALF[dtype])


@pytest.mark.parametrize("dtype", HALF, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", torch_nets.MODULES)
def test_module_is_one_launch(name, dtype):
    net, x = torch_nets.MODULES[name]()
    net, x = net.eval().to(GPU, dtype), x.to(GPU, dtype)
    fn, reports = compiled(net)
    for _ in range(3):
        got = fn(x)
        assert is_whole(reports), [r.fallbacks for r in reports]
        assert_near(got, net(x), HALF[dtype])
        x = torch.randn_like(x)


def greedy(net, step, prompt, n, window):
    """Tokens after a prompt, and the cache: eager for the prompt, `step` for each token; the host waits for none."""
    cache, out = transformers.StaticCache(config=net.config, max_cache_len=window), []
    logits = net(prompt, past_key_values=cache, use_cache=True).logits
    position = torch.full((1, 1), prompt.shape[1], device=GPU)
    for _ in range(n):
        out.append(logits[:, -1:].argmax(-1))
        logits = step(out[-1], past_key_values=cache, use_cache=True, position_ids=position).logits
        position.add_(1)
    return torch.cat(out, 1)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_greedy_tokens_with_a_static_cache(name):
    net = torch_nets.DECODERS[name]().eval().to(GPU)
    prompt = torch_nets.token_ids(1, 6)["input_ids"].to(GPU)
    expected = greedy(net, net, prompt, 20, 32)
    fn, reports = compiled(net)
    assert torch.equal(greedy(net, fn, prompt, 20, 32), expected)
    assert all(not r.fallbacks for r in reports), [r.fallbacks for r in reports]


# ---- memory ----


def test_arguments_are_changed_in_place_and_results_are_fresh():
    def fn(cache, i, v):
        cache.index_copy_(0, i, v)
        return cache * 2, v[1:]

    fast, reports = compiled(fn)
    ours, theirs = torch.zeros(8, 16, device=GPU), torch.zeros(8, 16, device=GPU)
    results = []
    for k in range(4):
        i, v = torch.tensor([k, 7 - k], device=GPU), torch.randn(2, 16, device=GPU)
        got, expected = fast(ours, i, v), fn(theirs, i, v)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(ours, theirs)
        assert got[1].data_ptr() == v[1:].data_ptr()
        results.append((got[0], expected[0]))
    for got, expected in results:  # later calls have not written over them
        assert torch.equal(got, expected)
    assert is_whole(reports)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "offset"])
def test_layouts(layout):
    def make():
        x = torch.randn(6, 33, device=GPU)
        return {"transposed": x.t(), "sliced": x[:, 1:20], "offset": x.view(-1)[1:181].view(6, 30)}[layout]

    def fn(x):
        x.add_(1)
        return x.sin(), x.sum(0)

    fast, reports = compiled(fn)
    for _ in range(2):
        ours = make()
        theirs = torch.empty_strided(ours.shape, ours.stride(), device=GPU).copy_(ours)
        torch.testing.assert_close(fast(ours), fn(theirs))
        torch.testing.assert_close(ours, theirs)
    assert is_whole(reports)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_change_or_move(dtype):
    net = torch.nn.Linear(256, 64).to(GPU, dtype)
    fast, _ = compiled(net)
    x = torch.randn(2, 256, device=GPU, dtype=dtype)
    assert_near(fast(x), net(x), HALF[dtype])
    net.weight.mul_(2)
    assert_near(fast(x), net(x), HALF[dtype])
    net.weight.data = torch.randn(64, 256, device=GPU, dtype=dtype)
    assert_near(fast(x), net(x), HALF[dtype])


def test_shapes_that_change():
    def fn(x, n):
        return (x @ x.t()).softmax(-1) * n

    fast, reports = compiled(fn, dynamic=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4, device=GPU)
        torch.testing.assert_close(fast(x, rows), fn(x, rows), rtol=1e-4, atol=1e-5)
    assert is_whole(reports, 2)


def test_memory_goes_back():
    """Five programs with 32 MB of temporaries each; others that use the GPU meanwhile disturb this."""
    x = torch.randn(64, 1 << 16, device=GPU)

    def once():
        torch._dynamo.reset()
        fast, reports = compiled(lambda x: ((x + 1).cumsum(0) * 2).sort(0)[0])
        fast(x)
        torch.cuda.synchronize()
        del fast
        reports.clear()
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    before = once()
    assert [once() for _ in range(5)][-1] >= before - (64 << 20)


# ---- streams ----


def test_the_host_waits_for_nothing():
    fast, _ = compiled(lambda x: x * 2 + 1)
    inputs = [torch.randn(64, 64, device=GPU) for _ in range(20)]
    fast(inputs[0])
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
    start = time.perf_counter()
    got = [fast(x) for x in inputs]  # each at another address, with another result
    spent = time.perf_counter() - start
    assert not torch.cuda.current_stream().query()
    assert spent < 0.2
    for x, y in zip(inputs, got):
        torch.testing.assert_close(y, x * 2 + 1)


def test_the_current_stream_is_used():
    fast, _ = compiled(lambda x: x.sum(0) + x[0])
    x = torch.zeros(512, 512, device=GPU)
    fast(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for value in range(1, 6):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            x.fill_(value)
            got = fast(x)
            side.synchronize()
        assert torch.equal(got, torch.full((512,), 513.0 * value, device=GPU))


def test_programs_on_many_streams_do_not_block_each_other():
    fns = [compiled(lambda x, k=k: (x @ x + k).tanh().sum(-1))[0] for k in range(3)]
    x = torch.randn(256, 256, device=GPU) / 16
    expected = [(x @ x + k).tanh().sum(-1) for k in range(3)]
    for fn in fns:
        fn(x)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(6)]
    got = []
    for turn in range(200):
        with torch.cuda.stream(streams[turn % 6]):
            got.append((turn % 3, fns[turn % 3](x)))
            x.mul(2)  # PyTorch's kernels in between
    torch.cuda.synchronize()
    for k, y in got:
        torch.testing.assert_close(y, expected[k], rtol=1e-4, atol=1e-3)


def test_many_threads_call_one_function():
    fast, _ = compiled(lambda x: (x * 2).sum(-1))
    fast(torch.ones(4, 5, device=GPU))
    wrong = []

    def call(i):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                x = torch.full((4, 5), float(i), device=GPU)
                if not torch.equal(fast(x), torch.full((4,), 10.0 * i, device=GPU)):
                    wrong.append(i)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_captured_stream_is_refused():
    fast, _ = compiled(lambda x: x + 1)
    x = torch.ones(4, device=GPU)
    fast(x)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(mpk.UnsupportedError, match="captured"):
        with torch.cuda.graph(graph):
            fast(x)
    assert torch.equal(fast(x), x + 1)


# ---- wrong use, and what stays with PyTorch ----


def test_wrong_use_is_an_error():
    fast, reports = compiled(lambda x: x + 1)
    x = torch.ones(4, device=GPU)
    fast(x)
    runner = next(o for o in gc.get_objects() if issubclass(type(o), backend.Runner) and o.report is reports[0])
    for wrong in (torch.ones(4), torch.ones(4, device=GPU, dtype=torch.float64), torch.ones(5, device=GPU)):
        with pytest.raises(mpk.ArgumentError, match="compiled for"):
            runner([wrong])
    x.untyped_storage().resize_(0)
    with pytest.raises(mpk.Error):
        fast(x)
    x = torch.ones(4, device=GPU)
    x.untyped_storage().resize_(8)
    with pytest.raises(mpk.Error, match="freed"):
        fast(x)
    assert torch.equal(fast(torch.ones(4, device=GPU)), torch.full((4,), 2.0, device=GPU))


def test_the_rest_runs_in_eager_with_one_warning():
    def fn(x, y):
        return torch.linalg.det(x @ x.t()) + x.sin().sum() + y.to(GPU).sum()

    x, y = torch.randn(4, 4, device=GPU), torch.randn(3)
    fast, reports = compiled(fn)
    with pytest.warns(UserWarning, match="PyTorch runs"):
        torch.testing.assert_close(fast(x, y), fn(x, y), rtol=1e-4, atol=1e-5)
    assert reports[0].programs and "aten._linalg_det.default" in reports[0].fallbacks


def test_numbers_of_the_cpu_in_a_graph_of_the_gpu():
    scale = torch.tensor(3.0)

    def fn(x):
        return x * scale + torch.arange(4, device=GPU), torch.zeros(2)

    x = torch.randn(2, 4, device=GPU)
    fast, _ = compiled(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = fast(x)
    torch.testing.assert_close(got, fn(x))
    assert got[1].device.type == "cpu"


def test_explain_names_the_gpu():
    told = mpk.explain(torch.nn.Linear(16, 16).to(GPU), torch.randn(2, 16, device=GPU))
    assert told.launches == 1 and told.devices == [torch.cuda.get_device_name(0)]
    assert "1 launches a call on " + torch.cuda.get_device_name(0) in str(told)


def test_explain_tells_where_the_time_goes():
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    net = net.to(GPU).bfloat16()
    told = mpk.explain(net, torch.randn(2, 512, device=GPU).bfloat16(), profile=True)
    (profile,) = told.profile
    by_kind = {k["kind"]: k for k in profile["kinds"]}
    assert set(by_kind) == set(told.kinds)
    assert sum(k["tasks"] for k in profile["kinds"]) == told.tasks
    assert all(0 < k["body_us"] <= k["longest_us"] < 1000 for k in profile["kinds"])
    assert "linear by linear_stream" in str(told)


@pytest.mark.parametrize("n", [4, 128])
def test_a_call_costs_little(monkeypatch, n):
    """The host's time in the backend, and in the whole call of a compiled function with two weights for each layer."""
    seen, call = [], gpu.GpuRunner.__call__
    monkeypatch.setattr(gpu.GpuRunner, "__call__", lambda self, a: (seen.append((self, list(a))), call(self, a))[1])
    fast, _ = compiled(torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(n)]).to(GPU).bfloat16())
    x = torch.randn(1, 16, device=GPU).bfloat16()
    fast(x)
    runner, arguments = seen[0]

    def microseconds(fn):
        best = 1.0
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                fn()
            best = min(best, (time.perf_counter() - start) / 50)
        return best * 1e6

    own, whole = microseconds(lambda: call(runner, arguments)), microseconds(lambda: fast(x))
    print(f"the backend: {own:.1f} us, the call of the compiled function: {whole:.1f} us")
    assert own < 60 and whole < (200 if n == 4 else 600)  # 4: 15 and 50 on a quiet machine


@pytest.mark.parametrize("name", ["generate", "vision", "module"])
def test_example(name):
    path = support.ROOT / "examples" / f"torch_{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if "mpk" not in torch._dynamo.list_backends():  # the package is not installed, only in the path
        torch._dynamo.register_backend(backend.mpk, name="mpk")
    with torch.device(GPU), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module.main()
