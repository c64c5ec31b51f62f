/* warps_edges.h - small cases at the ends of what bodies loop over, which body_warps_test.c always
 * runs (of those in warps_graphs.h it draws some).
 */
#ifndef TESTS_WARPS_EDGES_H
#define TESTS_WARPS_EDGES_H

#include "warps_graphs.h"

/* Their first number: after those that are drawn, before those of company. */
enum { EDGES = 450 };

static const char *const edge_graphs[] = {
    /* a second tile of groups, whose x is still there: with a last unit of columns in part */
    PLAIN("32", "640", "1000"),
    PLAIN("11", "88", "1000"),
    /* a norm, and a last pass of fewer pages than those before, which are full */
    GATED("9", "16", "3072", "silu"),
    GATED("3", "16", "5120", "silu"),
    /* the residual: its end is that of a row, and rows begin at odd places */
    PLAIN("16", "70", "520"),
    PLAIN("5", "67", "520"),
    /* boxes that begin and end within a piece of eight columns */
    "input %x : bf16[9, 4, 72] live=tokens\ninput %s : f32[9, 4] live=tokens\n%y = sum_pairs(%x, "
    "%s)\n",
    /* tokens that stand alone, of contexts whose pages may be none of the cache's, or the one that
     * would follow the last */
    ATTEND("33", "8", "64", "33", "6", "200", "2", "", "", "scale = 0.2"),
    ATTEND("40", "4", "128", "40", "5", "200", "2", "", "", "scale = 0.1"),
};

#endif
