/* expert_fast.h - the fast expert_linear operator: its loops (expert_fast.c) over the kernels of
 * linear.  The three fields of a cpu_body, with the kernels of an instruction set as a
 * parameter; LINEAR_SET makes bodies of them.
 */
#ifndef CPU_EXPERT_FAST_H
#define CPU_EXPERT_FAST_H

#include "cpu/linear_fast.h"

bool expert_accepts(const op_call *call);
size_t expert_scratch_bytes(const op_call *call, const ir_box *box, const linear_kernels *k);
void expert_run(const op_call *call, const ir_box *box, void *scratch, const linear_kernels *k);

#endif
