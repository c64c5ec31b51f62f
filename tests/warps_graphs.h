/* warps_graphs.h - the graphs that body_warps_test.c runs beside the operators' own cases: of one
 * operator each, with the shapes of models and shapes that fit no tile.
 */
#ifndef TESTS_WARPS_GRAPHS_H
#define TESTS_WARPS_GRAPHS_H
#include "warps_heads.h"

#define X(tokens, columns) "input %x : bf16[" tokens ", " columns "] live=tokens\n"
#define W(name, rows, columns) "const %" name " : bf16[" rows ", " columns "]\n"
#define PLAIN(tokens, rows, columns)                                              \
    X(tokens, columns)                                                            \
    "input %r : bf16[" tokens ", " rows                                           \
    "] live=tokens\n" W("w", rows, columns) "%y = linear(%x, %w, _, _, _, _, _, " \
                                            "_, %r)\n"
#define GATED(tokens, rows, columns, glu)           \
    X(tokens, columns)                              \
    W("g", rows, columns)                           \
    W("u", rows, columns)                           \
    "const %n : f32[" columns "]\n%y = linear(%x, " \
    "%g, %u, _, _, _, _, %n) {glu = \"" glu "\"}\n"
/* Not of a step that serves requests. */
#define AFTER(tokens, columns, rows, bias, name)                                               \
    "input %x : bf16[" tokens ", " columns "]\ninput %r : bf16[" tokens ", " rows              \
    "]\n" W("w", rows, columns) "const %b : " bias "[" rows                                    \
                                "]\n%y = linear(%x, %w, _, _, %b, _, _, _, %r) {act = \"" name \
                                "\"}\n"
/* Of a model's step: an activation without a gate, or a factor of what is added. */
#define STEP_AFTER(tokens, columns, rows, bias, name)                                         \
    X(tokens, columns)                                                                        \
    "input %r : bf16[" tokens ", " rows                                                       \
    "] live=tokens\n" W("w", rows, columns) "const %b : " bias "[" rows                       \
                                            "]\n%y = linear(%x, %w, _, _, %b, _, _, _, %r) {" \
                                            "act = \"" name "\"}\n"
#define SCALED(tokens, columns, rows)                 \
    X(tokens, columns)                                \
    "input %r : bf16[" tokens ", " rows               \
    "] live=tokens\n" W("w", rows, columns) "%y = "   \
                                            "linear(" \
                                            "%x, %w," \
                                            " _, _, _, _, _, _, %r) {factor = 0.22}\n"
/* Of all tokens, with a factor or a cap. */
#define LOGITS(tokens, columns, rows, attributes) \
    X(tokens, columns)                            \
    W("w", rows, columns)                         \
    "const %n : bf16[" columns "]\n%l, %p = logits(%x, %w, %n) {" attributes "}\n"
#define PLACES(tokens, slots, pages, n_pages, kv_heads, size)                            \
    "input %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens                     \
    "] live=tokens\ninput %pages : i32[" slots ", " pages "]\nstate %kc : bf16[" n_pages \
    ", " kv_heads ", 64, " size "]\nstate %vc : bf16[" n_pages ", " kv_heads ", 64, " size "]\n"
#define SPLIT(tokens, qkv, half, size, slots, pages, n_pages, kv_heads, norms, with, attributes)  \
    X(tokens, qkv)                                                                                \
    "input %t : f32[" tokens ", 2, " half                                                         \
    "] live=tokens\n" PLACES(tokens, slots, pages, n_pages, kv_heads, size) norms                 \
        "%y, %l, %k, %v = attention_split(%x, %t, %p, %s, %pages, %kc, %vc" with ") {" attributes \
        ", kv_heads = " kv_heads ", head_size = " size "}\n"
#define PIECE(qkv, cache, index, mask, table, with, attributes)                           \
    "input %x : " qkv "\nstate %kc : " cache "\nstate %vc : " cache "\ninput %i : " index \
    "\ninput %m : " mask "\ninput %c : " table "\ninput %s : " table                      \
    "\nconst %qn : bf16[128]\nconst %kn : bf16[128]\n%y, %l, %k, %v = "                   \
    "attention_cache(%x, %kc, %vc, %i, %m, " with ") {" attributes "}\n"
#define EXPERTS(tokens, columns, n, experts, rows, norm, with, attributes)              \
    X(tokens, columns)                                                                  \
    "input %i : i32[" tokens ", " n "] live=tokens\nconst %g : bf16[" experts ", " rows \
    ", " columns "]\nconst %u : bf16[" experts ", " rows ", " columns "]\n" norm        \
    "%y = expert_linear(%x, %i, %g, %u" with ") {glu = "                                \
    "\"silu\"" attributes "}\n"
#define EXPERT_SUMS(tokens, columns, n, experts, rows)                                           \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\nconst %w : bf16[" experts ", " rows ", " columns "]\ninput %s : f32[" tokens \
    ", " n "] live=tokens\ninput %r : bf16[" tokens ", " rows                                    \
    "] live=tokens\n%y = expert_linear(%x, %i, %w, _, %s, %r)\n"
#define EXPERT_PAIRS(tokens, columns, n, experts, rows)                                          \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\nconst %w : bf16[" experts ", " rows ", " columns                             \
    "]\n%y = expert_linear(%x, %i, %w)\n"
/* The same of the first columns of wider rows, as products of heads are. */
#define HEAD_PRODUCTS(tokens, wide, columns, n, experts, rows)                                    \
    "input %q : bf16[" tokens ", " n ", " wide "] live=tokens\ninput %i : i32[" tokens ", " n     \
    "] live=tokens\nconst %w : bf16[" experts ", " rows ", " columns "]\n%x = slice(%q) {starts " \
    "= [0, 0, 0], stops = [" tokens ", " n ", " columns "]}\n%y = expert_linear(%x, %i, %w)\n"
/* The same with biases and a limit, as gpt-oss has; bias: its dtype. */
#define BIASED_EXPERTS(tokens, columns, n, experts, rows, norm, with, bias, attributes)    \
    X(tokens, columns)                                                                     \
    "input %i : i32[" tokens ", " n "] live=tokens\nconst %g : bf16[" experts ", " rows    \
    ", " columns "]\nconst %u : bf16[" experts ", " rows ", " columns "]\n" norm           \
    "const %bg : " bias "[" experts ", " rows "]\nconst %bu : " bias "[" experts ", " rows \
    "]\n%y = expert_linear(%x, %i, %g, %u, _, _, " with ", %bg, %bu) {" attributes "}\n"
#define EXPERT_LIMIT(tokens, columns, n, experts, rows, limit)                          \
    X(tokens, columns)                                                                  \
    "input %i : i32[" tokens ", " n "] live=tokens\nconst %g : bf16[" experts ", " rows \
    ", " columns "]\nconst %u : bf16[" experts ", " rows ", " columns                   \
    "]\n%y = expert_linear(%x, %i, %g, %u) {" OAI(limit) "}\n"
#define OAI(limit) "glu = \"swiglu_oai\", limit = " limit
#define BIASED_SUMS(tokens, columns, n, experts, rows, bias)                                     \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\nconst %w : bf16[" experts ", " rows ", " columns "]\ninput %s : f32[" tokens \
    ", " n "] live=tokens\ninput %r : bf16[" tokens ", " rows "] live=tokens\nconst %b : " bias  \
    "[" experts ", " rows "]\n%y = expert_linear(%x, %i, %w, _, %s, %r, _, %b)\n"
#define BIASED_PAIRS(tokens, columns, n, experts, rows, bias)                                    \
    "input %x : bf16[" tokens ", " n ", " columns "] live=tokens\ninput %i : i32[" tokens ", " n \
    "] live=tokens\nconst %w : bf16[" experts ", " rows ", " columns "]\nconst %b : " bias       \
    "[" experts ", " rows "]\n%y = expert_linear(%x, %i, %w, _, _, _, _, %b)\n"
