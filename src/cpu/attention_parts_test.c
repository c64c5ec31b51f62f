/* attention_parts_test.c - attention has the bits of its parts put together, by reference code and
 * by the bodies of every instruction set that this machine has. */
#include "body_bed.h"

/* The body of an operator for the same instruction set as another operator's; NULL: reference code
 * for both. */
static const cpu_body *body_beside(const cpu_body *of, const char *op)
{
    for (const cpu_body *const *b = cpu_body_table; of && *b; b++)
        if ((*b)->needs == of->needs && str_is(str_from((*b)->op), op))
            return *b;
    assert_null(of);
    return NULL;
}

/* Attention as the first operator of a graph, and as the two after it, which are cut at random. */
static void check_parts(const instance *whole, const cpu_body *body, uint64_t *state)
{
    instance parts = *whole, folded = *whole;
    parts.op = &whole->g->ops.at[1];
    folded.op = &whole->g->ops.at[2];
    op_bind(parts.g, parts.op, whole->values.data, whole->values.live, &parts.call);
    op_bind(folded.g, folded.op, whole->values.data, whole->values.live, &folded.call);
    const op_view *y = &whole->call.out[0], *z = &folded.call.out[0];
    memset(y->data, 0, (size_t)ir_bytes(&whole->g->tensors.at[whole->op->out[0]]));
    memset(z->data, 0, (size_t)ir_bytes(&whole->g->tensors.at[whole->op->out[0]]));
    run(whole, body, state);
    run(&parts, body_beside(body, "attention_parts"), state);
    run(&folded, body_beside(body, "attention_fold"), state);
    assert_memory_equal(y->data, z->data,
                        (size_t)ir_bytes(&whole->g->tensors.at[whole->op->out[0]]));
}

/* Attention has the bits of its parts put together, however both are cut, from reference code too:
 * programs for other numbers of tokens or threads have the one or the other. */
static void test_attention_in_parts(void **unused)
{
    (void)unused;
    enum { GRAPHS = 24 };
    static const char *const more[] = {"", " {window = 300}", " {scale = 0.3, window = 2000}"};
    uint64_t state = seed;
    for (int i = 0; i < GRAPHS; i++) {
        text t = {0};
        arena a = {0};
        ir_graph *g;
        instance whole;
        const int heads = add_attended(&t, &state, "f32", i % 4 == 0 ? 5000 : 1200);
        const char *attributes = pick(&state, more, 3), *sinks = i % 3 ? "_" : "%sinks";
        text_print(&t, "const %%sinks : f32[%d]\n", heads);
        text_print(&t, "%%y = attention(%%q, %%k, %%v, %%p, %%s, %%t, %s)%s\n", sinks, attributes);
        text_print(&t, "%%r, %%l = attention_parts(%%q, %%k, %%v, %%p, %%s, %%t)%s\n", attributes);
        text_print(&t, "%%z = attention_fold(%%r, %%l, %s)\n", sinks);
        check_ok(&cx, ir_parse(&cx, &a, (str){t.at, t.n}, &g));
        make(&a, g, rng_u64(seed, (uint64_t)i), choose(&state, 2) ? UINT32_MAX : 2, NULL, &whole);
        check_parts(&whole, NULL, &state);
        for (const cpu_body *const *b = cpu_body_table; *b; b++)
            if (str_is(str_from((*b)->op), "attention") &&
                ((*b)->needs & cpu_features()) == (*b)->needs)
                check_parts(&whole, *b, &state);
        text_free(&t);
        arena_free(&a);
    }
}

int main(void)
{
    seed = check_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention_in_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
