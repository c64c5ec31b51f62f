/* choices.h - block programs that were chosen for the operators of one source: each kind of product
 * is searched and proved once (super/super.h). */
#ifndef GEN_CHOICES_H
#define GEN_CHOICES_H

#include "base/map.h"
#include "super/super.h"

/* Zero-initialise; lives in the arena of the calls. */
typedef struct gen_choices {
    map numbers; /* of what was asked: index of made */
    VEC(super_choice *) made;
} gen_choices;

/* What super chooses for this product, from before or now.  Everything is allocated from a; names
 * of operands are constants.  MPK_ENOMEM; MPK_EVERIFY as super_choose_product. */
mpk_status gen_choose_product(mpk_context *cx, arena *a, gen_choices *all, const super_product *s,
                              const super_choice **out);
mpk_status gen_choose_attention(mpk_context *cx, arena *a, gen_choices *all,
                                const super_attention *s, const super_choice **out);
/* The program as a comment in the head of its instance. */
void gen_print_note(const super_choice *chosen, text *out);

#endif
