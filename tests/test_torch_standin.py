"""The GPU's side of torch.compile(backend="mpk") on a machine without a GPU.

Graphs of CUDA tensors are lowered from fake tensors.  Programs are compiled by NVRTC and launched on the stand-in for
libcuda (tests/fake_cuda.h), whose GPU has the host's memory: tensors of the CPU play those of the GPU there, and a
function of the test plays the kernel.
"""

import ctypes
import operator
import warnings
import weakref

import pytest

import support  # before mpk, which it finds

import torch
import transformers
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention as sdpa

import mpk
from mpk import backend, gpu, results, statics, whole
from mpk.emit import Emitter

STAND_IN = support.BUILD / "tests" / "libfake_cuda.so"


# ---- lowering ----


def lowered(fn, *shapes, device="cuda:0", dtype=torch.float32):
    """(emitter, values, what was not lowered, graph) of fn on fake tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        arguments = [torch.empty(s, device=device, dtype=dtype) if isinstance(s, tuple) else s for s in shapes]
        gm = make_fx(fn, tracing_mode="real")(*arguments)
    for node, value in zip(backend.placeholders(gm), arguments):
        node.meta.setdefault("val", value)
    gm.graph.eliminate_dead_code()
    return *backend.lower_graph(gm), gm


def test_a_graph_of_cuda_tensors_is_lowered_for_its_gpu():
    e, _, unsupported, _ = lowered(
        lambda x: (x + torch.arange(4, device=x.device)) @ x.t() * torch.tensor(2.0), (3, 4), device="cuda:1"
    )
    assert not unsupported and e.device == torch.device("cuda:1") and "map" in e.graph.text()


@pytest.mark.parametrize("device, dtype, kind", [
    ("cuda:0", torch.bfloat16, "linear"), ("cuda:0", torch.float16, "linear"),
    ("cuda:0", torch.float32, "batch_matmul"), ("cpu", torch.bfloat16, "batch_matmul")
])  # fmt: skip
def test_weights_by_columns_are_those_of_a_linear(device, dtype, kind):
    e, _, unsupported, _ = lowered(torch.ops.aten.addmm.default, (7,), (20, 5), (5, 7), device=device, dtype=dtype)
    kinds = [line.split("(")[0].split("= ")[1] for line in e.graph.text().splitlines() if "= " in line]
    assert not unsupported and [k for k in kinds if k in ("linear", "batch_matmul")] == [kind]
    assert (kinds == ["transpose", "linear"]) == (kind == "linear")


def test_a_block_between_convolutions_keeps_channels_last():
    """group_norm, what is added, and rows [N, places, C] lie as convolutions leave them: the input alone is copied."""

    def block(x, w, b, more):
        h = torch.conv2d(torch.nn.functional.group_norm(x, 4, b, b), w, padding=1) + more
        y = torch.nn.functional.silu(torch.nn.functional.group_norm(h, 4, b, b))
        rows = torch.conv2d(y, w, padding=1).flatten(2).transpose(1, 2)
        image = torch.relu(rows).transpose(1, 2).unflatten(2, (9, 9))
        return (x + image).sum() + torch.conv2d(image, w).sum()

    e, _, unsupported, _ = lowered(
        block, (2, 16, 9, 9), (16, 16, 3, 3), (16,), (2, 16, 1, 1), dtype=torch.bfloat16
    )
    text = e.graph.text()
    assert not unsupported and text.count("copy(") == 2  # of one transposed input: pass simplify makes one of them
    assert text.count("group_norm(") == 2 and text.count("groups = 4, last = 1") == 1


def test_group_norms_of_many_places_are_cut_along_them():
    """On a GPU: moments of parts, then a norm by them that has the activation after it."""

    def norms(x, b):
        return torch.nn.functional.silu(torch.nn.functional.group_norm(x, 4, b, b)).sum()

    for places, split in ((16, 1), (15, 0)):
        e, _, unsupported, _ = lowered(norms, (2, 16, places, 16), (16,), dtype=torch.bfloat16)
        text = e.graph.text()
        assert not unsupported and text.count("group_moments(") == text.count("group_scale(") == split
        assert text.count("group_norm(") == 1 - split and text.count("parts = 8}") == split


@pytest.mark.parametrize("device, dtype, last", [
    ("cuda:0", torch.bfloat16, True), ("cuda:0", torch.float32, True), ("cuda:0", torch.float64, False),
    ("cpu", torch.bfloat16, False)
])  # fmt: skip
def test_convolutions_of_a_gpu_leave_channels_last(device, dtype, last):
    """What lies so is read so: by the next convolution, by sums and by pools."""

    def images(x, w, b):
        y = torch.conv2d(torch.relu(torch.conv2d(x, w, b)), w) + b.reshape(1, -1, 1, 1)
        return torch.max_pool2d(y, 2).sum()

    e, _, unsupported, _ = lowered(images, (2, 16, 9, 9), (16, 16, 3, 3), (16,), device=device, dtype=dtype)
    text = e.graph.text()
    assert not unsupported and text.count("last = 1") == 2 * last and text.count("copy(") == last
    assert ("[2, 1, 5, 5, 16]" in text) == last  # channels are a third axis of places


def attended(dtype, width, **more):
    """The program of attention of tensors of a GPU, as it is traced for the backend."""
    shapes = [(2, 4, 5, width), (2, 2, 7, width), (2, 2, 7, width)]
    with enable_python_dispatcher(), whole.whole_operators():
        return lowered(lambda q, k, v: sdpa(q, k, v, enable_gqa=True, **more), *shapes, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width, causal", [(16, True), (128, False)])
def test_attention_of_a_gpu_is_one_operator(dtype, width, causal):
    e, _, unsupported, _ = attended(dtype, width, is_causal=causal)
    assert not unsupported and "sdpa" in e.graph.text() and "softmax" not in e.graph.text()


def known_mask(kind, dtype, rows, keys, device):
    """A mask that a graph makes of nothing but numbers, as those of Transformers."""
    i, j = torch.arange(rows, device=device).reshape(rows, 1), torch.arange(keys, device=device)
    seen = {"all": i + j >= 0, "causal": i >= j, "window": (i >= j) & (i - j < 3), "rows": j < 5}[kind]
    seen = seen.expand(2, 1, rows, keys)
    if dtype is torch.bool:
        return seen
    return torch.where(seen, *(torch.full((), n, dtype=dtype, device=device) for n in (0, torch.finfo(dtype).min)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", ["all", "causal", "window", "rows"])
def test_a_known_mask_is_told_by_as_little_as_says_the_same(kind, dtype):
    with enable_python_dispatcher(), whole.whole_operators():
        def twice(q, k, v):
            mask = known_mask(kind, dtype, 5, 7, q.device)
            return sdpa(sdpa(q, k, v, mask), k, v, mask)

        e, *_ = lowered(twice, (2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16), dtype=torch.bfloat16)
    line, other = (line for line in e.graph.text().splitlines() if "sdpa(" in line)
    shapes = {"all": None, "causal": "[1, 1, 5, 7]" if dtype is torch.float16 else None,
              "window": "[1, 1, 5, 7]", "rows": "[1, 1, 1, 7]"}
    masks = [line for line in e.graph.text().splitlines() if line.startswith("const")]
    assert ("causal = 1" in line) == ("causal = 1" in other) == (kind == "causal" and dtype is not torch.float16)
    assert len(masks) == (shapes[kind] is not None) and all(shapes[kind] in m for m in masks)


@pytest.mark.parametrize("dtype, width, more", [
    (torch.float32, 16, {}), (torch.float16, 136, {}), (torch.float16, 16, {"dropout_p": 0.5})
])  # fmt: skip
def test_attention_without_a_body_is_taken_apart(dtype, width, more):
    e, *_, gm = attended(dtype, width, **more)
    assert all("attention" not in str(node.target) for node in gm.graph.nodes)
    assert more or "batch_matmul" in e.graph.text()


def test_attention_that_pytorch_runs_is_its_own():
    random = torch.Generator().manual_seed(support.seed().randrange(2**31))
    q, k, v = (torch.randn(2, n, 5, 16, generator=random) for n in (4, 2, 2))
    for mask in (None, torch.randn(2, 1, 5, 5, generator=random), torch.ones(5, 5, dtype=torch.bool).tril()):
        got = torch.ops.mpk.attention(q, k, v, mask, False, 0.3)
        assert torch.equal(got, sdpa(q, k, v, mask, scale=0.3, enable_gqa=True)) and got.is_contiguous()
    with FakeTensorMode() as mode:
        fake = torch.ops.mpk.attention(*(mode.from_tensor(x) for x in (q, k, v)), None, True, None)
    assert fake.shape == got.shape and fake.stride() == got.stride()


def test_what_lies_on_the_cpu_stays_with_pytorch():
    cpu = torch.empty(3)
    _, _, unsupported, _ = lowered(lambda x, y: x.sin() + y.to("cuda:0"), (3,), cpu)
    assert [node.target for node in unsupported] == [torch.ops.aten._to_copy.default]
    e, values, unsupported, gm = lowered(lambda x: (x + 1, torch.zeros(2)), (3,))
    assert not unsupported
    places = [results.place_of(e, values, node, i) for i, node in enumerate(gm.graph.output_node().args[0])]
    assert [p[0] for p in places] == ["slot", "made"]
    first, second = (results.given(places[1], []) for _ in range(2))
    assert first.device.type == "cpu" and first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_attention_of_cuda(name):
    aten = torch.ops.aten
    op = getattr(aten, f"_scaled_dot_product_{name}_attention").default
    graph = torch.fx.Graph()
    shapes = [(2, 4, 6, 16), (2, 2, 6, 16), (2, 2, 6, 16)]
    q, k, v = nodes = [graph.placeholder(n) for n in "qkv"]
    more = {"flash": (0.0, True), "efficient": (None, False, 0.0, True), "cudnn": (None, False, 0.0, True)}[name]
    attention = graph.call_function(op, (q, k, v, *more), {"scale": 0.5})
    graph.output([graph.call_function(operator.getitem, (attention, 0))])
    with FakeTensorMode():
        for node, shape in zip(nodes, shapes):
            node.meta["val"] = torch.empty(shape, device="cuda:0")
        result = torch.empty(shapes[0], device="cuda:0")
    attention.meta["val"] = (result, *[None] * 8)
    list(graph.nodes)[-2].meta["val"] = result
    e, values, unsupported = backend.lower_graph(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert not unsupported and "sdpa" in e.graph.text() and "causal = 1" in e.graph.text()


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_of_cuda(cell, bias):
    """Their fused operator has no code for the CPU: its decomposition must do what the cell does."""
    torch.manual_seed(support.seed().randrange(2**31))
    net, x, h, c = cell(5, 7, bias=bias), torch.randn(3, 5), torch.randn(3, 7), torch.randn(3, 7)
    is_lstm = cell is torch.nn.LSTMCell
    aten = torch.ops.aten
    op = aten._thnn_fused_lstm_cell.default if is_lstm else aten._thnn_fused_gru_cell.default
    gates = (x @ net.weight_ih.t(), h @ net.weight_hh.t(), c if is_lstm else h)
    with torch.no_grad():
        got = backend.decompositions()[op](*gates, net.bias_ih, net.bias_hh)
        expected = net(x, (h, c)) if is_lstm else (net(x, h),)
    torch.testing.assert_close(got[: len(expected)], tuple(expected))


# ---- calls ----


class Launch(ctypes.Structure):
    _fields_ = [("function", ctypes.c_char_p)] + [
        (n, ctypes.c_uint) for n in ("blocks", "threads", "shared", "cooperative", "early", "from_graph", "device")
    ] + [("argument", ctypes.c_uint64)]  # fmt: skip


KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Launch))


class Face(ctypes.Structure):
    """fake_cuda_face."""

    _fields_ = [
        ("reset", ctypes.CFUNCTYPE(None)),
        ("leaks", ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t)),
        ("launches", ctypes.CFUNCTYPE(ctypes.c_uint)),
        ("last", ctypes.CFUNCTYPE(None, ctypes.POINTER(Launch))),
        ("kernel", ctypes.CFUNCTYPE(None, KERNEL, ctypes.c_void_p)),
        ("entry", ctypes.c_void_p),
        ("calls", ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_char_p)),
    ]


class StandInRunner(gpu.GpuRunner):
    made: list = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.index = 0
        StandInRunner.made.append(self)


@pytest.fixture
def face(monkeypatch):
    """The stand-in, with a GPU of 8 SMs; each call that the backend makes goes there."""
    monkeypatch.setenv("MPK_LIBCUDA", str(STAND_IN))
    monkeypatch.setenv("MPK_FAKE_CUDA", "capability:90,sms:8")
    monkeypatch.setattr(backend, "runner_of", lambda device: StandInRunner)
    monkeypatch.setattr(gpu, "current_stream", lambda index: 0)
    monkeypatch.setattr(gpu, "_orders", {})
    StandInRunner.made.clear()
    torch._dynamo.reset()
    face = Face.in_dll(ctypes.CDLL(str(STAND_IN)), "fake_cuda")
    face.reset()
    with torch.no_grad():
        yield face
    face.kernel(KERNEL(), None)
    torch._dynamo.reset()
    StandInRunner.made.clear()


def tensor_at(address, n):
    return torch.frombuffer((ctypes.c_float * n).from_address(address), dtype=torch.float32)


def test_a_call_is_one_launch_with_the_addresses_of_its_tensors(face):
    fast = torch.compile(lambda s, x: s.add_(x * 2), backend=backend.mpk)
    seen = []

    @KERNEL
    def kernel(_, launch):
        (runner,) = StandInRunner.made
        at = {slot.index: a for slot, a in zip(runner.slots, runner.program.addresses) if slot.kind == "argument"}
        tensor_at(at[0], 8).add_(2 * tensor_at(at[1], 8))
        seen.append((launch[0].function, launch[0].cooperative, launch[0].from_graph, at[0], at[1]))

    face.kernel(kernel, None)
    for i in range(3):
        x, s = torch.randn(8), torch.full((8,), float(i))
        result = fast(s, x)
        assert result.data_ptr() == s.data_ptr()
        torch.testing.assert_close(s, i + 2 * x)
        assert seen[-1] == (b"mpk_kernel", 1, 1, s.data_ptr(), x.data_ptr()) and len(seen) == i + 1
    waits = face.calls(b"cuStreamSynchronize"), face.calls(b"cuEventSynchronize"), face.calls(b"cuCtxSynchronize")
    fast(s, x)
    assert waits == (
        face.calls(b"cuStreamSynchronize"),
        face.calls(b"cuEventSynchronize"),
        face.calls(b"cuCtxSynchronize"),
    )
    explained = StandInRunner.made[0].program.describe()
    assert explained["device"] == "Fake GPU 0" and explained["workers"] == 8


def test_a_profile_is_asked_for_when_compiling(face):
    x = torch.randn(8)
    torch.compile(lambda x: x + 1, backend=backend.mpk)(x)
    with pytest.raises(mpk.ArgumentError, match="not compiled with a profile"):
        StandInRunner.made[0].program.profile()
    torch._dynamo.reset()
    torch.compile(lambda x: x + 2, backend=backend.mpk, options=backend.Options(profile=True))(x)
    told = StandInRunner.made[1].program.profile()
    assert told["kinds"] == [] and told["tokens"] == 1  # nothing ran: the stand-in's kernel is a function of the test
    told = mpk.explain(lambda x: x + 3, x, profile=True)
    assert told.profile[0]["kinds"] == [] and "us of a launch" in str(told)


def test_explain_tells_of_block_programs(face):
    """Rows of 44 entries are not streamed."""
    told = mpk.explain(torch.nn.Linear(44, 40).half(), torch.randn(2, 44).half())
    (kind,) = told.code[0]
    (program,) = kind["programs"]
    assert (kind["kind"], kind["body"], kind["from"], kind["to"]) == ("linear", "block", 44, 40)
    assert program["listed"] >= program["fitting"] > program["refused"] == 0 < program["cycles"]
    assert program["text"].startswith("block product") and "store y to out_y" in program["text"]
    assert f"of {program['listed']} block programs {program['fitting']} fit; the model expects" in str(told)


def test_what_follows_a_convolution_compiles_alone(face, monkeypatch):
    """A kernel has the code that its bodies name and no more: the map at the end of a depthwise convolution needs
    functions that no other operator brings here."""
    monkeypatch.setattr(Emitter, "on_gpu", property(lambda self: True))
    net = torch.nn.Conv2d(8, 8, 3, groups=8).bfloat16()
    told = mpk.explain(lambda x: net(x) * 2, torch.randn(1, 8, 6, 6).bfloat16())
    assert not told.fallbacks and told.kinds.get("map", 0) == 0 and told.kinds["conv"] == 1


def test_the_mlp_of_clip_is_two_products(face):
    """Its activation, x sigmoid(1.702 x), is part of the first."""
    config = transformers.CLIPTextConfig(
        vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, eos_token_id=99,
    )  # fmt: skip
    net = transformers.CLIPTextModel(config).eval().bfloat16()
    told = mpk.explain(net, input_ids=torch.randint(0, 99, (2, 20)))
    assert not told.fallbacks and told.kinds["linear"] == 4 * config.num_hidden_layers
    assert told.kinds["map"] == 1  # which token ends the text


@pytest.fixture(params=["C", "Python"])
def interface(request, monkeypatch):
    """How tensors are asked: through PyTorch's C interface, or as with a PyTorch that has none."""
    if request.param == "Python":
        monkeypatch.setattr(statics, "interface", None)
    else:
        assert statics.interface is not None
    with torch.no_grad():
        yield


