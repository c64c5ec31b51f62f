/* fuse_ops.c - fewer, larger operators (before §4.1; the paper's models come with q/k/v and gate/up fused).
 *
 * in: a tensor program of plain operators    out: one of operators that do more, with the same bits
 *
 * Each rule is a pattern, a condition and a replacement, run in the order of the table at the end.  Every boundary
 * between operators costs an event hop for every worker (about 1.2 us on a GPU), and loses what the next operator could
 * have kept.
 *
 * PASS_FUSE_PAPER stops at the operators of the paper: norm, q/k/v, attention, output, norm, gate/up, silu, down: 8 a
 * layer. PASS_FUSE_FULL goes on: the gate inside its product, the norm inside the product that follows.
 */
#include "pass/rewrite.h"

enum {
    LINEAR_X,
    LINEAR_W0,
    LINEAR_W1,
    LINEAR_W2,
    LINEAR_B0,
    LINEAR_B1,
    LINEAR_B2,
    LINEAR_NORM,
    LINEAR_RESIDUAL,
    LINEAR_INPUTS
};
enum { NORM_X, NORM_WEIGHT };
enum { KV_K, KV_V, KV_POSITIONS, KV_SLOTS, KV_PAGES, KV_K_CACHE, KV_V_CACHE };
enum { ATTENTION_Q, ATTENTION_K_CACHE };
enum { ROPE_X, ROPE_TABLE };
enum { ROPE_KV_QKV, ROPE_KV_TABLE, ROPE_KV_POSITIONS, ROPE_KV_K_CACHE = 5, ROPE_KV_Q_NORM = 7, ROPE_KV_K_NORM };
enum { NAME_BYTES = 256 };

static const ir_tensor *tensor(const rewrite *r, ir_tensor_id t)
{
    return &r->from->tensors.at[t];
}

/* One weight, perhaps a bias, nothing else. */
static bool is_plain_linear(const ir_op *op)
{
    return op && rewrite_is(op, "linear") && rewrite_in(op, LINEAR_W1) == IR_NONE &&
           rewrite_in(op, LINEAR_NORM) == IR_NONE && rewrite_in(op, LINEAR_RESIDUAL) == IR_NONE &&
           rewrite_attribute(op, "glu")->s.n == 0;
}

static const char *name_of(const rewrite *r, ir_tensor_id t, char name[NAME_BYTES])
{
    str s = tensor(r, t)->name;
    size_t n = s.n < NAME_BYTES - 1 ? s.n : NAME_BYTES - 1;
    memcpy(name, s.at, n);
    name[n] = 0;
    return name;
}

/* All inputs of a linear operator, absent ones as IR_NONE. */
static void linear_inputs(const ir_op *op, ir_tensor_id in[LINEAR_INPUTS])
{
    for (uint32_t i = 0; i < LINEAR_INPUTS; i++)
        in[i] = rewrite_in(op, i);
}

/* ---- y0 = x W0^T, y1 = x W1^T, y2 = x W2^T  ->  y = x [W0 W1 W2]^T and slices of it ---- */

/* The plain linear operators that read x, from `first` on, at most three; their number. */
static uint32_t find_siblings(const rewrite *r, ir_op_id first, ir_op_id siblings[3])
{
    ir_tensor_id x = r->from->ops.at[first].in[LINEAR_X];
    uint32_t n = 0;
    for (ir_op_id i = first; n < 3 && i <= r->user[x]; i++)
        if (is_plain_linear(&r->from->ops.at[i]) && r->from->ops.at[i].in[LINEAR_X] == x && !r->done[i])
            siblings[n++] = i;
    return n;
}

/* "a.q_proj", "a.k_proj" -> "a.q_proj_k_proj" */
static void add_to_name(char name[NAME_BYTES], str more)
{
    size_t n = strlen(name), start = more.n;
    while (start && more.at[start - 1] != '.')
        start--;
    for (size_t i = start; n + 2 < NAME_BYTES && i <= more.n; i++)
        name[n++] = i == start ? '_' : more.at[i - 1];
    if (n + 1 < NAME_BYTES && start < more.n)
        name[n++] = more.at[more.n - 1];
    name[n] = 0;
}

