/* fuse_attention.c - rules that merge the operators around an attention (see fuse_ops.c).
 *
 *   rope_kv    slices of qkv, norms, ropes, kv_write -> rope_kv(qkv, ...)
 *   attention  the same, followed by the attention -> attention_qkv(qkv, ...)
 *   split      the same for few tokens -> attention_fold(attention_split(qkv, ...))
 *   wide       norms of all heads of q, and of k, before one of the first three, which then follows
 *              rms_norm_parts(qkv)
 *   parts      attention of few tokens and KV heads -> attention_fold(attention_parts(...)): on a
 *              CPU any in f32, on a GPU one without v_cache
 *   rows       transpose(sdpa(...)), heads after rows -> sdpa(...) {by_rows}; relaxed only, since
 *              no body of a CPU makes such a result
 *
 * The first three match one pattern, that of attention_qkv, and the options decide which one
 * applies.  In the text form, for the decoder of a model:
 *
 *   %qkv = linear(%x, %wq, %wk, %wv)
 *   %q, %k, %v = slices of %qkv, each reshaped to [T, heads, head_size]
 *   %qr = rope(rms_norm(%q, %q_norm), %table)   %kr = rope(rms_norm(%k, %k_norm), %table)
 *   %kc, %vc = kv_write(%kr, %v, %positions, %slots, %pages, %k_cache, %v_cache)
 *   %y = attention(%qr, %kc, %vc, %positions, %slots, %pages)
 *
 *  or with norms after the rotations; it becomes, with rule split,
 *   %part, %lse, %kc, %vc = attention_split(%qkv, %table, %positions, %slots, %pages, ...)
 *   %y = attention_fold(%part, %lse)
 *
 * Relies on rule siblings (fuse_linear.c), which makes q, k and v parts of one tensor.  Called
 * by fuse_ops.c.
 */
#include "op/attend.h"
#include "pass/fuse.h"

/* The operands and numbers of a matched pattern. */
typedef struct attention_parts {
    /* q_norm, k_norm: weights, or IR_NONE */
    ir_tensor_id qkv, table, positions, slots, pages, k_cache, v_cache, q_norm, k_norm;
    int64_t heads, kv_heads, head_size;
    /* weights of norms over all heads of q, of k; IR_NONE: there are none */
    ir_tensor_id wide_q, wide_k;
    double eps;                 /* of both norms; 0: there is no norm */
    bool norm_first, norm_last; /* they stand before the rotation, or after it */
    /* rope_table is NULL if another operator makes the table */
    const ir_op *kv_write, *rope_table;
} attention_parts;

/* Is t, of three axes, [T, n, head_size], the part of qkv [T, columns] that begins at column
 * `first`?  The stride of an axis of size 1 says nothing and is ignored. */
static bool is_part(const rewrite *w, ir_tensor_id t, ir_tensor_id qkv, int64_t first, int64_t n,
                    int64_t head_size)
{
    const ir_tensor *part = tensor_of(w, t), *whole = tensor_of(w, qkv);
    int64_t dims[3] = {whole->dims[0], n, head_size}, strides[3] = {whole->dims[1], head_size, 1};
    if (tg_root(w->g, t) != qkv || part->dtype != whole->dtype || part->offset != first)
        return false;
    for (uint32_t i = 0; i < 3; i++)
        if (part->dims[i] != dims[i] || (dims[i] > 1 && part->stride[i] != strides[i]))
            return false;
    return true;
}

/* Take the norm of heads that makes *t, if there is one: *t becomes what it reads.  False: its
 * result is read elsewhere, it has no weight, or *p has another epsilon. */
static bool take_norm(const rewrite *w, ir_tensor_id *t, attention_parts *p,
                      ir_tensor_id *norm_weight)
{
    const ir_op *norm = find_plain_norm(w, *t);
    *norm_weight = IR_NONE;
    if (!norm)
        return true;
    const double eps = rewrite_attribute(norm, "eps")->f;
    *norm_weight = rewrite_input(w, norm, NORM_WEIGHT);
    if (!is_private(w, norm, 1) || *norm_weight == IR_NONE || (p->eps > 0 && p->eps != eps))
        return false;
    p->eps = eps;
    *t = rewrite_input(w, norm, X);
    return true;
}

/* Follow rope and the norm before or after it, if there is one, back to the part of qkv; IR_NONE if
 * the pattern differs, or if the two calls of one match (for q and for k) find different tables,
 * epsilons or orders, which are noted in *p. */
