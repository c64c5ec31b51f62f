/* fuse_cache.c - attention of few tokens over a contiguous cache, cut along its keys.
 *
 * Rules of fuse_ops.c, for the decode steps of PyTorch, whose static caches are plain tensors
 * and not pages:
 *
 *   cache  q, k = rotate(rms_norm(parts of qkv)), v a part of qkv;
 *          sdpa(q, index_put(k_cache, k, index), index_put(v_cache, v, index), mask)
 *          -> attention_fold(attention_cache(qkv, ...))
 *   split  sdpa(q, k, v, mask) of other patterns -> attention_fold(sdpa_split(q, k, v, mask))
 *   views  a view of a view ... of x, that is x -> x
 *
 * The first two need options->split_tokens, and apply to at most this many tokens.  Norms and
 * rotation may be absent.  The parts lie in qkv one after the other, as rule siblings leaves
 * them.  Nothing else may touch the caches: the new operator takes the place of the attention,
 * later than the writes stood, and reads the caches as part of its in-place write.  Any other
 * reader in between would see the old contents.
 *
 * Dynamo's graphs reach the operands through many views (transpose, reshape, expand, in any
 * order), so operands are not matched by the operators in between but by what they denote:
 * storage, offset and strides of every axis.  Cost: linear in the program for each attention.
 */
#include "pass/fuse.h"

/* The most splits that one fold takes; the positions of a block, the unit in which
 * attention_cache deals out the keys. */
enum { MOST_SPLITS = 32, UNIT = 64 };

/* Operands of sdpa. */
enum { SDPA_Q, SDPA_K, SDPA_V, SDPA_MASK };

/* Where the axes (entries B, heads H, tokens T, elements of a head K) lie in a tensor of rank 4:
 * axis[0] is the axis that counts entries, and so on. */
typedef struct layout {
    uint32_t axis[4];
} layout;

static const layout plain = {{0, 1, 2, 3}};

/* What a match has found: operands of attention_cache (IR_NONE: absent), and sizes.  length: the
 * positions of the cache, size: the elements of a head, tokens: those of one entry. */
typedef struct cache_parts {
    ir_tensor_id qkv, k_cache, v_cache, index, mask, cosine, sine, q_norm, k_norm;
    int64_t entries, heads, kv_heads, tokens, length, size;
    double eps; /* of the norms; negative: none yet */
} cache_parts;

/* Do t, with its axes ordered by `from`, and base, ordered by `to`, have the same storage, sizes
 * and strides?  Then every element of one is the element of the other at the same entry, head,
 * token and place. */
static bool is_same(const rewrite *w, ir_tensor_id t, layout from, ir_tensor_id base, layout to)
{
    const ir_tensor *a = tensor_of(w, t), *b = tensor_of(w, base);
    if (a->rank != 4 || b->rank != 4 || a->offset != b->offset ||
        tg_root(w->g, t) != tg_root(w->g, base))
        return false;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t x = from.axis[i], y = to.axis[i];
        if (a->dims[x] != b->dims[y] || (a->dims[x] > 1 && a->stride[x] != b->stride[y]))
            return false;
    }
    return true;
}

/* The operator of this kind that made t, seen through views; NULL if there is none, or if the
 * views do more than exchange heads and tokens.  *of: the layout of t, replaced by that of the
 * operator's result. */
static const ir_op *find_maker(const rewrite *w, ir_tensor_id t, const char *kind, layout *of)
{
    static const layout exchanged = {{0, 2, 1, 3}};
    ir_tensor_id base = rewrite_before_views(w, t);
    const ir_op *op = rewrite_producer(w, base, kind);
    if (!op || (!is_same(w, t, *of, base, plain) && !is_same(w, t, *of, base, exchanged)))
        return NULL;
    *of = is_same(w, t, *of, base, plain) ? plain : exchanged;
    return op;
}

/* Does a rotation table, broadcast to a tensor of this layout, have one row for each token, the
 * same for all heads? */
