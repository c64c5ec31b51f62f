/* engine_key_test.c - the key of a kept program: what changes the program, or its code, changes the
 * key. */
#include "check.h"
#include "engine/engine.h"

extern const target_def target_cuda;

typedef struct bed {
    mpk_context cx;
    arena a;
    ir_graph *g;
} bed;

/* The key of a program of one graph, for n_tokens tokens a step. */
static str key_of(bed *b, const target_device *device, const pass_options *o, uint32_t n_tokens)
{
    str key;
    check_ok(&b->cx, engine_program_key(&b->cx, &b->a, device, o, 1, &b->g, &n_tokens, &key));
    return key;
}

static bool is_same(str a, str b)
{
    return a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

/* Each option that changes the code changes the key, and no two changes give one key: else a
 * start would find the program of other options. */
static void every_option_is_in_the_key(void **state)
{
    (void)state;
    bed b = {0};
    target_device device = {.target = &target_cuda, .arch = "sm_90a"}, other = device,
                  running = device;
    const pass_degree degrees[2] = {{STR("linear"), 0, 2}, {STR("linear"), 1, 2}};
    const pass_options plain = {.n_workers = 4, .page_bytes = 16384, .pages_per_worker = 8};
    const char *program = "input %x : f32[2, 32]\n%y = silu(%x)\noutput %y\n";
    pass_options o[25];
    uint32_t n = 0;
    check_ok(&b.cx, ir_parse(&b.cx, &b.a, str_from(program), &b.g));
    for (size_t i = 0; i < sizeof o / sizeof *o; i++)
        o[i] = plain;
    o[n++].n_workers = 5;
    o[n++].page_bytes = 8192;
    o[n++].pages_per_worker = 9;
    o[n++].own_experts = true;
    o[n++].fusion = PASS_FUSE_NONE;
    o[n++].launch = PASS_LAUNCH_JIT;
    o[n++].coarse_events = true;
    o[n++].tasks_per_worker = 2;
    o[n++].splits = 3;
    o[n++].split_tokens = 3;
    o[n++].own_units = 3;
    o[n++].context_tasks = 3;
    o[n++].norm_elements = 3;
    o[n++].share_tokens = 3;
    o[n++].even_over = 3;
    o[n++].even_up_to = 3;
    o[n++].relaxed = true;
    o[n++].whole_tiles = true;
    o[n++].logits = true;
    o[n++].narrow = true;
    o[n++].flatten = true;
    o[n++].unpack_tokens = 3;
    o[n++].sum_terms = true;
    o[n].n_degrees = 1, o[n++].degrees = &degrees[0];
    o[n].n_degrees = 1, o[n++].degrees = &degrees[1];
    assert_int_equal(n, sizeof o / sizeof *o);
    assert_true(is_same(key_of(&b, &device, &plain, 1), key_of(&b, &device, &plain, 1)));
    for (uint32_t i = 0; i < n; i++) {
        assert_false(is_same(key_of(&b, &device, &o[i], 1), key_of(&b, &device, &plain, 1)));
        for (uint32_t k = 0; k < i; k++)
            assert_false(is_same(key_of(&b, &device, &o[i], 1), key_of(&b, &device, &o[k], 1)));
    }
    strcpy(other.arch, "sm_80");
    running.runs_code = true;
    assert_false(is_same(key_of(&b, &device, &plain, 1), key_of(&b, &device, &plain, 2)));
    assert_false(is_same(key_of(&b, &device, &plain, 1), key_of(&b, &other, &plain, 1)));
    assert_false(is_same(key_of(&b, &device, &plain, 1), key_of(&b, &running, &plain, 1)));
    check_ok(&b.cx,
             ir_parse(&b.cx, &b.a, STR("input %x : f32[2, 33]\n%y = silu(%x)\noutput %y\n"), &b.g));
    str changed = key_of(&b, &device, &plain, 1);
    check_ok(&b.cx, ir_parse(&b.cx, &b.a, str_from(program), &b.g));
    assert_false(is_same(key_of(&b, &device, &plain, 1), changed));
    arena_free(&b.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_option_is_in_the_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
