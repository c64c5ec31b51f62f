/* heads.h - the packed result of the q, k, v projection, qkv [T, (H + 2 G) K], and what is done
 * to one of its heads.
 *
 * A row of qkv with H = 4 query heads and G = 2 KV heads:
 *
 *   | q0 q1 q2 q3 | k0 k1 | v0 v1 |      each K entries
 *
 * q0 and q1 use k0 and v0, q2 and q3 use k1 and v1.  So a head is a number: q heads 0 to H - 1,
 * keys from H on, values from H + G on (heads_load).  Used by rope_kv and the attentions that
 * take qkv.
 */
#ifndef OP_HEADS_H
#define OP_HEADS_H

#include "op/norm.h"
#include "op/pages.h"
#include "op/rope.h"

/* How qkv is divided. */
typedef struct heads_split {
    /* H query heads, G KV heads, K entries of a head; columns of qkv: all q heads, then the keys of
     * all KV heads, then the values */
    int64_t q, kv, size;
} heads_split;

/* MPK_ESHAPE unless the three counts are positive, H is a multiple of G, qkv [T, (H + 2 G) K]
 * (input 0) has that width, and the two norms (inputs q_norm and the next) have K weights or are
 * absent. */
static inline mpk_status heads_check(mpk_context *cx, const ir_graph *g, const ir_op *op,
                                     heads_split n, uint32_t q_norm)
{
    int64_t limit = 1 << 20;
    CHECK(cx, n.kv > 0 && n.q > 0 && n.q < limit && n.kv < limit && n.q % n.kv == 0, MPK_ESHAPE,
          "%s: heads %lld is not a multiple of kv_heads %lld", op->def->name, (long long)n.q,
          (long long)n.kv);
    CHECK(cx, n.size > 0 && n.size < limit, MPK_ESHAPE, "%s: head_size is %lld", op->def->name,
          (long long)n.size);
    TRY(shape_expect(cx, g, op, 0, SHAPE_FLOAT, 2,
                     (int64_t[]){SHAPE_FREE, (n.q + 2 * n.kv) * n.size}));
    for (uint32_t i = 0; i < 2; i++)
        TRY(shape_expect(cx, g, op, q_norm + i, SHAPE_FLOAT, 1, &n.size));
    return MPK_OK;
}

/* The columns of qkv that the KV heads lo .. hi - 1 and their query heads use, as one box: it
 * includes what lies between. */
static inline ir_box heads_box(const ir_tensor *qkv, heads_split n, int64_t lo, int64_t hi)
{
    ir_box b = ir_box_whole(qkv);
    b.lo[1] = lo * (n.q / n.kv) * n.size;
    b.hi[1] = (n.q + n.kv + hi) * n.size;
    return b;
}

/* Load a head of a token as f32: the K columns from head * K on. */
static inline void heads_load(const op_view *qkv, heads_split n, int64_t token, int64_t head,
                              float *row)
{
    walk_load_row(qkv, token * qkv->stride[0], head * n.size, n.size, row);
}

/* The norm of a head: none if the weight's data is NULL; last: after the rotation. */
typedef struct heads_norm {
    const op_view *weight;
    double eps;
    bool last;
} heads_norm;

/* Round a head to a dtype. */
static inline void heads_round(ir_dtype dtype, float *row, int64_t size)
{
    for (int64_t i = 0; i < size && dtype != IR_F32; i++)
        row[i] = walk_round(dtype, row[i]);
}

/* Normalise and rotate a head in place, or the other way round, rounding to dtype in between as
 * the single operators do. */
static inline void heads_rotate(ir_dtype dtype, float *row, int64_t size, heads_norm norm,
                                const float *cosine, const float *sine, int64_t half)
{
    const bool has_norm = norm.weight->data;
    if (has_norm && !norm.last) {
        norm_row(row, size, norm.weight, norm.eps, row);
        heads_round(dtype, row, size);
    }
    rope_rotate(row, cosine, sine, half);
    heads_round(dtype, row, size);
    if (has_norm && norm.last) {
        norm_row(row, size, norm.weight, norm.eps, row);
        heads_round(dtype, row, size);
    }
}

#endif
