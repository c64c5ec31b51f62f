/* shares.c - the bytes of a weight that a program holds: all of the weight, or the part that is a
 * peer's (ir_share), from where the whole one lies on the host, or made up.
 *
 * Input: a weight of the program, whose name says which part it is, and where the whole one lies.
 * Entries lo <= i < hi of an axis are one run of neighbours for each entry of the axes before it: a
 * part of the rows is one run, a part of the columns one in each row.  Called by targets while they
 * bring weights.
 */
#include "base/file.h"
#include "host/machine.h"
#include "load/load.h"

/* Of the whole weight's elements n from first + i * step on, for each i < count. */
typedef struct share_runs {
    int64_t count, first, step, n;
} share_runs;

/* In elements: `count` runs of n, the first at `first`, each `step` after the one before. */
static share_runs runs_of(const tg_weight *w, const ir_share *share)
{
    share_runs r = {.count = 1, .n = 1};
    uint32_t axis = share->axis == IR_NONE ? 0 : share->axis;
    for (uint32_t i = 0; i < axis; i++)
        r.count *= w->dims[i];
    for (uint32_t i = axis + 1; i < w->rank; i++)
        r.n *= w->dims[i];
    if (share->axis == IR_NONE) {
        r.n *= w->rank ? w->dims[0] : 1;
        return r;
    }
    r.step = r.n * share->size;
    r.first = r.n * share->lo;
    r.n *= share->hi - share->lo;
    return r;
}

uint64_t host_weight_bytes(const tg_weight *w)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < w->rank; i++)
        rows *= (uint64_t)w->dims[i];
    return rows * (uint64_t)ir_row_bytes(w->dtype, w->rank ? w->dims[w->rank - 1] : 1);
}

const void *host_weight_in_place(const tg_weight *w, const machine_weight *from)
{
    ir_share share = ir_read_share(w->name);
    share_runs r = runs_of(w, &share);
    bool one_piece = from->at && r.count == 1;
    return one_piece ? (const char *)from->at + ir_row_bytes(w->dtype, r.first) : NULL;
}

/* Bytes of an entry of axis 0 of the whole weight. */
static uint64_t entry_bytes(const tg_weight *w, const ir_share *share)
{
    int64_t n = 1;
    for (uint32_t i = 1; i < w->rank; i++)
        n *= i == share->axis ? share->size : w->dims[i];
    return (uint64_t)ir_row_bytes(w->dtype, n);
}

/* n bytes from byte `first` on of what lies in entries of so many bytes. */
static void copy_entries(const void *const *parts, uint64_t entry, uint64_t first, uint64_t n,
                         char *to)
{
    while (n) {
        uint64_t at = first % entry, now = entry - at < n ? entry - at : n;
        memcpy(to, (const char *)parts[first / entry] + at, now);
        first += now;
        to += now;
        n -= now;
    }
}

/* The source is a mapping of the file: its pages are let go after they were copied, so that loading
 * needs no second copy of a model in memory. */
void host_copy_weight(const tg_weight *w, const machine_weight *from, char *to)
{
    ir_share share = ir_read_share(w->name);
    share_runs r = runs_of(w, &share);
    uint64_t n = (uint64_t)ir_row_bytes(w->dtype, r.n), entry = entry_bytes(w, &share);
    for (int64_t i = 0; i < r.count; i++, to += n) {
        uint64_t first = (uint64_t)ir_row_bytes(w->dtype, r.first + i * r.step);
        if (from->parts)
            copy_entries(from->parts, entry, first, n, to);
        else
            memcpy(to, (const char *)from->at + first, n);
    }
    int64_t entries = share.axis == 0 ? share.size : w->dims[0];
    for (int64_t k = 0; from->parts && k < entries; k++)
        file_map_release_part(from->parts[k], (size_t)entry);
}

/* Filled as the whole weight would be, so a part has the same values whatever it is a part of. */
void host_make_up_weight(const tg_weight *w, uint64_t seed, char *to)
{
    ir_share share = ir_read_share(w->name);
    share_runs r = runs_of(w, &share);
    uint64_t n = (uint64_t)ir_row_bytes(w->dtype, r.n);
    for (int64_t i = 0; i < r.count; i++, to += n)
        load_random_fill(seed, share.whole, w->dtype, r.first + i * r.step, r.n, to);
}
