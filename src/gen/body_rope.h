/* body_rope.h - a rotation's frequencies in an instance: for rope_table and the attention that has
 * it built in. */
#ifndef GEN_BODY_ROPE_H
#define GEN_BODY_ROPE_H

#include "gen/body_print.h"

/* Print the constant table frequency_n, an angle a position for each pair.  The operator's
 * attributes must begin with those of op/rope.h. */
void gen_print_frequencies(const gen_call *c, uint32_t n, text *out);
/* Print the factor by which cos and sin are multiplied. */
void gen_print_amplitude(const gen_call *c, text *out);

#endif
