/* map_program.h - the expressions of the operator map, compiled: a list of typed steps.
 *
 * Input: the text of an expression and the dtypes of its inputs.  Output: steps, each with the
 * steps that it reads and a type, so that a generator of code prints one variable for each step.
 * map_compile.c has the grammar and an example, map_functions.c the arithmetic.  Used by map, by
 * conv's `expr`, by the block programs of src/super and by gen.
 */
#ifndef OP_MAP_PROGRAM_H
#define OP_MAP_PROGRAM_H

#include "ir/op.h"

/* Limits: steps and slots of a program; elements that the interpreter does at once; arguments of
 * a function. */
enum { MAP_STEPS = 256, MAP_SLOTS = 48, MAP_RUN = 64, MAP_ARGUMENTS = 3 };

/* What a value is while it is computed; of two that meet, both become the higher. */
typedef enum map_type {
    MAP_B, /* truth: 0 or 1 */
    MAP_I, /* 64-bit integer, wraps around */
    MAP_F, /* fp32: inputs of f32, f16 and bf16 */
    MAP_D, /* fp64 */
    MAP_TYPES
} map_type;

/* One operation. */
typedef struct map_step {
    enum {
        MAP_INPUT,  /* an element of input `number` */
        MAP_NUMBER, /* `real` (types F, D) or `whole` (types B, I) */
        /* function `number` of map_functions; its arguments have one type, but for the first of
         * where */
        MAP_CALL,
        /* arg[0] as `type`: to B "not zero", to I towards zero, held at its ends, NaN 0 */
        MAP_CONVERT,
        /* arg[0] as it comes back from a tensor of dtype `number`: f16, bf16 (type F), a small int
         * (I) */
        MAP_ROUND,
    } kind;
    map_type type;
    uint32_t number;
    uint16_t arg[MAP_ARGUMENTS]; /* earlier steps */
    /* the lane in which the interpreter keeps the value; never that of an argument */
    uint16_t slot;
    double real;
    int64_t whole;
} map_step;

/* Fixed size and no pointers, so that it can lie in a task's scratch. */
typedef struct map_program {
    uint32_t n, n_slots;
    uint32_t result; /* a step */
    map_step steps[MAP_STEPS];
} map_program;

/* The operator's record; conv and reduce apply it to their own results (`expr`, `then`). */
extern const op_def op_map;

/* Compile an expression.  MPK_EFORMAT with the character at which the text stops making sense.
 * cx may be NULL: then only the status tells. */
mpk_status map_compile(mpk_context *cx, str source, uint32_t n_in, const ir_dtype *dtypes,
                       map_program *program);

/* ---- functions ---- */

/* Values of MAP_RUN elements; types B and I use `i`. */
typedef union map_lane {
    float f[MAP_RUN];
    double d[MAP_RUN];
    int64_t i[MAP_RUN];
} map_lane;

/* y = f(a, b, c) for n elements; functions of fewer arguments are given a again in place of
 * those that they lack. */
typedef void map_loop(map_lane *restrict y, const map_lane *a, const map_lane *b, const map_lane *c,
                      int64_t n);

/* Evaluate n <= MAP_RUN elements along the last axis from entry `at` on, of operands that are
 * broadcast to this rank; lanes: MAP_SLOTS, the result in that of program->result's slot. */
void map_evaluate(const map_program *program, const op_view *in, uint32_t rank, const int64_t *at,
                  int64_t n, map_lane *lanes);

/* Types that a function takes, and its result's. */
typedef enum map_rule {
    MAP_FLOATING,   /* F or D: the same */
    MAP_NUMERIC,    /* I, F or D: the same */
    MAP_TEST,       /* I, F or D: B */
    MAP_FLOAT_TEST, /* F or D: B */
    MAP_WHOLE,      /* I: I */
    MAP_BITS,       /* B or I: the same */
    MAP_LOGIC,      /* B: B */
    MAP_CHOICE,     /* B, then two of any one type: that type */
} map_rule;

/* A function of the table. */
typedef struct map_function {
    const char *name; /* operators: "+", "-x" ... */
    uint32_t arity;
    map_rule rule;
    /* by the type of the last argument; NULL: the rule does not allow it */
    map_loop *loop[MAP_TYPES];
} map_function;

/* Name NULL ends the table; the first rows are the operators, in the order of this enum. */
extern const map_function map_functions[];
enum {
    MAP_NEGATE,
    MAP_ADD,
    MAP_SUBTRACT,
    MAP_MULTIPLY,
    MAP_DIVIDE,
    MAP_COMPARE,
    MAP_COMPARISONS = 6
};

#endif
