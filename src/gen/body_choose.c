/* body_choose.c - the body that a call gets, and why there is none (see source.h).
 *
 * A body is asked for the operands, then for room: its scratch must leave the rings of pages their
 * least.  Called for each operator by source.c, and by tests for operators of their own.
 */
#include "gen/source.h"

/* Does the body's scratch leave the rings their least pages?  A generic body is not asked, since
 * there is nothing to take in its place. */
static bool has_room(const gen_call *c, const gen_body *b)
{
    return !c->scratch_most || !b->rank || !b->scratch_bytes ||
           b->scratch_bytes(c) <= c->scratch_most;
}

/* Does the record come after `other` in the order of preference: highest rank first, then as
 * listed?  other == NULL: every record does. */
static bool comes_after(const gen_body *const *b, const gen_body *const *other)
{
    return !other || (*b)->rank < (*other)->rank || ((*b)->rank == (*other)->rank && b > other);
}

/* The first record after `other` that takes the operands; NULL: none does. */
static const gen_body *const *find_next(const gen_call *c, uint32_t highest,
                                        const gen_body *const *other)
{
    const gen_body *const *best = NULL;
    str name = str_from(c->op->def->name); /* bodies are found by their operator */
    for (const gen_body *const *b = gen_body_table; *b; b++)
        if (str_is(name, (*b)->op) && !((*b)->needs & ~c->needs) && (*b)->rank <= highest &&
            comes_after(b, other) && (!best || comes_after(best, b)) && (*b)->accepts(c))
            best = b;
    return best;
}

/* Of the bodies that accept the call, need no more than the GPU has, rank at most `highest` and
 * find room, the one with the highest rank; NULL: none does.  From the highest rank on, since only
 * the body that is taken need be asked for its scratch: that of a block program is known after a
 * search and a proof. */
const gen_body *gen_body_choose(const gen_call *c, uint32_t highest)
{
    const gen_body *const *b = find_next(c, highest, NULL);
    while (b && !has_room(c, *b))
        b = find_next(c, highest, b);
    return b ? *b : NULL;
}

/* A body takes the operands, but there is no room for its scratch beside the rings. */
static mpk_status fail_no_room(mpk_context *cx, const gen_call *c, const gen_body *b,
                               const char *arch, bool jit)
{
    return status_fail(cx, MPK_EUNSUPPORTED,
                       "%s (%%%.*s): the code for %s needs %u bytes of shared memory, and %u are "
                       "left beside the pages of weights%s",
                       c->op->def->name, STR_ARG(c->op->name), arch, b->scratch_bytes(c),
                       c->scratch_most,
                       jit ? ", half of which are for JIT tasks: launch ahead of time (aot)" : "");
}

/* The operator with the dtypes and shapes of its operands, since these are what a body refuses. */
mpk_status gen_fail_no_body(mpk_context *cx, const gen_call *c, uint32_t highest, const char *arch,
                            bool jit)
{
    gen_call roomy = *c;
    roomy.scratch_most = 0;
    const gen_body *larger = gen_body_choose(&roomy, highest);
    if (larger)
        return fail_no_room(cx, c, larger, arch, jit);
    text operands = {0}; /* for the message */
    for (uint32_t i = 0; i < c->op->n_in; i++) {
        if (c->op->in[i] == IR_NONE)
            continue;
        const ir_tensor *t = &c->ir->tensors.at[c->op->in[i]];
        text_print(&operands, "%s%%%.*s %s[", operands.n ? ", " : "", STR_ARG(t->name),
                   ir_dtype_table[t->dtype].name);
        for (uint32_t k = 0; k < t->rank; k++)
            text_print(&operands, "%s%lld", k ? ", " : "", (long long)t->dims[k]);
        text_print(&operands, "]");
    }
    mpk_status status =
        status_fail(cx, MPK_EUNSUPPORTED, "%s (%%%.*s): no code for %s takes the operands %s",
                    c->op->def->name, STR_ARG(c->op->name), arch, text_str(&operands).at);
    text_free(&operands);
    return status;
}
