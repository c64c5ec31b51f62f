/* arch.c - the table of GPUs.
 *
 * A row is an architecture for which code is made: its names, what its fast bodies may use, the
 * shape of the GPU that programs are compiled for if none is here.  gen_arch_for finds the row for
 * a GPU, gen_arch_fit cuts it to one that has less.  Called by src/cuda and by the tests of
 * bodies. */
#include "gen/arch.h"

#include <string.h>

#include "gen/device_body.h"

/* The worker of all rows: 256 threads that call the bodies and 128 for the other roles, one block
 * on each SM, so 65536 registers / 384 are 168 for each thread, in steps of 8.  (setmaxnreg would
 * give bodies 216, but then no function may be called: docs/attempts.md.)  n_pages: as many pages
 * as leave 35 KB of shared memory for scratch, descriptors and the worker's own. */
#define KIB(n) ((n)*1024u)
#define WORKER .body_threads = 256, .worker_threads = 384, .page_bytes = KIB(16)

const gen_arch gen_arch_table[] = {
    {.name = "sm_80",
     .ptx_name = "compute_80",
     .gpu = "A100",
     .major = 8,
     .minor = 0,
     .features = 0,
     .n_sms = 108,
     .shared_bytes = KIB(163),
     .n_pages = 8,
     WORKER},
    {.name = "sm_90a",
     .ptx_name = "compute_90a",
     .gpu = "H100",
     .major = 9,
     .minor = 0,
     .features = GEN_BULK | GEN_WGMMA,
     .n_sms = 132,
     .shared_bytes = KIB(227),
     .n_pages = 12,
     WORKER},
    {.name = "sm_100a",
     .ptx_name = "compute_100a",
     .gpu = "B200",
     .major = 10,
     .minor = 0,
     .features = GEN_BULK,
     .n_sms = 148,
     .shared_bytes = KIB(227),
     .n_pages = 12,
     WORKER},
    {.name = NULL},
};

const gen_arch *gen_arch_find(const char *name)
{
    for (const gen_arch *row = gen_arch_table; row->name; row++)
        if (strcmp(row->name, name) == 0)
            return row;
    return NULL;
}

const gen_arch *gen_arch_for(uint32_t major, uint32_t minor, bool *as_ptx)
{
    const gen_arch *plain = &gen_arch_table[0], *best = NULL;
    bool ptx = false;
    for (const gen_arch *row = gen_arch_table; row->name; row++)
        if (row->major == major && row->minor == minor)
            best = row;
    /* Code named ...a runs on its own capability alone; the first row's on all of its major
     * version, and its PTX on whatever came later. */
    if (!best && major >= plain->major) {
        best = plain;
        ptx = major > plain->major;
    }
    if (as_ptx)
        *as_ptx = ptx;
    return best;
}

/* What the worker needs beside its pages is the row's difference and stays as it is; only pages are
 * given up. */
bool gen_arch_fit(const gen_arch *row, uint32_t n_sms, uint32_t shared_bytes, gen_arch *out)
{
    uint32_t own = row->shared_bytes - row->n_pages * row->page_bytes;
    if (shared_bytes < own + 2 * row->page_bytes)
        return false;
    uint32_t n_pages = (shared_bytes - own) / row->page_bytes;
    *out = *row;
    out->n_sms = n_sms;
    if (n_pages < row->n_pages)
        out->n_pages = n_pages;
    if (shared_bytes < row->shared_bytes)
        out->shared_bytes = own + out->n_pages * row->page_bytes;
    return true;
}
