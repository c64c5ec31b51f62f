"""The shared library: how it is found, the C types of include/mpk, and errors as exceptions.

The library is the file libmpk.so beside this one, as `pip install` puts it there, or what MPK_LIBRARY names.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import threading
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Array,
    Structure,
    byref,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_ssize_t,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Union


class Error(RuntimeError):
    """What the library refused or failed at; the message says what, where and what to do."""

    status: int = 0


class ArgumentError(Error, ValueError):
    """An argument is wrong."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but not supported."""


class ShapeError(Error, ValueError):
    """Shapes or dtypes do not fit together."""


class LimitError(Error):
    """A limit is exceeded."""


class FileError(Error, OSError):
    """A file could not be read or written, or is not of its format."""


class OutOfMemoryError(Error, MemoryError):
    """Out of memory."""


class CancelledError(Error):
    """Cancelled."""


EARG, ENOMEM, EIO, EFORMAT, EUNSUPPORTED, ESHAPE, ELIMIT, EVERIFY, EDEVICE, ESTALLED, ECANCELLED = range(1, 12)
_EXCEPTIONS: dict[int, type[Error]] = {
    EARG: ArgumentError,
    ENOMEM: OutOfMemoryError,
    EIO: FileError,
    EFORMAT: FileError,
    EUNSUPPORTED: UnsupportedError,
    ESHAPE: ShapeError,
    ELIMIT: LimitError,
    ECANCELLED: CancelledError,
}


class Degree(Structure):
    _fields_ = [("match", c_char_p), ("axis", c_uint32), ("degree", c_uint32)]


class Adapter(Structure):
    _fields_ = [("path", c_char_p), ("scale", c_float)]


Path = Union[str, os.PathLike[str]]
Adapters = Union[Path, tuple[Path, float], Sequence[Union[Path, tuple[Path, float]]]]


def list_adapters(adapters: Adapters) -> Array[Adapter]:
    """A path, (path, scale), or several of these, as mpk_adapter [n]."""
    if isinstance(adapters, (str, os.PathLike)) or (
        isinstance(adapters, tuple) and len(adapters) == 2 and isinstance(adapters[1], (int, float))
    ):
        adapters = [adapters]
    pairs = [(each, 1.0) if isinstance(each, (str, os.PathLike)) else each for each in adapters]
    return (Adapter * len(pairs))(*(Adapter(os.fsencode(path), scale) for path, scale in pairs))


class EngineOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_uint32),
        ("max_batch", c_uint32),
        ("step_tokens", c_uint32),
        ("context_tokens", c_uint32),
        ("kv_tokens", c_uint64),
        ("kv_dtype", c_int),
        ("random_weights", c_bool),
        ("random_seed", c_uint64),
        ("progress", c_void_p),
        ("progress_user", c_void_p),
        ("fusion", c_int),
        ("launch", c_int),
        ("coarse_events", c_bool),
        ("verify", c_bool),
        ("degrees", POINTER(Degree)),
        ("n_degrees", c_uint32),
        ("no_preload", c_uint32),
        ("device", c_char_p),
        ("target", c_char_p),
        ("mode", c_int),
        ("no_descriptor_prefetch", c_uint32),
        ("keep", c_char_p),
        ("profile", c_uint32),
        ("batch_invariant", c_uint32),
        ("no_carriers", c_uint32),
        ("activations", c_int),
        ("no_prefix_cache", c_uint32),
        ("gpus", c_uint32),
        ("speculation", c_int),
        ("draft_tokens", c_uint32),
        ("draft_ngram", c_uint32),
        ("embeddings", c_uint32),
        ("random_routing", c_int),
        ("count_experts", c_uint32),
        ("draft_model", c_char_p),
        ("own_experts", c_uint32),
        ("drafts_apart", c_uint32),
        ("meet", c_char_p),
        ("rank", c_uint32),
        ("meet_seconds", c_uint32),
        ("keep_blocks", c_uint32),
        ("random_mix", c_char_p),
        ("adapters", POINTER(Adapter)),
        ("n_adapters", c_uint32),
    ]


class QuantizeOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("type", c_char_p),
        ("progress", c_void_p),
        ("progress_user", c_void_p),
        ("calibration", c_char_p),
        ("calibration_bytes", c_size_t),
        ("calibration_windows", c_uint32),
        ("threads", c_uint32),
        ("adapters", POINTER(Adapter)),
        ("n_adapters", c_uint32),
    ]


class EngineFacts(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("vocab_size", c_uint32),
        ("context_tokens", c_uint32),
        ("max_batch", c_uint32),
        ("step_tokens", c_uint32),
        ("threads", c_uint32),
        ("weight_bytes", c_uint64),
        ("kv_bytes", c_uint64),
        ("other_bytes", c_uint64),
        ("load_ns", c_uint64),
        ("compile_ns", c_uint64),
        ("graphs", c_uint32),
        ("tasks", c_uint32),
        ("events", c_uint32),
        ("device", c_char * 64),
        ("kernel_cached", c_uint32),
        ("device_ns", c_uint64),
        ("program_cached", c_uint32),
        ("reserved", c_uint32),
        ("kv_tokens", c_uint64),
        ("prefix_asked_tokens", c_uint64),
        ("prefix_found_tokens", c_uint64),
        ("put_back", c_uint32),
        ("embedding_size", c_uint32),
        ("kv_free_tokens", c_uint64),
        ("drafted_tokens", c_uint64),
        ("accepted_tokens", c_uint64),
        ("draft_model_tokens", c_uint64),
        ("draft_model_accepted_tokens", c_uint64),
        ("draft_steps", c_uint64),
    ]


class Tokens(Structure):
    _fields_ = [("at", POINTER(c_int32)), ("n", c_size_t)]


class EmbedOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("pooling", c_int),
        ("dimensions", c_uint32),
        ("raw", c_bool),
        ("reserved", c_char * 7),
    ]


class TokenBias(Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class LogProb(Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float)]


class RequestOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("max_tokens", c_uint32),
        ("temperature", c_float),
        ("top_k", c_uint32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("seed", c_uint64),
        ("stop", POINTER(c_char_p)),
        ("n_stop", c_uint32),
        ("ignore_eos", c_bool),
        ("raw_prompt", c_bool),
        ("include_stop", c_bool),
        ("prompt_only", c_bool),
        ("biases", POINTER(TokenBias)),
        ("n_biases", c_uint32),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("allowed_tokens", POINTER(c_int32)),
        ("n_allowed", c_uint32),
        ("min_tokens", c_uint32),
        ("bad_words", POINTER(c_char_p)),
        ("n_bad_words", c_uint32),
        ("top_n_sigma", c_float),
        ("typical_p", c_float),
        ("top_logprobs", c_uint32),
        ("logprobs", c_bool),
        ("prompt_logprobs", c_bool),
        ("no_prefix_cache", c_bool),
        ("reserved_2", c_char * 1),
        ("cache_salt", c_char_p),
        ("form_source", c_char_p),
        ("form", c_int),
        ("draft_tokens", c_int32),
        ("priority", c_int32),
        ("stop_tokens", POINTER(c_int32)),
        ("n_stop_tokens", c_uint32),
    ]


class ChatOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("chat_template", c_char_p),
        ("tools", c_char_p),
        ("variables", c_char_p),
        ("no_answer", c_bool),
        ("reserved", c_char * 7),
    ]


class Piece(Structure):
    _fields_ = [
        ("text", c_void_p),
        ("n_bytes", c_size_t),
        ("tokens", POINTER(c_int32)),
        ("n_tokens", c_size_t),
        ("finish", c_int),
    ]


class TensorId(Structure):
    _fields_ = [("id", c_uint32)]


class Attribute(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("i", c_int64),
        ("f", c_double),
        ("s", c_char_p),
        ("ints", POINTER(c_int64)),
        ("n_ints", c_uint32),
    ]