static ir_tensor_id find_rotated(const rewrite *w, ir_tensor_id t, attention_parts *p,
                                 ir_tensor_id *norm_weight)
{
    ir_tensor_id last;
    if (!take_norm(w, &t, p, &last))
        return IR_NONE;
    const ir_op *rope = rewrite_producer(w, t, "rope");
    if (!rope || !is_private(w, rope, 1))
        return IR_NONE;
    ir_tensor_id x = rewrite_input(w, rope, 0), table = rewrite_input(w, rope, 1);
    if (p->table != IR_NONE && p->table != table)
        return IR_NONE;
    p->table = table;
    if (!take_norm(w, &x, p, norm_weight))
        return IR_NONE;
    p->norm_first |= *norm_weight != IR_NONE;
    p->norm_last |= last != IR_NONE;
    if (last != IR_NONE)
        *norm_weight = last;
    return p->norm_first && p->norm_last ? IR_NONE : x;
}

/* Is t [T, columns] columns [first, first + columns) of qkv? */
static bool is_columns(const rewrite *w, ir_tensor_id t, ir_tensor_id qkv, int64_t first,
                       int64_t columns)
{
    const ir_tensor *part = tensor_of(w, t), *whole = tensor_of(w, qkv);
    return part->rank == 2 && tg_root(w->g, t) == qkv && part->offset == first &&
           part->dims[0] == whole->dims[0] && part->dims[1] == columns && part->stride[1] == 1 &&
           (part->dims[0] == 1 || part->stride[0] == whole->dims[1]);
}

/* If *t, n heads, is all of the result of a norm over all of them, replace it by what the norm
 * reads, and return the norm's weight; else, or if *p has another epsilon, IR_NONE. */
static ir_tensor_id find_wide_norm(const rewrite *w, ir_tensor_id *t, int64_t n, attention_parts *p)
{
    const ir_tensor_id root = tg_root(w->g, *t);
    const ir_op *norm = find_plain_norm(w, root);
    if (!norm || tensor_of(w, root)->rank != 2 || !is_private(w, norm, 1) ||
        tensor_of(w, root)->dims[1] != n * p->head_size ||
        !is_part(w, *t, root, 0, n, p->head_size))
        return IR_NONE;
    const double eps = rewrite_attribute(norm, "eps")->f;
    const ir_tensor_id weight = rewrite_input(w, norm, NORM_WEIGHT);
    if (weight == IR_NONE || (p->eps > 0 && p->eps != eps))
        return IR_NONE;
    p->eps = eps;
    *t = rewrite_input(w, norm, X);
    return weight;
}

/* Find the kv_write before this attention that writes the same pages and has no other reader. */
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
    return p->positions == rewrite_input(w, p->kv_write, 2) &&
           p->slots == rewrite_input(w, p->kv_write, 3) &&
           p->pages == rewrite_input(w, p->kv_write, 4);
}

/* Walk from the attention back to one tensor qkv: through rope and the norm of q and of k, and
 * through the write to the cache.  It matches only if q, k and v are the three parts of qkv, one
 * after the other, and leave no column of it over. */
static bool match_attention(const rewrite *w, const ir_op *attention, attention_parts *p)
{
    *p = (attention_parts){.table = IR_NONE};
    if (!match_write(w, attention, p))
        return false;
    ir_tensor_id rotated_q = rewrite_input(w, attention, 0),
                 rotated_k = rewrite_input(w, p->kv_write, 0);
    ir_tensor_id q = find_rotated(w, rotated_q, p, &p->q_norm),
                 v = rewrite_input(w, p->kv_write, 1);
    ir_tensor_id k = q == IR_NONE ? IR_NONE : find_rotated(w, rotated_k, p, &p->k_norm);
    if (k == IR_NONE || tensor_of(w, rotated_q)->rank != 3 || tensor_of(w, rotated_k)->rank != 3)
        return false;
    p->heads = tensor_of(w, rotated_q)->dims[1];
    p->kv_heads = tensor_of(w, rotated_k)->dims[1];
    p->head_size = tensor_of(w, rotated_q)->dims[2];
    p->wide_q = p->wide_k = IR_NONE;
    if (p->q_norm == IR_NONE && p->k_norm == IR_NONE) {
        p->wide_q = find_wide_norm(w, &q, p->heads, p);
        p->wide_k = find_wide_norm(w, &k, p->kv_heads, p);
    }
    p->qkv = tg_root(w->g, q);
    const int64_t q_columns = p->heads * p->head_size, k_columns = p->kv_heads * p->head_size;
    const ir_tensor *qkv = tensor_of(w, p->qkv);
    const bool wide = p->wide_q != IR_NONE && p->wide_k != IR_NONE;
    p->rope_table = rewrite_producer(w, p->table, "rope_table");
    const ir_tensor_id in[] = {p->qkv, p->table, p->q_norm, p->k_norm, p->wide_q, p->wide_k};
    return rewrite_are_current(w, in, 6, w->keys.at[attention - w->g->ops.at]) &&
           qkv->kind == IR_TEMP && qkv->rank == 2 && qkv->dims[1] == q_columns + 2 * k_columns &&
           (wide ? is_columns(w, q, p->qkv, 0, q_columns)
                 : is_part(w, q, p->qkv, 0, p->heads, p->head_size)) &&
           (wide ? is_columns(w, k, p->qkv, q_columns, k_columns)
                 : is_part(w, k, p->qkv, q_columns, p->kv_heads, p->head_size)) &&
           is_part(w, v, p->qkv, q_columns + k_columns, p->kv_heads, p->head_size);
}

