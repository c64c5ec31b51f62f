/* gguf_test.c - hand-made GGUF files: right ones, and each fault once.
 *
 * Files are written here byte by byte, apart from gguf_write.c, so that a mistake that reader and
 * writer share is found. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "check.h"
#include "load/gguf.h"

/* ---- writing ---- */

/* The n_bytes low bytes of a value, least first. */
static void put(text *t, uint64_t value, unsigned n_bytes)
{
    for (unsigned i = 0; i < n_bytes; i++)
        text_add(t, &(char){(char)(value >> (8 * i))}, 1);
}

static void put_str(text *t, const char *s)
{
    put(t, strlen(s), 8);
    text_add(t, s, strlen(s));
}

static void put_f32(text *t, float value)
{
    text_add(t, (const char *)&value, 4);
}

/* Version 3. */
static void put_header(text *t, uint64_t n_tensors, uint64_t n_values)
{
    text_add(t, "GGUF", 4);
    put(t, 3, 4);
    put(t, n_tensors, 8);
    put(t, n_values, 8);
}

/* A key of the file's header with its value, as the format has them: name, type, value. */
static void put_u32_value(text *t, const char *key, uint32_t value)
{
    put_str(t, key);
    put(t, GGUF_U32, 4);
    put(t, value, 4);
}

static void put_str_value(text *t, const char *key, const char *value)
{
    put_str(t, key);
    put(t, GGUF_STRING, 4);
    put_str(t, value);
}

/* dims innermost first, as the file has them */
static void put_tensor(text *t, const char *name, uint32_t rank, const uint64_t *dims,
                       uint32_t type, uint64_t offset)
{
    put_str(t, name);
    put(t, rank, 4);
    for (uint32_t i = 0; i < rank; i++)
        put(t, dims[i], 8);
    put(t, type, 4);
    put(t, offset, 8);
}

/* Padding to the alignment, then n bytes 0, 1, 2 ... */
static void put_data(text *t, size_t n)
{
    while (t->n % 32)
        put(t, 0, 1);
    for (size_t i = 0; i < n; i++)
        put(t, i & 0xff, 1);
}

enum { N_LLAMA_VALUES = 9 };

/* The pairs that a file of the Llama architecture must have, N_LLAMA_VALUES of them. */
static void put_llama(text *t)
{
    put_str_value(t, "general.architecture", "llama");
    put_u32_value(t, "llama.block_count", 1);
    put_u32_value(t, "llama.context_length", 128);
    put_u32_value(t, "llama.embedding_length", 64);
    put_u32_value(t, "llama.feed_forward_length", 96);
    put_u32_value(t, "llama.attention.head_count", 4);
    put_u32_value(t, "llama.attention.head_count_kv", 2);
    put_u32_value(t, "llama.vocab_size", 7);
    put_u32_value(t, "tokenizer.ggml.eos_token_id", 2);
}

/* Load a heap copy of exactly this size, so that a sanitizer sees a read beyond the end. */
static mpk_status load_text(mpk_context *cx, const text *t, load_model *m, unsigned char **copy)
{
    assert_false(t->failed);
    *copy = malloc(t->n ? t->n : 1);
    if (t->n)
        memcpy(*copy, t->at, t->n);
    *m = (load_model){0};
    return load_gguf_bytes(cx, *copy, t->n, m);
}

/* Loading fails so, and what was read until then is freed; the text is empty again afterwards. */
static void expect_fault(text *t, mpk_status status, const char *needle)
{
    mpk_context cx = {0};
    load_model m;
    unsigned char *copy;
    check_fails(&cx, status, needle, load_text(&cx, t, &m, &copy));
    load_close(&m);
    free(copy);
    text_free(t);
}

/* ---- right files ---- */