class Binding(Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("n_bytes", c_size_t)]


class Watch(Structure):
    _fields_ = [
        ("n", c_uint32),
        ("n_counted", c_uint32),
        ("place", POINTER(c_ssize_t)),
        ("items", POINTER(c_void_p)),
        ("records", POINTER(c_void_p)),
        ("addresses", POINTER(c_void_p)),
        ("versions", POINTER(c_int64)),
        ("item", c_void_p),
        ("where", c_void_p),
        ("version", c_void_p),
        ("follow", c_uint32 * 2),
        ("read", c_uint32 * 4),
    ]


_SIGNATURES: dict[str, list | None] = {
    "mpk_quantize": [c_void_p, c_char_p, c_char_p, POINTER(QuantizeOptions), POINTER(c_void_p)],
    "mpk_engine_open": [c_void_p, c_char_p, POINTER(EngineOptions), POINTER(c_void_p)],
    "mpk_engine_attend": [c_void_p, c_void_p],
    "mpk_submit_text": [c_void_p, c_void_p, c_char_p, c_size_t, POINTER(RequestOptions), POINTER(c_void_p)],
    "mpk_submit_tokens": [c_void_p, c_void_p, POINTER(c_int32), c_size_t, POINTER(RequestOptions), POINTER(c_void_p)],
    "mpk_request_read": [c_void_p, c_void_p, c_int64, POINTER(Piece)],
    "mpk_embed": [c_void_p, c_void_p, POINTER(Tokens), c_size_t, POINTER(EmbedOptions), POINTER(c_float)],
    "mpk_tokenize": [c_void_p, c_void_p, c_char_p, c_size_t, c_bool, POINTER(POINTER(c_int32)), POINTER(c_size_t)],
    "mpk_detokenize": [c_void_p, c_void_p, POINTER(c_int32), c_size_t, POINTER(c_void_p), POINTER(c_size_t)],
    "mpk_chat_prompt": [
        c_void_p, c_void_p, c_char_p, c_size_t, POINTER(ChatOptions), POINTER(c_void_p), POINTER(c_size_t)
    ],
    "mpk_graph_create": [c_void_p, c_char_p, POINTER(c_void_p)],
    "mpk_graph_tensor": [c_void_p, c_void_p, c_int, c_char_p, c_int, c_uint32, POINTER(c_int64), POINTER(TensorId)],
    "mpk_graph_operator": [
        c_void_p,
        c_void_p,
        c_char_p,
        c_char_p,
        c_uint32,
        POINTER(TensorId),
        c_uint32,
        POINTER(Attribute),
        POINTER(TensorId),
    ],
    "mpk_graph_output": [c_void_p, c_void_p, TensorId],
    "mpk_graph_describe": [c_void_p, c_void_p, TensorId, POINTER(c_int), POINTER(c_uint32), POINTER(c_int64)],
    "mpk_graph_print": [c_void_p, c_void_p, POINTER(c_void_p)],
    "mpk_operators": [c_void_p, POINTER(c_void_p)],
    "mpk_program_compile": [c_void_p, c_void_p, c_uint32, POINTER(Binding), POINTER(EngineOptions), POINTER(c_void_p)],
    "mpk_program_name_slots": [c_void_p, c_void_p, c_uint32, POINTER(c_char_p)],
    "mpk_program_call": None,  # these two get ctypes' own types, which take half the time
    "mpk_program_launch": None,
    "mpk_program_wait": [c_void_p, c_void_p],
    "mpk_program_touch": [c_void_p, c_void_p, c_uint32],
    "mpk_program_describe": [c_void_p, c_void_p, POINTER(c_void_p)],
    "mpk_program_profile": [c_void_p, c_void_p, POINTER(c_void_p)],
}
_RELEASES = [
    "mpk_context_free",
    "mpk_free",
    "mpk_engine_close",
    "mpk_request_free",
    "mpk_request_cancel",
    "mpk_graph_free",
    "mpk_program_close",
]


