/* delta.c - weights that models with linear attention (model_def.delta) hold as one tensor, by
 * their parts.
 *
 *   self_attn.q_proj              [2 H K', D]   of each head the rows of q_proj, then of out_gate
 *   linear_attn.in_proj_qkv       [2 G K + H V, D]  q_proj, k_proj, v_proj          (Qwen3.5)
 *   linear_attn.in_proj_{z,b,a}                 z_proj, b_proj, a_proj
 *   linear_attn.in_proj_qkvz      of each key head its rows of q, k, v, z           (Qwen3-Next)
 *   linear_attn.in_proj_ba        of each key head those of b, a
 *   linear_attn.conv1d            [2 G K + H V, 1, W]  q_conv, k_conv, v_conv, of rank 2
 *
 * GGUF files of Qwen3-Next join as Qwen3.5 does, but for in_proj_ba.  They hold -exp(A_log), as
 * blk.L.ssm_a, and call dt_bias the bias of linear_attn.dt.
 *
 * Input: the tensors of a checkpoint, with the names of Hugging Face.  Output: the same with the
 * parts in the place of what was joined.  A part is a range of rows, or rows at addresses of their
 * own (load_tensor.parts): no weights are copied.
 *
 * Called by load.c.
 */
#include <math.h>
#include <stdio.h>

#include "load/load.h"

/* Rows of a part: row i is row i / run * stride + first + i % run of the whole. */
typedef struct part {
    const char *whole, *name; /* after "model.layers.L.", before ".weight" */
    int64_t rows, run, stride, first;
} part;

enum { MOST_PARTS = 20 };

typedef struct parts {
    part at[MOST_PARTS];
    size_t n;
} parts;

static void add_part(parts *p, const char *whole, const char *name, int64_t rows, int64_t run,
                     int64_t stride, int64_t first)
{
    p->at[p->n++] = (part){whole, name, rows, run, stride, first};
}

/* One part after the other. */
static void add_range(parts *p, const char *whole, const char *name, int64_t rows, int64_t first)
{
    add_part(p, whole, name, rows, rows, 0, first);
}

static void list_parts(const model_config *c, parts *p)
{
    const int64_t G = c->delta_key_heads, K = c->delta_key_size, N = G * K, M = c->delta_heads,
                  head = c->head_size, share = M / G, values = M * c->delta_value_size,
                  run = share * c->delta_value_size, stride = 2 * K + 2 * run;
    add_part(p, "self_attn.q_proj", "self_attn.q_proj", c->n_heads * head, head, 2 * head, 0);
    add_part(p, "self_attn.q_proj", "self_attn.out_gate", c->n_heads * head, head, 2 * head, head);
    add_range(p, "linear_attn.conv1d", "linear_attn.q_conv", N, 0);
    add_range(p, "linear_attn.conv1d", "linear_attn.k_conv", N, N);
    add_range(p, "linear_attn.conv1d", "linear_attn.v_conv", values, 2 * N);
    static const char qkv[] = "linear_attn.in_proj_qkv", qkvz[] = "linear_attn.in_proj_qkvz",
                      ba[] = "linear_attn.in_proj_ba";
    add_range(p, qkv, "linear_attn.q_proj", N, 0);
    add_range(p, qkv, "linear_attn.k_proj", N, N);
    add_range(p, qkv, "linear_attn.v_proj", values, 2 * N);
    add_range(p, "linear_attn.in_proj_z", "linear_attn.z_proj", values, 0);
    add_range(p, "linear_attn.in_proj_b", "linear_attn.b_proj", M, 0);
    add_range(p, "linear_attn.in_proj_a", "linear_attn.a_proj", M, 0);
    add_part(p, qkvz, "linear_attn.q_proj", N, K, stride, 0);
    add_part(p, qkvz, "linear_attn.k_proj", N, K, stride, K);
    add_part(p, qkvz, "linear_attn.v_proj", values, run, stride, 2 * K);
    add_part(p, qkvz, "linear_attn.z_proj", values, run, stride, 2 * K + run);
    add_part(p, ba, "linear_attn.b_proj", M, share, 2 * share, 0);
    add_part(p, ba, "linear_attn.a_proj", M, share, 2 * share, share);
}

static int64_t find_row(const void *of, int64_t row)
{
    const part *p = of;
    return row / p->run * p->stride + p->first + row % p->run;
}

/* Is `whole` what a layer's name holds before its end (".weight", ".bias")?  *stem and *end: what
 * stands before and after. */
static bool cut_name(str name, const char *whole, str *stem, const char **end)
{
    static const char *const ends[] = {".weight", ".bias"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n = strlen(ends[i]), m = strlen(whole);
        if (!str_ends(name, str_from(ends[i])) || name.n < n + m + 1)
            continue;
        *stem = (str){name.at, name.n - n - m};
        *end = ends[i];
        return memcmp(name.at + stem->n, whole, m) == 0 && name.at[stem->n - 1] == '.';
    }
    return false;
}