/* Replace the operators from the slices to the cache write by one rope_kv; the attention stays
 * and reads its results.  The new operator must run before the attention, so its key is one
 * less; keys of the source leave gaps. */
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
                               {.name = "norm_last", .i = p->norm_last},
                               {0}},
                    out));
    rewrite_replace(w, old_q, out[0]);
    rewrite_replace(w, old_k, out[1]);
    rewrite_replace(w, old_v, out[2]);
    return MPK_OK;
}

/* Fill `set` with the attributes of rope_table and attention, and the sizes of the pattern, for
 * attention_qkv.  Strings are copied to scratch memory with an end.  The caller's array is
 * zeroed, so what follows the last one ends the list. */
static mpk_status list_attributes(const rewrite *w, const ir_op *attention,
                                  const attention_parts *p, ir_set *set)
{
    uint32_t n = p->rope_table->def->n_attributes;
    for (uint32_t i = 0; i < n; i++) {
        const ir_attribute *a = &p->rope_table->attributes[i];
        const op_attribute *def = &p->rope_table->def->attributes[i];
        set[i] = (ir_set){.name = def->name, .i = a->i, .f = a->f};
        if (def->type == IR_ATTRIBUTE_STR) {
            char *copy;
            NEW(w->s->cx, w->s->scratch, copy, a->s.n + 1);
            memcpy(copy, a->s.at, a->s.n);
            set[i].s = copy;
        }
    }
    set[n++] = (ir_set){.name = "heads", .i = p->heads};
    set[n++] = (ir_set){.name = "kv_heads", .i = p->kv_heads};
    set[n++] = (ir_set){.name = "head_size", .i = p->head_size};
    set[n++] = (ir_set){.name = "eps", .f = p->eps > 0 ? p->eps : 1e-6};
    set[n++] = (ir_set){.name = "scale", .f = rewrite_attribute(attention, "scale")->f};
    set[n++] = (ir_set){.name = "window", .i = rewrite_attribute(attention, "window")->i};
    return MPK_OK;
}

/* Rule attention: the table too becomes part of the operator, as in the paper's set of
 * operators. */
static mpk_status apply_attention_qkv(rewrite *w, ir_op_id id, const attention_parts *p)
{
    ir_set set[IR_MAX_ATTRIBUTES + 8] = {0};
    const ir_op *attention = &w->g->ops.at[id];
    ir_tensor_id out[IR_MAX_OUTPUTS], old = attention->out[0];
    ir_tensor_id old_k = p->kv_write->out[0], old_v = p->kv_write->out[1];
    ir_tensor_id in[] = {p->qkv,     p->positions, p->slots,  p->pages,
                         p->k_cache, p->v_cache,   p->q_norm, p->k_norm};
    TRY(list_attributes(w, attention, p, set));
    TRY(rewrite_add(w, w->keys.at[id], "attention_qkv", 8, in, set, out));
    rewrite_replace(w, old, out[0]);
    rewrite_replace(w, old_k, out[1]);
    rewrite_replace(w, old_v, out[2]);
    return MPK_OK;
}

/* Can the attention make the rotation table by itself?  attention_qkv computes it from its own
 * positions, and rounds it as rope_table does, so the table must come from the same positions. */
static bool can_be_one(const rewrite *w, const attention_parts *p)
{
    return p->rope_table && rewrite_input(w, p->rope_table, 0) == p->positions;
}

/* ---- rules split and fold ---- */

/* The sinks of an attention; IR_NONE: it has none. */
static ir_tensor_id sinks_of(const rewrite *w, const ir_op *attention)
{
    return attention->n_in > ATTEND_PAGES + 1 ? rewrite_input(w, attention, ATTEND_PAGES + 1)
                                              : IR_NONE;
}