static bool is_table(const rewrite *w, ir_tensor_id table, layout of, const cache_parts *p)
{
    const ir_tensor *t = tensor_of(w, table);
    int64_t dims[4] = {1, 1, 1, 1};
    for (uint32_t i = 0; i < t->rank; i++)
        dims[4 - t->rank + i] = t->dims[i];
    return dims[of.axis[1]] == 1 && dims[of.axis[2]] == p->tokens;
}

/* Replace a table by a view of it with the dimensions [1 or B, T, R] that attention_cache takes;
 * R: rotated elements. */
static mpk_status add_table(rewrite *w, uint32_t key, const cache_parts *p, ir_tensor_id *table)
{
    const ir_tensor *t = tensor_of(w, *table);
    int64_t shape[3] = {t->rank == 4 ? t->dims[0] : 1, p->tokens, t->dims[t->rank - 1]};
    return rewrite_reshape(w, key, *table, 3, shape, table);
}

/* A head operand followed back through rotation and norm, where present, to its part of qkv. */
typedef struct head_parts {
    const ir_op *rotate;
    layout rotated; /* layout of the rotation's operand */
    ir_tensor_id norm, part;
    layout of; /* layout of `part` */
    double eps;
} head_parts;

/* Follow one operand t of the attention, seen in layout `of`, back to its part of qkv.  It cannot
 * fail: where rotation or norm is missing, the walk goes on or ends without it, and is_part judges
 * the tensor where it ends. */
static void find_part(const rewrite *w, ir_tensor_id t, layout of, head_parts *out)
{
    *out = (head_parts){.norm = IR_NONE, .part = t, .of = of, .eps = -1};
    out->rotate = find_maker(w, t, "rotate", &out->of);
    if (out->rotate) {
        out->rotated = out->of;
        out->part = rewrite_input(w, out->rotate, 0);
    }
    layout under = out->of;
    const ir_op *norm = find_maker(w, out->part, "rms_norm", &under);
    if (!norm || rewrite_input(w, norm, NORM_WEIGHT) == IR_NONE || !is_plain_norm(w, norm))
        return;
    out->norm = rewrite_input(w, norm, 1);
    out->eps = rewrite_attribute(norm, "eps")->f;
    out->part = rewrite_input(w, norm, 0);
    out->of = under;
}

/* Is it n heads of every row of qkv [B T, columns], from column `first` on? */
static bool is_part(const rewrite *w, const head_parts *h, const cache_parts *p, int64_t first,
                    int64_t n)
{
    const ir_tensor *t = tensor_of(w, h->part), *qkv = tensor_of(w, p->qkv);
    int64_t columns = qkv->dims[1], dims[4] = {p->entries, n, p->tokens, p->size};
    int64_t strides[4] = {p->tokens * columns, p->size, columns, 1};
    if (t->rank != 4 || tg_root(w->g, h->part) != p->qkv || t->offset != first ||
        t->dtype != qkv->dtype)
        return false;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t axis = h->of.axis[i];
        if (t->dims[axis] != dims[i] || (dims[i] > 1 && t->stride[axis] != strides[i]))
            return false;
    }
    return true;
}

/* ---- the caches ---- */

/* The in-place index_put after which t is a whole cache (*cache, of kind IR_STATE), or NULL.
 * Only views may lie between the write, the cache and t.  The write indexes positions, so it
 * sees the cache with that axis first: [L, B, G, K]. */
static const ir_op *find_write(const rewrite *w, ir_tensor_id t, ir_tensor_id *cache)
{
    static const layout by_position = {{1, 2, 0, 3}};
    ir_tensor_id written = rewrite_before_views(w, t), root = tg_root(w->g, t);
    const ir_op *put = rewrite_producer(w, written, "index_put");
    if (!put || put->n_in != 3 || rewrite_attribute(put, "accumulate")->i ||
        !rewrite_attribute(put, "in_place")->i || tensor_of(w, root)->kind != IR_STATE ||
        !is_same(w, t, plain, root, plain) ||
        !is_same(w, rewrite_input(w, put, 0), by_position, root, plain))
        return NULL;
    *cache = root;
    return put;
}

/* Do only the write and the attention touch the storage of this cache?  Views that share it are
 * allowed, since whatever reads a view is looked at itself. */
