/* in_flight_test.c - how many pages of weights a worker has in flight (cuda_weights_in_flight in
 * weights.c): what was fastest on an H100, and rules that hold for any GPU. */
#include "check.h"

#include "cuda/cuda_machine.h"

/* The matrices of a decoder of `layers` layers and its LM head, in bf16; keys: columns of k and v
 * together. */
static cuda_weight_plan decoder(cuda_packed *packed, uint64_t hidden, uint64_t ffn,
                                uint64_t queries, uint64_t keys, uint64_t layers)
{
    cuda_weight_plan plan = {.packed = {.at = packed}};
    for (uint64_t i = 0; i < layers; i++) {
        packed[plan.packed.n++].n_bytes = 2 * hidden * (queries + keys);
        packed[plan.packed.n++].n_bytes = 2 * hidden * queries;
        packed[plan.packed.n++].n_bytes = 4 * hidden * ffn;
        packed[plan.packed.n++].n_bytes = 2 * hidden * ffn;
    }
    packed[plan.packed.n++].n_bytes = 2 * hidden * 151936;
    return plan;
}

static const uint64_t H100_BYTES_S = 3352320000000;

/* What was the fastest of 1 to 5 pages on an H100 (docs/attempts.md). */
static void test_pages_in_flight_measured(void **state)
{
    static const struct {
        uint64_t hidden, ffn, queries, keys, layers;
        uint32_t pages;
    } models[] = {{1024, 3072, 2048, 2048, 28, 2},   /* Qwen3-0.6B */
                  {2048, 6144, 2048, 2048, 28, 2},   /* Qwen3-1.7B */
                  {2048, 8192, 2048, 1024, 16, 3},   /* Llama-3.2-1B */
                  {4096, 12288, 4096, 2048, 36, 3}}; /* Qwen3-8B */
    const gen_arch *arch = gen_arch_find("sm_90a");
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        cuda_packed packed[4 * 36 + 1] = {0};
        cuda_weight_plan plan = decoder(packed, models[m].hidden, models[m].ffn, models[m].queries,
                                        models[m].keys, models[m].layers);
        assert_int_equal(cuda_weights_in_flight(&plan, 132, H100_BYTES_S, arch), models[m].pages);
    }
}

/* Of any GPU: two pages at least, the ring at most, more with more bandwidth for a worker, and one
 * more where tasks are long. */
static void test_pages_in_flight_rules(void **state)
{
    (void)state;
    cuda_packed few[5] = {0}, many[5] = {0};
    cuda_weight_plan none = {0}, small = decoder(few, 64, 64, 64, 64, 1),
                     large = decoder(many, 8192, 32768, 8192, 0, 1);
    gen_arch arch = *gen_arch_find("sm_90a");
    /* a driver that does not say */
    assert_int_equal(cuda_weights_in_flight(&none, 132, 0, &arch), 2);
    uint32_t last = 2;
    for (uint64_t bytes_s = H100_BYTES_S; bytes_s < 64 * H100_BYTES_S;
         bytes_s += H100_BYTES_S / 2) {
        uint32_t pages = cuda_weights_in_flight(&small, 132, bytes_s, &arch);
        uint64_t wanted =
            (bytes_s / 132 * 800 / 1000000000 + arch.page_bytes - 1) / arch.page_bytes;
        assert_true(pages >= last && pages <= arch.n_pages);
        wanted = wanted < 2 ? 2 : wanted;
        assert_int_equal(pages, wanted < arch.n_pages ? wanted : arch.n_pages);
        assert_int_equal(cuda_weights_in_flight(&large, 132, bytes_s, &arch),
                         pages < arch.n_pages ? pages + 1 : arch.n_pages);
        last = pages;
    }
    assert_int_equal(last, arch.n_pages);
    assert_true(cuda_weights_in_flight(&small, 33, H100_BYTES_S, &arch) >
                cuda_weights_in_flight(&small, 132, H100_BYTES_S, &arch));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_in_flight_measured),
        cmocka_unit_test(test_pages_in_flight_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