#define EXPERT_NORM(columns) "const %n : bf16[" columns "]\n"
#define PART(name, tokens, columns) "input %" name " : bf16[" tokens ", " columns "] live=tokens\n"
#define TWO_PARTS(tokens, columns) \
    PART("a", tokens, columns) PART("b", tokens, columns) "%y = add_parts(%a, %b)\n"
#define FOUR_PARTS(tokens, columns) \
    PART("a", tokens, columns)      \
    PART("b", tokens, columns)      \
    PART("c", tokens, columns)      \
    PART("d", tokens, columns)      \
    "%y = add_parts(%a, %b, %c, "   \
    "%d)\n"
#define ATTEND(tokens, heads, size, slots, pages, n_pages, kv_heads, sinks, with, attributes) \
    "input %q : bf16[" tokens ", " heads ", " size                                            \
    "] live=tokens\n" PLACES(tokens, slots, pages, n_pages, kv_heads, size) sinks             \
        "%y = attention(%q, %kc, %vc, %p, %s, %pages" with ") {" attributes "}\n"
/* rms_norm of x, the result of a product, and the sum with a residual r. */
#define POST_NORM(tokens, columns, dtype)                                                 \
    X(tokens, columns)                                                                    \
    "input %r : bf16[" tokens ", " columns "] live=tokens\nconst %w : " dtype "[" columns \
    "]\n%y = rms_norm(%x, %w, %r) {eps = 1e-05}\n"
#define LAYER_NORM(tokens, columns)                                                       \
    X(tokens, columns)                                                                    \
    "const %w : bf16[" columns "]\nconst %b : f32[" columns "]\n%y = layer_norm(%x, %w, " \
    "%b)\n"
#define NORM_PARTS(tokens, columns, first, second)                                     \
    X(tokens, columns)                                                                 \
    "const %v : bf16[" first "]\nconst %w : f32[" second "]\n%y = rms_norm_parts(%x, " \
    "%v, %w)\n"
/* Rows of 576 that are keys and values at once. */
#define LATENTS(tokens, heads, slots, pages, n_pages)                                             \
    "input %q : bf16[" tokens ", " heads ", 576] live=tokens\ninput %p : i32[" tokens             \
    "] live=tokens\ninput %s : i32[" tokens "] live=tokens\ninput %pages : i32[" slots ", " pages \
    "]\nstate %kc : bf16[" n_pages ", 1, 64, 576]\n"
#define LATENT(tokens, heads, slots, pages, n_pages)       \
    LATENTS(tokens, heads, slots, pages, n_pages)          \
    "%y = attention(%q, %kc, _, %p, %s, %pages) {scale = " \
    "0.04}\n"
#define LATENT_PARTS(tokens, heads, slots, pages, n_pages)           \
    LATENTS(tokens, heads, slots, pages, n_pages)                    \
    "%y, %l = attention_parts(%q, %kc, _, %p, %s, %pages) {scale = " \
    "0.04}\n"
#define NORMS "const %qn : bf16[128]\nconst %kn : bf16[128]\n"
#define HEAD_NORMS "const %qn : f32[96]\nconst %kn : f32[96]\n"
#define WIDE_NORMS "const %qn : f32[256]\nconst %kn : f32[256]\n"