def test_weights_are_packed_once_and_again_when_they_change(face, interface):
    net = torch.nn.Linear(256, 64, bias=False).bfloat16()
    fast, x = torch.compile(net, backend=backend.mpk), torch.randn(2, 256).bfloat16()
    packs = []
    kernel = KERNEL(lambda _, launch: launch[0].function == b"mpk_pack" and packs.append(launch[0].argument))
    face.kernel(kernel, None)
    fast(x)
    fast(x)
    assert packs == [net.weight.data_ptr()]
    net.weight.mul_(2)
    fast(x)
    fast(x)
    assert packs == [net.weight.data_ptr()] * 2
    net.weight.data = torch.randn(64, 256).bfloat16()
    fast(x)
    fast(x)
    assert len(packs) == 3 and packs[-1] == net.weight.data_ptr()
    net.weight = torch.nn.Parameter(net.weight.data)  # who knows what was done to it before
    fast(x)
    fast(x)
    assert len(packs) == 4
    net.weight.mul_(2)
    fast(x)
    assert len(packs) == 5


@pytest.fixture
def mesh():
    """Of this process alone."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_weights_that_are_dtensors_are_packed_again_when_they_change(face, interface, mesh):
    """PyTorch counts changes in place of the whole tensor, not of the local one, which the program reads."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    net = torch.nn.Linear(256, 64, bias=False).bfloat16()
    net.weight = torch.nn.Parameter(distribute_tensor(net.weight, mesh, [Shard(0)]))
    x = distribute_tensor(torch.randn(2, 256).bfloat16(), mesh, [Replicate()])
    fast, packs = torch.compile(lambda x: net(x).to_local(), backend=backend.mpk), []
    kernel = KERNEL(lambda _, launch: launch[0].function == b"mpk_pack" and packs.append(launch[0].argument))
    face.kernel(kernel, None)
    for change in (lambda: None, lambda: net.weight.mul_(2), lambda: net.weight.copy_(net.weight + 1)):
        change()
        fast(x)
        fast(x)
        assert packs.pop() == net.weight.to_local().data_ptr() and not packs


