/* check_tolerance_test.c - what check_cuda allows each operator to differ by: found from the record
 * for every case, also where an operator has more inputs than its record has operands. */
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#include "check_tolerance.h"

/* A copy of a record's operands that ends where memory ends: who reads beyond them dies. */
typedef struct fenced {
    char *pages;
    size_t page_bytes;
    op_def def;
} fenced;

static fenced fence(const op_def *def)
{
    fenced f = {.page_bytes = (size_t)sysconf(_SC_PAGESIZE), .def = *def};
    const size_t n = def->n_in * sizeof *def->in;
    assert_true(n <= f.page_bytes);
    f.pages =
        mmap(NULL, 2 * f.page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(f.pages, MAP_FAILED);
    char *end = f.pages + f.page_bytes;
    assert_int_equal(mprotect(end, f.page_bytes, PROT_NONE), 0);
    if (n) /* an operator without operands has no array */
        f.def.in = memcpy(end - n, def->in, n);
    return f;
}

static void check_case(const op_def *def, const char *source, uint32_t *n_longer)
{
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    for (uint32_t k = 0; k < g->ops.n; k++) {
        ir_op op = g->ops.at[k];
        if (op.def != def)
            continue;
        *n_longer += op.n_in > def->n_in;
        fenced f = fence(def);
        op.def = &f.def;
        for (int dtype = 0; dtype < IR_DTYPES; dtype++) {
            const double slow = check_tolerance(g, &op, (ir_dtype)dtype, false),
                         fast = check_tolerance(g, &op, (ir_dtype)dtype, true);
            assert_true(slow > 0 && slow <= fast && fast < 0.05);
        }
        munmap(f.pages, 2 * f.page_bytes);
    }
    arena_free(&a);
}

static void every_case_has_a_tolerance(void **state)
{
    (void)state;
    uint32_t n_longer = 0;
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            check_case(*def, (*def)->cases[i].graph, &n_longer);
    assert_true(n_longer > 0);
}

static double of(const char *source)
{
    mpk_context cx = {0};
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    const double found = check_tolerance(g, op, g->tensors.at[op->out[0]].dtype, true);
    arena_free(&a);
    return found;
}

/* A norm and a gate in one product: twice as much as with one of them. */
static void norms_with_gates_have_more(void **state)
{
    (void)state;
#define OPERANDS                                       \
    "input %x : bf16[1, 64]\ninput %y : bf16[1, 64]\n" \
    "const %g : bf16[32, 64]\nconst %u : bf16[32, 64]\nconst %n : bf16[64]\n"
    const double both = of(OPERANDS "%h, %s = sum_linear(%x, %g, %u, _, _, _, _, %n, %y, %y) "
                                    "{glu = \"silu\"}\n"),
                 norm = of(OPERANDS "%h, %s = sum_linear(%x, %g, %u, _, _, _, _, %n, %y, %y)\n"),
                 gate = of(OPERANDS "%h, %s = sum_linear(%x, %g, %u, _, _, _, _, _, %y, %y) "
                                    "{glu = \"silu\"}\n");
#undef OPERANDS
    assert_true(norm > 0 && gate == norm && both == 2 * norm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case_has_a_tolerance),
                                       cmocka_unit_test(norms_with_gates_have_more)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
