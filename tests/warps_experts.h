/* warps_experts.h - graphs of experts whose weights are in GGUF blocks, for body_warps_test.c.
 *
 * Of all forms, gated, summed and a row for each pair, with biases and without: columns that fill
 * slabs of 1,024, or end with any piece of 128; odd numbers of groups of 8 rows; rounds of every
 * chunk, every other and every fourth; steps whose pairs are sorted in several ranges.
 */
#ifndef TESTS_WARPS_EXPERTS_H
#define TESTS_WARPS_EXPERTS_H

#include "warps_graphs.h"

#define STACK(name, dtype, experts, rows, columns) \
    "const %" name " : " dtype "[" experts ", " rows ", " columns "]\n"
#define GATED_BLOCKS(tokens, columns, n, experts, rows, gate, up, norm, with)                  \
    X(tokens, columns)                                                                         \
    "input %i : i32[" tokens ", " n "] live=tokens\n" STACK("g", gate, experts, rows, columns) \
        STACK("u", up, experts, rows, columns) norm "%y = expert_linear(%x, %i, %g, %u" with   \
                                                    ") {glu = \"silu\"}\n"
#define SUMMED_BLOCKS(tokens, columns, n, experts, rows, dtype)                                  \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\n" STACK("w", dtype, experts, rows,                                           \
                            columns) "input %s : f32[" tokens ", " n                             \
                                     "] live=tokens\ninput %r : bf16[" tokens ", " rows          \
                                     "] live=tokens\n%y = expert_linear(%x, %i, %w, _, %s, %r)\n"
/* With biases, and a gate with a limit, as gpt-oss has. */
#define LIMITED_OF(tokens, columns, n, experts, rows, dtype, norm, with, limit)                 \
    X(tokens, columns)                                                                          \
    "input %i : i32[" tokens ", " n "] live=tokens\n" STACK("g", dtype, experts, rows, columns) \
        STACK("u", dtype, experts, rows, columns) norm                                          \
        "const %bg : f32[" experts ", " rows "]\nconst %bu : f32[" experts ", " rows            \
        "]\n%y = expert_linear(%x, %i, %g, %u, _, _, " with ", %bg, %bu) {" OAI(limit) "}\n"
#define LIMITED_BLOCKS(tokens, columns, n, experts, rows, dtype, norm, with) \
    LIMITED_OF(tokens, columns, n, experts, rows, dtype, norm, with, "0.5")
#define BIASED_BLOCKS(tokens, columns, n, experts, rows, dtype)                                  \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\n" STACK("w", dtype, experts, rows,                                           \
                            columns) "input %s : f32[" tokens ", " n                             \
                                     "] live=tokens\ninput %r : bf16[" tokens ", " rows          \
                                     "] live=tokens\nconst %b : f32[" experts ", " rows          \
                                     "]\n%y = expert_linear(%x, %i, %w, _, %s, %r, _, %b)\n"
#define LONG_NORM(columns) "const %n : f32[" columns "]\n"

static const char *const expert_blocks_graphs[] = {
    GATED_BLOCKS("1", "2048", "8", "20", "48", "q4_k", "q4_k", LONG_NORM("2048"), ", _, _, %n"),
    GATED_BLOCKS("7", "1056", "2", "5", "40", "q4_0", "q8_0", EXPERT_NORM("1056"), ", _, _, %n"),
    GATED_BLOCKS("9", "1280", "3", "4", "24", "q6_k", "q4_k", EXPERT_NORM("1280"), ", _, _, %n"),
    GATED_BLOCKS("16", "768", "4", "33", "104", "q4_k", "q4_k", "", ""),
    GATED_BLOCKS("33", "96", "6", "7", "16", "q4_1", "q4_1", EXPERT_NORM("96"), ", _, _, %n"),
    GATED_BLOCKS("70", "1280", "4", "9", "40", "q4_k", "q4_k", LONG_NORM("1280"), ", _, _, %n"),
    GATED_BLOCKS("300", "256", "2", "5", "24", "q5_k", "q5_k", LONG_NORM("256"), ", _, _, %n"),
    SUMMED_BLOCKS("1", "768", "8", "20", "96", "q4_k"),
    SUMMED_BLOCKS("3", "768", "7", "24", "56", "q6_k"),
    SUMMED_BLOCKS("12", "1088", "4", "9", "40", "q8_0"),
    SUMMED_BLOCKS("16", "2048", "2", "70", "24", "q4_0"),
    SUMMED_BLOCKS("40", "160", "3", "7", "72", "q5_1"),
    SUMMED_BLOCKS("2", "384", "3", "5", "2048", "q4_1"),
    SUMMED_BLOCKS("70", "1280", "3", "7", "40", "q4_k"),
    SUMMED_BLOCKS("300", "64", "8", "40", "24", "q5_0"),
    LIMITED_BLOCKS("1", "2880", "4", "12", "32", "q8_0", EXPERT_NORM("2880"), "%n"),
    LIMITED_BLOCKS("17", "512", "4", "9", "24", "q4_k", "", "_"),
    BIASED_BLOCKS("5", "1184", "4", "6", "56", "q4_0"),
    BIASED_BLOCKS("80", "512", "4", "9", "24", "q6_k"),
};
static const char *const mxfp4_graphs[] = {
    LIMITED_BLOCKS("1", "2880", "4", "12", "48", "mxfp4", EXPERT_NORM("2880"), "%n"),
    LIMITED_BLOCKS("16", "1184", "4", "9", "24", "mxfp4", LONG_NORM("1184"), "%n"),
    LIMITED_BLOCKS("70", "288", "4", "9", "40", "mxfp4", "", "_"),
    BIASED_BLOCKS("1", "2880", "4", "12", "40", "mxfp4"),
    BIASED_BLOCKS("17", "1056", "3", "6", "56", "mxfp4"),
    BIASED_BLOCKS("80", "544", "4", "9", "24", "mxfp4"),
    GATED_BLOCKS("9", "2048", "3", "4", "24", "mxfp4", "mxfp4", "", ""),
    SUMMED_BLOCKS("300", "64", "8", "40", "24", "mxfp4"),
};