static mpk_status add_slice(rewrite *r, ir_tensor_id whole, ir_tensor_id old, int64_t first)
{
    char name[NAME_BYTES];
    const ir_tensor *t = tensor(r, old);
    int64_t starts[2] = {0, first}, stops[2] = {t->dims[0], first + t->dims[1]};
    ir_tensor_id out[IR_MAX_OUTPUTS];
    TRY(ir_add_op(
        r->cx, r->to, "slice", name_of(r, old, name), 1, &whole,
        (ir_set[]){{.name = "starts", .ints = starts, .n_ints = 2}, {.name = "stops", .ints = stops, .n_ints = 2}, {0}},
        out));
    rewrite_map(r, old, out[0]);
    return MPK_OK;
}

static mpk_status merge_siblings(rewrite *r, ir_op_id op, bool *matched)
{
    ir_op_id siblings[3];
    if (!is_plain_linear(&r->from->ops.at[op]))
        return MPK_OK;
    uint32_t n = find_siblings(r, op, siblings);
    if (n < 2)
        return MPK_OK;
    ir_tensor_id in[LINEAR_INPUTS], out[IR_MAX_OUTPUTS];
    char name[NAME_BYTES];
    linear_inputs(&r->from->ops.at[op], in);
    name_of(r, r->from->ops.at[op].out[0], name);
    for (uint32_t i = 1; i < n; i++) {
        const ir_op *sibling = &r->from->ops.at[siblings[i]];
        in[LINEAR_W0 + i] = sibling->in[LINEAR_W0];
        in[LINEAR_B0 + i] = rewrite_in(sibling, LINEAR_B0);
        add_to_name(name, tensor(r, sibling->out[0])->name);
    }
    TRY(rewrite_add(r, "linear", name, LINEAR_INPUTS, in, NULL, out));
    int64_t first = 0;
    for (uint32_t i = 0; i < n; i++) {
        ir_tensor_id old = r->from->ops.at[siblings[i]].out[0];
        TRY(add_slice(r, out[0], old, first));
        first += tensor(r, old)->dims[1];
        r->done[siblings[i]] = true;
    }
    *matched = true;
    return MPK_OK;
}

/* ---- act(x Wg^T) * (x Wu^T)  ->  linear with a gate ---- */

/* The gate's product and the activation, if op multiplies an activated product with another. */
static const ir_op *find_gate(const rewrite *r, const ir_op *op, const char **glu)
{
    if (rewrite_is(op, "silu_mul")) {
        *glu = "silu";
        return rewrite_sole_producer(r, op->in[0], "linear");
    }
    const ir_op *gelu = rewrite_is(op, "mul") ? rewrite_sole_producer(r, op->in[0], "gelu") : NULL;
    if (!gelu)
        return NULL;
    *glu = rewrite_attribute(gelu, "tanh")->i ? "gelu_tanh" : "gelu";
    return rewrite_sole_producer(r, gelu->in[0], "linear");
}

static mpk_status fuse_gate(rewrite *r, ir_op_id id, bool *matched)
{
    const ir_op *op = &r->from->ops.at[id];
    const char *glu = NULL;
    const ir_op *gate = find_gate(r, op, &glu);
    const ir_op *up = gate ? rewrite_sole_producer(r, op->in[1], "linear") : NULL;
    if (!up || !is_plain_linear(gate) || !is_plain_linear(up) || gate->in[LINEAR_X] != up->in[LINEAR_X] ||
        tensor(r, gate->out[0])->dims[1] != tensor(r, up->out[0])->dims[1])
        return MPK_OK;
    ir_tensor_id in[LINEAR_INPUTS], out[IR_MAX_OUTPUTS];
    char name[NAME_BYTES];
    linear_inputs(gate, in);
    in[LINEAR_W1] = up->in[LINEAR_W0];
    in[LINEAR_B1] = rewrite_in(up, LINEAR_B0);
    TRY(rewrite_add(r, "linear", name_of(r, op->out[0], name), LINEAR_INPUTS, in,
                    (ir_set[]){{.name = "glu", .s = glu}, {0}}, out));
    rewrite_map(r, op->out[0], out[0]);
    *matched = true;
    return MPK_OK;
}