static bool is_own(const rewrite *w, ir_tensor_id cache, const ir_op *put, const ir_op *sdpa)
{
    for (size_t o = 0; o < w->g->ops.n; o++) {
        const ir_op *op = &w->g->ops.at[o];
        bool allowed = op == put || op == sdpa ||
                       (op->def->flags & OP_VIEW && tensor_of(w, op->out[0])->shares != IR_NONE);
        for (uint32_t i = 0; i < op->n_in && !allowed; i++)
            if (rewrite_input(w, op, i) != IR_NONE &&
                tg_root(w->g, rewrite_input(w, op, i)) == cache)
                return false;
    }
    for (size_t i = 0; i < w->g->outputs.n; i++)
        if (tg_root(w->g, w->g->outputs.at[i]) == cache)
            return false;
    return true;
}

/* Find both caches and their writes, which must put a token at each position of the same index; the
 * index must not be overwritten between the writes and the attention, because it is read there
 * now.  That the values are tokens of this attention is for is_part to say. */
static bool match_caches(const rewrite *w, const ir_op *sdpa, cache_parts *p, const ir_op **k_put,
                         const ir_op **v_put)
{
    *k_put = find_write(w, rewrite_input(w, sdpa, SDPA_K), &p->k_cache);
    *v_put = find_write(w, rewrite_input(w, sdpa, SDPA_V), &p->v_cache);
    if (!*k_put || !*v_put)
        return false;
    p->index = rewrite_input(w, *k_put, 2);
    const ir_tensor *index = tensor_of(w, p->index);
    uint32_t put = w->keys.at[tensor_of(w, (*k_put)->out[0])->producer];
    return p->index == rewrite_input(w, *v_put, 2) && index->rank == 1 &&
           tensor_of(w, rewrite_input(w, *k_put, 1))->dims[0] == index->dims[0] &&
           same_dims(tensor_of(w, p->k_cache), tensor_of(w, p->v_cache)) &&
           is_own(w, p->k_cache, *k_put, sdpa) && is_own(w, p->v_cache, *v_put, sdpa) &&
           !rewrite_is_written(w, p->index, put, w->keys.at[tensor_of(w, sdpa->out[0])->producer]);
}

/* Is the attention one that can be cut along its keys?  It has no causal rule and no window of its
 * own (the mask says what is seen), its result lies by heads, and its tokens are few. */
static bool may_be_cut(const rewrite *w, const ir_op *sdpa, const ir_tensor *q)
{
    return !rewrite_attribute(sdpa, "causal")->i && !rewrite_attribute(sdpa, "window")->i &&
           !rewrite_attribute(sdpa, "by_rows")->i && is_small_float(q->dtype) &&
           q->dims[0] * q->dims[2] <= w->s->options->split_tokens;
}

/* Fill the sizes, if the attention is one that can be cut.  The caches have its entries and head
 * size (find_write), and it has as many tokens as were written (is_part, of the values). */
static bool match_shape(const rewrite *w, const ir_op *sdpa, cache_parts *p)
{
    const ir_tensor *q = tensor_of(w, rewrite_input(w, sdpa, SDPA_Q)),
                    *k = tensor_of(w, p->k_cache);
    p->entries = q->dims[0];
    p->heads = q->dims[1];
    p->tokens = q->dims[2];
    p->size = q->dims[3];
    p->kv_heads = k->dims[1];
    p->length = k->dims[2];
    p->mask = rewrite_input(w, sdpa, SDPA_MASK);
    return may_be_cut(w, sdpa, q);
}

/* Queries and keys are rotated by the same tables, or neither. */
static bool match_rotation(const rewrite *w, const head_parts *q, const head_parts *k,
                           cache_parts *p)
{
    p->cosine = p->sine = IR_NONE;
    if (!q->rotate || !k->rotate)
        return q->rotate == k->rotate;
    p->cosine = rewrite_input(w, q->rotate, 1);
    p->sine = rewrite_input(w, q->rotate, 2);
    return p->cosine == rewrite_input(w, k->rotate, 1) &&
           p->sine == rewrite_input(w, k->rotate, 2) && is_table(w, p->cosine, q->rotated, p) &&
           is_table(w, p->sine, q->rotated, p) && is_table(w, p->cosine, k->rotated, p) &&
           is_table(w, p->sine, k->rotated, p);
}

