/* body_bed.h - what the tests of the CPU's bodies share: an operator with operands, run by a body
 * or by its reference code, whole or cut at random; and operands of attention. */
#ifndef BODY_BED_H
#define BODY_BED_H

#include "base/rng.h"
#include "check.h"
#include "cpu/body.h"
#include "cpu/cpu.h"
#include "op/pages.h"

/* Most cuts of an axis. */
enum { MOST_CUTS = 4 };

static mpk_context cx;
static uint64_t seed;

/* One operator with memory of its own, filled from the seed. */
typedef struct instance {
    const ir_graph *g;
    const ir_op *op;
    ir_values values;
    op_call call;
} instance;

/* What a test does to the operands of an operator after they are filled; NULL: nothing. */
typedef void change_operands(const op_call *call);

static void make(arena *a, const ir_graph *g, uint64_t fill, uint32_t live, change_operands *change,
                 instance *out)
{
    *out = (instance){.g = g, .op = &g->ops.at[0]};
    check_ok(&cx, ir_eval_allocate(&cx, a, g, &out->values));
    out->values.live[IR_ALL] = UINT32_MAX;
    out->values.live[IR_TOKENS] = out->values.live[IR_ROWS] = live;
    for (uint32_t i = 0; i < out->op->n_in; i++)
        if (out->op->in[i] != IR_NONE)
            op_fill(g, out->op, i, fill, out->values.data[out->op->in[i]]);
    op_bind(g, out->op, out->values.data, out->values.live, &out->call);
    if (change)
        change(&out->call);
}

/* Scratch of a box for a body or (NULL) the reference code. */
static size_t scratch_of(const instance *t, const cpu_body *body, const ir_box *box)
{
    if (body)
        return body->scratch_bytes ? body->scratch_bytes(&t->call, box) : 0;
    return t->op->def->scratch_bytes ? t->op->def->scratch_bytes(t->g, t->op, box) : 0;
}

/* Compute one box, by a body or (NULL) by the reference code; scratch holds NaN before and a guard
 * after. */
static void run_box(const instance *t, const cpu_body *body, const ir_box *box)
{
    const size_t bytes = scratch_of(t, body, box);
    unsigned char *scratch = aligned_alloc(64, (bytes + 128) / 64 * 64);
    assert_non_null(scratch);
    memset(scratch, 0xff, (bytes + 128) / 64 * 64);
    (body ? body->run : t->op->def->ref)(&t->call, box, scratch);
    for (size_t i = bytes; i < (bytes + 128) / 64 * 64; i++)
        if (scratch[i] != 0xff)
            fail_msg("%s writes after its scratch", body ? body->name : "ref");
    free(scratch);
}

static int64_t choose(uint64_t *state, int64_t n)
{
    return (int64_t)(rng_u64(seed, (*state)++) % (uint64_t)n);
}

/* The whole output, cut at random where the record allows (no cut if `state` is NULL); parts come
 * in either order. */
static void run(const instance *t, const cpu_body *body, uint64_t *state)
{
    const ir_tensor *out = &t->g->tensors.at[t->op->out[0]];
    op_axis axes[IR_MAX_RANK] = {{0}};
    int64_t cuts[IR_MAX_RANK][MOST_CUTS + 2], n[IR_MAX_RANK] = {0}, at[IR_MAX_RANK] = {0};
    if (t->op->def->axes)
        t->op->def->axes(t->g, t->op, axes);
    for (uint32_t i = 0; i < out->rank; i++) {
        int64_t end = i == 0 ? op_live_entries(&t->call, &t->call.out[0]) : out->dims[i];
        cuts[i][n[i]++] = 0;
        for (int64_t k = 0; state && axes[i].grain && k < MOST_CUTS; k++) {
            int64_t step = (1 + choose(state, k % 2 ? 2 : 12)) * axes[i].grain,
                    last = cuts[i][n[i] - 1];
            if (last + step < end)
                cuts[i][n[i]++] = last + step;
        }
        cuts[i][n[i]] = end;
    }
    const bool backwards = state && choose(state, 2);
    uint32_t i;
    do {
        ir_box box = {0};
        for (i = 0; i < out->rank; i++) {
            const int64_t part = backwards ? n[i] - 1 - at[i] : at[i];
            box.lo[i] = cuts[i][part];
            box.hi[i] = cuts[i][part + 1];
        }
        run_box(t, body, &box);
        for (i = 0; i < out->rank && ++at[i] == n[i]; i++)
            at[i] = 0;
    } while (i < out->rank);
}

static inline const char *pick(uint64_t *state, const char *const *from, int64_t n)
{
    return from[choose(state, n)];
}

/* Dtype of a cache with heads of that size. */
static inline const char *pick_cache(uint64_t *state, int size)
{
    static const char *const all[] = {"f32", "f16", "bf16", "q8_0"};
    return pick(state, all, size % 32 ? 3 : 4);
}

/* Operands of attention over up to `positions` positions; q: its dtype. */
static inline int add_attended(text *t, uint64_t *state, const char *q, int positions)
{
    static const int sizes[] = {16, 64, 128, 80, 5, 48, 32, 96};
    int groups = 1 + (int)choose(state, 3), heads = groups * (1 + (int)choose(state, 4)),
        size = sizes[choose(state, 8)];
    int slots = choose(state, 2) ? 1 : 1 + (int)choose(state, 4), page = 1 + (int)choose(state, 40);
    int pages = 1 + positions / page, tokens = 1 + (int)choose(state, choose(state, 2) ? 4 : 90);
    const char *cache = pick_cache(state, size);
    text_print(t, "input %%q : %s[%d, %d, %d] live=tokens\n", q, tokens, heads, size);
    for (int i = 0; i < 2; i++)
        text_print(t, "state %%%c : %s[%d, %d, %d, %d]\n", "kv"[i], cache, slots * pages, groups,
                   page, size);
    text_print(t,
               "input %%p : i32[%d] live=tokens\ninput %%s : i32[%d] live=tokens\ninput %%t : "
               "i32[%d, %d]\n",
               tokens, tokens, slots, pages);
    return heads;
}

#endif
