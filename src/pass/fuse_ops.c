/* fuse_ops.c - fewer, larger operators: each rule is a pattern, its conditions and what takes its place.
 *
 * Input and output: a tensor program.  Every fused operator gives the bits of those it replaces: so rules that would
 * skip a rounding apply to f32 alone.
 *
 *   glu        act(linear(x, g)) * linear(x, u)              -> linear(x, g, u) {glu = act}          full
 *   siblings   linear(x, a), linear(x, b), linear(x, c)      -> slices of linear(x, a, b, c)         full, paper
 *   residual   linear(x, w) + r                              -> linear(x, w, residual = r)           full, paper
 *   norm       linear(rms_norm(x, n), w)                     -> linear(x, w, norm = n)               full, few tokens
 *   rope_kv    slices of qkv, norms, ropes, kv_write         -> rope_kv(qkv, ...)                    full
 *   attention  the same with the attention behind them       -> attention_qkv(qkv, ...)              paper
 *
 * A weight that is computed may not exist yet where a fused linear stands: rules that move a linear take constants
 * only. Cost: linear in the program.
 */
#include "pass/rewrite.h"

/* Operands of linear. */
enum { X, W0, B0 = 4, NORM = 7, RESIDUAL = 8, LINEAR_INPUTS = 9, LINEAR_WEIGHTS = 3 };

/* Where a normalised row is computed again by every task, this many elements take about as long as an event. */
enum { MOST_NORM_ELEMENTS = 16384 };

static const ir_tensor *tensor_of(const rewrite *w, ir_tensor_id t)
{
    return &w->g->tensors.at[t];
}

