/* cache.h - compiled kernels, and programs for GPUs, kept on disk, addressed by content.
 *
 * Folder: MPK_CACHE if it is set (empty: no cache), else $XDG_CACHE_HOME/mpk/kernels, else
 * ~/.cache/mpk/kernels.  An entry is one file named by 128 bits of hash over the source, the
 * options (architecture among them) and the versions of NVRTC and the linker; it holds a checksum.
 * Entries are written beside and renamed, so that any number of processes may share the folder; a
 * damaged one counts as absent and is replaced.  A cache that cannot be read or written never fails
 * a compilation: it is skipped, with a line in the log.  At most 1 GiB: what was used longest ago
 * goes first.
 *
 * A program is whatever its owner can make again from a key: an image with its kernel, so that a
 * second start neither runs passes nor looks for NVRTC.  Its key says all that it depends on.
 */
#ifndef CUDA_CACHE_H
#define CUDA_CACHE_H

#include "base/file.h"
#include "cuda/tools.h"

typedef struct cuda_cache_facts {
    const char *folder; /* NULL: switched off, or there is no home folder */
    uint64_t n_kernels, n_programs, n_bytes, limit_bytes;
} cuda_cache_facts;

/* Machine code or PTX of a source: from the cache, else compiled and put there.  *code as in
 * cuda_nvrtc_compile.  from_cache (may be NULL).  Statuses: those of cuda_tools_open and
 * cuda_tools_compile. */
mpk_status cuda_cache_compile(mpk_context *cx, const cuda_source *s, text *code, text *log,
                              bool *from_cache);

/* True if a program of this key is there and whole: its bytes are in the file, which the caller
 * closes. */
bool cuda_cache_open_program(str key, file_map *file, str *bytes);
/* Put a program there.  A cache that cannot be written is a line in the log. */
void cuda_cache_store_program(mpk_context *cx, str key, str bytes);

/* folder is in the arena. */
mpk_status cuda_cache_describe(mpk_context *cx, arena *a, cuda_cache_facts *out);
/* Remove all entries and nothing else. */
mpk_status cuda_cache_clear(mpk_context *cx);

#endif
