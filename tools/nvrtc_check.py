#!/usr/bin/env python3
"""Compile the in-kernel runtime (src/rt) with NVRTC, as the CUDA target will, on a machine that has no GPU.

Input: every header of src/rt, given to NVRTC by name, and one translation unit that includes them all, but for the
implementations of the atomics (rt_atomic*.h), among which rt_port.h chooses, and ends in tools/nvrtc_unit.cu; output:
one line for each architecture, the compiler's log where it fails, exit code 1 if any failed.  NVRTC comes from the
PyPI package nvidia-cuda-nvrtc of tests/requirements.txt.
"""
import argparse
import concurrent.futures
import ctypes
import importlib.util
import pathlib
import re
import sys

import tree

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")


def open_nvrtc():
    """The library of the PyPI package; the builtins are opened first because NVRTC looks for them by bare name."""
    spec = importlib.util.find_spec("nvidia")
    folders = [pathlib.Path(p) / "cu13" / "lib" for p in spec.submodule_search_locations] if spec else []
    for folder in folders:
        if (folder / "libnvrtc.so.13").exists():
            ctypes.CDLL(str(folder / "libnvrtc-builtins.so.13.0"), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(folder / "libnvrtc.so.13"))
    raise SystemExit("nvrtc_check: nvidia-cuda-nvrtc is not installed for this Python: run ./dev setup")


def texts(values):
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])


def check(nvrtc, code, doing):
    if code:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise SystemExit(f"nvrtc_check: {doing}: {nvrtc.nvrtcGetErrorString(code).decode()}")


def compile_unit(nvrtc, source, headers, architecture):
    """(bytes of the cubin, 0 if it failed; log) of a translation unit; headers is {name: text}."""
    program = ctypes.c_void_p()
    names = sorted(headers)
    check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"rt_all.cu", len(names),
                                          texts([headers[n] for n in names]), texts(names)), "nvrtcCreateProgram")
    # whether it compiles is asked, not how well
    options = texts(["-std=c++17", f"--gpu-architecture={architecture}", "--ptxas-options=-O0"])
    code = nvrtc.nvrtcCompileProgram(program, len(options), options)
    size = ctypes.c_size_t()
    check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)), "nvrtcGetProgramLogSize")
    log = ctypes.create_string_buffer(size.value)
    check(nvrtc, nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
    if code == 0:
        check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return size.value if code == 0 else 0, log.value.decode(errors="replace")


def headers_of(folder):
    """{name: text} of the runtime's headers, under every name by which they include each other."""
    found = {}
    for path in sorted(folder.glob("*.h")):
        found[path.name] = found[f"rt/{path.name}"] = path.read_text(encoding="utf-8")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=tree.ROOT)
    args = parser.parse_args()
    folder = args.root / "src" / "rt"
    headers = headers_of(folder)
    if not headers:
        print(f"{folder}: no headers to compile")
        return 1
    source = "".join(f'#include "{name}"\n' for name in headers if re.match(r"rt/(?!rt_atomic)", name))
    source += tree.read(args.root, "tools/nvrtc_unit.cu")
    nvrtc, failed = open_nvrtc(), 0
    with concurrent.futures.ThreadPoolExecutor() as pool:
        compiled = pool.map(lambda architecture: compile_unit(nvrtc, source, headers, architecture), ARCHITECTURES)
    for architecture, (n_bytes, log) in zip(ARCHITECTURES, compiled):
        outcome = f"compiled, cubin of {n_bytes} bytes" if n_bytes else "FAILED"
        print(f"{architecture}: {source.count('#include')} headers {outcome}")
        if not n_bytes:
            print(log)
            failed += 1
    print(f"NVRTC: {len(ARCHITECTURES) - failed} of {len(ARCHITECTURES)} architectures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