def _load() -> ctypes.CDLL:
    path = os.environ.get("MPK_LIBRARY") or str(pathlib.Path(__file__).parent / "libmpk.so")
    try:
        library = ctypes.CDLL(path)
    except OSError as problem:
        raise ImportError(f"mpk: {problem}; install the package with pip, or name the library in MPK_LIBRARY") from None
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    for name in _RELEASES:
        function = getattr(library, name)
        function.argtypes, function.restype = [c_void_p], None
    library.mpk_context_create.restype = c_void_p
    library.mpk_error_message.argtypes, library.mpk_error_message.restype = [c_void_p], c_char_p
    library.mpk_status_sentence.argtypes, library.mpk_status_sentence.restype = [c_int], c_char_p
    library.mpk_version.restype = c_char_p
    library.mpk_finish_name.argtypes, library.mpk_finish_name.restype = [c_int], c_char_p
    library.mpk_engine_tokenizer.argtypes, library.mpk_engine_tokenizer.restype = [c_void_p], c_void_p
    library.mpk_engine_describe.argtypes = [c_void_p, POINTER(EngineFacts)]
    library.mpk_engine_describe.restype = None
    for name in ("mpk_request_logprobs", "mpk_prompt_logprobs"):
        function = getattr(library, name)
        function.argtypes, function.restype = [c_void_p, c_size_t, POINTER(LogProb), c_uint32], c_uint32
    library.mpk_request_stop.argtypes = [c_void_p]
    library.mpk_request_stop.restype = c_int32
    library.mpk_request_cached_tokens.argtypes = [c_void_p]
    library.mpk_request_cached_tokens.restype = c_size_t
    library.mpk_request_drafts.argtypes = [c_void_p, POINTER(c_size_t), POINTER(c_size_t)]
    library.mpk_request_drafts.restype = None
    library.mpk_engine_suggest.argtypes = [c_void_p, POINTER(RequestOptions)]
    library.mpk_engine_suggest.restype = None
    return library


def _load_first_other():
    """mpk_first_other: it reads a list of Python's, so it runs with the interpreter's lock held."""
    function = ctypes.PyDLL(lib._name, handle=lib._handle).mpk_first_other
    function.argtypes, function.restype = [c_void_p, py_object], c_uint32
    return function


lib = _load()
first_other = _load_first_other()


class _Context(threading.local):
    """One context for each thread, as the library asks for."""

    def __init__(self) -> None:
        self.handle = c_void_p(lib.mpk_context_create())
        if not self.handle:
            raise MemoryError("mpk: out of memory for a context")
        self._free = lib.mpk_context_free

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._free(self.handle)


context = _Context()


class Process:
    """How often the process has been forked: threads of the library do not follow into a child."""

    forks = 0

    @classmethod
    def check(cls, forks: int) -> None:
        if forks != cls.forks:
            raise Error("this process was forked after mpk had started its threads: start it in the child again")


def _count_fork() -> None:
    Process.forks += 1


os.register_at_fork(after_in_child=_count_fork)


def fail(status: int) -> None:
    """Raise what the last call of this thread failed with."""
    message = lib.mpk_error_message(context.handle).decode(errors="replace")
    error = _EXCEPTIONS.get(status, Error)(message or lib.mpk_status_sentence(status).decode())
    error.status = status
    raise error


def call(function, *arguments) -> None:
    """Call a fallible function with this thread's context."""
    status = function(context.handle, *arguments)
    if status:
        fail(status)


def take_text(pointer: c_void_p) -> str:
    """A char * of the library as str; the library's copy is freed."""
    try:
        return ctypes.string_at(pointer).decode(errors="replace")
    finally:
        lib.mpk_free(pointer)


def text_of(function, *arguments) -> str:
    """The text that a function gives through its last argument."""
    out = c_void_p()
    call(function, *arguments, byref(out))
    return take_text(out)


def version() -> str:
    return lib.mpk_version().decode()
