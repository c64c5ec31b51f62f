/* load_test.c - folders as a whole: what is found, what must be there, what does not fit; random
 * weights. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "load/load.h"

#define CONFIG                                                                       \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 4, "     \
    "\"num_attention_heads\": 2, "                                                   \
    "\"intermediate_size\": 6, \"vocab_size\": 3, \"max_position_embeddings\": 32, " \
    "\"tie_word_embeddings\": true}"

enum { MAX_FILES = 8 };

/* A temporary folder and what was put into it. */
typedef struct folder {
    char path[64], files[MAX_FILES][128];
    int n;
} folder;

static folder make_folder(void)
{
    folder f = {.path = "/tmp/mpk_load_XXXXXX"};
    assert_non_null(mkdtemp(f.path));
    return f;
}

/* Put a file into the folder; remove_folder takes it away again. */
static void put_file(folder *f, const char *name, const void *bytes, size_t n)
{
    mpk_context cx = {0};
    assert_true(f->n < MAX_FILES);
    char path[sizeof f->files[0]];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    check_ok(&cx, file_write(&cx, path, bytes, n));
    memcpy(f->files[f->n++], path, sizeof path);
}

static void remove_folder(folder *f)
{
    while (f->n)
        unlink(f->files[--f->n]);
    rmdir(f->path);
}

/* Name and shape of a weight of the small model below. */
typedef struct weight {
    const char *name;
    int rows, columns; /* columns 0: a vector */
} weight;

static const weight weights[] = {{"model.embed_tokens.weight", 3, 4},
                                 {"model.norm.weight", 4, 0},
                                 {"model.layers.0.input_layernorm.weight", 4, 0},
                                 {"model.layers.0.post_attention_layernorm.weight", 4, 0},
                                 {"model.layers.0.self_attn.q_proj.weight", 4, 4},
                                 {"model.layers.0.self_attn.k_proj.weight", 4, 4},
                                 {"model.layers.0.self_attn.v_proj.weight", 4, 4},
                                 {"model.layers.0.self_attn.o_proj.weight", 4, 4},
                                 {"model.layers.0.mlp.gate_proj.weight", 6, 4},
                                 {"model.layers.0.mlp.up_proj.weight", 6, 4},
                                 {"model.layers.0.mlp.down_proj.weight", 4, 6}};
enum { N_WEIGHTS = sizeof weights / sizeof *weights };

/* model.safetensors with these weights, f32 zeros. */
static void put_weights(folder *f, const weight *w, size_t n)
{
    text header = {0}, file = {0};
    size_t end = 0;
    text_print(&header, "{");
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 4 * (size_t)(w[i].rows * (w[i].columns ? w[i].columns : 1));
        text_print(&header, "%s\"%s\": {\"dtype\": \"F32\", \"shape\": [%d", i ? ", " : "",
                   w[i].name, w[i].rows);
        if (w[i].columns)
            text_print(&header, ", %d", w[i].columns);
        text_print(&header, "], \"data_offsets\": [%zu, %zu]}", end, end + bytes);
        end += bytes;
    }
    text_print(&header, "}");
    for (int i = 0; i < 8; i++)
        text_add(&file, &(char){(char)(header.n >> (8 * i))}, 1);
    text_add(&file, header.at, header.n);
    for (size_t i = 0; i < end; i++)
        text_add(&file, "", 1);
    put_file(f, "model.safetensors", file.at, file.n);
    text_free(&header);
    text_free(&file);
}

static void put_text(folder *f, const char *name, const char *content)
{
    put_file(f, name, content, strlen(content));
}

/* Everything that a folder may bring ends where it belongs. */
static void test_opens_folder(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    folder f = make_folder();
    put_text(&f, "config.json", CONFIG);
    put_text(&f, "generation_config.json", "{\"eos_token_id\": [2, 3, 99999]}");
    put_text(&f, "tokenizer_config.json", "{\"chat_template\": \"{{ messages }}\"}");
    /* without weights: a model for whatever needs none */
    check_ok(&cx, load_open(&cx, f.path, &m));
    assert_true(m.has_config && m.tensors.n == 0 && !m.tokenizer && str_is(m.path, f.path));
    assert_true(str_is(m.chat_template, "{{ messages }}"));
    assert_int_equal(m.config.n_eos_tokens, 1); /* the vocabulary has three tokens */
    assert_int_equal(m.config.eos_tokens[0], 2);
    load_close(&m);

    put_weights(&f, weights, N_WEIGHTS);
    check_ok(&cx, load_open(&cx, f.path, &m));
    assert_int_equal(m.tensors.n, N_WEIGHTS);
    ir_dtype dtype;
    model_weights w = load_weights(&m);
    check_ok(&cx, w.dtype(&cx, w.self, "model.norm.weight", 1, (int64_t[]){4}, &dtype));
    assert_int_equal(dtype, IR_F32);
    load_close(&m);
    remove_folder(&f);
}

/* The status and message of opening a folder with this configuration and these weights. */
static void expect_fault(mpk_status status, const char *needle, const weight *w, size_t n)
{
    mpk_context cx = {0};
    load_model m;
    folder f = make_folder();
    put_text(&f, "config.json", CONFIG);
    put_weights(&f, w, n);
    check_fails(&cx, status, needle, load_open(&cx, f.path, &m));
    assert_non_null(strstr(cx.text, f.path)); /* the message says which model */
    remove_folder(&f);
}

