/* warps_edges.h - small cases at the ends of what bodies loop over, which body_warps_test.c always
 * runs (of those in warps_graphs.h it draws some).
 */
#ifndef TESTS_WARPS_EDGES_H
#define TESTS_WARPS_EDGES_H

#include "warps_graphs.h"

/* x of so many rows and columns as the sum of two terms, or of three with a residual; one weight,
 * and a norm. */
#define ADDED(tokens, width, columns, more, terms)                                           \
    "input %a : bf16[" tokens ", " width "] live=tokens\ninput %b : bf16[" tokens ", " width \
    "] live=tokens\n" more "const %w : bf16[" columns ", " width "]\nconst %n : bf16[" width \
    "]\n%y, %s = sum_linear(%a, %w, _, _, _, _, _, %n, " terms ")\n"
#define ADDED_TO(tokens, width, columns) \
    ADDED(tokens, width, columns, "input %r : bf16[" tokens ", " width "] live=tokens\n", "%b, %r")

/* A convolution with so many weights a column, one more than the state has rows of a slot. */
#define CONVOLVE(tokens, dtype, columns, weights, slots, rows, attributes)                     \
    "input %x : " dtype "[" tokens ", " columns "] live=tokens\nconst %w : " dtype "[" columns \
    ", " weights "]\ninput %p : i32[" tokens "] live=tokens\ninput %s : "                      \
    "i32[" tokens "] live=tokens\nstate %c : f32[" slots ", " rows ", " columns                \
    "]\n%y, %after = causal_conv(%x, %w, %p, %s, %c)" attributes "\n"

/* rms_norm of heads, gated by columns first .. end of wider rows. */
#define GATED_NORM(tokens, heads, size, columns, first, end, dtype)                                \
    "input %x : bf16[" tokens ", " heads ", " size "] live=tokens\nconst %w : " dtype "[" size     \
    "]\ninput %z : bf16[" tokens ", " columns "] live=tokens\n%s = slice(%z) {starts = [0, " first \
    "], stops = [" tokens ", " end "]}\n%g = reshape(%s) {shape = [" tokens ", " heads ", " size   \
    "]}\n%y = rms_norm(%x, %w, _, %g)\n"

/* delta_rule by chunks: so many tokens, in as many runs as there are slots. */
#define DELTA(tokens, slots)                                                                       \
    "input %q : bf16[" tokens ", 128] live=tokens\ninput %k : bf16[" tokens ", 128] live=tokens\n" \
    "input %v : bf16[" tokens ", 48] live=tokens\ninput %a : bf16[" tokens ", 1] live=tokens\n"    \
    "input %b : bf16[" tokens ", 1] live=tokens\nconst %l : f32[1]\nconst %d : bf16[1]\n"          \
    "input %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens "] live=tokens\n"             \
    "state %S : f32[" slots ", 48, 128]\n"                                                         \
    "%y, %after = delta_rule(%q, %k, %v, %a, %b, %l, %d, %p, %s, %S) {chunks = 1}\n"

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
    /* terms: one slot and two for a lane, all of them, a last page of fewer blocks and of columns
     * that are no block, fewer pieces of the sum than tasks */
    ADDED("1", "1024", "200", "", "%b"),
    ADDED_TO("1", "4096", "96"),
    ADDED_TO("2", "2304", "72"),
    ADDED_TO("8", "1000", "40"),
    ADDED_TO("3", "2048", "136"),
    ADDED("1", "24", "640", "", "%b"),
    /* convolutions: strips of several runs, and runs of several strips; of a run in two strips, or
     * shorter than the state, some old rows stay; more columns than threads have at once */
    CONVOLVE("70", "bf16", "1200", "4", "12", "3", " {activation = \"silu\"}"),
    CONVOLVE("300", "bf16", "24", "4", "2", "3", " {activation = \"silu\"}"),
    CONVOLVE("37", "f16", "664", "5", "5", "4", ""),
    CONVOLVE("9", "bf16", "2064", "4", "8", "3", ""),
    CONVOLVE("24", "bf16", "8", "2", "9", "1", " {activation = \"silu\"}"),
    /* a mask of one row for all queries */
    "input %q : f16[1, 1, 80, 64]\ninput %k : f16[1, 1, 70, 64]\ninput %v : f16[1, 1, 70, "
    "64]\ninput %m : bool[1, 70]\n%y = sdpa(%q, %k, %v, %m)\n",
    /* a token, two rows at a time, one, rows that are no whole pieces, a row of all warps, f32 */
    GATED_NORM("1", "4", "128", "552", "16", "528", "bf16"),
    GATED_NORM("81", "32", "128", "4104", "8", "4104", "f32"),
    GATED_NORM("3", "4", "128", "552", "16", "528", "bf16"),
    GATED_NORM("5", "2", "320", "650", "3", "643", "bf16"),
    GATED_NORM("2", "1", "4096", "4096", "0", "4096", "bf16"),
    "input %x : f32[5, 1500]\ninput %g : f32[5, 1500]\n%y = rms_norm(%x, _, _, %g)\n",
    /* runs of a chunk, of one and a token, of two, of the fewest tokens that go by chunks and of
     * fewer; columns of which the last sixteen have a warp alone */
    DELTA("128", "4"),
    DELTA("99", "3"),
    DELTA("130", "2"),
    DELTA("72", "6"),
    DELTA("88", "8"),
};

#endif
