"""Models written as GGUF files: mpk_quantize of mpk.h."""

import ctypes
import json
import os

from mpk import _library


def quantize(model: str | os.PathLike, path: str | os.PathLike, type: str) -> dict:
    """Write a model, a Hugging Face folder or a GGUF file, to path as a GGUF file of this type: "q4_k_m", "q8_0", "f16"
    and others (`mpk quantize --help` lists them).  The file is whole or not there.  Returns {"bytes", "weights",
    "tensors"}: the size of the file, the number of weights, how many tensors have which type.  Raises mpk.Error."""
    options = _library.QuantizeOptions(size=ctypes.sizeof(_library.QuantizeOptions), type=type.encode())
    report = _library.text_of(_library.lib.mpk_quantize, os.fsencode(model), os.fsencode(path), ctypes.byref(options))
    return json.loads(report)