def test_attention_of_dtensors_is_taken_apart_by_pytorch(mesh):
    """Which knows how to do it on their parts; it knows of no operator of ours."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    spec = distribute_tensor(torch.empty(2, 4, 5, 64, dtype=torch.bfloat16), mesh, [Shard(1)])._spec
    with FakeTensorMode():
        x = torch.empty(2, 4, 5, 64, dtype=torch.bfloat16, device="cuda:0")
        y = DTensor(x, spec, requires_grad=False)
    assert whole.is_ours(x, x, x) and y.is_cuda and not whole.is_ours(y, y, y)


def test_weights_by_columns_are_laid_by_rows_once_and_packed(face, interface):
    """As Conv1D of Transformers has them; the kernel that packs reads the copy."""
    weight, bias = torch.nn.Parameter(torch.randn(256, 64).bfloat16()), torch.randn(64).bfloat16()
    net = torch.nn.Module()
    net.weight, packs = weight, []
    fast, x = torch.compile(lambda x: torch.addmm(bias, x, net.weight), backend=backend.mpk), torch.randn(2, 256)

    def values(address):
        return torch.frombuffer((ctypes.c_char * weight.nbytes).from_address(address), dtype=weight.dtype).clone()

    kernel = KERNEL(lambda _, launch: launch[0].function == b"mpk_pack" and packs.append(values(launch[0].argument)))
    face.kernel(kernel, None)
    for change in (lambda: None, lambda: weight.mul_(2), lambda: setattr(weight, "data", weight.data + 1)):
        change()
        fast(x.bfloat16())
        fast(x.bfloat16())
        assert torch.equal(packs.pop(), weight.t().flatten()) and not packs
    assert StandInRunner.made[0].program.describe()["kinds"]["linear"] == 1


def test_a_layer_norm_is_packed_with_the_weights_of_the_product_after_it(face, interface):
    """Packed again when one of its vectors changes."""
    norm, product = torch.nn.LayerNorm(256).bfloat16(), torch.nn.Linear(256, 64).bfloat16()
    fast, x = torch.compile(torch.nn.Sequential(norm, product), backend=backend.mpk), torch.randn(20, 256)
    packs = []
    kernel = KERNEL(lambda _, launch: launch[0].function == b"mpk_pack" and packs.append(launch[0].argument))
    face.kernel(kernel, None)
    for change in (None, norm.weight, norm.bias, product.weight):
        if change is not None:
            change.mul_(2)
        fast(x.bfloat16())
        fast(x.bfloat16())
        assert packs.pop() == product.weight.data_ptr() and not packs
    assert StandInRunner.made[0].program.describe()["kinds"] == {"linear": 1}


def test_a_pytorch_whose_tensors_are_more_than_pointers_is_asked_from_python(monkeypatch):
    class Elsewhere(statics.References):
        def __init__(self, tensors, to):
            self.other = torch.zeros(1)
            super().__init__([self.other], to)

    assert statics._interface() is not None
    monkeypatch.setattr(statics, "References", Elsewhere)
    assert statics._interface() is None


def changed(held):
    """What was changed, told once."""
    which, held.changed = held.changed, set()
    return sorted(which)


@pytest.mark.parametrize("sizes", [[4, 3], [4, 1, 3], [5], [1], []])
def test_statics_that_are_others_lie_elsewhere_or_changed(interface, sizes):
    arguments = [torch.nn.Parameter(torch.randn(n)) for n in sizes]
    numbers = range(len(sizes))
    held = statics.Statics(numbers)
    assert not held.are_as_before(arguments)
    held.hold(arguments)
    held.watch(numbers[:2])
    assert held.are_as_before(list(arguments)) and changed(held) == []
    for i in numbers:
        arguments[i].add_(1)
        assert held.are_as_before(arguments) == (i >= 2)
        held.hold(arguments)
        assert held.are_as_before(arguments) and changed(held) == ([i] if i < 2 else [])
        mine, arguments[i] = arguments[i], torch.nn.Parameter(arguments[i].data)  # the same bytes, another tensor
        assert not held.are_as_before(arguments)
        held.hold(arguments)
        assert held.are_as_before(arguments) and changed(held) == ([i] if i < 2 else [])
        mine.mul_(2)  # has a count of its own
        arguments[i].data = torch.randn(sizes[i])
        assert not held.are_as_before(arguments) and not held.are_as_before(arguments)
        held.hold(arguments)
        assert held.are_as_before(arguments)
        arguments[i].untyped_storage().resize_(0)
        assert not held.are_as_before(arguments)
        arguments[i] = torch.nn.Parameter(torch.randn(sizes[i]))
        held.hold(arguments)
        changed(held)


def test_a_change_is_noticed_beside_a_move_and_beside_another(interface):
    arguments = [torch.nn.Parameter(torch.randn(4)) for _ in range(4)]
    held = statics.Statics(range(4))
    held.hold(arguments)
    held.watch([0, 2, 3])
    arguments[0].add_(1)
    arguments[1].add_(1)  # does not matter
    arguments[2].data = torch.randn(4)
    assert not held.are_as_before(arguments)
    held.hold(arguments)
    assert changed(held) == [0]
    arguments[3].add_(1)
    arguments[1] = torch.nn.Parameter(torch.randn(4))
    assert not held.are_as_before(arguments)
    held.hold(arguments)
    arguments[0].add_(1)
    held.hold(arguments)
    assert changed(held) == [0, 3]  # of both holds


def test_statics_lie_anywhere_among_the_arguments(interface):
    arguments = [torch.randn(4), 7, torch.randn(4), torch.randn(1), None, torch.randn(4)]
    held = statics.Statics([5, 2, 3])
    held.hold(arguments)
    held.watch([2])
    arguments[0], arguments[1] = torch.randn(4), 8
    assert held.are_as_before(arguments)
    for i in (2, 3, 5):
        other = list(arguments)
        other[i] = torch.randn(arguments[i].numel())
        assert not held.are_as_before(other)
        held.hold(arguments)
        assert held.are_as_before(arguments) and changed(held) == []


def test_statics_without_counts_are_not_watched(interface):
    with torch.inference_mode():
        uncounted = torch.randn(4)
    arguments = [uncounted, torch.nn.Parameter(torch.randn(4), requires_grad=False)]
    held = statics.Statics(range(2))
    held.hold(arguments)
    held.watch(range(2))
    with torch.inference_mode():
        uncounted.add_(1)
    assert held.are_as_before(arguments)
    arguments[1].add_(1)
    assert not held.are_as_before(arguments)
    held.hold(arguments)
    assert changed(held) == [1]
    arguments[1].data = uncounted  # a tensor that counts gets the bytes of one that does not
    assert not held.are_as_before(arguments)
    held.hold(arguments)
    assert held.are_as_before(arguments) and changed(held) == []


def test_statics_are_let_go(interface):
    arguments = [torch.nn.Parameter(torch.randn(4)) for _ in range(3)]
    seen = weakref.ref(arguments[1])
    held = statics.Statics(range(3))
    held.hold(arguments)
    held.watch(range(3))
    del arguments
    assert seen() is not None
    held.hold([torch.nn.Parameter(torch.randn(4)) for _ in range(3)])
    assert seen() is None


@pytest.mark.parametrize("marked", [True, False])
def test_a_cache_that_is_marked_static_is_kept_and_other_arguments_are_not(face, interface, marked):
    """Both are looked at in each call: another tensor, or one that lies elsewhere or nowhere, is noticed."""
    x, cache = torch.randn(8), torch.zeros(4, 8)
    if marked:
        torch._dynamo.mark_static_address(cache)
    fast, seen = torch.compile(lambda c, x: c.add_(x), backend=backend.mpk), []
    runner_call = StandInRunner.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StandInRunner, "__call__", lambda r, a: (seen.append(list(a)), runner_call(r, a))[1])
        fast(cache, x)
    (runner,), (arguments,) = StandInRunner.made, seen
    assert sorted(slot.index for slot in runner.slots if slot.static) == ([0] if marked else [])
    assert arguments[0] is cache and runner.slots[0].written

    def address():
        return runner.program.addresses[next(at for at, i in runner.inputs if i == 0)]

    assert address() == cache.data_ptr()
    arguments[0] = torch.zeros(4, 8)
    runner(arguments)
    assert address() == arguments[0].data_ptr()
    arguments[0].data = torch.zeros(4, 8)
    runner(arguments)
    assert address() == arguments[0].data_ptr()
    for wrong in (torch.zeros(3, 8), torch.zeros(4, 8, dtype=torch.float64), torch.zeros(4, 8, device="meta")):
        with pytest.raises((mpk.ArgumentError, RuntimeError)):
            runner([wrong, arguments[1]])
    arguments[0].untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(mpk.Error, match="freed"):
            runner(arguments)
    arguments[0].untyped_storage().resize_(64)
    with pytest.raises(mpk.Error, match="freed"):
        runner(arguments)
    arguments[0] = cache
    runner(arguments)
    assert address() == cache.data_ptr()


def test_weights_that_change_before_a_call_that_fails_are_packed_by_the_next(face, interface):
    net = torch.nn.Linear(256, 64, bias=False).bfloat16()
    fast, x = torch.compile(net, backend=backend.mpk), torch.randn(2, 256).bfloat16()
    packs = []
    kernel = KERNEL(lambda _, launch: launch[0].function == b"mpk_pack" and packs.append(launch[0].argument))
    face.kernel(kernel, None)
    fast(x)
    (runner,) = StandInRunner.made
    make, runner.make = runner.make, lambda *_: torch.empty(1 << 60)
    net.weight.mul_(2)
    with pytest.raises(RuntimeError):
        fast(x)
    runner.make = make
    fast(x)
    fast(x)
    assert len(packs) == 2


def test_results_are_made_on_the_gpu_of_the_program(monkeypatch):
    """PyTorch's quick function makes them on the current one."""
    made, current = [], 0

    def fast(*a):
        made.append(("fast", *a))

    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", fast)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert backend.maker(torch.device("cuda:0")) is fast  # there is no other
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current, raising=False)
    monkeypatch.setattr(torch, "empty_strided", lambda *a, **more: made.append((more["device"], *a)))
    make = backend.maker(torch.device("cuda:1"))
    make((2,), (1,), torch.int64)
    current = 1
    make((2,), (1,), torch.int64)
    monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cuda")  # a PyTorch without it
    backend.maker(torch.device("cuda:1"))((2,), (1,), torch.int64)
    shape = (2,), (1,)
    gpu1 = torch.device("cuda:1")
    assert made == [(gpu1, *shape), ("fast", *shape, torch.int64), (gpu1, *shape)]


