/* linker.h - units of machine code to one with nvJitLink, opened when the program runs.
 *
 * It is looked for beside the NVRTC that is used, first in the same folder (toolkits, packages of
 * CUDA 13), then in nvidia/nvjitlink/lib among the same packages (CUDA 12).  One that is older than
 * NVRTC does not read what NVRTC writes and counts as none.
 */
#ifndef CUDA_LINKER_H
#define CUDA_LINKER_H

#include "cuda/nvrtc.h"

typedef struct cuda_linker cuda_linker;

/* MPK_EUNSUPPORTED: there is none; the message says which package brings it. */
mpk_status cuda_linker_open(mpk_context *cx, const cuda_nvrtc *n, cuda_linker **out);
/* NULL is allowed. */
void cuda_linker_close(cuda_linker *l);
/* The file that was opened; borrowed. */
const char *cuda_linker_path(const cuda_linker *l);
/* 1000 * major + 10 * minor: 13000. */
uint32_t cuda_linker_version(const cuda_linker *l);

/* Relocatable machine code of n units to *code, which the caller frees with text_free.
 * MPK_EDEVICE: they do not fit each other; the message has the linker's words. */
mpk_status cuda_linker_link(mpk_context *cx, const cuda_linker *l, const gen_arch *arch, uint32_t n,
                            const text *units, text *code);

#endif
