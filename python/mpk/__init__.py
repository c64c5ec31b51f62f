"""mpk: a language model, or any PyTorch inference program, as one persistent mega-kernel.

    mpk.LLM(path).generate(prompts, mpk.SamplingParams(...))     the engine
    torch.compile(model, backend="mpk")                          a PyTorch model; no import of mpk is needed
    mpk.explain(fn, *args)                                       what became tasks and what did not
    mpk.quantize(path, "out.gguf", "q4_k_m")                     a model as a GGUF file of another type

PyTorch is needed for the second and third only.
"""

from mpk._library import (
    ArgumentError,
    CancelledError,
    Error,
    FileError,
    LimitError,
    OutOfMemoryError,
    ShapeError,
    UnsupportedError,
    version,
)
from mpk.files import quantize
from mpk.llm import LLM, Answer, Piece, SamplingParams

__version__ = version()
__all__ = [
    "LLM",
    "Answer",
    "ArgumentError",
    "CancelledError",
    "Error",
    "FileError",
    "LimitError",
    "OutOfMemoryError",
    "Piece",
    "SamplingParams",
    "ShapeError",
    "UnsupportedError",
    "explain",
    "quantize",
    "version",
]


def explain(fn, *args, **kwargs):
    """Compile fn(*args, **kwargs) with the backend, run it, and tell what became tasks; see mpk.report.Explanation."""
    from mpk.report import explain as explain_fn

    return explain_fn(fn, *args, **kwargs)