/* Sizes, names of tensors, ends of text and the template arrive where models look for them. */
static void test_reads_model(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    unsigned char *copy;
    text t = {0};
    put_header(&t, 3, N_LLAMA_VALUES + 2);
    put_llama(&t);
    put_u32_value(&t, "tokenizer.ggml.eot_token_id", 3);
    put_str_value(&t, "tokenizer.chat_template", "{{ x }}");
    put_tensor(&t, "token_embd.weight", 2, (uint64_t[]){64, 10}, 8, 0);
    put_tensor(&t, "blk.0.attn_q.bias", 1, (uint64_t[]){64}, 0, 704);
    put_tensor(&t, "blk.0.ffn_other.weight", 1, (uint64_t[]){2}, 30, 960);
    put_data(&t, 964);
    check_ok(&cx, load_text(&cx, &t, &m, &copy));
    const load_tensor *embedding = load_find(&m, "model.embed_tokens.weight");
    assert_non_null(embedding);
    assert_int_equal(embedding->dtype, IR_Q8_0);
    assert_int_equal(embedding->dims[0], 10);
    assert_int_equal(embedding->dims[1], 64);
    assert_int_equal(embedding->n_bytes, 680);
    const load_tensor *bias = load_find(&m, "model.layers.0.self_attn.q_proj.bias");
    assert_non_null(bias);
    assert_int_equal(((const unsigned char *)bias->data)[0], 704 & 0xff);
    assert_non_null(load_find(&m, "blk.0.ffn_other.weight"));
    assert_true(m.has_config && str_is(m.config.family, "llama") &&
                str_is(m.chat_template, "{{ x }}"));
    assert_int_equal(m.config.vocab_size, 10);
    assert_int_equal(m.config.head_size, 16);
    assert_int_equal(m.config.n_kv_heads, 2);
    assert_int_equal(m.config.n_eos_tokens, 2);
    assert_true(m.config.tied_embeddings && m.config.attention_bias && !m.config.mlp_bias);
    load_close(&m);
    free(copy);
    text_free(&t);
}

/* A file without tensors is a tokenizer, whatever its architecture. */
static void test_reads_vocabulary_alone(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    unsigned char *copy;
    text t = {0};
    static const char *const tokens[] = {"a", "b", "ab"};
    put_header(&t, 0, 5);
    put_str_value(&t, "general.architecture", "no-such-architecture");
    put_str_value(&t, "tokenizer.ggml.model", "gpt2");
    put_str_value(&t, "tokenizer.ggml.pre", "gpt-2");
    put_str(&t, "tokenizer.ggml.tokens");
    put(&t, GGUF_ARRAY, 4);
    put(&t, GGUF_STRING, 4);
    put(&t, 3, 8);
    for (int i = 0; i < 3; i++)
        put_str(&t, tokens[i]);
    put_str(&t, "tokenizer.ggml.merges");
    put(&t, GGUF_ARRAY, 4);
    put(&t, GGUF_STRING, 4);
    put(&t, 1, 8);
    put_str(&t, "a b");
    check_ok(&cx, load_text(&cx, &t, &m, &copy));
    assert_false(m.has_config);
    assert_non_null(m.tokenizer);
    assert_int_equal(tokenizer_vocab_size(m.tokenizer), 3);
    assert_int_equal(tokenizer_find(m.tokenizer, STR("ab")), 2);
    load_close(&m);
    free(copy);
    text_free(&t);
}

/* A Llama 3 file has divisors of frequencies; the formula's parameters come back from them, or the
 * file is refused. */
static void put_divisors(text *t, double error)
{
    put_header(t, 1, N_LLAMA_VALUES + 2);
    put_llama(t);
    put_u32_value(t, "llama.attention.key_length", 64);
    put_u32_value(t, "llama.attention.value_length", 64);
    put_tensor(t, "rope_freqs.weight", 1, (uint64_t[]){32}, 0, 0);
    while (t->n % 32)
        put(t, 0, 1);
    for (int i = 0; i < 32; i++) { /* as the reference converter writes them */
        double freq = 1.0 / pow(10000.0, 2.0 * i / 64), wavelength = 2 * acos(-1) / freq;
        double smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0);
        double divisor = 1 / ((1 - smooth) / 32 + smooth);
        if (wavelength < 8192 / 4.0)
            divisor = 1;
        else if (wavelength > 8192 / 1.0)
            divisor = 32;
        put_f32(t, (float)(divisor + (i == 24 ? error : 0)));
    }
}

/* GGUF files have Llama 3's scaling as divisors of frequencies: the numbers that they were made
 * from are found again, and divisors that no such numbers give are refused. */
static void test_recovers_llama3_scaling(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    unsigned char *copy;
    text t = {0};
    put_divisors(&t, 0);
    check_ok(&cx, load_text(&cx, &t, &m, &copy));
    assert_int_equal(m.config.rope_scaling, MODEL_ROPE_LLAMA3);
    assert_true(m.config.rope_factor == 32 && m.config.rope_low_freq_factor == 1);
    assert_int_equal(m.config.rope_original_positions, 8192);
    load_close(&m);
    free(copy);
    text_free(&t);
    put_divisors(&t, 0.01);
    expect_fault(&t, MPK_EUNSUPPORTED, "rope_freqs.weight is not Llama 3's scaling");
}

