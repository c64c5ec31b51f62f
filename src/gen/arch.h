/* arch.h - the GPUs that code is generated for: one row each, and no number of a GPU anywhere else.
 *
 * A row is a plan and not a measurement: what a compiler needs to know of a GPU that is not there.
 * The numbers of the GPU that is there come from the driver (cuda/driver.h); gen_arch_fit puts the
 * two together.
 */
#ifndef GEN_ARCH_H
#define GEN_ARCH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gen_arch {
    const char *name; /* "sm_90a": what --target takes */
    const char
        *code_name; /* what NVRTC takes after --gpu-architecture=: the name of the GPU's row */
    /* "compute_90a": the same for PTX, which later GPUs translate; that of a row without `a` runs
     * on all of them */
    const char *ptx_name;
    const char *gpu;       /* "H100", for people */
    uint32_t major, minor; /* compute capability */
    uint32_t features;     /* GEN_* of gen/device_body.h */
    uint32_t n_sms;        /* of that GPU: workers, where none is there to ask */
    uint32_t shared_bytes; /* of shared memory that one block may have */

    /* The worker: one block of threads on each SM. */
    uint32_t body_threads; /* call the bodies */
    /* all: one warpgroup more, with loader, step task, courier and scheduler */
    uint32_t worker_threads;
    /* ring of the loader, at most; the rest of shared_bytes is scratch and the worker's own */
    uint32_t page_bytes, n_pages;
} gen_arch;

/* All rows, the one with the fewest needs first; ends with name == NULL. */
extern const gen_arch gen_arch_table[];

/* "sm_90a"; NULL: there is no such row. */
const gen_arch *gen_arch_find(const char *name);
/* The best row whose code runs on this compute capability with so much shared memory for a block;
 * NULL: older than all.  *as_ptx (may be NULL): its machine code does not run there, its PTX
 * does. */
const gen_arch *gen_arch_for(uint32_t major, uint32_t minor, uint32_t shared_bytes, bool *as_ptx);
/* *out: the row of a GPU running the code of an older one, compiled for it all the same, for
 * comparisons.  False: that code needs what the GPU has not. */
bool gen_arch_as(const gen_arch *gpu, const gen_arch *older, gen_arch *out);
/* *out: the row, with the SMs and the shared memory of the GPU that is there: fewer pages where it
 * has less.  False: it has not room for two pages beside the worker's own. */
bool gen_arch_fit(const gen_arch *row, uint32_t n_sms, uint32_t shared_bytes, gen_arch *out);

#endif
