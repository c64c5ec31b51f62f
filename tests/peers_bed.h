/* peers_bed.h - what the tests of GPUs that share a program have in common: a program, whole
 * weights and the parts of them that its peers hold.  For cuda_peers_test.c and cuda_ranks_test.c.
 */
#ifndef TESTS_PEERS_BED_H
#define TESTS_PEERS_BED_H

#include "emulated_gpus.h"
#include "random_program.h"

typedef struct bed {
    mpk_context cx;
    arena arena;
    random_program random;
    tg_program program;
    program_image image;
    machine_weight *weights; /* whole ones, as in a file */
    void **plain;            /* what the program holds of them */
    gpus gpus;
    machine *m;
    str code;
} bed;

static inline void set_words(uint32_t n_gpus, const char *more)
{
    char words[512];
    snprintf(words, sizeof words, "capability:90,sms:6,memory:67108864,gpus:%u%s%s", n_gpus,
             *more ? "," : "", more);
    setenv("MPK_FAKE_CUDA", words, 1);
}

/* The weight of which weight i of the image is a part. */
static inline ir_tensor whole_of(const bed *b, uint32_t i)
{
    const tg_weight *w = &b->image.weights[i];
    const ir_share share = ir_read_share(w->name);
    ir_tensor t = {.name = share.whole, .rank = w->rank, .dtype = w->dtype};
    memcpy(t.dims, w->dims, sizeof t.dims);
    if (share.axis != IR_NONE)
        t.dims[share.axis] = share.size;
    return t;
}

/* The element of the whole weight that element `at` of weight i is. */
static inline int64_t place_in_whole(const bed *b, uint32_t i, int64_t at)
{
    const tg_weight *w = &b->image.weights[i];
    const ir_share share = ir_read_share(w->name);
    int64_t place = 0, stride = 1;
    for (uint32_t k = w->rank; k-- > 0; at /= w->dims[k]) {
        const bool is_cut = k == share.axis;
        place += (at % w->dims[k] + (is_cut ? share.lo : 0)) * stride;
        stride *= is_cut ? share.size : w->dims[k];
    }
    return place;
}

static inline int64_t elements_of(const bed *b, uint32_t i)
{
    int64_t n = 1;
    for (uint32_t k = 0; k < b->image.weights[i].rank; k++)
        n *= b->image.weights[i].dims[k];
    return n;
}

static inline void make_weights(bed *b)
{
    const uint32_t n = b->image.n_weights;
    b->weights = arena_alloc(&b->arena, n + 1, sizeof *b->weights);
    b->plain = arena_alloc(&b->arena, n + 1, sizeof *b->plain);
    for (uint32_t i = 0; i < n; i++) {
        const ir_tensor t = whole_of(b, i);
        float *whole = arena_alloc(&b->arena, (size_t)ir_elements(&t), sizeof *whole);
        op_view part = {.data = arena_alloc(&b->arena, (size_t)elements_of(b, i), sizeof *whole),
                        .dtype = t.dtype};
        random_fill(&b->random, &t, whole);
        for (int64_t k = 0; k < elements_of(b, i); k++)
            op_store(&part, k, whole[place_in_whole(b, i, k)]);
        b->plain[i] = part.data;
        b->weights[i] = (machine_weight){.at = whole, .dtype = IR_F32};
    }
}

#endif
