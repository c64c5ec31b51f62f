/* warps_devices.h - the architectures that body_warps_test.c emulates, and the cases of each.
 *
 * A case is a graph of one operator: an operator's own, or one of warps_graphs.h.  The cases of an
 * architecture become one source, which the host's C++ compiler turns into a shared object.
 */
#ifndef TESTS_WARPS_DEVICES_H
#define TESTS_WARPS_DEVICES_H

#include "emulated_bed.h"
#include "warps_blocks.h"
#include "warps_edges.h"
#include "warps_experts.h"
#include "warps_graphs.h"
#include "warps_images.h"

/* As emulated_late of tests/emulated_warps_behind.cuh. */
typedef struct late_bytes {
    void *at;
    size_t n_bytes;
} late_bytes;
enum { MOST_LATE = 4 };

typedef struct device {
    const gen_arch *arch;
    ir_dtype halves; /* what its streamed products multiply */
    gen_source source;
    VEC(subject) subjects;
    void *code;
    int (*run)(const rt_entry *entries, unsigned n, const unsigned *live, unsigned scratch_bytes,
               const late_bytes *late, unsigned n_late, uint64_t seed);
    void (*allow)(const uint64_t *forms, int one_wide, int centred);
    int (*kv_at)(int values, int token, int dim, int page_tokens, int size, int bytes);
} device;

static arena graphs_arena;
static device hopper, blackwell, ampere, geforce, hopper_f16, blackwell_f16;
static uint64_t base_seed;

/* ---- cases ---- */

/* Keep a case if a body of this architecture takes it that the generic test does not see. */
static mpk_status gather_case(device *d, uint32_t number, const char *graph)
{
    subject s = {.number = number};
    check_ok(&cx, ir_parse(&cx, &graphs_arena, str_from(graph), &s.g));
    const ir_op *op = &s.g->ops.at[s.g->ops.n - 1];
    const ir_tensor *y = &s.g->tensors.at[op->out[0]];
    gen_call c = {.ir = s.g,
                  .op = op,
                  .n_tokens = (uint32_t)(y->rank ? y->dims[0] : 1),
                  .n_workers = 4,
                  .needs = d->arch->features,
                  .halves = d->halves,
                  .maps = true};
    s.def = op->def;
    if (op->def->flags & OP_VIEW && y->shares != IR_NONE)
        return MPK_OK;
    const gen_body *body = gen_body_choose(&c, UINT32_MAX);
    if (body && body->rank)
        PUSH(&cx, &graphs_arena, &d->subjects, s);
    return MPK_OK;
}

/* Graphs of the tests' own; each must find a fast body, or the test would silently test less. */
static void gather_graphs(device *d, const char *const *graphs, size_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t before = d->subjects.n;
        check_ok(&cx, gather_case(d, first + i, graphs[i]));
        if (d->subjects.n == before)
            fail_msg("no fast body takes %s", graphs[i]);
    }
}

/* Those that are products, of f16 in place of bf16. */
static void gather_in_f16(device *d, const char *const *graphs, size_t n, uint32_t first)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *made, *at = graphs[i];
        if (!strstr(at, "= linear(") && !strstr(at, "= logits(") && !strstr(at, "= conv_flat(") &&
            !strstr(at, "= head_linear("))
            continue;
        text changed = {0};
        for (const char *next; (next = strstr(at, "bf16")); at = next + 1)
            text_add(&changed, at, (size_t)(next - at));
        text_print(&changed, "%s", at);
        assert_non_null(made = text_copy(&changed, &graphs_arena));
        text_free(&changed);
        gather_graphs(d, &made, 1, first + i);
    }
}

/* Cases of the records as well: those that a fast body takes. */
static void gather_records(device *d)
{
    for (const op_def *const *def = op_table; *def; def++)
        for (uint32_t i = 0; i < (*def)->n_cases; i++)
            check_ok(&cx, gather_case(d, i, (*def)->cases[i].graph));
}

/* Print and compile the source for all subjects of a device at once, as one kernel: bodies then
 * share its page ring and scratch. */
static void make(device *d)
{
    gen_graph *graphs = arena_alloc(&graphs_arena, d->subjects.n, sizeof *graphs);
    for (size_t i = 0; i < d->subjects.n; i++)
        graphs[i] = (gen_graph){.ir = d->subjects.at[i].g, .n_tokens = 1};
    check_ok(&cx, gen_source_make(&cx, &graphs_arena, (uint32_t)d->subjects.n, graphs, 4, d->arch,
                                  GEN_BODIES, &d->source));
    for (size_t i = 0; i < d->subjects.n; i++) {
        subject *s = &d->subjects.at[i];
        s->use = &d->source.uses[i][s->g->ops.n - 1];
        s->instance = s->use->instance;
    }
    print_message("%s: %zu cases, %u instances, %zu bytes of source\n", d->arch->name,
                  d->subjects.n, d->source.n_instances, d->source.text.n);
    assert_int_equal(gen_find_halves((uint32_t)d->subjects.n, graphs), d->halves);
    if (!compile_emulated(&d->source, "emulated_warps.cuh", "emulated_warps_behind.cuh", &d->code,
                          1)) {
        print_message("there is no C++ compiler here: nothing is tested\n");
        return;
    }
    *(void **)&d->run = dlsym(d->code, "emulated_run");
    *(void **)&d->allow = dlsym(d->code, "emulated_allow");
    *(void **)&d->kv_at = dlsym(d->code, "emulated_kv_at");
}

