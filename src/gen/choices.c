/* choices.c - what super was asked for one source, and what it answered (choices.h).  The key is all that the choice
 * and its text depend on. */
#include "gen/choices.h"

static void print_operand(const block_operand *o, text *key)
{
    text_print(key, "%s %d", o->name, (int)o->dtype);
    for (uint32_t i = 0; i < BLOCK_MOST_AXES; i++)
        text_print(key, " %lld", (long long)o->stride[i]);
    text_print(key, ";");
}

static void print_key(const super_product *s, text *key)
{
    text_print(key, "%lld %lld %lld %u %u %lld %lld %lld %s;", (long long)s->rows, (long long)s->columns,
               (long long)s->depth, s->n_b, s->n_more, (long long)s->box_rows, (long long)s->box_columns,
               (long long)s->boxes, s->expression ? s->expression : "");
    print_operand(&s->a, key);
    for (uint32_t i = 0; i < s->n_b; i++)
        print_operand(&s->b[i], key);
    for (uint32_t i = 0; i < s->n_more; i++)
        print_operand(&s->more[i], key);
    print_operand(&s->y, key);
}

mpk_status gen_choose_product(mpk_context *cx, arena *a, gen_choices *all, const super_product *s,
                              const super_choice **out)
{
    text key = {0};
    uint64_t index;
    super_choice *made;
    print_key(s, &key);
    const char *copy = key.failed ? NULL : arena_copy(a, key.at, key.n);
    const str name = {copy, key.n};
    text_free(&key);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for the key of a product");
    if (!map_get(&all->numbers, name, &index)) {
        NEW(cx, a, made, 1);
        TRY(super_choose_product(cx, s, &super_target_usual, made));
        index = all->made.n;
        TRY(map_put(cx, a, &all->numbers, name, index));
        PUSH(cx, a, &all->made, made);
    }
    *out = all->made.at[index];
    return MPK_OK;
}