/* ---- a + x W^T  ->  linear with a residual ---- */

static bool same_shape(const ir_tensor *a, const ir_tensor *b)
{
    return a->dtype == b->dtype && a->live == b->live && a->rank == b->rank &&
           memcmp(a->dims, b->dims, a->rank * sizeof a->dims[0]) == 0;
}

static mpk_status fuse_residual(rewrite *r, ir_op_id id, bool *matched)
{
    const ir_op *op = &r->from->ops.at[id];
    if (!rewrite_is(op, "add") || !same_shape(tensor(r, op->in[0]), tensor(r, op->in[1])))
        return MPK_OK;
    for (uint32_t i = 0; i < 2 && !*matched; i++) {
        const ir_op *product = rewrite_sole_producer(r, op->in[i], "linear");
        if (!product || rewrite_in(product, LINEAR_RESIDUAL) != IR_NONE)
            continue;
        ir_tensor_id in[LINEAR_INPUTS], out[IR_MAX_OUTPUTS];
        linear_inputs(product, in);
        in[LINEAR_RESIDUAL] = op->in[1 - i];
        TRY(rewrite_add_like(r, product, op->out[0], LINEAR_INPUTS, in, NULL, out));
        rewrite_map(r, op->out[0], out[0]);
        *matched = true;
    }
    return MPK_OK;
}

/* ---- norm(x) W^T  ->  linear with a norm ---- */

/* Every task of the product repeats the norm of its rows of x: about 4 operations an element against 2 for each of its
 * columns.  Worth an event hop while that is under an eighth, or the rows are few. */
enum { NORM_FEW_TOKENS = 8, NORM_MIN_COLUMNS = 16 };

static bool norm_pays(const rewrite *r, const ir_op *product)
{
    const ir_tensor *y = tensor(r, product->out[0]);
    return y->dims[0] <= NORM_FEW_TOKENS || y->dims[1] / r->options->n_workers >= NORM_MIN_COLUMNS;
}

static mpk_status fuse_norm(rewrite *r, ir_op_id id, bool *matched)
{
    const ir_op *op = &r->from->ops.at[id];
    const ir_op *norm = rewrite_is(op, "linear") ? rewrite_producer(r, op->in[LINEAR_X], "rms_norm") : NULL;
    if (!norm || rewrite_in(norm, NORM_WEIGHT) == IR_NONE || rewrite_in(op, LINEAR_NORM) != IR_NONE ||
        !norm_pays(r, op) || tensor(r, norm->out[0])->dtype != IR_F32)
        return MPK_OK;
    ir_tensor_id in[LINEAR_INPUTS], out[IR_MAX_OUTPUTS];
    linear_inputs(op, in);
    in[LINEAR_X] = norm->in[NORM_X];
    in[LINEAR_NORM] = norm->in[NORM_WEIGHT];
    TRY(rewrite_add_like(r, op, op->out[0], LINEAR_INPUTS, in,
                         (ir_set[]){{.name = "eps", .f = rewrite_attribute(norm, "eps")->f}, {0}}, out));
    rewrite_map(r, op->out[0], out[0]);
    *matched = true;
    return MPK_OK;
}

/* ---- slices of y, norms of the heads, rope, kv_write  ->  rope_kv(y) ---- */

/* The way from y to the operand of the cache or the attention: [rope] <- [rms_norm] <- reshape to heads <- slice <- y.
 */
typedef struct head_path {
    const ir_op *rope, *norm, *slice;
    int64_t heads, size; /* [T, heads, size] */
} head_path;

