/* tools.c - compile a source as a whole or in units (see tools.h; device/units.cuh).
 *
 * Input: the source of one kernel and how it is to be compiled; output: one cubin, or PTX.  A
 * source of three units goes through these:
 *
 *   nvrtcCompileProgram -DMPK_UNIT=1  --> relocatable code --+
 *   nvrtcCompileProgram -DMPK_UNIT=2  --> relocatable code --+-- nvJitLink --> the kernel
 *   nvrtcCompileProgram -DMPK_UNIT=4  --> relocatable code --+
 *
 * The text is the same in each; MPK_UNIT says which of its functions have bodies.  Relies on
 * nvrtc.h and linker.h, needs no GPU, and may be called by any thread.  Called by cache.c, which
 * asks for the key first and compiles only what it does not have. */
#include "cuda/tools.h"

#include <stdio.h>

#include "base/thread.h"

/* The linker is opened only for a source that asks for units.  That there is none is not a failure:
 * its words go to the log, and *out is valid without it. */
mpk_status cuda_tools_open(mpk_context *cx, const cuda_source *s, cuda_tools *out)
{
    mpk_context unheard = {0};
    cuda_tools t = {0};
    TRY(cuda_nvrtc_open(cx, &t.nvrtc));
    if (s->units && !s->as_ptx && cuda_linker_open(&unheard, t.nvrtc, &t.linker) != MPK_OK)
        log_line(cx, LOG_DEBUG, "%s is compiled as a whole: %s", s->name, unheard.text);
    *out = t;
    return MPK_OK;
}

void cuda_tools_close(cuda_tools *t)
{
    cuda_linker_close(t->linker);
    cuda_nvrtc_close(t->nvrtc);
}

/* For example, of a source that is linked:
 *
 *   13000 13000            NVRTC and nvJitLink; 0: compiled as a whole
 *   --gpu-architecture=sm_90a
 *   --std=c++17
 *   ...
 *
 * So the same source has another key once a linker is installed. */
mpk_status cuda_tools_describe(mpk_context *cx, arena *a, const cuda_tools *t, const cuda_source *s,
                               str *out)
{
    cuda_source first = *s;
    str options;
    char versions[64];
    first.unit = t->linker != NULL; /* the others differ from it by their number alone */
    TRY(cuda_source_options(cx, a, &first, &options));
    int n = snprintf(versions, sizeof versions, "%u %u\n", cuda_nvrtc_version(t->nvrtc),
                     t->linker ? cuda_linker_version(t->linker) : 0);
    char *at = arena_alloc(a, (size_t)n + options.n, 1);
    CHECK(cx, at, MPK_ENOMEM, "out of memory for the compiler's options");
    memcpy(at, versions, (size_t)n);
    memcpy(at + n, options.at, options.n);
    *out = (str){at, (size_t)n + options.n};
    return MPK_OK;
}

/* One compilation in units: each thread writes its own code and log, at its place in the arrays.
 * numbers: what MPK_UNIT is for each. */
typedef struct units {
    const cuda_tools *tools;
    const cuda_source *s;
    uint32_t n, numbers[CUDA_UNITS];
    text code[CUDA_UNITS], log[CUDA_UNITS];
} units;

static mpk_status compile_unit(mpk_context *cx, void *user, uint32_t i)
{
    units *u = user;
    cuda_source s = *u->s;
    s.unit = u->numbers[i];
    return cuda_nvrtc_compile(cx, u->tools->nvrtc, &s, &u->code[i], &u->log[i]);
}

/* All units, side by side, then the link.  After a failure *code is empty or partly written: the
 * caller frees it, and the units in any case.  The linked code is kept (cuda_source.keep_folder)
 * under the name of the whole. */
static mpk_status compile_and_link(mpk_context *cx, units *u, text *code)
{
    for (uint32_t i = 0; i < CUDA_UNITS; i++)
        if (u->s->units >> i & 1)
            u->numbers[u->n++] = i;
    TRY(thread_each(cx, u->n, compile_unit, u));
    TRY(cuda_linker_link(cx, u->tools->linker, u->s->arch, u->n, u->code, code));
    return cuda_source_keep(cx, u->s, ".cubin", (str){code->at, code->n});
}

/* *code is written on success alone.  The log is added to also after a failure: it says where the
 * source is wrong. */
mpk_status cuda_tools_compile(mpk_context *cx, const cuda_tools *t, const cuda_source *s,
                              text *code, text *log)
{
    if (!t->linker)
        return cuda_nvrtc_compile(cx, t->nvrtc, s, code, log);
    units u = {.tools = t, .s = s};
    text made = {0};
    mpk_status status = compile_and_link(cx, &u, &made);
    for (uint32_t i = 0; i < u.n; i++) {
        if (log && u.log[i].n)
            text_add(log, u.log[i].at, u.log[i].n);
        text_free(&u.code[i]);
        text_free(&u.log[i]);
    }
    if (status != MPK_OK) {
        text_free(&made);
        return status;
    }
    *code = made;
    return MPK_OK;
}