/* Those that stream weights and pages. */
static void gather_streams(device *d)
{
    gather_graphs(d, decode_graphs, sizeof decode_graphs / sizeof *decode_graphs, 100);
    gather_graphs(d, prefill_graphs, sizeof prefill_graphs / sizeof *prefill_graphs, 200);
    gather_graphs(d, paged_graphs, sizeof paged_graphs / sizeof *paged_graphs, 300);
    gather_graphs(d, blocks_graphs, sizeof blocks_graphs / sizeof *blocks_graphs, 270);
    gather_graphs(d, head_graphs, sizeof head_graphs / sizeof *head_graphs, 420);
    gather_graphs(d, latent_graphs, sizeof latent_graphs / sizeof *latent_graphs, 440);
    gather_graphs(d, expert_blocks_graphs,
                  sizeof expert_blocks_graphs / sizeof *expert_blocks_graphs, 470);
    gather_graphs(d, mxfp4_graphs, sizeof mxfp4_graphs / sizeof *mxfp4_graphs, 240);
}

/* Keep one case in `of`, from the one that the seed says, unless all are asked for: compiling and
 * running all takes minutes.  Of lists that are alike another `which` keeps others.  Cases of
 * company belong together and stay, and so do those of warps_edges.h. */
static void keep_drawn(device *d, uint32_t of, uint32_t which)
{
    size_t n = 0;
    for (size_t i = 0; i < d->subjects.n; i++)
        if (check_thorough() || d->subjects.at[i].number >= EDGES || (base_seed + i) % of == which)
            d->subjects.at[n++] = d->subjects.at[i];
    d->subjects.n = n;
}

/* sm_100a has no products of warpgroups: the same cases of many tokens take another way there.  On
 * sm_80 lanes copy the pages, and on sm_86 there are few of them and little scratch. */
static int set_up_devices(void **state)
{
    (void)state;
    hopper = (device){.arch = gen_arch_find("sm_90a"), .halves = IR_BF16};
    blackwell = (device){.arch = gen_arch_find("sm_100a"), .halves = IR_BF16};
    ampere = (device){.arch = gen_arch_find("sm_80"), .halves = IR_BF16};
    geforce = (device){.arch = gen_arch_find("sm_86"), .halves = IR_BF16};
    hopper_f16 = (device){.arch = hopper.arch, .halves = IR_F16};
    blackwell_f16 = (device){.arch = blackwell.arch, .halves = IR_F16};
    gather_records(&hopper);
    gather_streams(&hopper);
    gather_graphs(&hopper, pairs_graphs, sizeof pairs_graphs / sizeof *pairs_graphs, 250);
    gather_graphs(&hopper, blocks_prompts, sizeof blocks_prompts / sizeof *blocks_prompts, 290);
    gather_graphs(&hopper, expert_unpack_graphs,
                  sizeof expert_unpack_graphs / sizeof *expert_unpack_graphs, 320);
    gather_graphs(&hopper, rows_products, sizeof rows_products / sizeof *rows_products, 320);
    gather_graphs(&hopper, block_products, sizeof block_products / sizeof *block_products, 350);
    gather_graphs(&hopper, block_windows, sizeof block_windows / sizeof *block_windows, 370);
    gather_graphs(&hopper, block_rows, sizeof block_rows / sizeof *block_rows, 390);
    gather_graphs(&hopper, image_graphs, sizeof image_graphs / sizeof *image_graphs, 410);
    gather_graphs(&hopper, edge_graphs, sizeof edge_graphs / sizeof *edge_graphs, EDGES);
    gather_graphs(&hopper, company_graphs, sizeof company_graphs / sizeof *company_graphs, COMPANY);
    gather_graphs(&hopper, expert_blocks_company,
                  sizeof expert_blocks_company / sizeof *expert_blocks_company,
                  COMPANY + sizeof company_graphs / sizeof *company_graphs);
    gather_graphs(&blackwell, prefill_graphs, sizeof prefill_graphs / sizeof *prefill_graphs, 200);
    gather_streams(&ampere);
    gather_streams(&geforce);
    gather_in_f16(&hopper_f16, decode_graphs, sizeof decode_graphs / sizeof *decode_graphs, 100);
    gather_in_f16(&hopper_f16, prefill_graphs, sizeof prefill_graphs / sizeof *prefill_graphs, 200);
    gather_in_f16(&hopper_f16, head_graphs, sizeof head_graphs / sizeof *head_graphs, 420);
    gather_in_f16(&hopper_f16, image_graphs, sizeof image_graphs / sizeof *image_graphs, 410);
    gather_in_f16(&blackwell_f16, prefill_graphs, sizeof prefill_graphs / sizeof *prefill_graphs,
                  200);
    keep_drawn(&hopper, 6, 0);
    keep_drawn(&blackwell, 6, 1);
    keep_drawn(&ampere, 8, 0); /* the same code as on sm_86, with other constants */
    keep_drawn(&geforce, 8, 4);
    keep_drawn(&hopper_f16, 6, 0);
    keep_drawn(&blackwell_f16, 6, 1);
    make(&hopper);
    make(&blackwell);
    make(&ampere);
    make(&geforce);
    make(&hopper_f16);
    make(&blackwell_f16);
    return 0;
}

#endif
