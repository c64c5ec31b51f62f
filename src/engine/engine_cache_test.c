/* ctest: slow */
/* engine_cache_test.c - programs that are kept: a second start compiles nothing, another program
 * does, an entry that is damaged or has another kernel costs time and nothing else, and what cannot
 * be proved is not kept.  With a stand-in for the driver (tests/fake_cuda.h).
 *
 * Skipped where there is no NVRTC (see nvrtc_test.c). */
#include "check.h"

#include <dirent.h>
#include <unistd.h>

#include "base/file.h"
#include "cuda/cache.h"
#include "engine/engine.h"
#include "fake_cuda.h"

static const char config[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], "
    "\"hidden_size\": 64, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"num_hidden_layers\": 1, \"intermediate_size\": 96, \"vocab_size\": 300, "
    "\"max_position_embeddings\": 128, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\", "
    "\"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": true}";

typedef struct bed {
    mpk_context cx;
    const fake_cuda_face *fake;
    char model[64], cache[64];
} bed;

/* A model's folder, an empty cache, and a stand-in for the driver with two SMs. Kernels are
 * compiled by the true NVRTC, without which the tests are skipped. */
static bed *set_up(bed *b)
{
    cuda_nvrtc *n;
    char path[128];
    *b = (bed){.model = "/tmp/mpk-model-XXXXXX", .cache = "/tmp/mpk-cache-XXXXXX"};
    if (cuda_nvrtc_open(&b->cx, &n) != MPK_OK) {
        check_skip(b->cx.text);
    }
    cuda_nvrtc_close(n);
    assert_non_null(mkdtemp(b->model));
    assert_non_null(mkdtemp(b->cache));
    setenv("MPK_CACHE", b->cache, 1);
    snprintf(path, sizeof path, "%s/config.json", b->model);
    check_ok(&b->cx, file_write(&b->cx, path, config, sizeof config - 1));
    b->fake = fake_cuda_start("capability:80,sms:2,memory:67108864");
    assert_non_null(b->fake);
    return b;
}

/* Nothing of the driver may be left allocated, and nothing in the cache's folder after it was
 * cleared. */
static void tear_down(bed *b)
{
    char words[256];
    b->fake->leaks(words, sizeof words);
    assert_string_equal(words, "");
    check_ok(&b->cx, cuda_cache_clear(&b->cx));
    assert_int_equal(rmdir(b->cache), 0);
    snprintf(words, sizeof words, "%s/config.json", b->model);
    unlink(words);
    rmdir(b->model);
    unsetenv("MPK_CACHE");
}

/* step_tokens decides how many graphs the program has, so each value is a program of its own. */
static mpk_status open_engine(bed *b, uint32_t step_tokens, mpk_engine **out)
{
    mpk_engine_options o = {.size = sizeof o,
                            .device = "cuda",
                            .random_weights = true,
                            .max_batch = 2,
                            .step_tokens = step_tokens};
    return mpk_engine_open(&b->cx, b->model, &o, out);
}

/* Open, look, close. */
static mpk_engine_facts start(bed *b, uint32_t step_tokens)
{
    mpk_engine *e;
    mpk_engine_facts facts = {.size = sizeof facts};
    check_ok(&b->cx, open_engine(b, step_tokens, &e));
    mpk_engine_describe(e, &facts);
    mpk_engine_close(e);
    return facts;
}

/* Open the model and compare where its parts came from. program: the image was in the cache;
 * kernel: the compiled kernel was. */
static void check_start(bed *b, uint32_t step_tokens, bool program, bool kernel)
{
    mpk_engine_facts facts = start(b, step_tokens);
    assert_int_equal(facts.program_cached, program);
    assert_int_equal(facts.kernel_cached, kernel);
    assert_int_equal(facts.graphs, step_tokens);
    assert_true(facts.tasks > 0 && facts.compile_ns > 0 && facts.load_ns > 0 &&
                facts.device_ns > 0);
}

