/* body_rope.h - a rotation's frequencies in an instance: for rope_table and the attention that has
 * it built in. */
#ifndef GEN_BODY_ROPE_H
#define GEN_BODY_ROPE_H

#include "gen/body_print.h"

/* The table frequency_n of the pairs; the attributes begin with those of op/rope.h. */
void gen_print_frequencies(const gen_call *c, uint32_t n, text *out);
/* What cos and sin are multiplied with. */
void gen_print_amplitude(const gen_call *c, text *out);

#endif
