/* cuda_bed.h - what the tests of the machine on a GPU share: programs compiled for six workers, and
 * machines started on the stand-in for the driver (fake_cuda.h).  For src/cuda/cuda_test.c,
 * cuda_calls_test.c and carriers_test.c. */
#ifndef TESTS_CUDA_BED_H
#define TESTS_CUDA_BED_H

#include "check.h"

#include "cuda/cuda_machine.h"
#include "fake_code.h"
#include "fake_cuda.h"
#include "pass/pass.h"

static const char settings[] = "capability:90,sms:6,memory:67108864";
static const char three[] = "capability:90,sms:6,memory:67108864,gpus:3";
static const char program[] = "input %x : f32[4, 64] live=tokens\n"
                              "const %w : bf16[96, 64]\n"
                              "const %v : bf16[64, 96]\n"
                              "%h = linear(%x, %w)\n"
                              "%g = silu(%h)\n"
                              "%y = linear(%g, %v)\n"
                              "%z = add(%y, %x)\n"
                              "output %z\n";
static const char products[] =
    "input %x : bf16[4, 256]\n"
    "state %s : bf16[4, 96]\n"
    "const %w : bf16[96, 256]\n"
    "const %b : bf16[96]\n"
    "%y = linear(%x, %w, _, _, %b)\n"
    "%z = mul(%y, %s)\n"
    "%u = slice_scatter(%s, %z) {starts = [0, 0], stops = [4, 96], in_place = 1}\n"
    "%r = copy(%z)\n"
    "output %r\n";
static const char caches[] = "input %q : bf16[2, 2, 64] live=tokens\n"
                             "state %k : bf16[3, 2, 16, 64]\n"
                             "state %v : bf16[3, 2, 16, 64]\n"
                             "input %p : i32[2] live=tokens\n"
                             "input %s : i32[2] live=tokens\n"
                             "input %t : i32[2, 3]\n"
                             "%y = attention(%q, %k, %v, %p, %s, %t)\n"
                             "output %y\n";

/* The same with pages that the body for many tokens takes. */
static const char long_pages[] = "input %q : bf16[2, 2, 64] live=tokens\n"
                                 "state %k : bf16[5, 2, 64, 64]\n"
                                 "state %v : bf16[5, 2, 64, 64]\n"
                                 "input %p : i32[2] live=tokens\n"
                                 "input %s : i32[2] live=tokens\n"
                                 "input %t : i32[2, 3]\n"
                                 "%y = attention(%q, %k, %v, %p, %s, %t)\n"
                                 "output %y\n";

/* Products one after the other, as a model's layers; what the first reads is made by an operator
 * that does not carry.
 */
static const char chain[] = "input %t : bf16[4, 256] live=tokens\n"
                            "const %a : bf16[512, 256]\n"
                            "const %b : bf16[256, 512]\n"
                            "const %c : bf16[512, 256]\n"
                            "const %d : bf16[512, 256]\n"
                            "%x = silu(%t)\n"
                            "%h = linear(%x, %a)\n"
                            "%i = linear(%h, %b, _, _, _, _, _, _, %x)\n"
                            "%j = linear(%i, %c, %d) {glu = \"silu\"}\n"
                            "%k = linear(%j, %b, _, _, _, _, _, _, %i)\n"
                            "%y = linear(%k, %a)\n"
                            "output %y\n";

/* Experts after products, as in a layer of a mixture: ids and weights come from logits.  And a
 * product after them. */
#define EXPERTS(n, k, f)                     \
    "input %t : bf16[4, 256] live=tokens\n"  \
    "const %a : bf16[256, 256]\n"            \
    "const %r : bf16[" n ", 256]\n"          \
    "const %g : bf16[" n ", " f ", 256]\n"   \
    "const %u : bf16[" n ", " f ", 256]\n"   \
    "%x = silu(%t)\n"                        \
    "%h = linear(%x, %a)\n"                  \
    "%l = linear(%h, %r)\n"                  \
    "%e, %w = route(%l) {experts = " k "}\n" \
    "%i = expert_linear(%x, %e, %g, %u) {glu = \"silu\"}\n"
#define MIXTURE(n, k, f)                          \
    EXPERTS(n, k, f)                              \
    "const %d : bf16[" n ", 256, " f "]\n"        \
    "const %b : bf16[512, 256]\n"                 \
    "%j = expert_linear(%i, %e, %d, _, %w, %h)\n" \
    "%y = linear(%j, %b)\n"                       \
    "output %y\n"