static bool same_dims(const ir_tensor *a, const ir_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->live == b->live &&
           memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

static bool is_const(const rewrite *w, ir_tensor_id t)
{
    return t == IR_NONE || tensor_of(w, t)->kind == IR_CONST;
}

static bool has_f32_result(const rewrite *w, const ir_op *op)
{
    return tensor_of(w, op->out[0])->dtype == IR_F32;
}

/* Nothing but `uses` operands reads the first result, and it is no output of the graph. */
static bool is_private(const rewrite *w, const ir_op *op, uint32_t uses)
{
    ir_tensor_id t = op->out[0];
    return w->uses.at[t] == uses && !(t < w->n_source && w->is_output[t]);
}

/* ---- linear ---- */

typedef struct linear_parts {
    ir_tensor_id in[LINEAR_INPUTS];
    double eps;
    str glu;
    uint32_t n_weights;
} linear_parts;

static void read_linear(const rewrite *w, const ir_op *op, linear_parts *out)
{
    for (uint32_t i = 0; i < LINEAR_INPUTS; i++)
        out->in[i] = rewrite_input(w, op, i);
    out->eps = rewrite_attribute(op, "eps")->f;
    out->glu = rewrite_attribute(op, "glu")->s;
    out->n_weights = 0;
    for (uint32_t i = 0; i < LINEAR_WEIGHTS; i++)
        out->n_weights += out->in[W0 + i] != IR_NONE;
}

static mpk_status add_linear(rewrite *w, uint32_t key, const linear_parts *parts, ir_tensor_id *out)
{
    char glu[16] = "";
    if (parts->glu.n && parts->glu.n < sizeof glu)
        memcpy(glu, parts->glu.at, parts->glu.n);
    return rewrite_add(w, key, "linear", LINEAR_INPUTS, parts->in,
                       (ir_set[]){{.name = "eps", .f = parts->eps}, {.name = "glu", .s = glu}, {0}}, out);
}

static bool is_plain(const rewrite *w, const linear_parts *p)
{
    for (uint32_t i = W0; i < NORM; i++)
        if (!is_const(w, p->in[i]))
            return false;
    return !p->glu.n && p->in[RESIDUAL] == IR_NONE;
}

static bool same_x(const linear_parts *a, const linear_parts *b)
{
    return a->in[X] == b->in[X] && a->in[NORM] == b->in[NORM] && (a->in[NORM] == IR_NONE || a->eps == b->eps);
}

/* ---- rule glu ---- */

/* act and the linear behind it of the factor `t` of a product. */
static const ir_op *find_gate(const rewrite *w, ir_tensor_id t, const char **act)
{
    const ir_op *gelu = rewrite_producer(w, t, "gelu"), *silu = rewrite_producer(w, t, "silu");
    const ir_op *found = gelu ? gelu : silu;
    if (!found || !is_private(w, found, 1))
        return NULL;
    *act = silu ? "silu" : rewrite_attribute(gelu, "tanh")->i ? "gelu_tanh" : "gelu";
    return rewrite_producer(w, rewrite_input(w, found, 0), "linear");
}

static mpk_status apply_glu(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id], *gate = NULL, *up = NULL;
    const char *act = "silu";
    bool product = strcmp(op->def->name, "mul") == 0;
    if (strcmp(op->def->name, "silu_mul") == 0)
        gate = rewrite_producer(w, rewrite_input(w, op, 0), "linear");
    else if (product)
        gate = find_gate(w, rewrite_input(w, op, 0), &act);
    if (gate)
        up = rewrite_producer(w, rewrite_input(w, op, 1), "linear");
    else if (product && (gate = find_gate(w, rewrite_input(w, op, 1), &act)))
        up = rewrite_producer(w, rewrite_input(w, op, 0), "linear");
    if (!gate || !up || gate == up || !is_private(w, gate, 1) || !is_private(w, up, 1) || !has_f32_result(w, op))
        return MPK_OK;
    linear_parts a, b;
    ir_tensor_id out;
    read_linear(w, gate, &a);
    read_linear(w, up, &b);
    if (!is_plain(w, &a) || !is_plain(w, &b) || !same_x(&a, &b) || a.n_weights != 1 || b.n_weights != 1 ||
        !same_dims(tensor_of(w, gate->out[0]), tensor_of(w, up->out[0])) ||
        !same_dims(tensor_of(w, gate->out[0]), tensor_of(w, op->out[0])))
        return MPK_OK;
    ir_tensor_id old = op->out[0];
    a.in[W0 + 1] = b.in[W0];
    a.in[B0 + 1] = b.in[B0];
    a.glu = str_from(act);
    TRY(add_linear(w, w->keys.at[id], &a, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* ---- rule siblings ---- */

/* Let columns first ... first + n - 1 of the wide linear stand for a tensor. */
static mpk_status replace_by_slice(rewrite *w, uint32_t key, ir_tensor_id wide, int64_t first, ir_tensor_id old)
{
    const ir_tensor *t = tensor_of(w, old);
    int64_t starts[2] = {0, first}, stops[2] = {t->dims[0], first + t->dims[1]};
    ir_tensor_id out;
    TRY(rewrite_add(
        w, key, "slice", 1, &wide,
        (ir_set[]){{.name = "starts", .ints = starts, .n_ints = 2}, {.name = "stops", .ints = stops, .n_ints = 2}, {0}},
        &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* The linears from id on that can share their columns with it; returns how many, those of `list`. */
static uint32_t find_siblings(const rewrite *w, ir_op_id id, uint32_t n_ops, ir_op_id *list, linear_parts *wide)
{
    enum { WINDOW = 32 };
    const ir_op *first = &w->g->ops.at[id];
    uint32_t n = 0;
    for (ir_op_id o = id; o < n_ops && o < id + WINDOW; o++) {
        const ir_op *op = &w->g->ops.at[o];
        linear_parts p;
        bool fits = strcmp(op->def->name, "linear") == 0 && w->uses.at[op->out[0]] && !w->is_output[op->out[0]];
        if (fits) {
            read_linear(w, op, &p);
            fits = is_plain(w, &p) && (!n || (same_x(wide, &p) && wide->n_weights + p.n_weights <= LINEAR_WEIGHTS &&
                                              tensor_of(w, op->out[0])->dtype == tensor_of(w, first->out[0])->dtype));
        }
        if (!fits && o == id)
            return 0;
        if (!fits)
            continue;
        for (uint32_t i = 0; n && i < p.n_weights; i++) {
            wide->in[W0 + wide->n_weights + i] = p.in[W0 + i];
            wide->in[B0 + wide->n_weights + i] = p.in[B0 + i];
        }
        if (n)
            wide->n_weights += p.n_weights;
        else
            *wide = p;
        list[n++] = o;
    }
    return n;
}

static mpk_status apply_siblings(rewrite *w, ir_op_id id, uint32_t n_ops)
{
    ir_op_id list[LINEAR_WEIGHTS];
    linear_parts wide;
    ir_tensor_id out;
    uint32_t n = strcmp(w->g->ops.at[id].def->name, "linear") == 0 ? find_siblings(w, id, n_ops, list, &wide) : 0;
    if (n < 2)
        return MPK_OK;
    TRY(add_linear(w, w->keys.at[id], &wide, &out));
    int64_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        ir_tensor_id old = w->g->ops.at[list[i]].out[0];
        int64_t columns = tensor_of(w, old)->dims[1];
        TRY(replace_by_slice(w, w->keys.at[id] + 1, out, first, old));
        first += columns;
    }
    return MPK_OK;
}

/* ---- rule residual ---- */

static mpk_status apply_residual(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "add") != 0 || !has_f32_result(w, op))
        return MPK_OK;
    for (uint32_t side = 0; side < 2; side++) {
        ir_tensor_id r = rewrite_input(w, op, !side), old = op->out[0], out;
        const ir_op *linear = rewrite_producer(w, rewrite_input(w, op, side), "linear");
        linear_parts p;
        if (!linear || !is_private(w, linear, 1) || r == linear->out[0])
            continue;
        read_linear(w, linear, &p);
        if (p.in[RESIDUAL] != IR_NONE || !same_dims(tensor_of(w, r), tensor_of(w, old)) ||
            !same_dims(tensor_of(w, linear->out[0]), tensor_of(w, old)))
            continue;
        p.in[RESIDUAL] = r;
        TRY(add_linear(w, w->keys.at[id], &p, &out));
        rewrite_replace(w, old, out);
        return MPK_OK;
    }
    return MPK_OK;
}

/* ---- rule norm ---- */

static mpk_status apply_norm(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    linear_parts p;
    ir_tensor_id out, old = op->out[0];
    if (strcmp(op->def->name, "linear") != 0 || !w->uses.at[old])
        return MPK_OK;
    read_linear(w, op, &p);
    const ir_op *norm = rewrite_producer(w, p.in[X], "rms_norm");
    if (p.in[NORM] != IR_NONE || !norm || !is_private(w, norm, 1) || !has_f32_result(w, norm) ||
        rewrite_input(w, norm, 1) == IR_NONE || ir_elements(tensor_of(w, norm->out[0])) > MOST_NORM_ELEMENTS)
        return MPK_OK;
    p.in[X] = rewrite_input(w, norm, 0);
    p.in[NORM] = rewrite_input(w, norm, 1);
    p.eps = rewrite_attribute(norm, "eps")->f;
    TRY(add_linear(w, w->keys.at[id], &p, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

/* ---- rules rope_kv and attention ---- */

typedef struct attention_parts {
    ir_tensor_id qkv, table, positions, slots, pages, k_cache, v_cache, q_norm, k_norm;
    int64_t heads, kv_heads, head_size, interleaved;
    double eps;
    const ir_op *kv_write, *rope_table;
} attention_parts;

/* Is t [T, n, K] the part of qkv [T, columns] that begins at column `first`?  The stride of an axis of one entry says
 * nothing. */
static bool is_part(const rewrite *w, ir_tensor_id t, ir_tensor_id qkv, int64_t first, int64_t n, int64_t head_size)
{
    const ir_tensor *part = tensor_of(w, t), *whole = tensor_of(w, qkv);
    int64_t dims[3] = {whole->dims[0], n, head_size}, strides[3] = {whole->dims[1], head_size, 1};
    if (part->rank != 3 || tg_root(w->g, t) != qkv || part->dtype != whole->dtype || part->offset != first)
        return false;
    for (uint32_t i = 0; i < 3; i++)
        if (part->dims[i] != dims[i] || (dims[i] > 1 && part->stride[i] != strides[i]))
            return false;
    return true;
}

/* Through rope and the norm behind it, if there is one, to the part of qkv; IR_NONE: another pattern. */
static ir_tensor_id find_rotated(const rewrite *w, ir_tensor_id t, attention_parts *p, ir_tensor_id *norm_weight)
{
    const ir_op *rope = rewrite_producer(w, t, "rope");
    if (!rope || !is_private(w, rope, 1))
        return IR_NONE;
    ir_tensor_id x = rewrite_input(w, rope, 0), table = rewrite_input(w, rope, 1);
    int64_t interleaved = rewrite_attribute(rope, "interleaved")->i;
    if (p->table != IR_NONE && (p->table != table || p->interleaved != interleaved))
        return IR_NONE;
    p->table = table;
    p->interleaved = interleaved;
    const ir_op *norm = rewrite_producer(w, x, "rms_norm");
    *norm_weight = IR_NONE;
    if (!norm)
        return x;
    double eps = rewrite_attribute(norm, "eps")->f;
    *norm_weight = rewrite_input(w, norm, 1);
    if (!is_private(w, norm, 1) || *norm_weight == IR_NONE || (p->eps > 0 && p->eps != eps))
        return IR_NONE;
    p->eps = eps;
    return rewrite_input(w, norm, 0);
}

/* kv_write before this attention, on the same pages, and read by nothing else. */
static bool match_write(const rewrite *w, const ir_op *attention, attention_parts *p)
{
    ir_tensor_id k_cache = rewrite_input(w, attention, 1), v_cache = rewrite_input(w, attention, 2);
    p->kv_write = rewrite_producer(w, k_cache, "kv_write");
    if (!p->kv_write || p->kv_write->out[0] != k_cache || p->kv_write->out[1] != v_cache ||
        !is_private(w, p->kv_write, 1) || w->uses.at[v_cache] != 1 || w->is_output[v_cache])
        return false;
    p->positions = rewrite_input(w, attention, 3);
    p->slots = rewrite_input(w, attention, 4);
    p->pages = rewrite_input(w, attention, 5);
    p->k_cache = rewrite_input(w, p->kv_write, 5);
    p->v_cache = rewrite_input(w, p->kv_write, 6);
    return p->positions == rewrite_input(w, p->kv_write, 2) && p->slots == rewrite_input(w, p->kv_write, 3) &&
           p->pages == rewrite_input(w, p->kv_write, 4);
}

static bool match_attention(const rewrite *w, const ir_op *attention, attention_parts *p)
{
    *p = (attention_parts){.table = IR_NONE};
    if (!match_write(w, attention, p))
        return false;
    ir_tensor_id rotated_q = rewrite_input(w, attention, 0), rotated_k = rewrite_input(w, p->kv_write, 0);
    ir_tensor_id q = find_rotated(w, rotated_q, p, &p->q_norm), v = rewrite_input(w, p->kv_write, 1);
    ir_tensor_id k = q == IR_NONE ? IR_NONE : find_rotated(w, rotated_k, p, &p->k_norm);
    if (k == IR_NONE || tensor_of(w, rotated_q)->rank != 3 || tensor_of(w, rotated_k)->rank != 3)
        return false;
    p->heads = tensor_of(w, rotated_q)->dims[1];
    p->kv_heads = tensor_of(w, rotated_k)->dims[1];
    p->head_size = tensor_of(w, rotated_q)->dims[2];
    p->qkv = tg_root(w->g, q);
    int64_t columns = (p->heads + 2 * p->kv_heads) * p->head_size;
    const ir_tensor *qkv = tensor_of(w, p->qkv);
    p->rope_table = rewrite_producer(w, p->table, "rope_table");
    return qkv->kind == IR_TEMP && qkv->rank == 2 && qkv->dims[1] == columns &&
           is_part(w, q, p->qkv, 0, p->heads, p->head_size) &&
           is_part(w, k, p->qkv, p->heads * p->head_size, p->kv_heads, p->head_size) &&
           is_part(w, v, p->qkv, (p->heads + p->kv_heads) * p->head_size, p->kv_heads, p->head_size);
}

static mpk_status apply_rope_kv(rewrite *w, ir_op_id id, const attention_parts *p)
{
    ir_tensor_id out[IR_MAX_OUTPUTS], old_q = rewrite_input(w, &w->g->ops.at[id], 0);
    ir_tensor_id old_k = p->kv_write->out[0], old_v = p->kv_write->out[1];
    ir_tensor_id in[] = {p->qkv,     p->table,   p->positions, p->slots, p->pages,
                         p->k_cache, p->v_cache, p->q_norm,    p->k_norm};
    TRY(rewrite_add(w, w->keys.at[id] - 1, "rope_kv", 9, in,
                    (ir_set[]){{.name = "heads", .i = p->heads},
                               {.name = "kv_heads", .i = p->kv_heads},
                               {.name = "head_size", .i = p->head_size},
                               {.name = "eps", .f = p->eps > 0 ? p->eps : 1e-6},
                               {.name = "interleaved", .i = p->interleaved},
                               {0}},
                    out));
    rewrite_replace(w, old_q, out[0]);
    rewrite_replace(w, old_k, out[1]);
    rewrite_replace(w, old_v, out[2]);
    return MPK_OK;
}

/* The attributes of rope_table and attention, and those of the pattern. */
static uint32_t list_attributes(const ir_op *attention, const attention_parts *p, ir_set *set, char *scaling,
                                size_t n_scaling)
{
    uint32_t n = p->rope_table->def->n_attributes;
    for (uint32_t i = 0; i < n; i++) {
        const ir_attribute *a = &p->rope_table->attributes[i];
        const op_attribute *def = &p->rope_table->def->attributes[i];
        set[i] = (ir_set){.name = def->name, .i = a->i, .f = a->f};
        if (def->type == IR_ATTRIBUTE_STR && a->s.n < n_scaling) {
            memcpy(scaling, a->s.at, a->s.n);
            set[i].s = scaling;
        }
    }
    set[n++] = (ir_set){.name = "heads", .i = p->heads};
    set[n++] = (ir_set){.name = "kv_heads", .i = p->kv_heads};
    set[n++] = (ir_set){.name = "head_size", .i = p->head_size};
    set[n++] = (ir_set){.name = "eps", .f = p->eps > 0 ? p->eps : 1e-6};
    set[n++] = (ir_set){.name = "interleaved", .i = p->interleaved};
    set[n++] = (ir_set){.name = "scale", .f = rewrite_attribute(attention, "scale")->f};
    set[n++] = (ir_set){.name = "window", .i = rewrite_attribute(attention, "window")->i};
    return n;
}

static mpk_status apply_attention_qkv(rewrite *w, ir_op_id id, const attention_parts *p)
{
    ir_set set[IR_MAX_ATTRIBUTES + 8] = {0};
    char scaling[32] = "";
    const ir_op *attention = &w->g->ops.at[id];
    ir_tensor_id out[IR_MAX_OUTPUTS], old = attention->out[0];
    ir_tensor_id old_k = p->kv_write->out[0], old_v = p->kv_write->out[1];
    ir_tensor_id in[] = {p->qkv, p->positions, p->slots, p->pages, p->k_cache, p->v_cache, p->q_norm, p->k_norm};
    list_attributes(attention, p, set, scaling, sizeof scaling);
    TRY(rewrite_add(w, w->keys.at[id], "attention_qkv", 8, in, set, out));
    rewrite_replace(w, old, out[0]);
    rewrite_replace(w, old_k, out[1]);
    rewrite_replace(w, old_v, out[2]);
    return MPK_OK;
}

/* attention_qkv rounds the table as rope_table does, but reads positions itself. */
static bool can_be_one(const rewrite *w, const attention_parts *p)
{
    return p->rope_table && rewrite_input(w, p->rope_table, 0) == p->positions;
}

static mpk_status apply_attention(rewrite *w, ir_op_id id, pass_fusion level)
{
    attention_parts p;
    if (strcmp(w->g->ops.at[id].def->name, "attention") != 0 || !match_attention(w, &w->g->ops.at[id], &p))
        return MPK_OK;
    if (level == PASS_FUSE_PAPER && can_be_one(w, &p))
        return apply_attention_qkv(w, id, &p);
    return apply_rope_kv(w, id, &p);
}

/* ---- the pass ---- */

/* Rules that make linears: each over the operators of the source, then over those that the rule before it made. */
static mpk_status fuse_linears(rewrite *w, pass_fusion level)
{
    uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n && level == PASS_FUSE_FULL; o++)
        TRY(apply_glu(w, o));
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_siblings(w, o, n));
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_residual(w, o));
    n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n && level == PASS_FUSE_FULL; o++)
        TRY(apply_norm(w, o));
    return MPK_OK;
}

mpk_status pass_fuse_ops(pass_state *s, ir_graph **g)
{
    rewrite linears, attentions;
    pass_fusion level = s->options->fusion;
    if (level == PASS_FUSE_NONE)
        return MPK_OK;
    TRY(rewrite_begin(s, *g, &linears));
    TRY(fuse_linears(&linears, level));
    TRY(rewrite_end(&linears, g));
    TRY(rewrite_begin(s, *g, &attentions));
    uint32_t n = (uint32_t)attentions.g->ops.n;
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_attention(&attentions, o, level));
    return rewrite_end(&attentions, g);
}