/* The convolution's weights have an axis of one entry in the middle. */
static mpk_status flatten(mpk_context *cx, const model_config *c, load_tensor *t)
{
    CHECK(cx,
          t->dims[t->rank - 1] == c->delta_conv &&
              (t->rank == 2 || (t->rank == 3 && t->dims[1] == 1)),
          MPK_ESHAPE, "the convolution %.*s does not cover %u tokens of each row",
          LOAD_NAME(t->name), c->delta_conv);
    t->rank = 2;
    t->dims[1] = c->delta_conv;
    return MPK_OK;
}

/* Add part p of the tensor t. */
static mpk_status add(mpk_context *cx, load_model *m, const part *p, load_tensor t, str stem,
                      const char *end)
{
    str name;
    TRY(load_make_name(cx, &m->arena, stem, p->name, &name));
    TRY(load_make_name(cx, &m->arena, name, end, &t.name));
    if (p->stride || t.rank == 1) {
        TRY(load_order_rows(cx, &m->arena, (load_order){find_row, p}, p->rows, &t));
        return load_add_tensor(cx, m, &t);
    }
    const uint64_t row_bytes = t.n_bytes / (uint64_t)t.dims[0];
    if (t.parts)
        t.parts += p->first;
    else
        t.data = (const char *)t.data + row_bytes * (uint64_t)p->first;
    t.dims[0] = p->rows;
    t.n_bytes = row_bytes * (uint64_t)p->rows;
    return load_add_tensor(cx, m, &t);
}

/* Add the parts of t; *joined false: it has none. */
static mpk_status split(mpk_context *cx, load_model *m, const parts *p, const load_tensor *t,
                        bool *joined)
{
    int64_t rows = 0;
    const char *end;
    str stem;
    *joined = false;
    for (size_t i = 0; i < p->n; i++)
        if (cut_name(t->name, p->at[i].whole, &stem, &end))
            rows += p->at[i].rows;
    if (!rows)
        return MPK_OK;
    *joined = true;
    CHECK(cx, t->rank && t->dims[0] == rows, MPK_ESHAPE,
          "the weight %.*s has %lld rows, expected %lld, those of its parts together",
          LOAD_NAME(t->name), t->rank ? (long long)t->dims[0] : 0, (long long)rows);
    load_tensor whole = *t;
    if (cut_name(t->name, "linear_attn.conv1d", &stem, &end))
        TRY(flatten(cx, &m->config, &whole));
    for (size_t i = 0; i < p->n; i++)
        if (cut_name(t->name, p->at[i].whole, &stem, &end))
            TRY(add(cx, m, &p->at[i], whole, stem, end));
    return MPK_OK;
}

/* What only GGUF files have: ssm_a becomes A_log in the arena, the bias of dt gets its name. */
static mpk_status rename_gguf(mpk_context *cx, load_model *m, load_tensor *t)
{
    static const char a[] = ".ssm_a", dt[] = ".linear_attn.dt.bias";
    if (str_ends(t->name, str_from(dt)))
        return load_make_name(cx, &m->arena, (str){t->name.at, t->name.n - strlen(dt)},
                              ".linear_attn.dt_bias", &t->name);
    if (!str_begins(t->name, STR("blk.")) || !str_ends(t->name, str_from(a)))
        return MPK_OK;
    const int64_t n = m->config.delta_heads;
    float *log_of;
    CHECK(cx, t->dtype == IR_F32 && t->rank == 1 && t->dims[0] == n, MPK_ESHAPE,
          "tensor %.*s is not f32[%u], a number for each head of values", LOAD_NAME(t->name),
          m->config.delta_heads);
    NEW(cx, &m->arena, log_of, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        log_of[i] = logf(-load_number(t, i));
    t->data = log_of;
    char name[96];
    snprintf(name, sizeof name, "%.*s.linear_attn.A_log", (int)(t->name.n - 4 - strlen(a)),
             t->name.at + 4);
    return load_make_name(cx, &m->arena, STR("model.layers."), name, &t->name);
}

/* The list is made anew, since parts take the place of what was joined. */
mpk_status load_split_delta(mpk_context *cx, load_model *m)
{
    const model_def *def;
    parts p = {.n = 0};
    TRY(model_find(cx, m->config.family, &def));
    if (!def->delta)
        return MPK_OK;
    list_parts(&m->config, &p);
    const load_tensor *old = m->tensors.at;
    const size_t n = m->tensors.n;
    load_empty_list(m);
    for (size_t i = 0; i < n; i++) {
        load_tensor t = old[i];
        bool joined;
        TRY(rename_gguf(cx, m, &t));
        TRY(split(cx, m, &p, &t, &joined));
        if (!joined)
            TRY(load_add_tensor(cx, m, &t));
    }
    return MPK_OK;
}