static const char routed[] = EXPERTS("48", "4", "96") "output %i\n";
static const char mixture[] = MIXTURE("48", "4", "96");

/* Takes requests: four slots, with rules and eight masks, without a KV cache. */
static const char sampler[] =
    "input %tokens : i32[4] live=tokens\n"
    "input %rows : i32[4] live=rows\n"
    "input %sampling : f32[4, 4] live=rows\n"
    "input %seeds : i64[4] live=rows\n"
    "input %draws : i32[4] live=rows\n"
    "input %asks : i32[4, 7] live=rows\n"
    "input %rules : i32[12, 64]\n"
    "input %history : i32[256]\n"
    "const %e : bf16[96, 64]\n"
    "const %h : bf16[96, 64]\n"
    "%x = embedding(%tokens, %e)\n"
    "%last = embedding(%rows, %x)\n"
    "%logits = linear(%last, %h)\n"
    "state %choice : f32[4, 96]\n"
    "%next, %chosen, %logprobs = sample(%logits, %sampling, %seeds, %draws, %asks, %rules, "
    "%history, %choice)\n"
    "output %next\n"
    "output %logprobs\n";

typedef struct bed {
    mpk_context cx;
    arena a;
    const fake_cuda_face *fake;
    tg_program program;
    program_image image;
    machine_weight weights[12];
    str code, call_code;
    machine *m;
} bed;

static uint64_t seed;

/* A program that may be written for several GPUs. */
static inline bed *set_up_launched(const char *source, pass_launch launch)
{
    bed *b = calloc(1, sizeof *b);
    ir_graph *g;
    uint32_t n_tokens = 4;
    pass_options o = {
        .page_bytes = 16384, .pages_per_worker = 1024, .launch = launch, .verify = true};
    check_ok(&b->cx, ir_parse(&b->cx, &b->a, str_from(source), &g));
    o.n_peers = ir_count_peers(g);
    o.n_workers = 6 * o.n_peers;
    b->fake = fake_cuda_start(o.n_peers > 1 ? three : settings);
    assert_non_null(b->fake);
    check_ok(&b->cx, pass_compile(&b->cx, &b->a, &o, 1, &g, &n_tokens, &b->program));
    check_ok(&b->cx, image_make(&b->cx, &b->a, &b->program, &b->image));
    b->code = fake_code(&b->cx, &b->a, &b->image, GEN_KERNEL);
    b->call_code = fake_code(&b->cx, &b->a, &b->image, GEN_CALL);
    assert_true(b->image.n_weights <= 12);
    for (uint32_t i = 0; i < b->image.n_weights; i++)
        b->weights[i].dtype = b->image.weights[i].dtype;
    return b;
}

static inline bed *set_up(const char *source)
{
    return set_up_launched(source, PASS_LAUNCH_AUTO);
}

static inline void no_leaks(bed *b)
{
    char words[256];
    b->fake->leaks(words, sizeof words);
    assert_string_equal(words, "");
}

static inline void tear_down(bed *b)
{
    machine_stop(b->m);
    no_leaks(b);
    arena_free(&b->a);
    free(b);
}

static inline mpk_status start_with(bed *b, cuda_options o)
{
    str code = o.mode == CUDA_CALLS ? b->call_code : b->code;
    o.code = code.at;
    o.code_bytes = code.n;
    o.stall_ns = 1000000;
    machine_weights w = {.at = b->weights, .seed = seed};
    b->m = NULL;
    return cuda_start(&b->cx, &b->image, &w, &o, &b->m);
}

static inline mpk_status start_as(bed *b, cuda_mode mode)
{
    return start_with(b, (cuda_options){.mode = mode});
}

static inline mpk_status start(bed *b)
{
    return start_as(b, CUDA_PERSISTENT);
}

static inline const void *table(const bed *b, uint64_t offset)
{
    return (const void *)(uintptr_t)(cuda_of(b->m)->table_block + offset);
}

/* Where a tensor must lie; weights: their plain copy, or 0. */
static inline uint64_t address(const bed *b, ir_tensor_id t)
{
    const cuda_machine *m = cuda_of(b->m);
    const tg_place *p = &b->image.places[0][t];
    if (p->area == TG_WEIGHTS)
        return m->weights.weights[p->offset].plain
                   ? m->weight_block + m->weights.weights[p->offset].offset
                   : 0;
    return m->areas[p->area] + p->offset;
}

#endif
