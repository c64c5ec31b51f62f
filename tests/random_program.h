/* random_program.h - random tensor programs of f32 operators, and data for their tensors, all from
 * a seed.  For stress_program_test.c and cuda_peers_test.c.
 */
#ifndef TESTS_RANDOM_PROGRAM_H
#define TESTS_RANDOM_PROGRAM_H

#include "check.h"

#include "base/rng.h"
#include "ir/ir.h"

enum { MAX_VALUES = 40 };

typedef struct random_program {
    mpk_context *cx;
    uint64_t seed, used;
    ir_graph *g;
    ir_tensor_id values[MAX_VALUES]; /* f32[rows, any] */
    uint32_t n_values, n_names;
    int64_t rows;
} random_program;

static inline uint32_t random_below(random_program *b, uint32_t n)
{
    return (uint32_t)(rng_u64(b->seed, b->used++) % n);
}

static inline int64_t random_columns(const random_program *b, ir_tensor_id t)
{
    return b->g->tensors.at[t].dims[1];
}

static inline ir_tensor_id random_leaf(random_program *b, ir_kind kind, ir_live live, int64_t rows,
                                       int64_t width)
{
    ir_tensor_id t;
    char name[32];
    snprintf(name, sizeof name, "leaf%u", b->n_names++);
    check_ok(b->cx,
             ir_add_tensor(b->cx, b->g, kind, live, name, IR_F32, 2, (int64_t[]){rows, width}, &t));
    return t;
}

static inline void random_op(random_program *b, const char *op, uint32_t n_in,
                             const ir_tensor_id *in, const ir_set *set)
{
    ir_tensor_id out;
    check_ok(b->cx, ir_add_op(b->cx, b->g, op, NULL, n_in, in, set, &out));
    b->values[b->n_values++] = out;
}

/* A recurrence over the rows, if they are all alive. */
static inline void random_recur(random_program *b, ir_tensor_id x, ir_tensor_id y)
{
    static const char *const texts[] = {"x2 * sigmoid(x0) + x1", "max(x2 - 1, x0) - x1 * x1",
                                        "x0 + x1 * 0.5"},
                             *const starts[] = {"zero", "first"};
    if (b->g->tensors.at[x].live == IR_ALL && random_columns(b, x) == random_columns(b, y))
        random_op(b, "recur", 2, (ir_tensor_id[]){x, y},
                  (ir_set[]){{.name = "expr", .s = texts[random_below(b, 3)]},
                             {.name = "start", .s = starts[random_below(b, 2)]},
                             {0}});
}

/* One random operator over what is there. */
static inline void random_grow(random_program *b)
{
    static const char *const unary[] = {"silu", "gelu", "softmax", "rms_norm", "copy"},
                             *const binary[] = {"add", "mul"};
    ir_tensor_id x = b->values[random_below(b, b->n_values)],
                 y = b->values[random_below(b, b->n_values)];
    int64_t width = random_columns(b, x), from = random_below(b, (uint32_t)width),
            to = from + 1 + random_below(b, (uint32_t)(width - from));
    switch (random_below(b, 6)) {
    case 0:
        random_op(b, unary[random_below(b, 5)], 1, &x, NULL);
        break;
    case 1:
        if (random_columns(b, x) == random_columns(b, y))
            random_op(b, binary[random_below(b, 2)], 2, (ir_tensor_id[]){x, y}, NULL);
        break;
    case 2:
        random_op(
            b, "linear", 2,
            (ir_tensor_id[]){x, random_leaf(b, IR_CONST, IR_ALL, 1 + random_below(b, 40), width)},
            NULL);
        break;
    case 3:
        if (width + random_columns(b, y) < 100)
            random_op(b, "concat", 2, (ir_tensor_id[]){x, y},
                      (ir_set[]){{.name = "axis", .i = 1}, {0}});
        break;
    case 4:
        random_recur(b, x, y);
        break;
    default:
        random_op(b, "slice", 1, &x,
                  (ir_set[]){{.name = "starts", .ints = (int64_t[]){0, from}, .n_ints = 2},
                             {.name = "stops",
                              .ints = (int64_t[]){b->g->tensors.at[x].dims[0], to},
                              .n_ints = 2},
                             {0}});
    }
}

static inline void random_build(random_program *b, mpk_context *cx, arena *a, uint64_t from)
{
    *b = (random_program){.cx = cx, .seed = from};
    b->rows = 1 + random_below(b, 12);
    ir_live live = random_below(b, 2) ? IR_TOKENS : IR_ALL;
    check_ok(cx, ir_create(cx, a, "random", &b->g));
    for (uint32_t i = 0; i < 2; i++)
        b->values[b->n_values++] = random_leaf(b, IR_INPUT, live, b->rows, 1 + random_below(b, 40));
    uint32_t n = 3 + random_below(b, 25);
    while (b->n_values < n)
        random_grow(b);
    /* perhaps a view: a program of views alone has nothing to run */
    ir_tensor_id last = b->values[n - 1];
    random_op(b, "linear", 2,
              (ir_tensor_id[]){last, random_leaf(b, IR_CONST, IR_ALL, 7, random_columns(b, last))},
              NULL);
    check_ok(cx, ir_add_output(cx, b->g, b->values[n]));
}

/* A tensor's data follows from its name, so that interpreter and machine are given the same. */
static inline void random_fill(const random_program *b, const ir_tensor *t, void *data)
{
    for (int64_t i = 0; i < ir_elements(t); i++)
        ((float *)data)[i] = rng_normal(hash_bytes(t->name.at, t->name.n, b->seed), (uint64_t)i);
}

#endif
