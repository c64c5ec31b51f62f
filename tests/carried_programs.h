/* carried_programs.h - random programs in which much is carried, of one GPU and of several.  For
 * carriers_test.c. */
#ifndef TESTS_CARRIED_PROGRAMS_H
#define TESTS_CARRIED_PROGRAMS_H

#include <stdarg.h>

#include "cuda_bed.h"

enum { RANDOM_VALUES = 24, RANDOM_BYTES = 4096 };

/* Operators over bf16[4, columns]; those after the first few are mostly products, which carry. */
typedef struct random_text {
    uint64_t number, used;
    int columns[RANDOM_VALUES];
    bool is_read[RANDOM_VALUES];
    int n_values;
    bool has_state; /* that is not written yet */
    char text[RANDOM_BYTES];
    size_t n;
} random_text;

static inline uint32_t below(random_text *r, uint32_t n)
{
    return (uint32_t)(rng_u64(rng_u64(seed, r->number), r->used++) % n);
}

static inline void say(random_text *r, const char *format, ...)
{
    va_list words;
    va_start(words, format);
    r->n += (size_t)vsnprintf(r->text + r->n, sizeof r->text - r->n, format, words);
    va_end(words);
    assert_true(r->n < sizeof r->text);
}

/* A value made before, mostly the last one: branches that never meet have no end. */
static inline int some_value(random_text *r)
{
    const int i = below(r, 8) ? r->n_values - 1 : (int)below(r, (uint32_t)r->n_values);
    r->is_read[i] = true;
    return i;
}

/* A value of as many columns as `as`: `as` itself, if there is no other. */
static inline int one_alike(random_text *r, int as)
{
    for (int tries = 0; tries < 8; tries++) {
        const int i = (int)below(r, (uint32_t)r->n_values);
        if (r->columns[i] == r->columns[as] && i != as) {
            r->is_read[i] = true;
            return i;
        }
    }
    return as;
}

static inline void add_value(random_text *r, int columns)
{
    r->columns[r->n_values++] = columns;
}

/* y = x w^T, with a residual or gated now and then. */
static inline void add_product(random_text *r)
{
    const int x = some_value(r), y = r->n_values, k = r->columns[x];
    int columns = 64 << below(r, 2);
    if (below(r, 10) == 0)
        columns = 17 + (int)below(r, 2); /* of 18 tasks share words, of 17 a row ends within one */
    int residual = -1;
    for (int i = 0; i < y && below(r, 2); i++)
        if (r->columns[i] == columns)
            residual = i;
    if (residual >= 0) {
        r->is_read[residual] = true;
        say(r, "%%v%d = linear(%%v%d, %%w%d_%d, _, _, _, _, _, _, %%v%d)\n", y, x, columns, k,
            residual);
    } else {
        say(r, "%%v%d = linear(%%v%d, %%w%d_%d)\n", y, x, columns, k);
    }
    add_value(r, columns);
}

static inline void add_other(random_text *r)
{
    const int x = some_value(r), y = r->n_values;
    switch (below(r, 4)) {
    case 0:
        say(r, "%%v%d = silu(%%v%d)\n", y, x);
        add_value(r, r->columns[x]);
        break;
    case 1:
        say(r, "%%v%d = add(%%v%d, %%v%d)\n", y, x, one_alike(r, x));
        add_value(r, r->columns[x]);
        break;
    case 2: /* a product that reads a view, which no word of is carried */
        if (r->columns[x] == 128) {
            say(r, "%%v%d = slice(%%v%d) {starts = [0, 64], stops = [4, 128]}\n", y, x);
            add_value(r, 64);
        }
        break;
    default: /* of another step's, which this one overwrites after it has been read */
        if (r->has_state && r->columns[x] == 64) {
            r->has_state = false;
            say(r, "%%v%d = mul(%%v%d, %%s)\n", y, x);
            add_value(r, 64);
            say(r,
                "%%u%d = slice_scatter(%%s, %%v%d) {starts = [0, 0], stops = [4, 64], "
                "in_place = 1}\n",
                y, y);
        }
    }
}

static inline void make_text(random_text *r)
{
    static const int widths[] = {64, 128, 18, 17};
    r->has_state = below(r, 2);
    say(r, "input %%v0 : bf16[4, 128]%s\n",
        r->has_state  ? ""
        : below(r, 4) ? " live=tokens"
                      : " live=rows");
    say(r, "state %%s : bf16[4, 64]\n");
    for (int n = 0; n < 4; n++)
        for (int k = 0; k < 4; k++)
            say(r, "const %%w%d_%d : bf16[%d, %d]\n", widths[n], widths[k], widths[n], widths[k]);
    add_value(r, 128);
    r->is_read[0] = true;
    const int n = 6 + (int)below(r, 10);
    while (r->n_values < n)
        if (below(r, 5) || n - r->n_values < 3)
            add_product(r);
        else
            add_other(r);
    for (int i = 0; i < r->n_values; i++)
        if (!r->is_read[i] || (i && below(r, 30) == 0))
            say(r, "output %%v%d\n", i);
}

/* Programs of two or three GPUs: each has products of its own, some of which make terms that all
 * add.  GPUs do not have equally many tasks, and those of few columns leave workers idle. */
static inline void make_joint_text(random_text *r)
{
    static const int widths[] = {8, 16, 32, 128};
    const int n_gpus = 2 + (int)below(r, 2), n_layers = 1 + (int)below(r, 3),
              width = widths[below(r, 4)];
    say(r, "peer all\ninput %%t : bf16[4, %d] live=tokens\n", width);
    for (int i = 0; i < 4; i++)
        say(r, "const %%u%d : bf16[%d, %d]\nconst %%d%d : bf16[%d, %d]\n", i, widths[i], width, i,
            width, widths[i]);
    for (int p = 0; p < n_gpus; p++)
        say(r, "peer %d\n%%x0_%d = silu(%%t)\n", p, p);
    for (int layer = 0; layer < n_layers; layer++) {
        const uint32_t terms = 1 + below(r, (1u << n_gpus) - 1);
        for (int p = 0; p < n_gpus; p++) {
            const int i = (int)below(r, 4);
            if (terms >> p & 1)
                say(r,
                    "peer %d\n%%h%d_%d = linear(%%x%d_%d, %%u%d)\n"
                    "%%t%d_%d = linear(%%h%d_%d, %%d%d)\n",
                    p, layer, p, layer, p, i, layer, p, layer, p, i);
        }
        for (int p = 0; p < n_gpus; p++) {
            say(r, "peer %d\n%%x%d_%d = add_parts(%%x%d_%d", p, layer + 1, p, layer, p);
            for (int q = 0; q < n_gpus; q++)
                if (terms >> q & 1)
                    say(r, ", %%t%d_%d", layer, q);
            say(r, ")\n");
        }
        for (int q = 0; q < n_gpus; q++) /* a product of a term's own GPU reads it, too */
            if (terms >> q & 1 && below(r, 12) == 0)
                say(r, "peer %d\n%%k%d_%d = linear(%%t%d_%d, %%u%d)\noutput %%k%d_%d\n", q, layer,
                    q, layer, q, (int)below(r, 4), layer, q);
    }
    for (int p = 0; p < n_gpus; p++)
        say(r, "peer %d\n%%y%d = linear(%%x%d_%d, %%u%d)\noutput %%y%d\n", p, p, n_layers, p,
            (int)below(r, 4), p);
}

#endif
