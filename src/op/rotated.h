/* rotated.h - operators that rotate the heads of packed q, k, v by a table and store keys and
 * values in the cache: what rope_kv.c and attention_split.c share.
 *
 * qkv [T, (H + 2 G) K], table f32[T, 2, Kr/2] of cosines and sines, positions, slots i32[T],
 * pages i32[B, N], k_cache, v_cache [n_pages, G, P, K], q_norm, k_norm [K] or absent.
 * Attributes 0, 1 and 2 are H, G and K.
 */
#ifndef OP_ROTATED_H
#define OP_ROTATED_H

#include "op/heads.h"

/* Inputs, by index, and the first attributes; further ones of a record start at
 * ROTATED_ATTRIBUTES. */
enum { QKV, TABLE, POSITIONS, SLOTS, PAGES, K_CACHE, V_CACHE, Q_NORM, K_NORM };
enum { HEADS, KV_HEADS, HEAD_SIZE, ROTATED_ATTRIBUTES };

/* The numbers of heads and the head size, from the first three attributes. */
static inline heads_split rotated_split(const ir_op *op)
{
    const ir_attribute *a = op->attributes;
    return (heads_split){a[HEADS].i, a[KV_HEADS].i, a[HEAD_SIZE].i};
}

/* Check the shapes of all inputs; MPK_ESHAPE if they do not fit together. */
static inline mpk_status rotated_expect(mpk_context *cx, const ir_graph *g, const ir_op *op)
{
    heads_split n = rotated_split(op);
    TRY(heads_check(cx, g, op, n, Q_NORM));
    const ir_tensor *qkv = shape_input(g, op, QKV), *table = shape_input(g, op, TABLE);
    TRY(shape_expect(cx, g, op, TABLE, 1 << IR_F32, 3, (int64_t[]){qkv->dims[0], 2, SHAPE_FREE}));
    TRY(shape_expect_live(cx, g, op, TABLE, qkv->live));
    CHECK(cx, 2 * table->dims[2] <= n.size, MPK_ESHAPE,
          "%s: the table rotates %lld entries, heads have %lld", op->def->name,
          (long long)(2 * table->dims[2]), (long long)n.size);
    TRY(pages_expect(cx, g, op, POSITIONS, qkv->dims[0], qkv->live));
    return pages_expect_caches(cx, g, op, K_CACHE, n.kv, n.size);
}

/* The two caches as results, in place: out[0] and out[1] share the storage of the inputs. */
static inline void rotated_caches(const ir_graph *g, const ir_op *op, ir_tensor *out)
{
    for (uint32_t i = 0; i < 2; i++) {
        shape_like(shape_input(g, op, K_CACHE + i), &out[i]);
        out[i].shares = op->in[K_CACHE + i];
    }
}

static const op_operand rotated_in[] = {
    {"qkv", 0},     {"table", 0},   {"positions", 0},        {"slots", 0},           {"pages", 0},
    {"k_cache", 0}, {"v_cache", 0}, {"q_norm", OP_OPTIONAL}, {"k_norm", OP_OPTIONAL}};

#define ROTATED_ATTRIBUTE_ROWS \
    SHAPE_NEEDED("heads", INT), SHAPE_NEEDED("kv_heads", INT), SHAPE_NEEDED("head_size", INT)

/* The inputs of a case but for the norms: %x, %t, %p, %s, %pages, %kc and %vc. */
#define ROTATED_INPUTS(tokens, qkv, half, pages, cache)                                     \
    "input %x : " qkv " live=tokens\ninput %t : f32[" tokens ", 2, " half "] live=tokens\n" \
    "input %p : i32[" tokens "] live=tokens\ninput %s : i32[" tokens                        \
    "] live=tokens\ninput %pages : i32[" pages "]\n"                                        \
    "state %kc : " cache "\nstate %vc : " cache "\n"

#endif
