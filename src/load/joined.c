/* joined.c - weights that the files of some families hold as one tensor, by their parts.
 *
 *   model.layers.L.self_attn.qkv_proj.weight [(H + 2 G) K, D]   q_proj, k_proj, v_proj
 *   model.layers.L.self_attn.qkv_proj.bias   [(H + 2 G) K]      likewise
 *   model.layers.L.mlp.gate_up_proj.weight   [2 F, D]           gate_proj, up_proj
 *
 * Input: the tensors of a checkpoint or GGUF file, with the names of Hugging Face.  Output: the
 * same with the parts in the place of what was joined.  A part is a range of rows and a row is
 * whole blocks of any format, so a part is an address: nothing is copied.  The programs of these
 * families are those of others, and passes join the products again where that is faster.
 *
 * load_split_joined is called by load.c; load_join_parts is its inverse, for quantize.c.
 */
#include <string.h>

#include "load/load.h"

enum { MOST_PARTS = 3 };

/* What is joined: the end of its name, the ends of its parts' names. */
typedef struct joint {
    model_joints kind;
    const char *whole;
    const char *parts[MOST_PARTS]; /* NULL after the last one */
} joint;

static const joint joints[] = {
    {MODEL_JOINS_QKV,
     "self_attn.qkv_proj.weight",
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
    {MODEL_JOINS_QKV,
     "self_attn.qkv_proj.bias",
     {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}},
    {MODEL_JOINS_GATE_UP,
     "mlp.gate_up_proj.weight",
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
};
enum { N_JOINTS = sizeof joints / sizeof *joints };

/* Does the name end so, after a dot? */
static bool ends_with(str name, const char *end)
{
    size_t n = strlen(end);
    return name.n > n && name.at[name.n - n - 1] == '.' &&
           memcmp(name.at + name.n - n, end, n) == 0;
}

/* name with the end `old` replaced by `end`, in arena a. */
static mpk_status replace_end(mpk_context *cx, arena *a, str name, const char *old, const char *end,
                              str *out)
{
    return load_make_name(cx, a, (str){name.at, name.n - strlen(old)}, end, out);
}

/* How many rows part number i of a joined tensor has. */
static int64_t part_rows(const model_config *c, const joint *j, int i)
{
    const int64_t head = c->head_size;
    if (j->kind == MODEL_JOINS_GATE_UP)
        return c->ffn_size;
    return head * (i == 0 ? c->n_heads : c->n_kv_heads);
}

/* Add the parts of t as views. */
static mpk_status split(mpk_context *cx, load_model *m, const joint *j, const load_tensor *t)
{
    int64_t rows = 0, first = 0;
    for (int i = 0; i < MOST_PARTS && j->parts[i]; i++)
        rows += part_rows(&m->config, j, i);
    CHECK(cx, (t->rank == 2 || t->rank == 1) && t->dims[0] == rows, MPK_ESHAPE,
          "the weight %.*s has %lld rows, expected %lld, those of its parts together",
          LOAD_NAME(t->name), (long long)t->dims[0], (long long)rows);
    CHECK(cx, t->n_bytes % (uint64_t)rows == 0, MPK_EUNSUPPORTED,
          "the bias %.*s is stored in blocks", LOAD_NAME(t->name));
    const uint64_t row_bytes = t->n_bytes / (uint64_t)rows;
    for (int i = 0; i < MOST_PARTS && j->parts[i]; i++) {
        load_tensor part = *t;
        part.dims[0] = part_rows(&m->config, j, i);
        part.n_bytes = row_bytes * (uint64_t)part.dims[0];
        if (t->parts)
            part.parts = t->parts + first;
        else
            part.data = (const char *)t->data + row_bytes * (uint64_t)first;
        first += part.dims[0];
        TRY(replace_end(cx, &m->arena, t->name, j->whole, j->parts[i], &part.name));
        TRY(load_add_tensor(cx, m, &part));
    }
    return MPK_OK;
}

/* What the model's family joins. */
static mpk_status find_joints(mpk_context *cx, const load_model *m, model_joints *out)
{
    const model_def *def;
    TRY(model_find(cx, m->config.family, &def));
    *out = def->joints;
    return MPK_OK;
}

/* The list is made anew, since parts take the place of what was joined. */
mpk_status load_split_joined(mpk_context *cx, load_model *m)
{
    model_joints joints_of;
    TRY(find_joints(cx, m, &joints_of));
    if (!joints_of)
        return MPK_OK;
    const load_tensor *old = m->tensors.at;
    const size_t n = m->tensors.n;
    load_empty_list(m);
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        while (j < N_JOINTS &&
               (!(joints[j].kind & joints_of) || !ends_with(old[i].name, joints[j].whole)))
            j++;
        TRY(j < N_JOINTS ? split(cx, m, &joints[j], &old[i]) : load_add_tensor(cx, m, &old[i]));
    }
    return MPK_OK;
}

/* The row of a checkpoint that becomes row `row`: there each head has its rows of q, k and v. */
static int64_t find_row(const void *of, int64_t row)
{
    const model_config *c = of;
    const int64_t K = c->head_size, head = row / K % c->n_heads, part = row / K / c->n_heads;
    return (3 * head + part) * K + row % K;
}

mpk_status load_order_joined(mpk_context *cx, load_model *m)
{
    const model_config *c = &m->config;
    for (size_t i = 0; i < m->tensors.n; i++) {
        load_tensor *t = &m->tensors.at[i];
        if ((!ends_with(t->name, joints[0].whole) && !ends_with(t->name, joints[1].whole)) ||
            t->dims[0] != (int64_t)3 * c->n_heads * c->head_size || c->n_kv_heads != c->n_heads)
            continue; /* of another shape, it is refused by name */
        TRY(load_order_rows(cx, &m->arena, (load_order){find_row, c}, t->dims[0], t));
    }
    return MPK_OK;
}

/* Write the addresses of t's rows to `to`. */
static void list_rows(const load_tensor *t, const void **to)
{
    for (int64_t i = 0; i < t->dims[0]; i++)
        to[i] = t->parts ? t->parts[i]
                         : (const char *)t->data + t->n_bytes / (uint64_t)t->dims[0] * (uint64_t)i;
}

/* The entries of a vector lie together. */
static mpk_status gather(mpk_context *cx, arena *a, load_tensor *t)
{
    const size_t bytes = (size_t)(t->n_bytes / (uint64_t)t->dims[0]);
    char *to;
    NEW(cx, a, to, t->n_bytes);
    for (int64_t i = 0; i < t->dims[0]; i++)
        memcpy(to + (size_t)i * bytes, t->parts[i], bytes);
    t->data = to;
    t->parts = NULL;
    return MPK_OK;
}

/* The parts may be anywhere, so the whole is the address of each row. */
static mpk_status join(mpk_context *cx, arena *a, const load_model *m, const joint *j,
                       const load_tensor *t, const load_tensor **out)
{
    load_tensor *whole;
    int64_t rows = 0;
    NEW(cx, a, whole, 1);
    *whole = *t;
    TRY(replace_end(cx, a, t->name, j->parts[0], j->whole, &whole->name));
    for (int i = 0; i < MOST_PARTS && j->parts[i]; i++)
        rows += part_rows(&m->config, j, i);
    NEW(cx, a, whole->parts, (size_t)rows);
    whole->data = NULL;
    whole->dims[0] = whole->n_bytes = 0;
    for (int i = 0; i < MOST_PARTS && j->parts[i]; i++) {
        str name;
        uint64_t index;
        TRY(replace_end(cx, a, t->name, j->parts[0], j->parts[i], &name));
        CHECK(cx, map_get(&m->names, name, &index), MPK_EFORMAT, "the weight %.*s is missing",
              LOAD_NAME(name));
        const load_tensor *part = &m->tensors.at[index];
        CHECK(cx, part->dtype == t->dtype, MPK_EUNSUPPORTED,
              "%.*s and %.*s are stored apart and differently: they cannot be joined",
              LOAD_NAME(t->name), LOAD_NAME(part->name));
        list_rows(part, whole->parts + whole->dims[0]);
        whole->dims[0] += part->dims[0];
        whole->n_bytes += part->n_bytes;
    }
    *out = whole;
    return whole->rank == 1 ? gather(cx, a, whole) : MPK_OK;
}

mpk_status load_join_parts(mpk_context *cx, arena *a, const load_model *m, const load_tensor *t,
                           const load_tensor **out)
{
    model_joints joints_of;
    *out = t;
    TRY(find_joints(cx, m, &joints_of));
    for (size_t j = 0; j < N_JOINTS; j++)
        for (int i = 0; i < MOST_PARTS && joints[j].parts[i]; i++)
            if ((joints[j].kind & joints_of) && ends_with(t->name, joints[j].parts[i])) {
                *out = NULL;
                return i ? MPK_OK : join(cx, a, m, &joints[j], t, out);
            }
    return MPK_OK;
}