/* The fold of parts[2], part and lse, with the attention's sinks. */
static mpk_status add_fold(rewrite *w, uint32_t key, const ir_tensor_id *parts, ir_tensor_id sinks,
                           ir_tensor_id *y)
{
    const ir_tensor_id in[] = {parts[0], parts[1], sinks};
    return rewrite_add(w, key, "attention_fold", sinks == IR_NONE ? 2 : 3, in, NULL, y);
}

/* Few enough tokens, and caches that attention_split may write in place. */
static bool can_be_split(const rewrite *w, const attention_parts *p)
{
    const pass_options *o = w->s->options;
    return o->splits && tensor_of(w, p->qkv)->dims[0] <= o->split_tokens &&
           tensor_of(w, p->k_cache)->kind == IR_STATE && tensor_of(w, p->v_cache)->kind == IR_STATE;
}

/* Replace the pattern by attention_split and attention_fold.  Contexts are shared out in units
 * of whole pages, about 128 tokens: shorter units would spend more on their ends, longer ones
 * would leave splits unequal. */
static mpk_status apply_split(rewrite *w, ir_op_id id, const attention_parts *p)
{
    enum { UNIT_TOKENS = 128 };
    ir_tensor_id out[IR_MAX_OUTPUTS], y[IR_MAX_OUTPUTS], old = w->g->ops.at[id].out[0];
    const ir_op *attention = &w->g->ops.at[id];
    ir_tensor_id old_k = p->kv_write->out[0], old_v = p->kv_write->out[1],
                 sinks = sinks_of(w, attention);
    ir_tensor_id in[] = {p->qkv,     p->table,   p->positions, p->slots, p->pages,
                         p->k_cache, p->v_cache, p->q_norm,    p->k_norm};
    int64_t page = tensor_of(w, p->k_cache)->dims[2];
    TRY(rewrite_add(w, w->keys.at[id], "attention_split", 9, in,
                    (ir_set[]){{.name = "heads", .i = p->heads},
                               {.name = "kv_heads", .i = p->kv_heads},
                               {.name = "head_size", .i = p->head_size},
                               {.name = "eps", .f = p->eps > 0 ? p->eps : 1e-6},
                               {.name = "scale", .f = rewrite_attribute(attention, "scale")->f},
                               {.name = "window", .i = rewrite_attribute(attention, "window")->i},
                               {.name = "splits", .i = w->s->options->splits},
                               {.name = "unit", .i = (UNIT_TOKENS + page - 1) / page * page},
                               {.name = "own", .i = w->s->options->own_units},
                               {.name = "cap", .f = rewrite_attribute(attention, "cap")->f},
                               {.name = "norm_last", .i = p->norm_last},
                               {0}},
                    out));
    TRY(add_fold(w, w->keys.at[id], out, sinks, y));
    rewrite_replace(w, old, y[0]);
    rewrite_replace(w, old_k, out[2]);
    rewrite_replace(w, old_v, out[3]);
    return MPK_OK;
}

/* ---- rule wide ---- */

/* Rule wide: one operator normalises q and k within qkv, and the attention takes its result.  Peers
 * that share the heads have no such row. */
static mpk_status add_wide_norms(rewrite *w, ir_op_id id, attention_parts *p)
{
    const ir_tensor_id in[] = {p->qkv, p->wide_q, p->wide_k};
    return rewrite_add(w, w->keys.at[id] - 2, "rms_norm_parts", 3, in,
                       (ir_set[]){{.name = "eps", .f = p->eps}, {0}}, &p->qkv);
}

/* ---- all of them ---- */

/* Match one attention and apply the rule that the level of fusion asks for. */
static mpk_status apply_attention(rewrite *w, ir_op_id id, pass_fusion level)
{
    attention_parts p;
    if (strcmp(w->g->ops.at[id].def->name, "attention") != 0 ||
        !match_attention(w, &w->g->ops.at[id], &p))
        return MPK_OK;
    const ir_op *op = &w->g->ops.at[id];
    if (p.wide_q != IR_NONE) {
        if (level != PASS_FUSE_FULL || w->s->options->n_peers > 1)
            return MPK_OK;
        TRY(add_wide_norms(w, id, &p));
        op = &w->g->ops.at[id];
    }
    /* attention_qkv has none of these */
    const bool plain =
        rewrite_attribute(op, "cap")->f == 0 && sinks_of(w, op) == IR_NONE && !p.norm_last;
    if (level == PASS_FUSE_PAPER && can_be_one(w, &p) && plain)
        return apply_attention_qkv(w, id, &p);
    if (level == PASS_FUSE_FULL && can_be_split(w, &p))
        return apply_split(w, id, &p);
    return apply_rope_kv(w, id, &p);
}