/* ---- faults ---- */

/* Magic, versions, counts that no file of this size can hold. */
static void test_header_faults(void **state)
{
    (void)state;
    text t = {0};
    text_add(&t, "GGML", 4);
    expect_fault(&t, MPK_EFORMAT, "not a GGUF file");
    text_add(&t, "GGUF\1\0\0\0", 8);
    expect_fault(&t, MPK_EUNSUPPORTED, "GGUF version 1 is not supported");
    text_add(&t, "GGUF\0\0\0\3", 8);
    expect_fault(&t, MPK_EUNSUPPORTED, "big-endian");
    put_header(&t, UINT64_MAX, 0);
    expect_fault(&t, MPK_EFORMAT, "18446744073709551615 tensors");
    put_header(&t, 0, UINT64_MAX / 2);
    expect_fault(&t, MPK_EFORMAT, "9223372036854775807 values");
}

/* A file with one value of this key and type; what follows the type is up to the test. */
static void put_one_value(text *t, const char *key, uint32_t type)
{
    put_header(t, 0, 1);
    put_str(t, key);
    put(t, type, 4);
}

/* Types that are none, lengths beyond the file, arrays of arrays, a key that is there twice. */
static void test_value_faults(void **state)
{
    (void)state;
    text t = {0};
    put_one_value(&t, "k", 13);
    expect_fault(&t, MPK_EFORMAT, "the type 13");
    put_one_value(&t, "k", GGUF_STRING);
    put(&t, UINT64_MAX, 8);
    expect_fault(&t, MPK_EFORMAT, "ends at byte");
    put_one_value(&t, "kkkkkkkk", GGUF_U64);
    put(&t, 0, 4);
    expect_fault(&t, MPK_EFORMAT, "inside the value of kkkkkkkk");
    put_one_value(&t, "k", GGUF_ARRAY);
    put(&t, GGUF_U32, 4);
    put(&t, UINT64_MAX / 4 + 2, 8);
    expect_fault(&t, MPK_EFORMAT, "inside the value of k");
    put_one_value(&t, "k", GGUF_ARRAY);
    put(&t, GGUF_STRING, 4);
    put(&t, UINT64_MAX, 8);
    expect_fault(&t, MPK_EFORMAT, "inside a string");
    put_one_value(&t, "k", GGUF_ARRAY);
    put(&t, GGUF_ARRAY, 4);
    put(&t, 0, 8);
    expect_fault(&t, MPK_EUNSUPPORTED, "an array of arrays");
    put_header(&t, 0, 2);
    put_u32_value(&t, "k", 1);
    put_u32_value(&t, "k", 1);
    expect_fault(&t, MPK_EFORMAT, "\"k\" is empty or there twice");
}

/* A Llama file with two tensors a (f32[8]) and b, the latter as given. */
static void put_two_tensors(text *t, const char *name, uint32_t rank, const uint64_t *dims,
                            uint32_t type, uint64_t offset)
{
    put_header(t, 2, N_LLAMA_VALUES);
    put_llama(t);
    put_tensor(t, "a", 1, (uint64_t[]){16}, 0, 0);
    put_tensor(t, name, rank, dims, type, offset);
    put_data(t, 128);
}