static const char *const decode_graphs[] = {
    /* as in a model, whose views of one token have no distance between tokens */
    "input %a : bf16[1, 3072] live=tokens\ninput %i : i32[1, 16] live=tokens\nconst %w : bf16[16, "
    "512, 128]\n%q = reshape(%a) {shape = [1, 16, 192]}\n%x = slice(%q) {starts = [0, 0, 0], stops "
    "= [1, 16, 128]}\n%y = expert_linear(%x, %i, %w)\n",
    HEAD_PRODUCTS("16", "576", "512", "4", "5", "40"),
    HEAD_PRODUCTS("70", "80", "72", "3", "4", "24"),
    "input %a : bf16[11, 1040] live=tokens\ninput %i : i32[11, 4] live=tokens\nconst %w : bf16[4, "
    "24, 128]\n%b = slice(%a) {starts = [0, 16], stops = [11, 784]}\n%q = reshape(%b) {shape = "
    "[11, "
    "4, 192]}\n%x = slice(%q) {starts = [0, 0, 0], stops = [11, 4, 128]}\n%y = expert_linear(%x, "
    "%i, "
    "%w)\n",
    EXPERT_PAIRS("9", "1096", "2", "3", "16"),
    POST_NORM("1", "4096", "bf16"),
    POST_NORM("9", "1152", "f32"),
    POST_NORM("16", "8192", "bf16"),
    X("5", "2048") "%y = rms_norm(%x)\n",
    LAYER_NORM("3", "5120"),
    LAYER_NORM("16", "264"),
    X("7", "64") "%y = layer_norm(%x, _, _) {eps = 0.001}\n",
    NORM_PARTS("1", "12288", "4096", "4096"),
    NORM_PARTS("16", "7168", "5120", "1024"),
    NORM_PARTS("6", "288", "200", "88"),
    PLAIN("1", "1024", "3072"),
    PLAIN("3", "101", "1000"),
    PLAIN("5", "70", "4872"),
    PLAIN("16", "67", "5000"),
    PLAIN("16", "1024", "3072"),
    STEP_AFTER("1", "1288", "300", "bf16", "gelu_tanh"),
    STEP_AFTER("7", "2056", "61", "f32", "gelu"),
    STEP_AFTER("16", "3072", "128", "bf16", "silu"),
    SCALED("1", "3072", "1024"),
    SCALED("13", "4872", "70"),
    GATED("1", "3072", "1024", "silu"),
    GATED("8", "300", "1024", "silu"),
    GATED("11", "61", "2056", "gelu_tanh"),
    GATED("11", "40", "3072", "silu"),
    GATED("3", "40", "5120", "silu"),
    X("3", "1024") W("q", "2048", "1024") W("k", "1024", "1024")
        W("v", "1024", "1024") "const %n : bf16[1024]\nconst "
                               "%b : f32[1024]\n%y = linear("
                               "%x, %q, %k, %v, _, %b, _, "
                               "%n)\n",
    X("16", "1024") W("q", "256", "1024") W("k", "64", "1024")
        W("v", "64", "1024") "const %n : bf16[1024]\n%y = "
                             "linear(%x, %q, %k, %v, _, _, _, "
                             "%n)\n",
    X("1", "1024") W("w", "5003", "1024") "const %n : bf16[1024]\n%l, %p = logits(%x, %w, %n)\n",
    X("16", "1024")
        W("w", "1003",
          "1024") "const %n : bf16[1024]\ninput %r : i32[16] live=rows\n%l, %p = logits(%x, "
                  "%w, %n, %r)\n",
    LOGITS("3", "1024", "1003", "factor = 0.125"),
    LOGITS("16", "2304", "259", "factor = 0.5, cap = 50.0"),
    "input %p : bf16[1, 13, 2048] live=tokens\ninput %l : f32[1, 13, 16] live=tokens\n%y = "
    "attention_fold(%p, %l)\n",
    "input %p : bf16[1, 128, 512] live=tokens\ninput %l : f32[1, 128, 4] live=tokens\n%y = "
    "attention_fold(%p, %l)\n",
    "input %p : bf16[16, 32, 512] live=tokens\ninput %l : f32[16, 32, 8] live=tokens\n%y = "
    "attention_fold(%p, %l)\n",
    "input %p : bf16[7, 5, 512] live=tokens\ninput %l : f32[7, 5, 2] live=tokens\n%y = "
    "attention_fold(%p, %l)\n",
    "input %p : bf16[5, 66, 256] live=tokens\ninput %l : f32[5, 66, 4] live=tokens\n%y = "
    "attention_fold(%p, %l)\n",
    SPLIT("1", "4096", "64", "128", "1", "9", "11", "8", NORMS, ", %qn, %kn",
          "heads = 16, splits = 13, unit = 64"),
    SPLIT("5", "2048", "64", "128", "2", "5", "11", "4", NORMS, ", %qn, %kn",
          "heads = 8, splits = 5, unit = 64, norm_last = 1"),
    SPLIT("3", "1152", "48", "96", "3", "4", "13", "2", HEAD_NORMS, ", %qn, %kn",
          "heads = 8, splits = 4, unit = 64, norm_last = 1, own = 1"),
    SPLIT("3", "4096", "64", "128", "1", "5", "6", "8", NORMS, ", %qn, %kn",
          "heads = 16, splits = 4, unit = 128"),
    SPLIT("8", "4096", "64", "128", "2", "4", "9", "8", NORMS, ", %qn, %kn",
          "heads = 16, splits = 9, unit = 64, window = 70"),
    SPLIT("16", "4096", "64", "128", "16", "2", "33", "8", NORMS, ", %qn, %kn",
          "heads = 16, splits = 16, unit = 64"),
    SPLIT("7", "768", "32", "64", "3", "40", "90", "2", "", "",
          "heads = 8, splits = 5, unit = 256"),
    SPLIT("4", "4096", "64", "128", "4", "12", "48", "8", NORMS, ", %qn, %kn",
          "heads = 16, splits = 1, unit = 64"),
    SPLIT("8", "4096", "64", "128", "3", "9", "27", "8", NORMS, ", %qn, %kn",
          "heads = 16, splits = 5, unit = 64, own = 2"),
    SPLIT("3", "768", "32", "64", "3", "12", "36", "2", "", "",
          "heads = 8, splits = 16, unit = 64, own = 1, window = 300"),
    SPLIT("1", "2048", "128", "256", "1", "9", "11", "2", "", "",
          "heads = 4, splits = 5, unit = 128, cap = 1.5"),
    SPLIT("7", "1536", "128", "256", "3", "6", "17", "1", WIDE_NORMS, ", %qn, %kn",
          "heads = 4, splits = 4, unit = 64, window = 150"),
    SPLIT("16", "2560", "128", "256", "5", "5", "25", "1", "", "",
          "heads = 8, splits = 3, unit = 64, own = 2, cap = 0.7"),
    SPLIT("5", "864", "48", "96", "4", "7", "29", "3", "", "",
          "heads = 3, splits = 7, unit = 64, window = 200"),
    SPLIT("9", "960", "48", "96", "2", "7", "14", "2", "", "",
          "heads = 6, splits = 6, unit = 128, own = 1"),
    SPLIT("2", "768", "32", "64", "2", "9", "18", "2", "", "",
          "heads = 8, splits = 5, unit = 64, cap = 2.0"),
    EXPERTS("1", "2048", "8", "20", "48", EXPERT_NORM("2048"), ", _, _, %n", ", eps = 1e-5"),
    EXPERTS("3", "1000", "3", "4", "24", "", "", ""),
    EXPERTS("8", "320", "4", "33", "40", EXPERT_NORM("320"), ", _, _, %n", ""),
    EXPERTS("16", "1288", "8", "256", "16", "", "", ""),
    EXPERTS("9", "2048", "8", "24", "8", EXPERT_NORM("2048"), ", _, _, %n", ""),
    EXPERTS("5", "320", "6", "9", "40", "", "", ""),
    EXPERTS("2", "64", "8", "12", "512", "", "", ""),
    EXPERT_SUMS("1", "768", "8", "20", "96"),
    EXPERT_SUMS("12", "768", "7", "24", "16"),
    EXPERT_SUMS("6", "2048", "5", "9", "16"),
    EXPERT_SUMS("3", "24", "3", "4", "8"),
    EXPERT_SUMS("7", "1032", "1", "2", "80"),
    EXPERT_SUMS("16", "256", "8", "70", "24"),
    EXPERT_SUMS("40", "264", "3", "7", "72"),
    EXPERT_SUMS("64", "1096", "8", "33", "64"),
    EXPERTS("70", "1096", "2", "9", "24", EXPERT_NORM("1096"), ", _, _, %n", ""),
    EXPERT_SUMS("70", "264", "3", "7", "40"),
    EXPERT_SUMS("1", "384", "8", "12", "2048"),
    EXPERT_SUMS("16", "384", "4", "9", "2048"),
    EXPERT_SUMS("5", "104", "8", "30", "2064"),
    EXPERT_SUMS("70", "512", "2", "3", "2048"),
    EXPERT_PAIRS("9", "200", "2", "3", "2048"),
    BIASED_SUMS("7", "320", "3", "4", "2048", "bf16"),
    BIASED_EXPERTS("1", "2048", "4", "20", "48", EXPERT_NORM("2048"), "%n", "bf16", OAI("0.5")),
    BIASED_EXPERTS("3", "1000", "3", "4", "24", "", "_", "f32", OAI("0.25")),
    BIASED_EXPERTS("16", "1288", "4", "32", "40", EXPERT_NORM("1288"), "%n", "bf16", OAI("0.5")),
    BIASED_EXPERTS("8", "320", "2", "5", "16", "", "_", "bf16", "glu = \"gelu_tanh\""),
    EXPERT_LIMIT("5", "64", "4", "6", "32", "0.5"),
    BIASED_SUMS("1", "768", "4", "20", "96", "bf16"),
    BIASED_SUMS("12", "768", "3", "24", "16", "f32"),
    BIASED_SUMS("16", "1032", "4", "2", "80", "bf16"),
    BIASED_EXPERTS("70", "1096", "4", "9", "24", EXPERT_NORM("1096"), "%n", "f32", OAI("0.5")),
    BIASED_SUMS("70", "264", "4", "7", "40", "bf16"),
    TWO_PARTS("1", "1024"),
    TWO_PARTS("16", "4096"),
    FOUR_PARTS("7", "40"),
};

/* Weights that stay in the blocks of a file: every format, products of several, few tokens and
 * many, columns that are no multiple of a slab's, and what may surround a product. */
#define B(name, dtype, rows, columns) "const %" name " : " dtype "[" rows ", " columns "]\n"
#define BLOCKS(tokens, dtype, rows, columns) \
    X(tokens, columns)                       \
    "input %r : bf16[" tokens ", " rows      \
    "] live=tokens\n" B("w", dtype, rows, columns) "%y = linear(%x, %w, _, _, _, _, _, _, %r)\n"
#define BLOCKS_WITH(tokens, dtype, rows, columns, attributes) \
    X(tokens, columns)                                        \
    "input %r : bf16[" tokens ", " rows "] live=tokens\n" B(  \
        "w", dtype, rows, columns) "%y = linear(%x, %w, _, _, _, _, _, _, %r) {" attributes "}\n"
static const char *const blocks_graphs[] = {
    BLOCKS_WITH("7", "q4_k", "70", "768", "act = \"gelu\""),
    BLOCKS_WITH("30", "q8_0", "67", "1056", "factor = 0.22"),
    BLOCKS("1", "q4_k", "300", "2048"),
    BLOCKS("3", "q4_0", "101", "1056"),
    BLOCKS("16", "q8_0", "67", "3104"),
    BLOCKS("8", "q6_k", "140", "5120"),
    BLOCKS("5", "q5_k", "70", "768"),
    BLOCKS("11", "q4_1", "61", "576"),
    BLOCKS("2", "q5_0", "37", "96"),
    BLOCKS("9", "q5_1", "45", "1184"),
    BLOCKS("50", "q4_k", "203", "2304"),
    BLOCKS("70", "q8_0", "75", "1120"),
    X("1", "4096") B("g", "q4_k", "204", "4096") B(
        "u", "q4_k", "204",
        "4096") "const %n : f32[4096]\n%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"silu\"}\n",
    X("40", "1024") B("g", "q4_0", "61", "1024") B(
        "u", "q8_0", "61",
        "1024") "const %n : bf16[1024]\n%y = linear(%x, %g, %u, _, _, _, _, %n) {glu = \"gelu\"}\n",
    X("4", "2048") B("q", "q4_k", "128", "2048") B("k", "q4_k", "33", "2048")
        B("v", "q6_k", "33",
          "2048") "const %n : f32[2048]\nconst %b : f32[33]\n%y = linear(%x, %q, %k, %v, _, %b, _, "
                  "%n)\n",
    X("33", "512") B("q", "q5_k", "64", "512") B("k", "q4_k", "24", "512")
        B("v", "q6_k", "24", "512") "const %n : bf16[512]\n%y = linear(%x, %q, %k, %v, _, _, _, "
                                    "%n)\n",
    X("1", "1024")
        B("w", "q6_k", "1003", "1024") "const %n : f32[1024]\n%l, %p = logits(%x, %w, %n) {cap = "
                                       "100.0}\n",
    X("40", "512") B("w", "q4_1", "331", "512") "const %n : bf16[512]\ninput %r : i32[24] "
                                                "live=rows\n%l, %p = logits(%x, %w, %n, %r)\n",
};

