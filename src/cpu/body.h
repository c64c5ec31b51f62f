/* body.h - fast bodies for the CPU target.
 *
 * The reference code of an operator makes everything run; a body here makes the expensive
 * operators fast on processors that have the instructions.  Bodies are found by listing: any
 * file of src/cpu may define `const cpu_body cpu_body_NAME`, and the build puts all of them into
 * cpu_body_table.
 *
 * Bits: a token's result must not depend on how many other tokens are in the step, how the
 * operator was cut, or how many threads run.  So of all bodies that one processor may choose for
 * an operator and its dtypes, each must give the same bits for the same row, whatever T: the
 * order of every reduction is fixed by the reduced axis alone.
 *
 * Used by cpu.c, which binds operators to bodies; body_test.c compares every body with the
 * reference code.
 */
#ifndef CPU_BODY_H
#define CPU_BODY_H

#include "ir/op.h"

/* Instruction sets, as found at run time (cpu_features in cpu.h); bits of a set. */
enum {
    CPU_AVX2 = 1, /* with FMA and F16C */
    CPU_AVX512 = 2,
    CPU_AVX512_VNNI = 4,
    CPU_AVX512_BF16 = 8,
    CPU_AVX_VNNI = 16,
    /* of arm64 */
    CPU_NEON = 32,
    CPU_NEON_DOT = 64,   /* dot products of bytes */
    CPU_NEON_I8MM = 128, /* products of matrices of bytes */
    CPU_AMX = 256        /* tiles, and products of tiles of bf16 and of bytes; of x86-64 */
};

typedef struct cpu_body {
    const char *op;   /* name of the operator */
    const char *name; /* shown by `mpk inspect` */
    uint32_t needs;   /* CPU_* that the processor must have, all of them */
    uint32_t rank;    /* of all that accept, the highest rank wins */
    /* Whether it can compute this operator, by dtypes, strides and sizes.  Must not depend on T,
     * unless all bodies for it give the same bits. */
    bool (*accepts)(const op_call *call);
    /* Scratch in bytes for a box (ref's own is not counted); never more for fewer entries of
     * axis 0.  NULL: none. */
    size_t (*scratch_bytes)(const op_call *call, const ir_box *box);
    op_body *run; /* computes a box of the result, as the record's ref does */
} cpu_body;

/* All bodies that were built, by name; ends with NULL. */
extern const cpu_body *const cpu_body_table[];

/* The best body for a bound operator on a processor with these features, or NULL: use the
 * reference code. */
const cpu_body *cpu_body_choose(const op_call *call, uint32_t features);

#endif