/* ---- rule parts ---- */

/* Is the attention too few tasks for the workers of a peer, or unequal numbers for them, while its
 * contexts may have several parts?  One token whose heads share the workers evenly stays whole. On
 * a GPU rule split does this for caches of keys and values, rule parts for those of one row for
 * both. */
static bool wants_parts(const rewrite *w, const ir_op *op)
{
    const pass_options *o = w->s->options;
    const ir_tensor *q = tensor_of(w, rewrite_input(w, op, ATTEND_Q)),
                    *k = tensor_of(w, rewrite_input(w, op, ATTEND_K)),
                    *pages = tensor_of(w, rewrite_input(w, op, ATTEND_PAGES));
    const int64_t workers = o->n_workers / (o->n_peers > 1 ? o->n_peers : 1),
                  tasks = q->dims[0] * k->dims[1];
    if (context_parts(context_blocks(0, pages->dims[1] * k->dims[2] - 1)) == 1)
        return false;
    if (o->splits)
        return rewrite_input(w, op, ATTEND_V) == IR_NONE && q->dims[0] <= o->split_tokens &&
               tasks < workers;
    return q->dtype == IR_F32 && workers > 1 && tasks < o->context_tasks * workers &&
           !(q->dims[0] == 1 && tasks % workers == 0);
}

/* Rule parts: in f32 the fold gives the bits of the attention, so that what each number of tokens
 * and of workers has does not matter. */
static mpk_status apply_parts(rewrite *w, ir_op_id id)
{
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "attention") != 0 || !wants_parts(w, op))
        return MPK_OK;
    ir_tensor_id in[IR_MAX_INPUTS], out[IR_MAX_OUTPUTS], y[IR_MAX_OUTPUTS], old = op->out[0];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    for (uint32_t i = 0; i < op->n_in; i++)
        in[i] = rewrite_input(w, op, i);
    TRY(rewrite_copy_attributes(w, op, sets));
    const ir_tensor_id sinks = sinks_of(w, op);
    const uint32_t n_in = ATTEND_PAGES + 1; /* the fold takes sinks */
    TRY(rewrite_add(w, w->keys.at[id], "attention_parts", n_in, in, sets, out));
    TRY(add_fold(w, w->keys.at[id], out, sinks, y));
    rewrite_replace(w, old, y[0]);
    return MPK_OK;
}

/* ---- rule rows ---- */

/* Rule rows: transpose by {0, 2, 1, 3} of sdpa's [B, H, T, K] gives [B, T, H, K]; sdpa can write
 * that order itself. */
static mpk_status apply_rows(rewrite *w, ir_op_id id)
{
    static const int64_t swapped[] = {0, 2, 1, 3};
    const ir_op *op = &w->g->ops.at[id];
    if (strcmp(op->def->name, "transpose") != 0)
        return MPK_OK;
    const ir_op *sdpa = rewrite_producer(w, rewrite_input(w, op, 0), "sdpa");
    ir_tensor_id in[IR_MAX_INPUTS], out, old = op->out[0];
    ir_set sets[IR_MAX_ATTRIBUTES + 1];
    if (!sdpa || !is_private(w, sdpa, 1) ||
        memcmp(rewrite_attribute(op, "perm")->ints.at, swapped, sizeof swapped) != 0 ||
        rewrite_attribute(sdpa, "by_rows")->i || w->is_output[old])
        return MPK_OK;
    for (uint32_t i = 0; i < sdpa->n_in; i++)
        in[i] = rewrite_input(w, sdpa, i);
    TRY(rewrite_copy_attributes(w, sdpa, sets));
    for (uint32_t i = 0; sets[i].name; i++)
        if (strcmp(sets[i].name, "by_rows") == 0)
            sets[i].i = 1;
    TRY(rewrite_add(w, w->keys.at[sdpa - w->g->ops.at], "sdpa", sdpa->n_in, in, sets, &out));
    rewrite_replace(w, old, out);
    return MPK_OK;
}

mpk_status fuse_attentions(rewrite *w)
{
    pass_fusion level = w->s->options->fusion;
    uint32_t n = (uint32_t)w->g->ops.n;
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_attention(w, o, level));
    for (ir_op_id o = 0; o < n && level == PASS_FUSE_FULL; o++)
        TRY(apply_parts(w, o));
    for (ir_op_id o = 0; o < n && w->s->options->relaxed; o++)
        TRY(apply_rows(w, o));
    return MPK_OK;
}