/* Ranks, dimensions, types, offsets and overlaps, each named with the tensor. */
static void test_tensor_faults(void **state)
{
    (void)state;
    static const struct {
        mpk_status status;
        const char *needle, *name;
        uint32_t rank;
        uint64_t dims[6];
        uint32_t type;
        uint64_t offset;
    } cases[] = {
        {MPK_EFORMAT, "has 0 dimensions", "b", 0, {0}, 0, 64},
        {MPK_EFORMAT, "has 5 dimensions", "b", 5, {1, 1, 1, 1, 1}, 0, 64},
        {MPK_EFORMAT, "dimension 0 is 0", "b", 1, {0}, 0, 64},
        {MPK_EFORMAT, "a dimension of 18446744073709551615", "b", 1, {UINT64_MAX}, 0, 64},
        {MPK_EFORMAT, "multiply to more", "b", 3, {1 << 24, 1 << 24, 1 << 24}, 0, 64},
        {MPK_EFORMAT, "rows of 16 are not a multiple of 32 (q4_0)", "b", 1, {16}, 2, 64},
        {MPK_EFORMAT, "rows of 32 are not a multiple of 256 (q4_k)", "b", 1, {32}, 12, 64},
        {MPK_EUNSUPPORTED, "the type NVFP4", "b", 1, {256}, 40, 64},
        {MPK_EUNSUPPORTED, "the type number 4", "b", 1, {16}, 4, 64},
        {MPK_EUNSUPPORTED, "the type number 4294967295", "b", 1, {16}, UINT32_MAX, 64},
        {MPK_EFORMAT, "no multiple of the alignment 32", "b", 1, {4}, 0, 65},
        {MPK_EFORMAT, "64 bytes at 96 of 128", "b", 1, {16}, 0, 96},
        {MPK_EFORMAT, "64 bytes at 18446744073709551584 of 128", "b", 1, {16}, 0, UINT64_MAX - 31},
        {MPK_EFORMAT, "tensors a and b overlap", "b", 1, {16}, 0, 32},
        {MPK_EFORMAT, "tensor a is there twice", "a", 1, {16}, 0, 64},
        {MPK_EFORMAT, "empty name", "", 1, {16}, 0, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text t = {0};
        put_two_tensors(&t, cases[i].name, cases[i].rank, cases[i].dims, cases[i].type,
                        cases[i].offset);
        expect_fault(&t, cases[i].status, cases[i].needle);
    }
    text t = {0}; /* two spellings of one weight */
    put_header(&t, 2, N_LLAMA_VALUES);
    put_llama(&t);
    put_tensor(&t, "output.weight", 1, (uint64_t[]){16}, 0, 0);
    put_tensor(&t, "lm_head.weight", 1, (uint64_t[]){16}, 0, 64);
    put_data(&t, 128);
    expect_fault(&t, MPK_EFORMAT, "lm_head.weight is there twice");
}

/* A file with a tensor, so that its hyper-parameters must be right, and one more value. */
static void expect_config_fault(mpk_status status, const char *needle, const char *key,
                                uint32_t type, uint64_t value, unsigned n_bytes)
{
    text t = {0};
    put_header(&t, 1, N_LLAMA_VALUES + 1);
    put_llama(&t);
    put_str(&t, key);
    put(&t, type, 4);
    put(&t, value, n_bytes);
    put_tensor(&t, "a", 1, (uint64_t[]){16}, 0, 0);
    put_data(&t, 64);
    expect_fault(&t, status, needle);
}

/* One wrong hyper-parameter at a time. */
static void test_config_faults(void **state)
{
    (void)state;
    text t = {0};
    put_header(&t, 1, 1);
    put_str_value(&t, "general.architecture", "falcon");
    put_tensor(&t, "a", 1, (uint64_t[]){16}, 0, 0);
    put_data(&t, 64);
    expect_fault(&t, MPK_EUNSUPPORTED, "\"falcon\" are not supported");
    put_header(&t, 1, 1);
    put_str_value(&t, "general.architecture", "qwen3");
    put_tensor(&t, "a", 1, (uint64_t[]){16}, 0, 0);
    put_data(&t, 64);
    expect_fault(&t, MPK_EFORMAT, "qwen3.block_count is missing");
    expect_config_fault(MPK_EFORMAT, "general.alignment is 24", "general.alignment", GGUF_U32, 24,
                        4);
    expect_config_fault(MPK_EFORMAT, "general.alignment is 0", "general.alignment", GGUF_U32, 0, 4);
    expect_config_fault(MPK_EFORMAT, "experts a token is 0", "llama.expert_count", GGUF_U32, 8, 4);
    expect_config_fault(MPK_EUNSUPPORTED, "llama.expert_shared_count is not",
                        "llama.expert_shared_count", GGUF_U32, 1, 4);
    expect_config_fault(MPK_EUNSUPPORTED, "softcapping is not", "llama.attn_logit_softcapping",
                        GGUF_F32, 0x42480000, 4);
    expect_config_fault(MPK_EUNSUPPORTED, "temperature_scale is not",
                        "llama.attention.temperature_scale", GGUF_F32, 0x3dcccccd, 4);
    expect_config_fault(MPK_EUNSUPPORTED, "yarn_log_multiplier is not",
                        "llama.rope.scaling.yarn_log_multiplier", GGUF_F32, 0x3f800000, 4);
    expect_config_fault(MPK_EUNSUPPORTED, "of values 8", "llama.attention.value_length", GGUF_U32,
                        8, 4);
    expect_config_fault(MPK_EFORMAT, "rotates 5 of the 16", "llama.rope.dimension_count", GGUF_U32,
                        5, 4);
    expect_config_fault(MPK_EFORMAT, "rope.freq_base is not a number", "llama.rope.freq_base",
                        GGUF_BOOL, 1, 1);
    expect_config_fault(MPK_EFORMAT, "key_length is -1", "llama.attention.key_length", GGUF_I32,
                        UINT32_MAX, 4);
    expect_config_fault(MPK_EUNSUPPORTED, "without causal", "llama.attention.causal", GGUF_BOOL, 0,
                        1);
    expect_config_fault(MPK_EFORMAT, "neither true nor false", "llama.attention.causal", GGUF_BOOL,
                        2, 1);
    expect_config_fault(MPK_EFORMAT, "ends at byte", "llama.rope.scaling.type", GGUF_STRING,
                        1 << 20, 8);
    expect_config_fault(MPK_EUNSUPPORTED, "part 1 of 3 of a model", "split.count", GGUF_U16, 3, 2);
    expect_config_fault(MPK_EFORMAT, "norm epsilon is", "llama.attention.layer_norm_rms_epsilon",
                        GGUF_F32, 0x7fc00000, 4);
}

/* A file of the architecture with experts: two layers, the second without. */
static void check_mixture(const char *architecture, const char *family, bool has_own_size)
{
    static const struct {
        const char *key;
        uint32_t value;
    } values[] = {{"block_count", 2},
                  {"context_length", 128},
                  {"embedding_length", 64},
                  {"feed_forward_length", 96},
                  {"attention.head_count", 4},
                  {"vocab_size", 7},
                  {"expert_count", 3},
                  {"expert_used_count", 2},
                  {"expert_feed_forward_length", 32}};
    mpk_context cx = {0};
    load_model m;
    unsigned char *copy;
    text t = {0};
    char key[64];
    size_t n = sizeof values / sizeof *values - !has_own_size;
    put_header(&t, 3, n + 1);
    put_str_value(&t, "general.architecture", architecture);
    for (size_t i = 0; i < n; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, values[i].key);
        put_u32_value(&t, key, values[i].value);
    }
    put_tensor(&t, "blk.0.ffn_gate_exps.weight", 3, (uint64_t[]){64, 32, 3}, 8, 0);
    put_tensor(&t, "blk.0.ffn_gate_inp.weight", 2, (uint64_t[]){64, 3}, 0, 6528);
    put_tensor(&t, "blk.1.ffn_gate.weight", 2, (uint64_t[]){64, 96}, 8, 7296);
    put_data(&t, 13824);
    check_ok(&cx, load_text(&cx, &t, &m, &copy));
    const model_config *c = &m.config;
    assert_true(str_is(c->family, family));
    assert_true(c->n_experts == 3 && c->experts_per_token == 2 && c->expert_every == 1 &&
                c->normalize_experts);
    assert_int_equal(c->expert_ffn_size, has_own_size ? 32 : 96);
    assert_true(c->dense_layers[0] == 2);
    const load_tensor *gate = load_find(&m, "model.layers.0.mlp.experts.gate_proj.weight");
    assert_true(gate && gate->rank == 3 && gate->dims[0] == 3 && gate->dims[1] == 32 &&
                gate->dims[2] == 64);
    assert_non_null(load_find(&m, "model.layers.0.mlp.gate.weight"));
    load_close(&m);
    free(copy);
    text_free(&t);
}