/* Match the three parts of qkv and the operators applied to them. */
static bool match_heads(const rewrite *w, const ir_op *sdpa, const ir_op *k_put, const ir_op *v_put,
                        cache_parts *p)
{
    static const layout by_position = {{1, 2, 0, 3}};
    head_parts q, k, v = {.part = rewrite_input(w, v_put, 1), .of = by_position};
    find_part(w, rewrite_input(w, sdpa, SDPA_Q), plain, &q);
    find_part(w, rewrite_input(w, k_put, 1), by_position, &k);
    p->qkv = tg_root(w->g, q.part);
    p->q_norm = q.norm;
    p->k_norm = k.norm;
    p->eps = q.eps >= 0 ? q.eps : k.eps;
    const ir_tensor *qkv = tensor_of(w, p->qkv);
    int64_t columns = p->heads * p->size, kv_columns = p->kv_heads * p->size;
    return qkv->kind == IR_TEMP && qkv->rank == 2 && qkv->live == IR_ALL &&
           qkv->dims[0] == p->entries * p->tokens && qkv->dims[1] == columns + 2 * kv_columns &&
           is_part(w, &q, p, 0, p->heads) && is_part(w, &k, p, columns, p->kv_heads) &&
           is_part(w, &v, p, columns + kv_columns, p->kv_heads) &&
           (q.eps < 0 || k.eps < 0 || q.eps == k.eps) && match_rotation(w, &q, &k, p);
}

/* Enough splits for each worker to have one KV head of one split, at most MOST_SPLITS, and none
 * shorter than a block.  A cache of 4,096 positions with 8 KV heads on 132 workers: 16 splits of
 * 256 positions. */
static int64_t choose_splits(const rewrite *w, const cache_parts *p)
{
    int64_t n = w->s->options->n_workers / (p->entries * p->kv_heads),
            blocks = (p->length + UNIT - 1) / UNIT;
    n = n < MOST_SPLITS ? n : MOST_SPLITS;
    n = n < blocks ? n : blocks;
    return n > 0 ? n : 1;
}

/* Substitute the fold's result y [B T, H K], seen as [B, H, T, K], for the attention's `old`. */
static mpk_status replace_result(rewrite *w, uint32_t key, const cache_parts *p, ir_tensor_id y,
                                 ir_tensor_id old)
{
    int64_t dims[4] = {p->entries, p->tokens, p->heads, p->size}, perm[4] = {0, 2, 1, 3};
    TRY(rewrite_reshape(w, key, y, 4, dims, &y));
    TRY(rewrite_add(w, key, "transpose", 1, &y,
                    (ir_set[]){{.name = "perm", .ints = perm, .n_ints = 4}, {0}}, &y));
    rewrite_replace(w, old, y);
    return MPK_OK;
}

/* Rule cache for one attention.  The operator is copied because rewrite_add may move the array
 * that it lies in. */