static bool follow_heads(const rewrite *r, ir_tensor_id t, bool rotated, head_path *p)
{
    *p = (head_path){0};
    if (rotated) {
        p->rope = rewrite_sole_producer(r, t, "rope");
        if (!p->rope)
            return false;
        t = p->rope->in[ROPE_X];
        p->norm = rewrite_sole_producer(r, t, "rms_norm");
        if (p->norm)
            t = p->norm->in[NORM_X];
    }
    const ir_op *reshape = rewrite_sole_producer(r, t, "reshape");
    if (!reshape || tensor(r, t)->rank != 3)
        return false;
    p->heads = tensor(r, t)->dims[1];
    p->size = tensor(r, t)->dims[2];
    p->slice = rewrite_sole_producer(r, reshape->in[0], "slice");
    return p->slice && tensor(r, reshape->in[0])->rank == 2 && tensor(r, reshape->in[0])->dims[1] == p->heads * p->size;
}

/* The slice takes all rows and the columns from `first` on. */
static bool slices_at(const ir_op *slice, int64_t first)
{
    const ir_attribute *starts = rewrite_attribute(slice, "starts");
    return starts->ints.n == 2 && starts->ints.at[0] == 0 && starts->ints.at[1] == first;
}

/* q, k and v are neighbours in y = [T, (H + 2 G) K], and agree in what the fused operator has only once. */
static bool paths_fit(const rewrite *r, const head_path *q, const head_path *k, const head_path *v)
{
    ir_tensor_id y = q->slice->in[0];
    int64_t size = q->size;
    const ir_op *norm = q->norm ? q->norm : k->norm;
    return k->slice->in[0] == y && v->slice->in[0] == y && k->size == size && v->size == size && k->heads == v->heads &&
           q->heads % k->heads == 0 && slices_at(q->slice, 0) && slices_at(k->slice, q->heads * size) &&
           slices_at(v->slice, (q->heads + k->heads) * size) && tensor(r, y)->rank == 2 &&
           tensor(r, y)->dims[1] == (q->heads + 2 * k->heads) * size &&
           q->rope->in[ROPE_TABLE] == k->rope->in[ROPE_TABLE] &&
           rewrite_attribute(q->rope, "interleaved")->i == rewrite_attribute(k->rope, "interleaved")->i &&
           (!norm || !k->norm || rewrite_attribute(norm, "eps")->f == rewrite_attribute(k->norm, "eps")->f);
}

static mpk_status fuse_rope_kv(rewrite *r, ir_op_id id, bool *matched)
{
    const ir_op *op = &r->from->ops.at[id];
    head_path q, k, v;
    if (!rewrite_is(op, "kv_write") || r->user[op->out[0]] == IR_NONE)
        return MPK_OK;
    const ir_op *attention = &r->from->ops.at[r->user[op->out[0]]];
    if (!rewrite_is(attention, "attention") || !follow_heads(r, attention->in[ATTENTION_Q], true, &q) ||
        !follow_heads(r, op->in[KV_K], true, &k) || !follow_heads(r, op->in[KV_V], false, &v) ||
        !paths_fit(r, &q, &k, &v))
        return MPK_OK;
    const ir_op *norm = q.norm ? q.norm : k.norm;
    ir_tensor_id in[] = {q.slice->in[0],
                         q.rope->in[ROPE_TABLE],
                         op->in[KV_POSITIONS],
                         op->in[KV_SLOTS],
                         op->in[KV_PAGES],
                         op->in[KV_K_CACHE],
                         op->in[KV_V_CACHE],
                         q.norm ? rewrite_in(q.norm, NORM_WEIGHT) : IR_NONE,
                         k.norm ? rewrite_in(k.norm, NORM_WEIGHT) : IR_NONE};
    if ((q.norm && in[ROPE_KV_Q_NORM] == IR_NONE) || (k.norm && in[ROPE_KV_K_NORM] == IR_NONE))
        return MPK_OK;
    ir_tensor_id out[IR_MAX_OUTPUTS];
    char name[NAME_BYTES];
    TRY(rewrite_add(r, "rope_kv", name_of(r, op->out[0], name), 9, in,
                    (ir_set[]){{.name = "heads", .i = q.heads},
                               {.name = "kv_heads", .i = k.heads},
                               {.name = "head_size", .i = q.size},
                               {.name = "interleaved", .i = rewrite_attribute(q.rope, "interleaved")->i},
                               {.name = "eps", .f = norm ? rewrite_attribute(norm, "eps")->f : 1e-6},
                               {0}},
                    out));
    rewrite_map(r, q.rope->out[0], out[0]);
    rewrite_map(r, op->out[0], out[1]);
    rewrite_map(r, op->out[1], out[2]);
    r->done[q.rope - r->from->ops.at] = true;
    *matched = true;
    return MPK_OK;
}

