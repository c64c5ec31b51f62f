"""Models written as GGUF files: mpk_quantize of mpk.h."""

import ctypes
import json
import os

from mpk import _library


def quantize(model: str | os.PathLike, path: str | os.PathLike, type: str, *, calibration: str | None = None,
             calibration_windows: int = 0, threads: int = 0, lora: _library.Adapters = ()) -> dict:
    """Write a model, a Hugging Face folder or a GGUF file, to path as a GGUF file of this type: "q4_k_m", "q8_0", "f16"
    and others (`mpk quantize --help` lists them).  The file is whole or not there.  calibration: a text that the model
    reads first, at most so many windows of 512 tokens (0: all of it), on so many threads (0: one for each core): errors
    then count by what the weights were multiplied by.  Returns {"bytes", "weights", "tensors"}: the size of the file,
    the number of weights, how many tensors have which type; and "calibration_tokens".  lora: adapters that are merged
    into the weights before, as LLM takes them.  Raises mpk.Error."""
    adapters = _library.list_adapters(lora)
    text = None if calibration is None else calibration.encode()
    options = _library.QuantizeOptions(size=ctypes.sizeof(_library.QuantizeOptions), type=type.encode(),
                                       calibration=text, calibration_bytes=len(text or b""),
                                       calibration_windows=calibration_windows, threads=threads,
                                       adapters=adapters, n_adapters=len(adapters))
    report = _library.text_of(_library.lib.mpk_quantize, os.fsencode(model), os.fsencode(path), ctypes.byref(options))
    return json.loads(report)