/* The same for each of these numbers of tokens, the last of which is the largest. */
enum { COMPANY = 500, COMPANY_SIZES = 4 };
#define COMPANY_OF(graph) graph("1"), graph("5"), graph("8"), graph("16")
#define COMPANY_PLAIN(tokens) PLAIN(tokens, "67", "3072")
#define COMPANY_RAGGED(tokens) PLAIN(tokens, "70", "4872")
#define COMPANY_GATED(tokens) GATED(tokens, "300", "1024", "silu")
#define COMPANY_AFTER(tokens) STEP_AFTER(tokens, "2056", "70", "bf16", "gelu_tanh")
#define COMPANY_SCALED(tokens) SCALED(tokens, "3072", "67")
#define COMPANY_BLOCKS(tokens) BLOCKS(tokens, "q4_k", "67", "2304")
#define COMPANY_QKV(tokens)                                                \
    X(tokens, "2048")                                                      \
    W("q", "128", "2048")                                                  \
    W("k", "64", "2048")                                                   \
    W("v", "64", "2048")                                                   \
    "const %n : bf16[2048]\nconst %b : f32[128]\n%y = linear(%x, %q, %k, " \
    "%v, %b, _, _, %n)\n"
#define COMPANY_LOGITS(tokens)                        \
    X(tokens, "1024")                                 \
    W("w", "1003", "1024")                            \
    "const %n : bf16[1024]\n%l, %p = logits(%x, %w, " \
    "%n)\n"
#define COMPANY_BENT(tokens) LOGITS(tokens, "1024", "1003", "factor = 0.25, cap = 25.0")
#define COMPANY_SPLIT(tokens)                                                      \
    SPLIT(tokens, "1024", "64", "128", "16", "9", "144", "2", NORMS, ", %qn, %kn", \
          "heads = 4, splits = 5, unit = 64, own = 2, norm_last = 1")
#define COMPANY_RUNS(tokens)                                                     \
    SPLIT(tokens, "1024", "64", "128", "4", "9", "36", "2", NORMS, ", %qn, %kn", \
          "heads = 4, splits = 5, unit = 64, own = 2")
#define COMPANY_WINDOW(tokens)                                     \
    SPLIT(tokens, "768", "32", "64", "4", "12", "48", "2", "", "", \
          "heads = 8, splits = 16, unit = 64, own = 1, window = 90")
#define COMPANY_FOLD(tokens)                                                   \
    "input %p : bf16[" tokens ", 16, 512] live=tokens\ninput %l : f32[" tokens \
    ", 16, 4] live=tokens\n%y = "                                              \
    "attention_fold(%p, %l)\n"
#define COMPANY_SHARES(tokens)                                                                    \
    "input %x : bf16[" tokens ", 160] live=tokens\nconst %b : f32[160]\n%i, %w = route(%x, %b) {" \
    "experts = 8, sigmoid = 1, groups = 8, kept = 3, best = 2, factor = 2.5}\n"
#define COMPANY_ROUTE(tokens) \
    "input %x : bf16[" tokens ", 128] live=tokens\n%i, %w = route(%x) {experts = 8}\n"
#define COMPANY_FOLD_MANY(tokens)                                              \
    "input %p : bf16[" tokens ", 66, 256] live=tokens\ninput %l : f32[" tokens \
    ", 66, 2] live=tokens\n%y = "                                              \
    "attention_fold(%p, %l)\n"

#define COMPANY_EXPERTS(tokens) \
    EXPERTS(tokens, "1096", "4", "9", "16", EXPERT_NORM("1096"), ", _, _, %n", "")
#define COMPANY_EXPERT_SUMS(tokens) EXPERT_SUMS(tokens, "264", "4", "9", "24")
#define COMPANY_SIDES(tokens) EXPERT_SUMS(tokens, "384", "2", "5", "2048")

#define COMPANY_BIASED(tokens) \
    BIASED_EXPERTS(tokens, "1096", "4", "9", "16", EXPERT_NORM("1096"), "%n", "bf16", OAI("0.5"))
#define COMPANY_BIASED_SUMS(tokens) BIASED_SUMS(tokens, "264", "4", "9", "24", "bf16")

#define COMPANY_NORM(tokens) POST_NORM(tokens, "2560", "f32")
#define COMPANY_LAYER_NORM(tokens) LAYER_NORM(tokens, "4608")
#define COMPANY_NORM_PARTS(tokens) NORM_PARTS(tokens, "1536", "1024", "256")
#define COMPANY_PARTS(tokens) FOUR_PARTS(tokens, "264")

static const char *const company_graphs[] = {
    COMPANY_OF(COMPANY_PLAIN),   COMPANY_OF(COMPANY_RAGGED),      COMPANY_OF(COMPANY_GATED),
    COMPANY_OF(COMPANY_QKV),     COMPANY_OF(COMPANY_LOGITS),      COMPANY_OF(COMPANY_SPLIT),
    COMPANY_OF(COMPANY_FOLD),    COMPANY_OF(COMPANY_FOLD_MANY),   COMPANY_OF(COMPANY_ROUTE),
    COMPANY_OF(COMPANY_EXPERTS), COMPANY_OF(COMPANY_EXPERT_SUMS), COMPANY_OF(COMPANY_PARTS),
    COMPANY_OF(COMPANY_SIDES),   COMPANY_OF(COMPANY_RUNS),        COMPANY_OF(COMPANY_WINDOW),
    COMPANY_OF(COMPANY_BLOCKS),  COMPANY_OF(COMPANY_BIASED),      COMPANY_OF(COMPANY_BIASED_SUMS),
    COMPANY_OF(COMPANY_NORM),    COMPANY_OF(COMPANY_LAYER_NORM),  COMPANY_OF(COMPANY_NORM_PARTS),
    COMPANY_OF(COMPANY_AFTER),   COMPANY_OF(COMPANY_SCALED),      COMPANY_OF(COMPANY_SHARES),
    COMPANY_OF(COMPANY_BENT),    COMPANY_OF(COMPANY_HEADS)};

static const char *const pairs_graphs[] = {
    EXPERTS("130", "136", "2", "3", "40", EXPERT_NORM("136"), ", _, _, %n", ", eps = 1e-5"),
    EXPERTS("257", "320", "4", "6", "136", "", "", ""),
    EXPERTS("140", "64", "8", "256", "8", EXPERT_NORM("64"), ", _, _, %n", ""),
    EXPERT_PAIRS("129", "72", "3", "5", "264"),
    EXPERT_PAIRS("300", "512", "1", "2", "48"),
    EXPERT_PAIRS("130", "384", "1", "3", "2048"),
    BIASED_EXPERTS("200", "136", "4", "6", "40", EXPERT_NORM("136"), "%n", "bf16", OAI("0.5")),
    BIASED_EXPERTS("400", "320", "2", "3", "200", "", "_", "f32", OAI("0.25")),
    BIASED_EXPERTS("130", "72", "3", "5", "136", "", "_", "bf16", "glu = \"silu\""),
    BIASED_PAIRS("129", "72", "3", "5", "264", "bf16"),
    BIASED_PAIRS("300", "512", "2", "3", "48", "f32"),
    EXPERT_LIMIT("150", "64", "2", "4", "24", "0.5"),
};