static mpk_status apply_cache(rewrite *w, ir_op_id id)
{
    const ir_op *k_put, *v_put, sdpa = w->g->ops.at[id];
    cache_parts p;
    uint32_t key = w->keys.at[id];
    if (strcmp(sdpa.def->name, "sdpa") != 0 ||
        !match_caches(w, &w->g->ops.at[id], &p, &k_put, &v_put) || !match_shape(w, &sdpa, &p) ||
        !match_heads(w, &sdpa, k_put, v_put, &p))
        return MPK_OK;
    const ir_tensor_id moved[] = {p.qkv, p.cosine, p.sine, p.q_norm, p.k_norm};
    if (!rewrite_are_current(w, moved, sizeof moved / sizeof *moved, key))
        return MPK_OK;
    ir_tensor_id old_k = k_put->out[0], old_v = v_put->out[0], out[IR_MAX_OUTPUTS], y;
    if (p.cosine != IR_NONE) {
        TRY(add_table(w, key, &p, &p.cosine));
        TRY(add_table(w, key, &p, &p.sine));
    }
    ir_tensor_id in[] = {p.qkv,    p.k_cache, p.v_cache, p.index, p.mask,
                         p.cosine, p.sine,    p.q_norm,  p.k_norm};
    TRY(rewrite_add(w, key, "attention_cache", 9, in,
                    (ir_set[]){{.name = "heads", .i = p.heads},
                               {.name = "kv_heads", .i = p.kv_heads},
                               {.name = "head_size", .i = p.size},
                               {.name = "eps", .f = p.eps >= 0 ? p.eps : 1e-6},
                               {.name = "scale", .f = rewrite_attribute(&sdpa, "scale")->f},
                               {.name = "splits", .i = choose_splits(w, &p)},
                               {0}},
                    out));
    TRY(rewrite_add(w, key, "attention_fold", 2, out, NULL, &y));
    TRY(replace_result(w, key, &p, y, sdpa.out[0]));
    rewrite_replace(w, old_k, out[2]);
    rewrite_replace(w, old_v, out[3]);
    return MPK_OK;
}

/* ---- rule split ---- */

/* Rule split: any other attention of few tokens, cut along its keys. */
static mpk_status apply_split(rewrite *w, ir_op_id id)
{
    const ir_op sdpa = w->g->ops.at[id];
    uint32_t key = w->keys.at[id];
    ir_tensor_id out[IR_MAX_OUTPUTS], y, in[4];
    if (strcmp(sdpa.def->name, "sdpa") != 0 || !w->uses.at[sdpa.out[0]])
        return MPK_OK;
    for (uint32_t i = 0; i < 4; i++)
        in[i] = rewrite_input(w, &sdpa, i);
    const ir_tensor *q = tensor_of(w, in[SDPA_Q]), *k = tensor_of(w, in[SDPA_K]);
    cache_parts p = {.entries = q->dims[0],
                     .heads = q->dims[1],
                     .kv_heads = k->dims[1],
                     .tokens = q->dims[2],
                     .length = k->dims[2],
                     .size = q->dims[3]};
    if (!may_be_cut(w, &sdpa, q) || !same_dims(k, tensor_of(w, in[SDPA_V])))
        return MPK_OK;
    TRY(rewrite_add(w, key, "sdpa_split", 4, in,
                    (ir_set[]){{.name = "scale", .f = rewrite_attribute(&sdpa, "scale")->f},
                               {.name = "splits", .i = choose_splits(w, &p)},
                               {0}},
                    out));
    TRY(rewrite_add(w, key, "attention_fold", 2, out, NULL, &y));
    return replace_result(w, key, &p, y, sdpa.out[0]);
}

/* Rule split takes any attention of few tokens, so rule cache has the first choice. */
mpk_status fuse_caches(rewrite *w)
{
    uint32_t n = (uint32_t)w->g->ops.n;
    if (w->s->options->fusion != PASS_FUSE_FULL || !w->s->options->split_tokens)
        return MPK_OK;
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_cache(w, o));
    for (ir_op_id o = 0; o < n; o++)
        TRY(apply_split(w, o));
    return MPK_OK;
}

/* ---- rule views ---- */

/* Does a chain of views lead back to the base itself, so that t equals it element by element? */
static bool leads_back(const rewrite *w, ir_tensor_id t, ir_tensor_id base)
{
    const ir_tensor *a = tensor_of(w, t), *b = tensor_of(w, base);
    bool same = t != base && same_dims(a, b) && a->offset == b->offset;
    for (uint32_t i = 0; same && i < a->rank; i++)
        same = a->dims[i] == 1 || a->stride[i] == b->stride[i];
    return same;
}

/* Rule views.  Runs on a program of its own (fuse_ops.c), after the rules above have changed
 * what views are of. */
mpk_status fuse_views(rewrite *w)
{
    for (ir_tensor_id t = 0; t < w->n_source; t++) {
        ir_tensor_id base = rewrite_before_views(w, t);
        if (w->uses.at[t] && !w->is_output[t] && leads_back(w, t, base))
            rewrite_replace(w, t, base);
    }
    return MPK_OK;
}