/* ---- rope_kv, attention  ->  attention_qkv, which computes the angles itself ---- */

static mpk_status fuse_attention(rewrite *r, ir_op_id id, bool *matched)
{
    const ir_op *kv = &r->from->ops.at[id];
    const ir_op *table = rewrite_is(kv, "rope_kv") ? rewrite_producer(r, kv->in[ROPE_KV_TABLE], "rope_table") : NULL;
    if (!table || table->n_in != 1 || table->in[0] != kv->in[ROPE_KV_POSITIONS] || r->n_users[kv->out[0]] != 1)
        return MPK_OK;
    const ir_op *op = &r->from->ops.at[r->user[kv->out[0]]];
    if (!rewrite_is(op, "attention") || op->in[ATTENTION_K_CACHE] != kv->out[1])
        return MPK_OK;
    ir_tensor_id in[8], out[IR_MAX_OUTPUTS];
    in[0] = kv->in[ROPE_KV_QKV];
    for (uint32_t i = 1; i < 8; i++)
        in[i] = rewrite_in(kv, i + 1);
    ir_set set[IR_MAX_ATTRIBUTES + 1] = {{0}};
    uint32_t n = 0;
    const ir_op *const sources[] = {table, kv, op};
    char words[IR_MAX_ATTRIBUTES][32];
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t i = 0; i < sources[k]->def->n_attributes && n < IR_MAX_ATTRIBUTES; i++, n++) {
            const ir_attribute *a = &sources[k]->attributes[i];
            size_t bytes = a->s.n < sizeof words[n] - 1 ? a->s.n : sizeof words[n] - 1;
            if (bytes)
                memcpy(words[n], a->s.at, bytes);
            words[n][bytes] = 0;
            set[n] = (ir_set){.name = sources[k]->def->attributes[i].name, .i = a->i, .f = a->f, .s = words[n]};
        }
    char name[NAME_BYTES];
    TRY(rewrite_add(r, "attention_qkv", name_of(r, op->out[0], name), 8, in, set, out));
    rewrite_map(r, op->out[0], out[0]);
    r->done[op - r->from->ops.at] = true;
    *matched = true;
    return MPK_OK;
}

/* ---- the rules in their order ---- */

typedef struct rule {
    rewrite_rule *apply;
    bool paper, full; /* part of this level */
} rule;

static const rule rules[] = {
    {fuse_gate, false, true},   {merge_siblings, true, true},  {fuse_residual, true, true},
    {fuse_rope_kv, true, true}, {fuse_attention, true, false}, {fuse_norm, false, true},
};

mpk_status pass_fuse_ops(pass_state *s, ir_graph **g)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        bool wanted = s->options->fusion == PASS_FUSE_FULL ? rules[i].full
                                                           : s->options->fusion == PASS_FUSE_PAPER && rules[i].paper;
        if (!wanted)
            continue;
        TRY(rewrite_graph(s, g, rules[i].apply));
        TRY(pass_simplify(s, g));
    }
    return MPK_OK;
}