static const char *const prefill_graphs[] = {
    POST_NORM("17", "4096", "bf16"),
    POST_NORM("200", "2560", "f32"),
    LAYER_NORM("64", "1032"),
    NORM_PARTS("33", "1536", "1024", "256"),
    POST_NORM("260", "4096", "bf16"),
    NORM_PARTS("258", "6144", "4096", "1024"),
    PLAIN("17", "70", "4872"),
    PLAIN("32", "301", "1024"),
    PLAIN("24", "64", "264"),
    PLAIN("64", "301", "3072"),
    PLAIN("49", "70", "4872"),
    PLAIN("80", "131", "1024"),
    STEP_AFTER("32", "1288", "300", "f32", "gelu"),
    STEP_AFTER("64", "2048", "90", "bf16", "gelu_tanh"),
    STEP_AFTER("50", "1024", "1000", "bf16", "silu"),
    STEP_AFTER("200", "328", "264", "bf16", "gelu_tanh"),
    SCALED("32", "2048", "301"),
    SCALED("49", "1024", "70"),
    SCALED("64", "3072", "1200"),
    SCALED("130", "264", "200"),
    SCALED("300", "520", "640"),
    GATED("32", "300", "1288", "gelu"),
    GATED("64", "90", "2048", "gelu_tanh"),
    X("64", "1024") W("q", "256", "1024") W("k", "64", "1024")
        W("v", "64", "1024") "const %n : bf16[1024]\nconst %b "
                             ": f32[256]\n%y = linear(%x, %q, "
                             "%k, %v, %b, _, _, %n)\n",
    X("32", "1024") W("w", "1003", "1024") "const %n : bf16[1024]\n%l, %p = logits(%x, %w, %n)\n",
    X("64", "1288")
        W("w", "1290",
          "1288") "const %n : bf16[1288]\ninput %r : i32[64] live=rows\n%l, %p = logits(%x, "
                  "%w, %n, %r)\n",
    LOGITS("20", "1024", "1003", "factor = 0.125"),
    LOGITS("64", "1288", "700", "cap = 100.0"),
    SPLIT("32", "1024", "64", "128", "32", "3", "97", "2", NORMS, ", %qn, %kn",
          "heads = 4, splits = 13, unit = 64"),
    SPLIT("64", "1024", "64", "128", "64", "3", "193", "2", NORMS, ", %qn, %kn",
          "heads = 4, splits = 7, unit = 64"),
    SPLIT("64", "768", "32", "64", "3", "12", "36", "2", "", "",
          "heads = 8, splits = 5, unit = 128, window = 100"),
    SPLIT("40", "1024", "64", "128", "9", "5", "45", "2", NORMS, ", %qn, %kn",
          "heads = 4, splits = 7, unit = 64, norm_last = 1"),
    SPLIT("40", "1024", "128", "256", "9", "5", "45", "1", WIDE_NORMS, ", %qn, %kn",
          "heads = 2, splits = 7, unit = 64, window = 130, cap = 1.5"),
    SPLIT("90", "288", "48", "96", "50", "3", "150", "1", "", "",
          "heads = 1, splits = 5, unit = 64"),
    SPLIT("47", "768", "32", "64", "2", "9", "27", "2", "", "",
          "heads = 8, splits = 16, unit = 64, own = 1"),
    SPLIT("128", "1024", "64", "128", "128", "2", "257", "2", NORMS, ", %qn, %kn",
          "heads = 4, splits = 7, unit = 64"),
    SPLIT("128", "512", "64", "128", "3", "9", "27", "1", NORMS, ", %qn, %kn",
          "heads = 2, splits = 5, unit = 128"),
    SPLIT("100", "384", "32", "64", "1", "5", "6", "1", "", "", "heads = 4, splits = 3, unit = 64"),
    SPLIT("256", "512", "64", "128", "256", "1", "257", "1", NORMS, ", %qn, %kn",
          "heads = 2, splits = 5, unit = 64"),
    SPLIT("200", "384", "32", "64", "2", "5", "12", "1", "", "",
          "heads = 4, splits = 3, unit = 64"),
    SPLIT("40", "768", "64", "128", "40", "11", "430", "1", NORMS, ", %qn, %kn",
          "heads = 4, splits = 2, unit = 64"),
    PLAIN("33", "1024", "1024"),
    GATED("33", "300", "1024", "silu"),
    GATED("100", "131", "1024", "silu"),
    X("100", "1024") W("q", "256", "1024") W("k", "64", "1024")
        W("v", "64", "1024") "const %n : bf16[1024]\n%y = "
                             "linear(%x, %q, %k, %v, _, _, _, "
                             "%n)\n",
    X("33", "1024")
        W("w", "1003",
          "1024") "const %n : bf16[1024]\ninput %r : i32[3] live=rows\n%l, %p = logits(%x, "
                  "%w, %n, %r)\n",
    X("100", "64") W("w", "700", "64") "%l, %p = logits(%x, %w)\n",
    X("130", "128") W("w", "488", "128") "const %n : bf16[128]\n%l, %p = logits(%x, %w, %n)\n",
    LOGITS("66", "264", "700", "factor = 0.125"),
    LOGITS("130", "128", "488", "factor = 0.5, cap = 50.0"),
    PLAIN("200", "601", "1000"),
    X("150", "520")
        W("w", "700", "520") "const %n : bf16[520]\n%y = linear(%x, %w, _, _, _, _, _, %n)\n",
    X("300", "136")
        W("w", "1400", "136") "const %n : bf16[136]\n%y = linear(%x, %w, _, _, _, _, _, %n)\n",
    PLAIN("130", "200", "264"),
    X("100", "320") W("g", "300", "320")
        W("u", "300", "320") "%y = linear(%x, %g, %u) {glu = \"silu\"}\n",
    EXPERTS("33", "1288", "2", "5", "24", EXPERT_NORM("1288"), ", _, _, %n", ""),
    EXPERTS("300", "64", "8", "40", "16", "", "", ""),
    EXPERT_SUMS("33", "1288", "2", "5", "40"),
    EXPERT_SUMS("300", "64", "8", "40", "24"),
    BIASED_EXPERTS("33", "1288", "4", "5", "24", EXPERT_NORM("1288"), "%n", "bf16", OAI("0.5")),
    BIASED_EXPERTS("100", "320", "2", "5", "24", "", "_", "f32", OAI("0.25")),
    BIASED_SUMS("33", "1288", "4", "5", "40", "bf16"),
    BIASED_SUMS("300", "64", "4", "12", "24", "f32"),
    FOUR_PARTS("100", "1032"),
    AFTER("130", "264", "200", "bf16", "gelu"),
    AFTER("257", "136", "328", "f32", "gelu_tanh"),
    AFTER("200", "520", "72", "bf16", "relu"),
    AFTER("90", "64", "304", "f32", "silu"),
    "input %x : bf16[150, 264]\n" W("q", "136", "264") W("k", "64", "264")
        W("v", "200", "264") "const %n : bf16[264]\nconst %bq : bf16[136]\nconst %bv : f32[200]\n"
                             "%y = linear(%x, %q, %k, %v, %bq, _, %bv, %n)\n",
    X("100", "72") W("q", "100", "72")
        W("k", "28", "72") "const %b : bf16[28]\n%y = linear(%x, %q, %k, _, _, "
                           "%b) {act = \"gelu\"}\n",
    X("66", "1304") W("q", "24", "1304")
        W("k", "36", "1304") "const %n : bf16[1304]\ninput %r : bf16[66, 60] live=tokens\n"
                             "%y = linear(%x, %q, %k, _, _, _, _, %n, %r)\n",
};

