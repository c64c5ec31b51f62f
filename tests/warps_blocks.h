/* warps_blocks.h - products of many tokens with weights that stay in the blocks of a file, or that
 * the step has unpacked, for body_warps_test; those of few are in warps_graphs.h. */
#ifndef TESTS_WARPS_BLOCKS_H
#define TESTS_WARPS_BLOCKS_H

#include "warps_graphs.h"

/* Products of more than 16 tokens with weights in blocks, which warpgroups multiply: one to five
 * lots of 64 or 128 tokens, of which the last may have few, one to four passes of 64, 96 or 128
 * rows.  A norm of many tokens is an operator of its own: with one the last case takes 16 tokens at
 * a time. */
static const char *const blocks_prompts[] = {
    BLOCKS_WITH("130", "q4_k", "219", "512", "act = \"gelu_tanh\""),
    BLOCKS_WITH("70", "q8_0", "67", "1056", "factor = 0.22"),
    BLOCKS("130", "q4_k", "219", "2304"),
    BLOCKS("65", "q4_1", "61", "576"),
    BLOCKS("200", "q6_k", "475", "1280"),
    BLOCKS("90", "q5_0", "37", "96"),
    BLOCKS("66", "q4_k", "96", "512"),
    BLOCKS("17", "q4_k", "190", "1792"),
    BLOCKS("40", "q6_k", "31", "2304"),
    BLOCKS("64", "q4_0", "128", "160"),
    BLOCKS("33", "q5_1", "300", "352"),
    X("96", "1280") B("g", "q4_k", "111", "1280")
        B("u", "q4_k", "111", "1280") "%y = linear(%x, %g, %u) {glu = \"silu\"}\n",
    X("129", "768") B("q", "q5_k", "80", "768") B("k", "q4_k", "24", "768")
        B("v", "q6_k", "24", "768") "const %b : f32[24]\n%y = linear(%x, %q, %k, %v, _, %b)\n",
    X("20", "1024") B("q", "q4_k", "64", "1024") B("k", "q4_k", "24", "1024")
        B("v", "q4_k", "24", "1024") "%y = linear(%x, %q, %k, %v)\n",
    X("100", "512")
        B("w", "q6_k", "283", "512") "%l, %p = logits(%x, %w) {factor = 0.0625, cap = 5.0}\n",
    X("24", "768") B("w", "q4_k", "1003", "768") "%l, %p = logits(%x, %w)\n",
    X("600", "96") B("w", "q4_0", "219", "96") "%y = linear(%x, %w)\n",
    X("77", "160") B("g", "q5_1", "61", "160")
        B("u", "q8_0", "61", "160") "%y = linear(%x, %g, %u) {glu = \"gelu\"}\n",
    X("96", "1280") B("g", "q4_k", "111", "1280") B(
        "u", "q4_k", "111",
        "1280") "const %n : f32[1280]\n%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"silu\"}\n",
};

/* Products of whole lots of tokens with a matrix of rows, of which a gate and what it gates have
 * every second one: one or two pages a step, the last of them whole, half or of a few rows;
 * columns that are no multiple of a box. */
#define ROWS(rows, columns) "input %w : bf16[" rows ", " columns "]\n"
#define OF_ROWS(tokens, rows, columns)  \
    X(tokens, columns)                  \
    ROWS(rows, columns)                 \
    "input %r : bf16[" tokens ", " rows \
    "] live=tokens\n%y = linear(%x, %w, _, _, _, _, _, _, %r) {factor = 0.5}\n"
#define OF_PAIRS(tokens, rows, columns)                                                \
    X(tokens, columns)                                                                 \
    ROWS(rows, columns)                                                                \
    "%g = slice(%w) {starts = [0, 0], stops = [" rows ", " columns                     \
    "], steps = [2, 1]}\n%u = slice(%w) {starts = [1, 0], stops = [" rows ", " columns \
    "], steps = [2, 1]}\n%y = linear(%x, %g, %u) {glu = \"silu\"}\n"
static const char *const rows_products[] = {
    OF_ROWS("128", "264", "320"), OF_ROWS("256", "128", "512"),   OF_ROWS("384", "200", "72"),
    OF_ROWS("128", "40", "1096"), OF_PAIRS("128", "528", "320"),  OF_PAIRS("256", "272", "256"),
    OF_PAIRS("256", "80", "136"), OF_ROWS("128", "1104", "1096"),
};

#endif
