/* tools.h - a source to machine code or PTX: as a whole, or as its units (cuda_source.units), which
 * are compiled side by side and linked.
 *
 * Cost: what ptxas takes grows faster than the size of the largest function, so that two units, one
 * after the other, are still faster than the whole.
 */
#ifndef CUDA_TOOLS_H
#define CUDA_TOOLS_H

#include "cuda/linker.h"

/* What compiles: NVRTC, and a linker where there is one for this source.  Without a linker a source
 * is compiled as a whole. */
typedef struct cuda_tools {
    cuda_nvrtc *nvrtc;
    cuda_linker *linker; /* NULL: there is none, or none is wanted */
} cuda_tools;

/* Statuses: those of cuda_nvrtc_open.  That there is no linker is a line in the log. */
mpk_status cuda_tools_open(mpk_context *cx, const cuda_source *s, cuda_tools *out);
void cuda_tools_close(cuda_tools *t);
/* All that decides about the code besides the source, for the key of a cache: versions and options;
 * *out is in the arena. */
mpk_status cuda_tools_describe(mpk_context *cx, arena *a, const cuda_tools *t, const cuda_source *s,
                               str *out);

/* As cuda_nvrtc_compile; log: that of all units, one after the other. */
mpk_status cuda_tools_compile(mpk_context *cx, const cuda_tools *t, const cuda_source *s,
                              text *code, text *log);

#endif
