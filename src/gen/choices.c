/* choices.c - what super was asked for one source, and what it answered (choices.h).
 *
 * Called by the records of block programs, each of which asks twice: when its instance is printed,
 * and for its scratch.  The key is all that the choice and its text depend on, so the second
 * question, and those of equal layers, cost a lookup and not a proof.
 */
#include "gen/choices.h"

/* Names are part of the key because they stand in the text of an instance; a window counts by its
 * bytes, which have no padding. */
static void print_operand(const block_operand *o, text *key)
{
    text_print(key, "%s %d", o->name, (int)o->dtype);
    for (uint32_t i = 0; i < BLOCK_MOST_AXES; i++)
        text_print(key, " %lld", (long long)o->stride[i]);
    if (o->window)
        text_add(key, (const char *)o->window, sizeof *o->window);
    text_print(key, ";");
}

static const char *or_none(const char *words)
{
    return words ? words : "";
}

/* All of the target, of the shape, of the box and of the operands; floats of a constant are in the
 * expression. */
static void print_key(const super_product *s, const super_target *t, text *key)
{
    text_print(key, "%u %u ", t->scratch_bytes, t->registers);
    text_print(key, "%lld %lld %lld %u %u %lld %lld %lld %u %s;%s;", (long long)s->rows,
               (long long)s->columns, (long long)s->depth, s->n_b, s->n_more,
               (long long)s->box_rows, (long long)s->box_columns, (long long)s->boxes, s->n_made,
               or_none(s->made), or_none(s->expression));
    print_operand(&s->a, key);
    for (uint32_t i = 0; i < s->n_b; i++)
        print_operand(&s->b[i], key);
    for (uint32_t i = 0; i < s->n_more; i++)
        print_operand(&s->more[i], key);
    print_operand(&s->y, key);
}

/* Find a choice by its key, or add an empty one (*is_new) that the caller fills.  key is freed in
 * any case.  A choice that failed stays in the list, and the compile ends with its error. */
static mpk_status find_choice(mpk_context *cx, arena *a, gen_choices *all, text *key, bool *is_new,
                              super_choice **out)
{
    uint64_t index;
    const char *copy = key->failed ? NULL : arena_copy(a, key->at, key->n);
    const str name = {copy, key->n};
    text_free(key);
    CHECK(cx, copy, MPK_ENOMEM, "out of memory for the key of a block program");
    *is_new = !map_get(&all->numbers, name, &index);
    if (*is_new) {
        index = all->made.n;
        NEW(cx, a, *out, 1);
        TRY(map_put(cx, a, &all->numbers, name, index));
        PUSH(cx, a, &all->made, *out);
    }
    *out = all->made.at[index];
    return MPK_OK;
}

/* Made when it is first asked for: the search and above all the proof take long. */
mpk_status gen_choose_product(mpk_context *cx, arena *a, gen_choices *all, const super_product *s,
                              const super_target *t, const super_choice **out)
{
    text key = {0};
    bool is_new;
    super_choice *found;
    print_key(s, t, &key);
    TRY(find_choice(cx, a, all, &key, &is_new, &found));
    if (is_new)
        TRY(super_choose_product(cx, s, t, found));
    *out = found;
    return MPK_OK;
}

/* A choice is made once for each kind of call and kept under a key, the text of all that it depends
 * on.  If a field of super_attention were missing in the key, two different calls could share a
 * program. */
mpk_status gen_choose_attention(mpk_context *cx, arena *a, gen_choices *all,
                                const super_attention *s, const super_choice **out)
{
    text key = {0};
    bool is_new;
    super_choice *found;
    text_print(&key, "attention %lld %lld %lld %lld %lld %d %d %lld %lld %s;", (long long)s->rows,
               (long long)s->keys, (long long)s->width, (long long)s->values, (long long)s->window,
               s->causal, s->has_mask, (long long)s->box_rows, (long long)s->boxes, s->scores);
    const block_operand *operands[] = {&s->q, &s->k, &s->v, &s->y, &s->mask};
    for (size_t i = 0; i < 4 + (size_t)s->has_mask; i++)
        print_operand(operands[i], &key);
    TRY(find_choice(cx, a, all, &key, &is_new, &found));
    if (is_new)
        TRY(super_choose_attention(cx, s, &super_target_usual, found));
    *out = found;
    return MPK_OK;
}

/* The note is part of the instance and so of the key of the cache of compiled code, which does no
 * harm.  It tells a reader of the source what runs. */
void gen_print_note(gen_choices *all, const super_choice *chosen, text *out)
{
    text note = {0};
    if (all->noted.n < GEN_MOST_PROGRAMS)
        all->noted.at[all->noted.n++] = chosen;
    block_print(&chosen->program, &note);
    text_print(out, "    /* Of %u candidates, %u of which fit; %.0f cycles by the model.\n",
               chosen->n_listed, chosen->n_fitting, chosen->cycles);
    for (const char *at = note.at; at && *at;) {
        const char *end = strchr(at, '\n');
        text_print(out, "     * %.*s\n", (int)(end - at), at);
        at = end + 1;
    }
    text_print(out, "     */\n");
    text_free(&note);
}