/* These need nothing of the architecture. */
static const char *const paged_graphs[] = {
    LATENT("1", "16", "1", "3", "4"),
    LATENT("5", "16", "2", "2", "6"),
    LATENT("9", "5", "3", "2", "6"),
    LATENT("3", "40", "2", "2", "4"),
    LATENT_PARTS("1", "16", "1", "10", "11"),
    LATENT_PARTS("2", "3", "3", "9", "27"),
    LATENT_PARTS("2", "33", "1", "2", "4"),
    "input %p : bf16[2, 16, 1152] live=tokens\ninput %l : f32[2, 16, 2] live=tokens\n%y = "
    "attention_fold(%p, %l)\n",
    X("100", "4096") "input %t : f32[100, 2, 64] live=tokens\n" PLACES("100", "1", "3", "4", "8",
                                                                       "128") NORMS
    "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, %qn, %kn) {heads = 16, kv_heads = 8, "
    "head_size = 128}\n",
    X("37", "768") "input %t : f32[37, 2, 32] live=tokens\n" PLACES(
        "37", "6", "2", "13", "2",
        "64") "const %kn : f32[64]\n%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, "
              "_, %kn) {heads = 8, kv_heads = 2, head_size = 64}\n",
    X("100", "512") "input %t : f32[100, 2, 32] live=tokens\n" PLACES(
        "100", "2", "1", "1", "2",
        "64") "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc) {heads = 4, kv_heads "
              "= 2, head_size = 64}\n",
    X("2200", "192") "input %t : f32[2200, 2, 32] live=tokens\n" PLACES(
        "2200", "3", "12", "20", "1",
        "64") "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc) {heads = 1, kv_heads "
              "= 1, head_size = 64}\n",
    X("40", "1536") "input %t : f32[40, 2, 128] live=tokens\n" PLACES("40", "3", "2", "7", "1",
                                                                      "256") WIDE_NORMS
    "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, %qn, %kn) {heads "
    "= 4, kv_heads = 1, head_size = 256}\n",
    X("70", "960") "input %t : f32[70, 2, 48] live=tokens\n" PLACES(
        "70", "5", "2", "12", "2",
        "96") "const %qn : bf16[96]\n%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, %qn) "
              "{heads = 6, kv_heads = 2, head_size = 96}\n",
    ATTEND("90", "4", "256", "2", "4", "9", "2", "", "", "window = 70, cap = 1.5"),
    ATTEND("30", "4", "256", "20", "3", "60", "1", "", "", "scale = 0.1"),
    ATTEND("150", "8", "256", "1", "4", "5", "1", "", "", "cap = 0.8"),
    ATTEND("160", "4", "256", "2", "6", "13", "2", "", "", "window = 90"),
    ATTEND("200", "6", "256", "1", "7", "7", "1", "", "", "window = 0"),
    ATTEND("140", "2", "256", "3", "4", "7", "2", "const %k0 : bf16[2]\n", ", %k0", "window = 0"),
    ATTEND("131", "16", "256", "1", "5", "6", "2", "const %k0 : f32[16]\n", ", %k0",
           "window = 100, cap = 2.0"),
    ATTEND("130", "4", "256", "70", "3", "210", "1", "", "", "scale = 0.1"),
    ATTEND("80", "6", "96", "2", "4", "9", "3", "", "", "window = 90"),
    ATTEND("29", "3", "96", "29", "3", "90", "3", "", "", "cap = 1.2"),
    ATTEND("60", "16", "64", "3", "3", "9", "2", "const %k0 : bf16[16]\n", ", %k0", "window = 70"),
    ATTEND("35", "8", "64", "35", "3", "100", "1", "const %k0 : f32[8]\n", ", %k0", "window = 0"),
    ATTEND("140", "8", "64", "2", "4", "8", "1", "const %k0 : f32[8]\n", ", %k0",
           "window = 100, cap = 2.0"),
    ATTEND("133", "6", "128", "1", "4", "5", "3", "", "", "cap = 1.5"),
    ATTEND("130", "4", "64", "70", "3", "210", "1", "const %k0 : bf16[4]\n", ", %k0", "window = 0"),
    "input %q : bf16[100, 16, 128] live=tokens\n" PLACES(
        "100", "1", "3", "4", "8", "128") "%y = attention(%q, %kc, %vc, %p, %s, %pages)\n",
    "input %q : bf16[150, 8, 128] live=tokens\n" PLACES(
        "150", "3", "4", "13", "2", "128") "%y = attention(%q, %kc, %vc, %p, %s, %pages)\n",
    "input %q : bf16[130, 3, 64] live=tokens\n" PLACES(
        "130", "2", "5", "12", "1",
        "64") "%y = attention(%q, %kc, %vc, %p, %s, %pages) {window = 90}\n",
    "input %q : bf16[131, 10, 128] live=tokens\n" PLACES(
        "131", "90", "5", "400", "2",
        "128") "%y = attention(%q, %kc, %vc, %p, %s, %pages) {window = 150}\n",
    "input %q : bf16[33, 16, 128] live=tokens\n" PLACES(
        "33", "3", "4", "13", "8",
        "128") "%y = attention(%q, %kc, %vc, %p, %s, %pages) {window = 90}\n",
    "input %q : bf16[40, 16, 128] live=tokens\n" PLACES(
        "40", "40", "9", "360", "8", "128") "%y = attention(%q, %kc, %vc, %p, %s, %pages)\n",
    "input %q : bf16[17, 24, 64] live=tokens\n" PLACES(
        "17", "17", "40", "90", "3",
        "64") "%y = attention(%q, %kc, %vc, %p, %s, %pages) {window = 700}\n",
    "input %q : bf16[24, 3, 128] live=tokens\n" PLACES(
        "24", "20", "2", "40", "1", "128") "%y = attention(%q, %kc, %vc, %p, %s, %pages)\n",
    X("40", "4096") "input %t : f32[40, 2, 64] live=tokens\n" PLACES("40", "40", "2", "80", "8",
                                                                     "128") NORMS
    "%q, %k, %v = rope_kv(%x, %t, %p, %s, %pages, %kc, %vc, %qn, %kn) {heads = 16, kv_heads = 8, "
    "head_size = 128}\n",
    "input %t : i32[33] live=tokens\nconst %w : bf16[301, 1024]\n%x = embedding(%t, %w) {dtype = "
    "\"bf16\"}\n",
    "input %x : bf16[40, 1024] live=tokens\ninput %i : i32[33] live=rows\n%y = gather(%x, %i)\n",
    "input %x : f16[9, 24]\ninput %i : i32[70]\n%y = gather(%x, %i)\n",
    PIECE("bf16[1, 4096]", "bf16[1, 8, 1096, 128]", "i64[1]", "f32[1, 1, 1, 1096]",
          "bf16[1, 1, 128]", "%c, %s, %qn, %kn",
          "heads = 16, kv_heads = 8, head_size = 128, splits = 16"),
    PIECE("bf16[3, 768]", "bf16[1, 1, 300, 128]", "i64[3]", "f32[3, 300]", "f32[1, 3, 64]",
          "%c, %s, _, %kn", "heads = 4, kv_heads = 1, head_size = 128, splits = 2"),
    PIECE("f16[4, 200]", "f16[2, 1, 130, 40]", "i32[2]", "f32[2, 1, 2, 130]", "f16[2, 2, 40]",
          "%c, %s", "heads = 3, kv_heads = 1, head_size = 40, splits = 3, scale = 0.3"),
    PIECE("bf16[1, 1024]", "bf16[1, 1, 90, 256]", "i64[1]", "f32[1, 2, 1, 90]", "bf16[1, 1, 256]",
          "%c, %s", "heads = 2, kv_heads = 1, head_size = 256, splits = 2"),
    PIECE("bf16[16, 640]", "bf16[1, 1, 150, 128]", "i64[16]", "f32[1, 1, 16, 150]",
          "bf16[1, 16, 128]", "_, _, %qn", "heads = 3, kv_heads = 1, head_size = 128, splits = 3"),
};

