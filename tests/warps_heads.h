/* warps_heads.h - what surrounds latent attention, for body_warps_test.c: products of heads, of the
 * first columns of wider rows, of few tokens and of many; and the queries and latents that are made
 * of their results.
 */
#ifndef TESTS_WARPS_HEADS_H
#define TESTS_WARPS_HEADS_H

/* x is columns first .. end of rows of `wide`. */
#define HEADS_OF(tokens, heads, wide, first, end, width, rows)                             \
    "input %q : bf16[" tokens ", " heads ", " wide "] live=tokens\nconst %w : bf16[" heads \
    ", " rows ", " width "]\n%x = slice(%q) {starts = [0, 0, " first "], stops = [" tokens \
    ", " heads ", " end "]}\n%y = head_linear(%x, %w)\n"
#define FIRST_OF_HEADS(tokens, heads, wide, width, rows) \
    HEADS_OF(tokens, heads, wide, "0", width, width, rows)
#define COMPANY_HEADS(tokens) FIRST_OF_HEADS(tokens, "3", "392", "384", "40")

/* A model's sizes; one token, whose views have no distance between tokens; groups that are no whole
 * page, chunks that are not full, units of a page from 1 to 8; rounds of 64 tokens, and their
 * end. */
static const char *const head_graphs[] = {
    FIRST_OF_HEADS("1", "16", "192", "128", "512"),
    FIRST_OF_HEADS("16", "16", "576", "512", "128"),
    FIRST_OF_HEADS("64", "2", "192", "128", "512"),
    FIRST_OF_HEADS("1", "4", "576", "512", "128"),
    HEADS_OF("11", "4", "192", "16", "144", "128", "24"),
    FIRST_OF_HEADS("70", "3", "80", "72", "24"),
    FIRST_OF_HEADS("5", "2", "1032", "1024", "16"),
    FIRST_OF_HEADS("9", "3", "328", "320", "56"),
    FIRST_OF_HEADS("150", "2", "320", "256", "72"),
    FIRST_OF_HEADS("256", "1", "704", "640", "40"),
    FIRST_OF_HEADS("3", "5", "904", "896", "8"),
    /* many tokens: lots of 128, tiles of 128 rows and their ends */
    FIRST_OF_HEADS("300", "2", "192", "128", "512"),
    FIRST_OF_HEADS("257", "2", "576", "512", "128"),
    HEADS_OF("400", "2", "192", "64", "128", "64", "40"),
    FIRST_OF_HEADS("385", "1", "1296", "1288", "200"),
    FIRST_OF_HEADS("512", "1", "80", "72", "328"),
};

/* latent_rope of parts of wider rows, as a model has them: q is the end of rows of `wide`, latent
 * and key are one row. */
#define LATENT_ROWS(tokens, heads, latent, row, wide, first, rotated, half, norm, pages, cache) \
    "input %x : bf16[" tokens ", " heads ", " latent "] live=tokens\ninput %a : bf16[" tokens   \
    ", " heads ", " wide "] live=tokens\ninput %b : bf16[" tokens ", " row                      \
    "] live=tokens\ninput %t : f32[" tokens ", 2, " half "] live=tokens\nconst %n : " norm      \
    "[" latent "]\ninput %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens              \
    "] live=tokens\ninput %pages : i32[" pages "]\nstate %kc : bf16[" cache ", " row "]\n"      \
    "%q = slice(%a) {starts = [0, 0, " first "], stops = [" tokens ", " heads ", " wide "]}\n"  \
    "%l = slice(%b) {starts = [0, 0], stops = [" tokens ", " latent "]}\n"                      \
    "%c = slice(%b) {starts = [0, " latent "], stops = [" tokens ", " row "]}\n"                \
    "%k = reshape(%c) {shape = [" tokens ", 1, " rotated "]}\n"                                 \
    "%y, %kn = latent_rope(%x, %q, %l, %k, %t, %n, %p, %s, %pages, %kc) {eps = 1e-05}\n"
#define LATENT_ROWS_512(tokens, heads, pages, cache) \
    LATENT_ROWS(tokens, heads, "512", "576", "192", "128", "64", "32", "bf16", pages, cache)

/* A model's sizes, one token to more than threads; latents of one, three and four pieces a lane, of
 * which some are not there; pages that are in no blocks; fewer tokens than heads, and more. */
static const char *const latent_graphs[] = {
    LATENT_ROWS_512("1", "16", "3, 2", "6, 1, 64"),
    LATENT_ROWS_512("16", "16", "16, 1", "17, 1, 64"),
    LATENT_ROWS_512("300", "3", "2, 5", "11, 1, 64"),
    LATENT_ROWS_512("64", "16", "64, 1", "66, 1, 64"),
    LATENT_ROWS("7", "5", "72", "88", "40", "24", "16", "8", "f32", "2, 3", "7, 1, 12"),
    LATENT_ROWS("40", "4", "768", "832", "192", "128", "64", "32", "f32", "3, 2", "7, 1, 16"),
    LATENT_ROWS("33", "9", "1024", "1056", "48", "16", "32", "16", "bf16", "1, 3", "4, 1, 64"),
};

#endif
