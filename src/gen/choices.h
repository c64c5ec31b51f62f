/* choices.h - block programs that were chosen for the operators of one source: each kind of product
 * is searched and proved once (super/super.h). */
#ifndef GEN_CHOICES_H
#define GEN_CHOICES_H

#include "base/map.h"
#include "super/super.h"

/* The block programs of one instance: linear has one for each weight. */
enum { GEN_MOST_PROGRAMS = 3 };
typedef struct gen_programs {
    uint32_t n; /* 0: its body was written by hand */
    const super_choice *at[GEN_MOST_PROGRAMS];
} gen_programs;

/* Zero-initialise; lives in the arena of the calls. */
typedef struct gen_choices {
    map numbers; /* of what was asked: index of made */
    VEC(super_choice *) made;
    gen_programs noted; /* of the instance that is printed */
} gen_choices;

/* What super chooses for this product, from before or now.  Everything is allocated from a; names
 * of operands are constants.  MPK_ENOMEM; MPK_EVERIFY as super_choose_product. */
mpk_status gen_choose_product(mpk_context *cx, arena *a, gen_choices *all, const super_product *s,
                              const super_target *t, const super_choice **out);
mpk_status gen_choose_attention(mpk_context *cx, arena *a, gen_choices *all,
                                const super_attention *s, const super_choice **out);
/* The program as a comment in the head of its instance, which has it from now on. */
void gen_print_note(gen_choices *all, const super_choice *chosen, text *out);

#endif