/* A weight that is missing, misshapen or not of the model is named. */
static void test_weights_must_fit(void **state)
{
    (void)state;
    weight changed[N_WEIGHTS + 1];
    for (size_t i = 0; i < N_WEIGHTS; i++) { /* each one missing, each one of another shape */
        char needle[160];
        size_t n = 0;
        for (size_t k = 0; k < N_WEIGHTS; k++)
            if (k != i)
                changed[n++] = weights[k];
        snprintf(needle, sizeof needle, "the weight %s is missing", weights[i].name);
        expect_fault(MPK_EFORMAT, needle, changed, n);
        memcpy(changed, weights, sizeof weights);
        changed[i].rows++;
        snprintf(needle, sizeof needle, "the weight %s has shape [%d", weights[i].name,
                 weights[i].rows + 1);
        expect_fault(MPK_ESHAPE, needle, changed, N_WEIGHTS);
    }
    memcpy(changed, weights, sizeof weights);
    changed[N_WEIGHTS] = (weight){"model.layers.0.self_attn.q_norm.weight", 2, 0};
    expect_fault(MPK_EUNSUPPORTED, "q_norm.weight is not part of a llama model", changed,
                 N_WEIGHTS + 1);
}

/* Folders with nothing, with pickled weights, with damaged files. */
static void test_folder_faults(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    folder f = make_folder();
    check_fails(&cx, MPK_EIO, "neither a config.json nor a tokenizer.json",
                load_open(&cx, f.path, &m));
    check_fails(&cx, MPK_EIO, "cannot open", load_open(&cx, "/no/such/model", &m));
    put_text(&f, "config.json", "{\"model_type\": \"llama\"");
    check_fails(&cx, MPK_EFORMAT, "config.json", load_open(&cx, f.path, &m));
    check_fails(&cx, MPK_EFORMAT, "not a GGUF file", load_open(&cx, f.files[0], &m));
    put_text(&f, "config.json", CONFIG);
    put_text(&f, "pytorch_model.bin", "");
    check_fails(&cx, MPK_EUNSUPPORTED, "pickled weights", load_open(&cx, f.path, &m));
    put_text(&f, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"gone.safetensors\"}}");
    check_fails(&cx, MPK_EIO, "gone.safetensors", load_open(&cx, f.path, &m));
    remove_folder(&f);
}

/* ---- random weights ---- */

/* Parts that are made up one by one are those of the whole; another name or seed gives other
 * numbers. */
static void test_random_is_a_function_of_the_index(void **state)
{
    (void)state;
    static const ir_dtype dtypes[] = {IR_F32, IR_F16, IR_BF16, IR_Q8_0, IR_Q4_K};
    uint64_t seed = check_seed();
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        enum { N = 2048 };
        unsigned char whole[N * 4], parts[N * 4], other[N * 4];
        const ir_dtype_info *info = &ir_dtype_table[dtypes[d]];
        size_t n_bytes = (size_t)N / info->block_elements * info->block_bytes;
        load_random_fill(seed, STR("a.weight"), dtypes[d], 0, N, whole);
        for (int64_t at = 0; at < N; at += 512)
            load_random_fill(seed, STR("a.weight"), dtypes[d], at, 512,
                             parts + at / info->block_elements * info->block_bytes);
        assert_memory_equal(whole, parts, n_bytes);
        load_random_fill(seed, STR("b.weight"), dtypes[d], 0, N, other);
        assert_memory_not_equal(whole, other, n_bytes);
        load_random_fill(seed + 1, STR("a.weight"), dtypes[d], 0, N, other);
        assert_memory_not_equal(whole, other, n_bytes);
    }
}

/* Mean and standard deviation of many elements, within what chance allows. */
static void check_moments(const char *name, double mean, double deviation)
{
    enum { N = 100000 };
    float *x = malloc(N * sizeof *x);
    double sum = 0, squares = 0;
    load_random_fill(check_seed(), str_from(name), IR_F32, 7, N, x);
    for (int i = 0; i < N; i++) {
        sum += x[i];
        squares += (x[i] - mean) * (x[i] - mean);
    }
    assert_true(fabs(sum / N - mean) < deviation * 0.02);
    assert_true(fabs(sqrt(squares / N) / deviation - 1) < 0.02);
    free(x);
}

/* Random weights have the mean and spread of trained ones, by the kind of weight: norms are near
 * 1, all else near 0. */
static void test_random_moments(void **state)
{
    (void)state;
    check_moments("model.layers.3.mlp.up_proj.weight", 0, 0.02);
    check_moments("model.layers.3.self_attn.q_proj.bias", 0, 0.02);
    check_moments("model.layers.3.input_layernorm.weight", 1, 0.1);
    check_moments("model.layers.3.self_attn.k_norm.weight", 1, 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_folder),
        cmocka_unit_test(test_weights_must_fit),
        cmocka_unit_test(test_folder_faults),
        cmocka_unit_test(test_random_is_a_function_of_the_index),
        cmocka_unit_test(test_random_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
