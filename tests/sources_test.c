/* sources_test.c - what is printed for the kernels of programs, against tests/sources.txt.
 *
 * For every graph with one operator of interest (cases of operators' records and those of
 * warps_graphs.h), as bodies for Hopper and, but for block programs, for Ampere: which bodies its
 * operators get, a number for what each prints (a hash of it), scratch, pages of the ring, units,
 * tensor maps.  A body whose constants, shape or block program change shows as a line that differs.
 */
/* ctest: slow */
#include "check.h"

#include "base/map.h"
#include "gen/source.h"
#include "ir/op.h"
#include "limits_file.h"
#include "warps_graphs.h"

static mpk_context cx;

static void print_source(const gen_source *s, text *out)
{
    for (uint32_t i = 0; i < s->n_instances; i++) {
        const gen_instance *in = &s->instances[i];
        text_print(out, " %s/%08x/%u", in->body->name,
                   (unsigned)hash_bytes(in->text.at, in->text.n, 0), in->scratch_bytes);
    }
    for (uint32_t r = 0; r < s->n_regimes; r++)
        text_print(out, "; %u pages units %x%s%s%s", s->rooms[r].n_pages, s->units[r],
                   s->maps[r] ? " maps" : "", s->x_maps[r] ? " of x" : "",
                   s->joint[r] ? " joint" : "");
    text_print(out, "\n");
}

static void print_graph(const char *name, size_t number, const char *source, text *out)
{
    static const char *const names[] = {"sm_90a", "sm_80"};
    arena a = {0};
    ir_graph *g;
    check_ok(&cx, ir_parse(&cx, &a, str_from(source), &g));
    const ir_op *op = &g->ops.at[g->ops.n - 1];
    const ir_tensor *y = &g->tensors.at[op->out[0]];
    const gen_graph made = {.ir = g, .n_tokens = (uint32_t)(y->rank ? y->dims[0] : 1)};
    const bool is_searched = strncmp(name, "block", 5) == 0; /* for seconds, in all */
    for (size_t i = 0; i < (is_searched ? 1 : sizeof names / sizeof *names); i++) {
        const gen_arch *arch = gen_arch_find(names[i]);
        gen_source s;
        text_print(out, "%s %zu %s:", name, number, names[i]);
        if (gen_source_make(&cx, &a, 1, &made, arch->n_sms, arch, GEN_BODIES, &s) == MPK_OK)
            print_source(&s, out);
        else
            text_print(out, " %s\n", cx.text);
    }
    arena_free(&a);
}

static void sources_are_what_the_file_says(void **state)
{
    text made = {0};
    (void)state;
#define PRINT(graphs)                                              \
    for (size_t i = 0; i < sizeof(graphs) / sizeof *(graphs); i++) \
    print_graph(#graphs, i, (graphs)[i], &made)
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            print_graph((*def)->name, i, (*def)->cases[i].graph, &made);
    PRINT(decode_graphs);
    PRINT(prefill_graphs);
    PRINT(paged_graphs);
    PRINT(pairs_graphs);
    PRINT(company_graphs);
    PRINT(blocks_graphs);
    PRINT(blocks_prompts);
    PRINT(block_products);
    PRINT(block_windows);
    PRINT(block_rows);
    check_limits("sources.txt", &made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sources_are_what_the_file_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
