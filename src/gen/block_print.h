/* block_print.h - block programs (super/block.h) as CUDA C over device/task/block.cuh. */
#ifndef GEN_BLOCK_PRINT_H
#define GEN_BLOCK_PRINT_H

#include "super/block.h"

/* Print the steps of a program.  What stands before: for each operand NAME its view NAME and `const
 * char *g_NAME` (of what is stored `char *`), for each axis AXIS `const rt_i64 AXIS_lo, AXIS_hi`.
 * The program has been proved.  MPK_ENOMEM. */
mpk_status gen_print_block(mpk_context *cx, const block_program *p, text *out);

#endif