/* Products that run as block programs: every dtype, layout and unit, boxes that end anywhere. */
static const char *const block_products[] = {
    "input %a : f16[2, 70, 64]\ninput %b : f16[2, 64, 100]\n%y = batch_matmul(%a, %b)\n",
    "input %a : bf16[3, 1, 33, 72]\ninput %b : bf16[2, 40, 72]\n%y = batch_matmul(%a, %b) "
    "{transpose_b = 1}\n",
    "input %a : f16[45, 130]\ninput %b : f16[130, 77]\n%y = batch_matmul(%a, %b)\n",
    "input %a : f32[2, 40, 50]\ninput %b : f32[2, 50, 36]\n%y = batch_matmul(%a, %b)\n",
    "input %a : f32[20, 64]\ninput %b : f32[33, 64]\n%y = batch_matmul(%a, %b) {transpose_b = 1}\n",
    "input %a : bf16[30, 40]\ninput %b : f32[40, 20]\n%y = batch_matmul(%a, %b)\n",
    "input %x : f16[2, 96, 24]\ninput %b : f16[2, 96, 40]\n%a = transpose(%x) {perm = [0, 2, "
    "1]}\n%y = "
    "batch_matmul(%a, %b)\n",
    "input %x : f16[33, 320] live=tokens\ninput %r : f16[33, 101] live=tokens\nconst %w : f16[101, "
    "320]\nconst %b : "
    "f32[101]\n%y = linear(%x, %w, _, _, %b, _, _, _, %r)\n",
    "input %x : f16[3, 1000] live=tokens\nconst %q : f16[80, 1000]\nconst %k : f16[16, "
    "1000]\nconst %v : f16[16, "
    "1000]\nconst %bk : f16[16]\n%y = linear(%x, %q, %k, %v, _, %bk)\n",
    "input %x : f16[20, 72] live=tokens\nconst %g : f16[60, 72]\nconst %u : f16[60, 72]\nconst %b "
    ": f32[60]\n%y = "
    "linear(%x, %g, %u, _, _, %b) {glu = \"silu\"}\n",
    "input %x : f16[20, 72] live=tokens\nconst %g : f16[60, 72]\nconst %u : f16[60, 72]\nconst %b "
    ": f16[60]\ninput "
    "%r : f16[20, 60] live=tokens\n%y = linear(%x, %g, %u, _, %b, %b, _, _, %r) {glu = "
    "\"gelu_tanh\"}\n",
    "input %x : f32[40, 100] live=tokens\nconst %w : f32[70, 100]\nconst %b : f32[70]\n%y = "
    "linear(%x, %w, _, _, "
    "%b)\n",
    "input %x : f16[33, 72]\nconst %w : f16[50, 72]\nconst %b : f32[50]\n%y = linear(%x, %w, _, _, "
    "%b) {act = \"relu\"}\n",
    "input %x : bf16[40, 72]\nconst %t : bf16[72, 90]\nconst %b : bf16[90]\n%w = transpose(%t) "
    "{perm = [1, 0]}\n%y = linear(%x, %w, _, _, %b) {act = \"gelu\"}\n",
    "input %x : f16[20, 136]\nconst %t : f16[136, 33]\ninput %r : f16[20, 33]\n%w = transpose(%t) "
    "{perm = [1, 0]}\n%y = linear(%x, %w, _, _, _, _, _, _, %r)\n",
    "input %x : f32[17, 40] live=tokens\nconst %g : f32[33, 40]\nconst %u : f32[33, 40]\n%y = "
    "linear(%x, %g, %u) "
    "{glu = \"gelu\"}\n",
};

/* Convolutions, as the above. */
static const char *const block_windows[] = {
    "input %x : bf16[2, 24, 13, 11] live=tokens\nconst %w : bf16[33, 24, 3, 3]\nconst %b : "
    "f32[33]\n%y = conv(%x, "
    "%w, %b) {stride = [2, 1], padding = [1, 2], dilation = [1, 2]}\n",
    "input %x : f16[1, 3, 40, 37]\nconst %w : f16[20, 3, 7, 7]\n%y = conv(%x, %w, _) {stride = [2, "
    "2], padding = "
    "[3, 3]}\n",
    "input %t : f16[2, 9, 10, 12]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %w : f16[18, 4, "
    "2, 3]\n%y = "
    "conv(%x, %w, _) {groups = 3}\n",
    "input %x : f32[2, 20, 50]\nconst %w : f32[10, 10, 5]\nconst %b : f32[10]\n%y = conv(%x, %w, "
    "%b) {groups = 2, "
    "padding = [4], dilation = [3]}\n",
    "input %x : bf16[1, 8, 4, 5, 6]\nconst %w : bf16[9, 8, 2, 3, 1]\n%y = conv(%x, %w, _) {padding "
    "= [1, 1, 0], "
    "stride = [1, 2, 2]}\n",
    "input %x : bf16[2, 24, 9, 8]\nconst %w : bf16[40, 24, 3, 3]\nconst %m : bf16[40, 1, 1]\nconst "
    "%s : f32[40, 1, 1]\ninput %r : bf16[2, 40, 9, 8]\n%y = conv(%x, %w, _, %m, %s, %r) {padding "
    "= [1, 1], expr = \"t0 = bf16((x0 - x1) * x2); max(bf16(t0 + x3), 0)\"}\n",
    "input %x : f16[2, 40, 4, 16]\nconst %w : f16[36, 20, 1, 1]\nconst %b : f16[36]\ninput %s : "
    "f16[2, 36, 1, 1]\n%y = conv(%x, %w, %b, %s) {groups = 2, expr = \"x0 * sigmoid(x0) * "
    "x1\"}\n",
    "input %x : bf16[1, 33, 5, 7]\nconst %w : bf16[17, 33, 1, 1]\n%y = conv(%x, %w, _) {expr = "
    "\"min(max(x0, 0), 6)\"}\n",
    "input %x : f32[2, 20, 50]\nconst %w : f32[9, 20, 1]\ninput %r : f32[1, 9, 50]\n%y = conv(%x, "
    "%w, "
    "_, %r) {expr = \"x0 + x1\"}\n",
    "input %t : bf16[2, 9, 8, 24]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[40, "
    "3, "
    "3, 24]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\nconst %b : bf16[40]\nconst %s : "
    "f32[40]\ninput "
    "%r : bf16[2, 5, 8, 40]\n%y = conv(%x, %w, %b, %s, %r) {padding = [1, 1], stride = [2, 1], "
    "last = "
    "1, expr = \"t0 = bf16(x0 * x1); max(bf16(t0 + x2), 0)\"}\n",
    "input %t : f16[1, 14, 14, 64]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : f16[40, "
    "3, "
    "3, 32]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\n%y = conv(%x, %w, _) {groups = 2, padding = "
    "[2, 1], dilation = [2, 1], last = 1}\n",
    "input %t : f32[2, 9, 7, 12]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : f32[20, 2, "
    "3, "
    "12]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\nconst %b : f32[20]\n%y = conv(%x, %w, %b) "
    "{stride "
    "= [2, 2], last = 1}\n",
    "input %x : bf16[1, 3, 40, 37]\nconst %w : bf16[20, 3, 7, 7]\n%y = conv(%x, %w, _) {stride = "
    "[2, "
    "2], padding = [3, 3], last = 1}\n",
    "input %t : bf16[2, 6, 5, 48]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %w : bf16[72, "
    "48, "
    "1, 1]\ninput %r : bf16[2, 6, 5, 72]\n%y = conv(%x, %w, _, %r) {last = 1, expr = \"x0 + "
    "x1\"}\n",
    "input %t : bf16[2, 6, 5, 48]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %w : bf16[72, "
    "48, "
    "1, 1]\n%y = conv(%x, %w, _) {last = 1, stride = [2, 2]}\n",
    "input %t : bf16[2, 13, 11, 40]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[7, "
    "5, "
    "1, 40]\n%w = transpose(%u) {perm = [3, 2, 0, 1]}\nconst %b : bf16[40]\n%y = conv(%x, %w, %b) "
    "{groups = 40, padding = [3, 2], stride = [1, 2], dilation = [2, 1], last = 1}\n",
    "input %t : f16[1, 20, 21, 100]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : f16[3, "
    "7, "
    "1, 100]\n%w = transpose(%u) {perm = [3, 2, 0, 1]}\n%y = conv(%x, %w, _) {groups = 100, "
    "padding "
    "= [1, 3], last = 1}\n",
    "input %t : bf16[2, 19, 23, 64]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[7, "
    "7, 1, 64]\n%w = transpose(%u) {perm = [3, 2, 0, 1]}\nconst %b : bf16[64]\n%y = conv(%x, %w, "
    "%b) {groups = 64, padding = [3, 3], last = 1}\n",
    "input %t : f16[1, 40, 31, 24]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : f16[3, "
    "5, 1, 24]\n%w = transpose(%u) {perm = [3, 2, 0, 1]}\n%y = conv(%x, %w, _) {groups = 24, "
    "padding = [0, 3], stride = [2, 3], dilation = [3, 2], last = 1}\n",
    /* windows of few entries, which are not staged */
    "input %t : bf16[2, 9, 14, 40]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[2, "
    "3, 1, 40]\n%w = transpose(%u) {perm = [3, 2, 0, 1]}\n%y = conv(%x, %w, _) {groups = 40, "
    "padding = [1, 1], last = 1}\n",
    /* windows that are kept as patches */
    "input %t : bf16[2, 14, 14, 64]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[72, "
    "3, 3, 64]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\nconst %s : f32[72]\nconst %c : "
    "f32[72]\ninput %r : bf16[2, 14, 14, 72]\n%y = conv(%x, %w, _, %s, %c, %r) {padding = [1, 1], "
    "last = 1, expr = \"t0 = bf16(x0 * x1 + x2); max(bf16(t0 + x3), 0)\"}\n",
    "input %t : f16[1, 17, 28, 32]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : f16[44, "
    "3, 3, 32]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\ninput %r : f16[1, 17, 28, 44]\n%y = "
    "conv(%x, %w, _, %r) {padding = [1, 1], last = 1, expr = \"x0 + x1\"}\n",
    "input %t : bf16[1, 21, 23, 96]\n%x = transpose(%t) {perm = [0, 3, 1, 2]}\nconst %u : bf16[40, "
    "2, 4, 96]\n%w = transpose(%u) {perm = [0, 3, 1, 2]}\nconst %b : bf16[40]\n%y = conv(%x, %w, "
    "%b) {padding = [1, 3], stride = [2, 2], dilation = [3, 1], last = 1}\n",
    "input %t : bf16[2, 75, 64]\n%x = transpose(%t) {perm = [0, 2, 1]}\nconst %u : bf16[24, 3, "
    "64]\n%w = transpose(%u) {perm = [0, 2, 1]}\nconst %b : bf16[24]\n%y = conv(%x, %w, %b) "
    "{padding = [1], stride = [2], last = 1}\n",
};