static void test_mixtures(void **state)
{
    (void)state;
    check_mixture("qwen3moe", "qwen3_moe", true);
    check_mixture("llama", "mixtral", false);
}

/* ---- rows of q and k ---- */

enum { HEADS = 4, KV_HEADS = 2, HEAD_SIZE = 16, WIDTH = 64 };

static const float *float_row(const load_tensor *t, int64_t row)
{
    return t->parts ? t->parts[row] : (const float *)t->data + row * t->dims[t->rank - 1];
}

/* Entry `row` of W x + b: of the tensors as loaded, or (file) in the order of the file. */
static double project(const load_tensor *w, const load_tensor *b, const float *x, int64_t row)
{
    double sum = ((const float *)b->data)[row];
    for (int i = 0; i < WIDTH; i++)
        sum += (double)float_row(w, row)[i] * x[i];
    return sum;
}

/* Rotate the first `rotated` entries of a head as position `at` has it; neighbours: the file's
 * pairs. */
static void rotate_head(double *head, uint32_t rotated, double at, bool neighbours)
{
    for (uint32_t i = 0; i < rotated / 2; i++) {
        double angle = at * pow(10000, -2.0 * i / rotated), a, b;
        double *first = head + (neighbours ? 2 * i : i);
        double *second = first + (neighbours ? 1 : rotated / 2);
        a = *first * cos(angle) - *second * sin(angle);
        b = *second * cos(angle) + *first * sin(angle);
        *first = a, *second = b;
    }
}