def test_what_a_program_cannot_take_where_it_is(face):
    """Not aligned, or wrong: a copy, or an error of Python's."""
    fast = torch.compile(lambda x: x + 1, backend=backend.mpk)
    fast(torch.ones(8))
    (runner,) = StandInRunner.made
    base = torch.zeros(16)
    odd = base[1:9] if base.data_ptr() % 16 == 0 else base[:8]
    runner([odd])
    at = next(i for i, slot in enumerate(runner.slots) if slot.kind == "argument")
    assert runner.program.addresses[at] % 16 == 0 and runner.program.addresses[at] != odd.data_ptr()
    for wrong in (torch.ones(9), torch.ones(8, dtype=torch.float64), torch.ones(8, device="meta")):
        with pytest.raises((mpk.ArgumentError, RuntimeError)):
            runner([wrong])
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    for _ in range(2):  # also right after another that was wrong
        with pytest.raises(mpk.Error, match="freed"):
            runner([freed])


def test_a_constant_lies_where_a_program_can_take_it(face):
    base = torch.arange(16.0)
    odd = base[1:9] if base.data_ptr() % 16 == 0 else base[:8]
    e, values, unsupported, gm = lowered(lambda x: [x + odd], (8,), device="cpu")
    assert not unsupported
    runner = StandInRunner(gm, e, values, backend.Options(), backend.Report())
    assert [s.kind for s in runner.slots if s.data is not None] == ["constant"]
    runner([torch.ones(8)])
    assert not runner.refused and all(address % 16 == 0 for address in runner.program.addresses)


def test_a_failed_run_is_told_by_the_next(face, monkeypatch):
    fast = torch.compile(lambda x: x * 3, backend=backend.mpk)
    x = torch.ones(8)
    fast(x)
    (runner,) = StandInRunner.made
    call = face.calls(b"cuGraphLaunch") + 1
    monkeypatch.setenv("MPK_FAKE_CUDA", f"capability:90,sms:8,fail:cuGraphLaunch:{call}:700")
    with pytest.raises(mpk.Error, match="touched memory"):
        fast(x)
    monkeypatch.setenv("MPK_FAKE_CUDA", "capability:90,sms:8")
    runner.program.wait()
    fast(x)


def test_a_gpu_without_room_leaves_it_to_pytorch(face, monkeypatch):
    monkeypatch.setenv("MPK_FAKE_CUDA", "capability:90,sms:8,memory:1000")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    fast = torch.compile(lambda x: x * 5, backend=backend.mpk)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(fast(torch.ones(4)), torch.full((4,), 5.0))
    assert StandInRunner.made[0].refused
