/* arch_test.c - the table of GPUs holds together, and every capability gets the row that runs
 * there. */
#include "check.h"

#include <string.h>

#include "gen/arch.h"
#include "gen/device_body.h"

/* Names and numbers of a row say the same; threads come in whole warpgroups; a ring of two pages or
 * more fits the shared memory.  Names are given in full: sm_90 is not sm_90a. */
static void rows_hold_together(void **state)
{
    (void)state;
    for (const gen_arch *row = gen_arch_table; row->name; row++) {
        uint32_t controls = row->worker_threads - row->body_threads;
        assert_ptr_equal(gen_arch_find(row->name), row);
        assert_string_equal(row->name, row->code_name);
        assert_memory_equal(row->name, "sm_", 3);
        assert_memory_equal(row->ptx_name, "compute_", 8);
        assert_string_equal(row->name + 3, row->ptx_name + 8);
        assert_int_equal(atoi(row->name + 3), row->major * 10 + row->minor);
        assert_true(row->body_threads % 128 == 0 && controls % 128 == 0 && controls > 0);
        assert_true(row->n_pages >= 2 && row->n_pages * row->page_bytes < row->shared_bytes);
    }
    assert_null(gen_arch_find("sm_90"));
    assert_null(gen_arch_find(""));
}

/* A capability with a row of its own gets that; any other the row of an A100, or one with less
 * shared memory where it has not so much: its machine code within its major version, its PTX on
 * whatever came later, nothing on what is older. */
static void capabilities_find_rows(void **state)
{
    (void)state;
    static const struct {
        uint32_t major, minor, kib;
        const char *name;
        bool as_ptx;
    } cases[] = {{7, 5, 64, NULL, false},      {8, 0, 163, "sm_80", false},
                 {8, 6, 99, "sm_86", false},   {8, 7, 163, "sm_80", false},
                 {8, 8, 99, "sm_86", false},   {8, 9, 99, "sm_86", false},
                 {9, 0, 227, "sm_90a", false}, {10, 0, 227, "sm_100a", false},
                 {10, 3, 227, "sm_80", true},  {12, 0, 99, "sm_86", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool as_ptx = !cases[i].as_ptx;
        const gen_arch *row =
            gen_arch_for(cases[i].major, cases[i].minor, cases[i].kib * 1024, &as_ptx);
        if (!cases[i].name) {
            assert_null(row);
            continue;
        }
        assert_non_null(row);
        assert_string_equal(row->name, cases[i].name);
        assert_int_equal(as_ptx, cases[i].as_ptx);
        assert_ptr_equal(gen_arch_for(cases[i].major, cases[i].minor, cases[i].kib * 1024, NULL),
                         row);
    }
}

/* A row is planned for its largest GPU; on a smaller one of the same capability the ring has fewer
 * pages, down to two, below which the GPU is refused. */
static void rows_fit_what_is_there(void **state)
{
    (void)state;
    const gen_arch *row = gen_arch_find("sm_80");
    gen_arch fit;
    uint32_t own = row->shared_bytes - row->n_pages * row->page_bytes;
    assert_true(gen_arch_fit(row, 84, 99 * 1024, &fit)); /* an RTX 3090 */
    assert_int_equal(fit.n_sms, 84);
    assert_true(fit.n_pages >= 2 && fit.n_pages < row->n_pages);
    assert_int_equal(fit.shared_bytes, own + fit.n_pages * fit.page_bytes);
    assert_true(fit.shared_bytes <= 99 * 1024);
    assert_true(gen_arch_fit(row, 108, 232448, &fit)); /* more than the plan: the plan stays */
    assert_int_equal(fit.n_pages, row->n_pages);
    assert_int_equal(fit.shared_bytes, row->shared_bytes);
    assert_false(gen_arch_fit(row, 10, 48 * 1024, &fit));
}

/* Code of an older GPU that a later one runs is that GPU's in all but what it is compiled for; what
 * needs more than the GPU has is none. */
static void older_code_runs(void **state)
{
    (void)state;
    const gen_arch *hopper = gen_arch_find("sm_90a"), *older = gen_arch_find("sm_86");
    gen_arch row;
    assert_true(gen_arch_as(hopper, older, &row));
    assert_string_equal(row.name, "sm_86");
    assert_string_equal(row.code_name, "sm_90a");
    assert_string_equal(row.ptx_name, "compute_90a");
    assert_true(row.features == older->features && row.shared_bytes == older->shared_bytes);
    assert_false(gen_arch_as(gen_arch_find("sm_100a"), hopper, &row));
    assert_false(gen_arch_as(older, gen_arch_find("sm_80"), &row));
    gen_arch larger = *older;
    larger.name = "larger";
    assert_true(gen_arch_as(older, &larger, &row));
    larger.shared_bytes++;
    assert_false(gen_arch_as(older, &larger, &row));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hold_together),
        cmocka_unit_test(capabilities_find_rows),
        cmocka_unit_test(rows_fit_what_is_there),
        cmocka_unit_test(older_code_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