/* Rows that are normalised, and attention as a whole. */
static const char *const block_rows[] = {
    "input %x : bf16[2, 5, 768]\nconst %w : bf16[768]\nconst %b : f32[768]\n%y = layer_norm(%x, "
    "%w, %b)\n",
    "input %x : f16[17, 1001] live=tokens\n%y = layer_norm(%x, _, _) {eps = 0.01}\n",
    "input %x : f32[9, 300] live=tokens\nconst %w : bf16[300]\n%y = rms_norm(%x, %w)\n",
    "input %x : bf16[3, 4, 5, 197]\n%y = softmax(%x) {axis = 3}\n",
    "input %x : f32[6, 2048] live=tokens\n%y = log_softmax(%x) {axis = -1}\n",
    "input %q : f16[2, 4, 45, 64]\ninput %k : f16[2, 2, 150, 64]\ninput %v : f16[2, 2, 150, "
    "64]\n%y = sdpa(%q, %k, %v, "
    "_)\n",
    "input %q : bf16[1, 2, 70, 40]\ninput %k : bf16[1, 2, 70, 40]\ninput %v : bf16[1, 2, 70, "
    "24]\ninput %m : bool[1, "
    "1, "
    "70, 70]\n%y = sdpa(%q, %k, %v, %m) {scale = 0.3}\n",
    "input %q : bf16[1, 1, 100, 128]\ninput %k : bf16[1, 1, 120, 128]\ninput %v : bf16[1, 1, 120, "
    "128]\n%y = sdpa(%q, "
    "%k, %v, _) {causal = 1, window = 30}\n",
    "input %q : f16[1, 3, 20, 17]\ninput %k : f16[1, 1, 300, 17]\ninput %v : f16[1, 1, 300, "
    "9]\ninput %m : f32[3, 1, "
    "300]\n%y = sdpa(%q, %k, %v, %m) {causal = 1}\n",
    "input %q : bf16[2, 3, 49, 32]\ninput %k : bf16[2, 3, 49, 32]\ninput %v : bf16[2, 3, 49, "
    "32]\ninput %m : bf16[2, 3, 49, 49]\n%y = sdpa(%q, %k, %v, %m) {scale = 0.18, by_rows = 1}\n",
    /* by warpgroups where there are products of these: heads of up to 64 entries, many rows */
    "input %q : bf16[1, 2, 200, 40]\ninput %k : bf16[1, 2, 300, 40]\ninput %v : bf16[1, 2, 300, "
    "40]\n%y = sdpa(%q, %k, %v, _) {scale = 3.0, by_rows = 1}\n", /* scores grow */
    "input %q : bf16[1, 2, 300, 64]\ninput %k : bf16[1, 1, 333, 64]\ninput %v : bf16[1, 1, 333, "
    "64]\n%y = sdpa(%q, %k, %v, _) {by_rows = 1}\n",
    "input %q : f16[1, 2, 200, 64]\ninput %k : f16[1, 2, 200, 64]\ninput %v : f16[1, 2, 200, "
    "64]\n%y = sdpa(%q, %k, %v, _) {causal = 1}\n",
    "input %q : bf16[1, 2, 150, 56]\ninput %k : bf16[1, 2, 256, 56]\ninput %v : bf16[1, 2, 256, "
    "64]\ninput %m : f32[1, 2, 150, 256]\n%y = sdpa(%q, %k, %v, %m) {scale = 0.2, window = 90}\n",
    "input %q : bf16[1, 1, 140, 44]\ninput %k : bf16[1, 1, 200, 44]\ninput %v : bf16[1, 1, 200, "
    "24]\n%y = sdpa(%q, %k, %v, _)\n",
    "input %q : f16[1, 1, 150, 16]\ninput %k : f16[1, 1, 150, 16]\ninput %v : f16[1, 1, 150, "
    "48]\n%y = sdpa(%q, %k, %v, _) {scale = 5.0}\n",
    "input %q : f16[1, 1, 200, 40]\ninput %a : f16[1, 1, 200, 48]\ninput %v : f16[1, 1, 200, 40]\n"
    "%k = slice(%a) {starts = [0, 0, 0, 4], stops = [1, 1, 200, 44]}\n%y = sdpa(%q, %k, %v, _)\n",
    "input %q : f16[1, 1, 260, 64]\ninput %k : f16[1, 1, 130, 64]\ninput %v : f16[1, 1, 130, "
    "56]\ninput %m : bool[1, 1, 1, 130]\n%y = sdpa(%q, %k, %v, %m)\n",
};

#endif
