/* posted.h - what operators among processes share: each process of a group runs a program of its
 * own, and they exchange tensors by memory that all of them have mapped.
 *
 *   post          writes a tensor where the others read it, and a flag for each row
 *   collect       every process's tensor, one after the other
 *   collect_sum   their sum, or some rows of it
 *
 * The exchanges of a group are numbered, in one order that is the same in every process: number +
 * index, an input that the caller sets for each run and an attribute.  The flag of a row is that
 * number and the `kind` of the exchange, which must differ where processes do not mean the same.
 * Two exchanges that follow each other use different memory, the next one after them that of the
 * first.  docs/gpus.md ("Processes of one group") has the argument why nothing is overwritten
 * before it has been read, and why no process waits for one that waits for it.  It relies on two
 * edges that the front end makes: collect reads all that post has written, and the next post reads
 * all that collect has (`after`).
 *
 * The caller binds what lies in shared memory: the results of post, and `all` and `flags` of
 * collect.  Flags are released after their row and acquired before it.
 */
#ifndef OP_POSTED_H
#define OP_POSTED_H

#include <stdatomic.h>

#include "op/shape.h"
#include "op/walk.h"

/* Inputs and attributes of collect and collect_sum, by index. */
enum { POSTED_X, POSTED_ALL, POSTED_FLAGS, POSTED_NUMBER, POSTED_TROUBLE };
enum { POSTED_INDEX, POSTED_KIND };
enum { POSTED_KIND_BITS = 24 };

/* What can be added up, and with it all that is exchanged. */
enum { POSTED_DTYPES = SHAPE_FLOAT | 1 << IR_F64 | SHAPE_INDEX };

/* The flag of the rows of this exchange. */
static inline int64_t posted_flag(const op_call *call, int64_t number)
{
    const uint64_t mask = (1u << POSTED_KIND_BITS) - 1;
    return (int64_t)(((uint64_t)number + (uint64_t)call->attributes[POSTED_INDEX].i)
                         << POSTED_KIND_BITS |
                     ((uint64_t)call->attributes[POSTED_KIND].i & mask));
}

/* Has process p posted rows first .. end - 1? */
static inline bool posted_rows(const op_call *call, int64_t p, int64_t first, int64_t end)
{
    const op_view *flags = &call->in[POSTED_FLAGS];
    const int64_t wanted = posted_flag(call, *(const int64_t *)call->in[POSTED_NUMBER].data);
    _Atomic int64_t *at = (_Atomic int64_t *)flags->data + p * flags->stride[0];
    for (int64_t i = first; i < end; i++)
        if (atomic_load_explicit(at + i * flags->stride[1], memory_order_acquire) != wanted)
            return false;
    return true;
}

/* Has the process been told to wait no longer? */
static inline bool posted_trouble(const op_call *call)
{
    return atomic_load_explicit((_Atomic int64_t *)call->in[POSTED_TROUBLE].data,
                                memory_order_acquire) != 0;
}

/* x [R, C], all [N, R, C], flags i64[N, R or more], number and trouble i64[]. */
static inline mpk_status posted_expect(mpk_context *cx, const ir_graph *g, const ir_op *op)
{
    const ir_tensor *x = shape_input(g, op, POSTED_X), *flags = shape_input(g, op, POSTED_FLAGS);
    const int64_t plain[2] = {SHAPE_FREE, SHAPE_FREE};
    TRY(shape_expect(cx, g, op, POSTED_X, POSTED_DTYPES, 2, plain));
    TRY(shape_expect_whole(cx, g, op, POSTED_X));
    TRY(shape_expect(cx, g, op, POSTED_ALL, 1u << x->dtype, 3,
                     (int64_t[]){SHAPE_FREE, x->dims[0], x->dims[1]}));
    TRY(shape_expect_whole(cx, g, op, POSTED_ALL));
    const int64_t n = shape_input(g, op, POSTED_ALL)->dims[0];
    TRY(shape_expect(cx, g, op, POSTED_FLAGS, SHAPE_I64, 2, (int64_t[]){n, SHAPE_FREE}));
    TRY(shape_expect_whole(cx, g, op, POSTED_FLAGS));
    CHECK(cx, flags->dims[1] >= x->dims[0], MPK_ESHAPE,
          "%s: %lld flags for %lld rows of each process", op->def->name, (long long)flags->dims[1],
          (long long)x->dims[0]);
    TRY(shape_expect(cx, g, op, POSTED_NUMBER, SHAPE_I64, 0, plain));
    return shape_expect(cx, g, op, POSTED_TROUBLE, SHAPE_I64, 0, plain);
}

/* Of the last three and x all: a process has posted everything before it waits. */
static inline void posted_reads(const ir_graph *g, const ir_op *op, uint32_t input, ir_box *read)
{
    *read = ir_box_whole(shape_input(g, op, input));
}

#endif