/* A row for each pair in steps of many tokens, which warpgroups unpack and multiply: passes of 16
 * groups of rows, of which the last may have few; columns that end with any piece of 128, an odd
 * one or an even one; one expert a token to eight.  How many pairs each expert has is drawn
 * (skew_experts).  Weights that are rounded have a high limit: a result below a low one is small
 * beside the sums that it is made of, and so beside their errors. */
#define PAIRS_BLOCKS(tokens, columns, n, experts, rows, dtype)                                   \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\n" STACK("w", dtype, experts, rows, columns) "%y = expert_linear(%x, %i, %w)\n"
#define BIASED_PAIRS_BLOCKS(tokens, columns, n, experts, rows, dtype, bias)                      \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\n" STACK("w", dtype, experts, rows,                                           \
                            columns) "const %b : " bias "[" experts ", " rows                    \
                                     "]\n%y = expert_linear(%x, %i, %w, _, _, _, _, %b)\n"
static const char *const expert_unpack_graphs[] = {
    GATED_BLOCKS("140", "768", "2", "7", "72", "q4_k", "q4_k", "", ""),
    GATED_BLOCKS("270", "256", "1", "6", "136", "q4_k", "q6_k", "", ""),
    GATED_BLOCKS("133", "1056", "2", "8", "40", "q4_0", "q4_0", "", ""),
    GATED_BLOCKS("150", "416", "3", "9", "24", "q4_1", "q8_0", "", ""),
    GATED_BLOCKS("135", "288", "2", "6", "64", "mxfp4", "mxfp4", "", ""),
    LIMITED_BLOCKS("140", "288", "4", "9", "104", "mxfp4", "", "_"),
    LIMITED_OF("200", "512", "2", "6", "40", "q4_k", "", "_", "7.0"),
    LIMITED_OF("129", "96", "8", "40", "24", "q8_0", "", "_", "7.0"),
    PAIRS_BLOCKS("130", "768", "4", "7", "136", "q4_k"),
    PAIRS_BLOCKS("145", "512", "2", "6", "200", "q6_k"),
    PAIRS_BLOCKS("131", "160", "3", "8", "72", "q5_0"),
    PAIRS_BLOCKS("300", "64", "8", "256", "24", "q4_0"),
    PAIRS_BLOCKS("137", "416", "2", "5", "264", "mxfp4"),
    BIASED_PAIRS_BLOCKS("140", "1184", "2", "6", "56", "mxfp4", "f32"),
    BIASED_PAIRS_BLOCKS("160", "384", "2", "9", "136", "q4_1", "bf16"),
    BIASED_PAIRS_BLOCKS("129", "256", "4", "8", "72", "q5_k", "f32"),
};

/* A token has the same bits in steps of any number of tokens (COMPANY_OF). */
#define COMPANY_GATED_BLOCKS(tokens)                                                \
    GATED_BLOCKS(tokens, "1280", "4", "9", "24", "q4_k", "q4_k", LONG_NORM("1280"), \
                 ", _, _, "                                                         \
                 "%n")
#define COMPANY_SUMMED_BLOCKS(tokens) SUMMED_BLOCKS(tokens, "768", "4", "9", "24", "q6_k")
#define COMPANY_MXFP4(tokens) BIASED_BLOCKS(tokens, "1056", "4", "9", "24", "mxfp4")
static const char *const expert_blocks_company[] = {
    COMPANY_OF(COMPANY_GATED_BLOCKS), COMPANY_OF(COMPANY_SUMMED_BLOCKS), COMPANY_OF(COMPANY_MXFP4)};

#endif