/* The score of a head's query at position 5 and its key at position 2. */
static double score(const load_tensor *const t[4], const float *x, uint32_t rotated, int head,
                    bool neighbours)
{
    double q[HEAD_SIZE], k[HEAD_SIZE], sum = 0;
    for (int i = 0; i < HEAD_SIZE; i++) {
        q[i] = project(t[0], t[1], x, head * HEAD_SIZE + i);
        k[i] = project(t[2], t[3], x, head / (HEADS / KV_HEADS) * HEAD_SIZE + i);
    }
    rotate_head(q, rotated, 5, neighbours);
    rotate_head(k, rotated, 2, neighbours);
    for (int i = 0; i < HEAD_SIZE; i++)
        sum += q[i] * k[i];
    return sum;
}

/* Scores by the file's order and by the rows as loaded, of random weights; `rotated` of a head's
 * entries are rotated. */
static void check_rows(uint64_t seed, uint32_t rotated)
{
    static const char *const names[][2] = {
        {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
        {"blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"},
        {"blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight"},
        {"blk.0.attn_k.bias", "model.layers.0.self_attn.k_proj.bias"}};
    const uint64_t rows[] = {HEADS * HEAD_SIZE, HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE,
                             KV_HEADS * HEAD_SIZE};
    mpk_context cx = {0};
    load_model m;
    unsigned char *copy;
    text t = {0};
    uint64_t n = 0;
    float x[WIDTH];
    load_tensor file[4] = {
        {.rank = 2, .dims = {0, WIDTH}}, {.rank = 1}, {.rank = 2, .dims = {0, WIDTH}}, {.rank = 1}};
    const load_tensor *loaded[4], *stored[4];
    put_header(&t, 4, N_LLAMA_VALUES + 1);
    put_llama(&t);
    put_u32_value(&t, "llama.rope.dimension_count", rotated);
    for (int i = 0; i < 4; i++) {
        if (i % 2)
            put_tensor(&t, names[i][0], 1, &rows[i], 0, 4 * n);
        else
            put_tensor(&t, names[i][0], 2, (uint64_t[]){WIDTH, rows[i]}, 0, 4 * n);
        n += rows[i] * (i % 2 ? 1 : WIDTH);
    }
    put_data(&t, 0);
    size_t start = t.n;
    for (uint64_t i = 0; i < n; i++)
        put_f32(&t, rng_normal(seed, i));
    for (int i = 0; i < WIDTH; i++)
        x[i] = rng_normal(seed + 1, (uint64_t)i);
    check_ok(&cx, load_text(&cx, &t, &m, &copy));
    for (int i = 0; i < 4; i++) {
        file[i].data = t.at + start;
        start += 4 * rows[i] * (i % 2 ? 1 : WIDTH);
        stored[i] = &file[i];
        loaded[i] = load_find(&m, names[i][1]);
        assert_non_null(loaded[i]);
    }
    for (int head = 0; head < HEADS; head++) {
        double expected = score(stored, x, rotated, head, true),
               found = score(loaded, x, rotated, head, false);
        assert_true(fabs(found - expected) < 1e-9 * (1 + fabs(expected)));
    }
    load_close(&m);
    free(copy);
    text_free(&t);
}

/* What the file's pairs of neighbours give and what pairs of halves give from the rows as loaded is
 * the same. */
static void test_orders_rope_rows(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    check_rows(seed, HEAD_SIZE);
    check_rows(seed + 2, HEAD_SIZE / 2);
}

/* Rows of blocks move as a whole; a bias in blocks cannot. */
static void test_orders_rows_of_blocks(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    unsigned char *copy;
    text t = {0};
    put_header(&t, 2, N_LLAMA_VALUES);
    put_llama(&t);
    /* 36 bytes a row */
    put_tensor(&t, "blk.0.attn_k.weight", 2, (uint64_t[]){WIDTH, KV_HEADS * HEAD_SIZE}, 2, 0);
    put_tensor(&t, "blk.0.attn_v.weight", 2, (uint64_t[]){WIDTH, KV_HEADS * HEAD_SIZE}, 2, 1152);
    put_data(&t, 2304);
    check_ok(&cx, load_text(&cx, &t, &m, &copy));
    const load_tensor *k = load_find(&m, "model.layers.0.self_attn.k_proj.weight");
    const load_tensor *v = load_find(&m, "model.layers.0.self_attn.v_proj.weight");
    assert_true(k && k->parts && !k->data && v && v->data && !v->parts);
    const char *start = (const char *)v->data - 1152;
    assert_ptr_equal(k->parts[1], start + 2 * 36);
    assert_ptr_equal(k->parts[8], start + 36);
    assert_ptr_equal(k->parts[16 + 15], start + (16 + 15) * 36);
    load_close(&m);
    free(copy);
    text_free(&t);
    put_header(&t, 1, N_LLAMA_VALUES);
    put_llama(&t);
    put_tensor(&t, "blk.0.attn_k.bias", 1, (uint64_t[]){KV_HEADS * HEAD_SIZE}, 2, 0);
    put_data(&t, 32);
    expect_fault(&t, MPK_EUNSUPPORTED, "self_attn.k_proj.bias is a bias of q4_0");
}

/* The same count for each layer may be an array; different ones are refused. */
static void test_values_for_each_layer(void **state)
{
    (void)state;
    for (uint32_t other = 32; other <= 33; other++) {
        mpk_context cx = {0};
        load_model m;
        unsigned char *copy;
        text t = {0};
        put_header(&t, 1, N_LLAMA_VALUES + 1);
        put_llama(&t);
        put_str(&t, "llama.attention.key_length");
        put(&t, GGUF_ARRAY, 4);
        put(&t, GGUF_U16, 4);
        put(&t, 2, 8);
        put(&t, 32, 2);
        put(&t, other, 2);
        put_tensor(&t, "a", 1, (uint64_t[]){16}, 0, 0);
        put_data(&t, 64);
        mpk_status status = load_text(&cx, &t, &m, &copy);
        assert_int_equal(status, MPK_EUNSUPPORTED);
        assert_non_null(strstr(cx.text, other == 32 ? "of values 16" : "differs between layers"));
        load_close(&m);
        free(copy);
        text_free(&t);
    }
}

/* Every beginning of a right file is refused, and never read beyond its end. */
static void test_cut_short(void **state)
{
    (void)state;
    text t = {0};
    put_header(&t, 2, N_LLAMA_VALUES);
    put_llama(&t);
    put_tensor(&t, "a", 1, (uint64_t[]){16}, 0, 0);
    put_tensor(&t, "b", 1, (uint64_t[]){16}, 0, 64);
    put_data(&t, 128);
    size_t whole = t.n;
    for (size_t n = 0; n <= whole; n++) {
        mpk_context cx = {0};
        load_model m;
        unsigned char *copy;
        text cut = {0};
        text_add(&cut, t.at, n);
        assert_int_equal(load_text(&cx, &cut, &m, &copy), n < whole ? MPK_EFORMAT : MPK_OK);
        load_close(&m);
        free(copy);
        text_free(&cut);
    }
    text_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_model),
        cmocka_unit_test(test_reads_vocabulary_alone),
        cmocka_unit_test(test_recovers_llama3_scaling),
        cmocka_unit_test(test_header_faults),
        cmocka_unit_test(test_value_faults),
        cmocka_unit_test(test_tensor_faults),
        cmocka_unit_test(test_config_faults),
        cmocka_unit_test(test_mixtures),
        cmocka_unit_test(test_orders_rope_rows),
        cmocka_unit_test(test_orders_rows_of_blocks),
        cmocka_unit_test(test_values_for_each_layer),
        cmocka_unit_test(test_cut_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
