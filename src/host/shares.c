/* shares.c - the bytes of a weight that a program holds: all of the weight, or the part that is a
 * peer's (ir_share), from where the whole one lies on the host, or made up.
 *
 * Input: a weight of the program, whose name says which part it is, and where the whole one lies.
 * Entries lo <= i < hi of an axis are one run of neighbours for each entry of the axes before it: a
 * part of the rows is one run, a part of the columns one in each row.  Called by targets while they
 * bring weights: the CPU copies whole parts, a GPU takes them run by run (cuda/upload.c).
 */
#include "base/file.h"
#include "host/machine.h"
#include "load/load.h"

/* Of axes first to end - 1; none: 1. */
static int64_t product(const int64_t *dims, uint32_t first, uint32_t end)
{
    int64_t n = 1;
    for (uint32_t i = first; i < end; i++)
        n *= dims[i];
    return n;
}

/* A part along an axis has one run for each entry of the axes before it.  w->dims are the part's,
 * so the size of the cut axis in the whole weight comes from the name (ir_read_share).
 */
host_share host_read_share(const tg_weight *w)
{
    const ir_share share = ir_read_share(w->name);
    host_share s = {.whole = share.whole,
                    .n = product(w->dims, 0, w->rank),
                    .entries = w->rank ? w->dims[0] : 1,
                    .entry = product(w->dims, 1, w->rank)};
    if (share.axis == IR_NONE)
        return s;
    const int64_t inner = product(w->dims, share.axis + 1, w->rank);
    s.first = share.lo * inner;
    s.step = share.size * inner;
    s.n = (share.hi - share.lo) * inner;
    if (share.axis == 0)
        s.entries = share.size;
    else
        s.entry = s.entry / (share.hi - share.lo) * share.size;
    return s;
}

/* `at` lies in run at / n; in a weight of parts a run ends with its entry of axis 0, too. */
host_run host_find_run(const host_share *s, const machine_weight *from, int64_t at, int64_t most)
{
    const int64_t first = s->first + at / s->n * s->step + at % s->n, left = s->n - at % s->n;
    host_run r = {.first = first, .n = left < most ? left : most};
    if (from->at)
        r.at = (const char *)from->at + ir_row_bytes(from->dtype, first);
    if (!from->parts)
        return r;
    const int64_t of_entry = first % s->entry, rest = s->entry - of_entry;
    r.n = rest < r.n ? rest : r.n;
    r.at = (const char *)from->parts[first / s->entry] + ir_row_bytes(from->dtype, of_entry);
    return r;
}

/* Of the weight as the program has it, which for a share is its own part alone. */
uint64_t host_weight_bytes(const tg_weight *w)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < w->rank; i++)
        rows *= (uint64_t)w->dims[i];
    return rows * (uint64_t)ir_row_bytes(w->dtype, w->rank ? w->dims[w->rank - 1] : 1);
}

/* NULL: it is a part that is not one run of bytes, or was read in pieces, so it needs memory of
 * its own. */
const void *host_weight_in_place(const tg_weight *w, const machine_weight *from)
{
    const host_share s = host_read_share(w);
    const int64_t n = product(w->dims, 0, w->rank);
    return n && s.n == n && !from->parts ? host_find_run(&s, from, 0, n).at : NULL;
}

/* The source is a mapping of the file: its pages are let go after they were copied, so that loading
 * needs no second copy of a model in memory. */
void host_copy_weight(const tg_weight *w, const machine_weight *from, char *to)
{
    const host_share s = host_read_share(w);
    const int64_t n = product(w->dims, 0, w->rank);
    host_run run;
    for (int64_t at = 0; at < n; at += run.n) {
        run = host_find_run(&s, from, at, n - at);
        const size_t n_bytes = (size_t)ir_row_bytes(w->dtype, run.n);
        memcpy(to, run.at, n_bytes);
        to += n_bytes;
    }
    for (int64_t k = 0; from->parts && k < s.entries; k++)
        file_map_release_part(from->parts[k], (size_t)ir_row_bytes(w->dtype, s.entry));
}

/* Filled as the whole weight would be, so a part has the same values whatever it is a part of. */
void host_make_up_weight(const tg_weight *w, uint64_t seed, char *to)
{
    const host_share s = host_read_share(w);
    const int64_t n = product(w->dims, 0, w->rank);
    host_run run;
    for (int64_t at = 0; at < n; at += run.n) {
        run = host_find_run(&s, &(machine_weight){0}, at, n - at);
        load_random_fill(seed, s.whole, w->dtype, run.first, run.n, to);
        to += ir_row_bytes(w->dtype, run.n);
    }
}
