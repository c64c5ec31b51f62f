/* nvrtc.h - CUDA C to machine code with NVRTC, opened when the program runs.
 *
 * Where NVRTC is looked for, in this order, the first that opens wins:
 *   1. the file or folder that MPK_NVRTC names (nothing else is looked at)
 *   2. the loader's path: libnvrtc.so.13, libnvrtc.so.12
 *   3. /usr/local/cuda/lib64, then the other /usr/local/cuda-* folders, the newest first
 *   4. nvidia/cu13/lib and nvidia/cuda_nvrtc/lib among the packages of the python3 of PATH
 */
#ifndef CUDA_NVRTC_H
#define CUDA_NVRTC_H

#include "base/str.h"
#include "gen/arch.h"

typedef struct cuda_nvrtc cuda_nvrtc;

/* MPK_EUNSUPPORTED: there is none (the message says which package brings it), or MPK_NVRTC names
 * none. */
mpk_status cuda_nvrtc_open(mpk_context *cx, cuda_nvrtc **out);
/* NULL is allowed. */
void cuda_nvrtc_close(cuda_nvrtc *n);
/* The file that was opened; borrowed. */
const char *cuda_nvrtc_path(const cuda_nvrtc *n);
/* 1000 * major + 10 * minor: 13000. */
uint32_t cuda_nvrtc_version(const cuda_nvrtc *n);

/* One self-contained source: it may include nothing. */
typedef struct cuda_source {
    const char *name; /* of the file, for the compiler's messages: "qwen3-0.6b.cu" */
    str code;
    const gen_arch *arch;
    bool as_ptx; /* PTX instead of machine code */
    /* for sanitizers: lines of the source are in the code, MPK_CHECKED is defined */
    bool checked;
    /* bit u: machine code may be compiled as this unit and others, and linked (cuda/tools.h); 0: as
     * a whole */
    uint32_t units;
    uint32_t regime; /* whose kernel it is to be: what MPK_REGIME is */
    uint32_t unit;   /* 0: all of it; else what MPK_UNIT is, and the code is relocatable */
    /* NULL: no.  Where the source, the compiler's log and the code are kept, as name, name.log and
     * name.cubin or name.ptx; of a unit name, name.UNIT.log and name.UNIT.cubin */
    const char *keep_folder;
} cuda_source;

enum { CUDA_UNITS = 32 }; /* at most: bits of cuda_source.units */

/* The options that a source is compiled with, one a line, for the key of a cache; *out is in the
 * arena. */
mpk_status cuda_source_options(mpk_context *cx, arena *a, const cuda_source *s, str *out);
/* Write the file name + ending into keep_folder, if there is one. */
mpk_status cuda_source_keep(mpk_context *cx, const cuda_source *s, const char *ending, str bytes);
/* *code: bytes of the cubin or, NUL-terminated, of the PTX; the caller frees it with text_free.
 * log (may be NULL): the compiler's words (registers, spills, shared memory of each function;
 * warnings), added.  MPK_EFORMAT: the source does not compile, with the first of the compiler's
 * errors; MPK_EUNSUPPORTED: this NVRTC does not know the architecture. */
mpk_status cuda_nvrtc_compile(mpk_context *cx, const cuda_nvrtc *n, const cuda_source *s,
                              text *code, text *log);

#endif
