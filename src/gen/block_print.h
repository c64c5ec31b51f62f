/* block_print.h - block programs (super/block.h) as CUDA C over device/task/block.cuh. */
#ifndef GEN_BLOCK_PRINT_H
#define GEN_BLOCK_PRINT_H

#include "super/block.h"

/* Print the steps of a program, which has been proved.  The text before must define, for each
 * operand NAME, its view NAME and `const char *g_NAME` (`char *` for what is stored), and for each
 * axis AXIS `const rt_i64 AXIS_lo, AXIS_hi`. MPK_ENOMEM. */
mpk_status gen_print_block(mpk_context *cx, const block_program *p, text *out);

#endif
