/* fuse_bed.h - what the tests of fuse_ops share: a program through the pass, and how many operators
 * of a kind it has.  For src/pass/fuse_ops_test.c, fuse_norms_test.c and
 * fuse_latent_test.c there. */
#ifndef TESTS_FUSE_BED_H
#define TESTS_FUSE_BED_H

#include "check.h"

#include <string.h>

#include "ir/op.h"
#include "pass/pass.h"

static mpk_context cx;

static inline size_t count_of(const ir_graph *g, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < g->ops.n; i++)
        n += strcmp(g->ops.at[i].def->name, name) == 0;
    return n;
}

/* simplify and fuse_ops as compile.c runs them, then a proof that the result is a valid program. */
static inline ir_graph *fuse_as(arena *a, const ir_graph *g, const pass_options *options)
{
    arena scratch = {0};
    pass_state s = {&cx, a, &scratch, options};
    ir_graph *copy = (ir_graph *)g;
    check_ok(&cx, pass_simplify(&s, &copy));
    check_ok(&cx, pass_fuse_ops(&s, &copy));
    arena_free(&scratch);
    check_ok(&cx, ir_verify(&cx, copy));
    return copy;
}

#endif