/* Change one byte in the middle of the only program that is kept. */
static void damage_program(const bed *b)
{
    char path[512] = "";
    DIR *d = opendir(b->cache);
    for (struct dirent *item = readdir(d); item; item = readdir(d))
        if (strstr(item->d_name, ".program"))
            snprintf(path, sizeof path, "%s/%s", b->cache, item->d_name);
    closedir(d);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    fseek(f, ftell(f) / 2, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(byte ^ 0x10, f);
    fclose(f);
}

/* Store the image under the engine's key again, with a kernel that is none. */
static void put_other_kernel(bed *b)
{
    mpk_engine *e;
    check_ok(&b->cx, open_engine(b, 1, &e));
    engine_keep_program(&b->cx, e->build.device.target, e->build.key, &e->build.image,
                        STR("of another mpk"));
    mpk_engine_close(e);
}

/* A cached program whose kernel does not belong to it, as after a change of mpk: the kernel is
 * compiled and stored in its place. */
static void check_kernel_of_another_source(bed *b)
{
    file_map file;
    str bytes;
    mpk_engine *e;
    put_other_kernel(b);
    check_ok(&b->cx, open_engine(b, 1, &e));
    assert_true(e->build.is_cached);
    assert_true(cuda_cache_open_program(e->build.key, &file, &bytes)); /* and put in its place */
    assert_true(bytes.n > e->build.image.block->n_bytes + 1000);
    file_map_close(&file);
    mpk_engine_close(e);
}

/* What is not proved is not kept: an event that one task more triggers than it counts. */
static void check_proof(bed *b)
{
    mpk_engine *e;
    engine_proof proof = {0};
    assert_int_equal(engine_end_proof(&proof), MPK_OK); /* none was begun */
    check_ok(&b->cx, open_engine(b, 1, &e));
    program_image image = e->build.image;
    engine_begin_proof(&image, &proof);
    assert_int_equal(engine_end_proof(&proof), MPK_OK);
    const size_t n = image.block->n_bytes, from = offsetof(rt_header, checksum) + sizeof(rt_u64);
    rt_header *block = aligned_alloc(64, (n + 63) / 64 * 64);
    memcpy(block, image.block, n);
    ((rt_event *)((char *)block + block->sections[RT_EVENTS].offset))[1].needed++;
    block->checksum = hash_bytes((const char *)block + from, n - from, 0);
    image.block = block;
    engine_begin_proof(&image, &proof);
    assert_int_equal(engine_end_proof(&proof), MPK_EFORMAT);
    assert_non_null(strstr(proof.cx.text, "does not count its tasks"));
    assert_int_equal(engine_end_proof(&proof), MPK_EFORMAT);
    free(block);
    mpk_engine_close(e);
}

/* Where the source is to be kept, a program of the cache will not do. */
static void check_kept_source_is_compiled(bed *b)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        engine_build build = {0};
        const mpk_engine_options o = {.size = sizeof o,
                                      .device = "cuda",
                                      .random_weights = true,
                                      .max_batch = 2,
                                      .step_tokens = 1,
                                      .keep = keeps ? b->cache : NULL};
        check_ok(&b->cx, engine_build_open(&b->cx, b->model, &o, true, 0, &build));
        assert_int_equal(build.is_cached, !keeps);
        engine_build_free(&build);
    }
}

/* A program is found again, also after another one was stored; a damaged one is compiled anew
 * and replaced, while its kernel is still found by its source.  All in one cache, so that the two
 * kernels are compiled once. */
static void second_start_compiles_nothing(void **state)
{
    (void)state;
    bed own, *b = set_up(&own);
    check_start(b, 1, false, false);
    check_start(b, 1, true, true);
    damage_program(b);
    check_start(b, 1, false, true);
    check_start(b, 1, true, true); /* it was replaced */
    check_start(b, 2, false, false);
    check_start(b, 2, true, true);
    check_start(b, 1, true, true);
    check_kept_source_is_compiled(b);
    check_kernel_of_another_source(b);
    check_proof(b);
    tear_down(b);
}

/* Weights are on their way when the kernel turns out not to compile. */
static void without_a_compiler(void **state)
{
    (void)state;
    bed own, *b = set_up(&own);
    mpk_engine *e;
    const char *named = getenv("MPK_NVRTC");
    char *before = named ? strdup(named) : NULL;
    setenv("MPK_NVRTC", "/nowhere/libnvrtc.so.13", 1);
    check_fails(&b->cx, MPK_EUNSUPPORTED, "/nowhere/libnvrtc.so.13", open_engine(b, 1, &e));
    if (before)
        setenv("MPK_NVRTC", before, 1);
    else
        unsetenv("MPK_NVRTC");
    free(before);
    tear_down(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_start_compiles_nothing),
        cmocka_unit_test(without_a_compiler),
    };
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
