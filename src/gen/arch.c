/* arch.c - the table of GPUs.
 *
 * A row is an architecture for which code is made: its names, what its fast bodies may use, the
 * shape of the GPU that programs are compiled for if none is here.  gen_arch_for finds the row for
 * a GPU, gen_arch_as lets it run another's, gen_arch_fit cuts a row to a GPU that has less.
 * Called by src/cuda and by the tests of bodies. */
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
     .code_name = "sm_80",
     .ptx_name = "compute_80",
     .gpu = "A100",
     .major = 8,
     .minor = 0,
     .features = GEN_RING | GEN_ROOM,
     .n_sms = 108,
     .shared_bytes = KIB(163),
     .n_pages = 8,
     WORKER},
    {.name = "sm_86",
     .code_name = "sm_86",
     .ptx_name = "compute_86",
     .gpu = "RTX 3090",
     .major = 8,
     .minor = 6,
     .features = GEN_RING,
     .n_sms = 82,
     .shared_bytes = KIB(99),
     .n_pages = 4,
     WORKER},
    {.name = "sm_90a",
     .code_name = "sm_90a",
     .ptx_name = "compute_90a",
     .gpu = "H100",
     .major = 9,
     .minor = 0,
     .features = GEN_BULK | GEN_WGMMA | GEN_RING | GEN_ROOM,
     .n_sms = 132,
     .shared_bytes = KIB(227),
     .n_pages = 12,
     WORKER},
    {.name = "sm_100a",
     .code_name = "sm_100a",
     .ptx_name = "compute_100a",
     .gpu = "B200",
     .major = 10,
     .minor = 0,
     .features = GEN_BULK | GEN_RING | GEN_ROOM,
     .n_sms = 148,
     .shared_bytes = KIB(227),
     .n_pages = 12,
     WORKER},
    {.name = NULL},
};

/* NULL: there is no row of this name. */
const gen_arch *gen_arch_find(const char *name)
{
    for (const gen_arch *row = gen_arch_table; row->name; row++)
        if (strcmp(row->name, name) == 0)
            return row;
    return NULL;
}

/* Rows whose names end in "a" are of one capability alone. */
static bool is_for_one(const gen_arch *row)
{
    return row->name[strlen(row->name) - 1] == 'a';
}

/* The row for a GPU of this compute capability and this much shared memory for a block; NULL: none.
 * Without a row of its own a GPU takes one that is not for one capability alone: the first whose
 * shared memory it has.  Code of a GPU runs on all later ones of its major version, its PTX on all
 * later ones (*as_ptx; may be NULL). */
const gen_arch *gen_arch_for(uint32_t major, uint32_t minor, uint32_t shared_bytes, bool *as_ptx)
{
    const gen_arch *best = NULL, *large = NULL;
    for (const gen_arch *row = gen_arch_table; row->name; row++) {
        const bool runs = major > row->major || (major == row->major && minor >= row->minor);
        if (row->major == major && row->minor == minor)
            best = row;
        if (!is_for_one(row) && runs && (!large || row->shared_bytes <= shared_bytes))
            large = large && large->shared_bytes <= shared_bytes ? large : row;
    }
    if (!best)
        best = large;
    if (as_ptx)
        *as_ptx = best && major > best->major;
    return best;
}

/* The older row's features and sizes, compiled for this GPU.  False: the GPU lacks one of the
 * features or some of the shared memory; "older" is not looked at otherwise. */
bool gen_arch_as(const gen_arch *gpu, const gen_arch *older, gen_arch *out)
{
    if (older->features & ~gpu->features || older->shared_bytes > gpu->shared_bytes)
        return false;
    *out = *older;
    out->code_name = gpu->code_name;
    out->ptx_name = gpu->ptx_name;
    return true;
}

/* Cut a row to a GPU with n_sms SMs and this much shared memory for a block.  False: not even two
 * pages fit.  What the worker needs besides its pages is the row's difference and stays as it is;
 * only pages are given up, and with half of them the bodies that need room. */
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
    if (2 * n_pages <= row->n_pages)
        out->features &= ~(uint32_t)GEN_ROOM;
    if (shared_bytes < row->shared_bytes)
        out->shared_bytes = own + out->n_pages * row->page_bytes;
    return true;
}
