/* dequantize_test.c - quantised folders by hand: which form each layout becomes, values of it, and
 * each fault once.  tests/test_quantized_folders.py has whole models. */
#include <math.h>
#include <stdio.h>

#include "base/num.h"
#include "check.h"
#include "load/load.h"

/* A safetensors file in the making. */
typedef struct file {
    text header, data, whole;
} file;

/* A byte of data that is not given: they count up, modulo 251. */
static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i % 251);
}

/* Add a tensor.  dims: as JSON; NULL: [n_bytes]; data: NULL: byte_at. */
static void add(file *f, const char *name, const char *dtype, const char *dims, size_t n_bytes,
                const void *data)
{
    char line[256], vector[32];
    const size_t first = f->data.n;
    snprintf(vector, sizeof vector, "[%zu]", n_bytes);
    int n = snprintf(line, sizeof line,
                     "%s\"%s\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [%zu, %zu]}",
                     f->header.n ? ", " : "{", name, dtype, dims ? dims : vector, first,
                     first + n_bytes);
    assert_true(n > 0 && (size_t)n < sizeof line);
    text_add(&f->header, line, (size_t)n);
    for (size_t i = 0; i < n_bytes; i++)
        text_add(&f->data, &(char){data ? ((const char *)data)[i] : (char)byte_at(first + i)}, 1);
}

/* Read it as a folder of Llama's with this scheme, and take the quantised matrices. */
static mpk_status read_file(mpk_context *cx, file *f, const load_scheme *s, load_model *m)
{
    const uint64_t n = f->header.n + 1;
    for (int i = 0; i < 8; i++)
        text_add(&f->whole, &(char){(char)(n >> (8 * i))}, 1);
    text_add(&f->whole, f->header.at, f->header.n);
    text_add(&f->whole, "}", 1);
    text_add(&f->whole, f->data.at, f->data.n);
    assert_false(f->header.failed || f->data.failed || f->whole.failed);
    *m =
        (load_model){.scheme = *s, .config = {.family = str_from("llama"), .weight_dtype = IR_F32}};
    TRY(load_safetensors_bytes(cx, (const unsigned char *)f->whole.at, f->whole.n, m));
    return load_dequantize(cx, m);
}

static void end(file *f, load_model *m)
{
    load_close(m);
    text_free(&f->header);
    text_free(&f->data);
    text_free(&f->whole);
}

static const load_scheme of_gptq = {LOAD_GPTQ, 4, 1, {128, 128}, 0},
                         of_gptq_8 = {LOAD_GPTQ, 8, 1, {128, 128}, 0},
                         of_awq = {LOAD_AWQ, 4, 0, {128, 128}, 128},
                         of_bits = {LOAD_BITS_AND_BYTES, 0, 0, {128, 128}, 0},
                         of_fp8 = {LOAD_FP8, 0, 0, {16, 16}, 0},
                         of_compressed = {LOAD_COMPRESSED, 0, 0, {128, 128}, 0};

static uint32_t word_of(size_t at)
{
    return byte_at(at) | (uint32_t)byte_at(at + 1) << 8 | (uint32_t)byte_at(at + 2) << 16 |
           (uint32_t)byte_at(at + 3) << 24;
}

/* Scales of eight rows: 0.25, 0.5 .. 2. */
static const f16 scales[8] = {0x3400, 0x3800, 0x3a00, 0x3c00, 0x3d00, 0x3e00, 0x3f00, 0x4000};

/* Value k of a row of Q4_1. */
static float value_of_q4_1(const unsigned char *row, int k)
{
    const unsigned char *block = row + k / 32 * 20;
    const float scale = num_from_f16((f16)(block[0] | block[1] << 8)),
                more = num_from_f16((f16)(block[2] | block[3] << 8));
    const unsigned char byte = block[4 + k % 16];
    return scale * (float)(k % 32 < 16 ? byte & 15 : byte >> 4) + more;
}

/* GPTQ, 8 rows of 32 columns: words go down a column, zero points along a row, less one. */
static void test_gptq(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    file f = {0};
    add(&f, "model.layers.0.mlp.up_proj.qweight", "I32", "[4, 8]", 128, NULL);
    add(&f, "model.layers.0.mlp.up_proj.scales", "F16", "[1, 8]", 16, scales);
    add(&f, "model.layers.0.mlp.up_proj.qzeros", "I32", "[1, 1]", 4, NULL);
    add(&f, "model.norm.weight", "F32", "[2]", 8, NULL);
    check_ok(&cx, read_file(&cx, &f, &of_gptq, &m));
    assert_int_equal(m.tensors.n, 2);
    const load_tensor *t = load_find(&m, "model.layers.0.mlp.up_proj.weight");
    assert_true(t && load_find(&m, "model.norm.weight"));
    assert_int_equal(t->dtype, IR_Q4_1);
    assert_true(t->rank == 2 && t->dims[0] == 8 && t->dims[1] == 32 && t->n_bytes == 8 * 20);
    for (int n = 0; n < 8; n++)
        for (int k = 0; k < 32; k++) {
            const int q = (int)(word_of((size_t)(k / 8 * 8 + n) * 4) >> k % 8 * 4 & 15),
                      zero = (int)(word_of(144) >> n * 4 & 15) + 1;
            const float scale = num_from_f16(scales[n]);
            const unsigned char *row = (const unsigned char *)t->data + n * 20;
            assert_float_equal(value_of_q4_1(row, k), scale * (float)(q - zero), 0);
        }
    end(&f, &m);
}

/* AWQ, 8 rows of 32 columns: a word has one column of all rows, in an order of its own. */
static void test_awq(void **state)
{
    (void)state;
    static const int place[] = {0, 4, 1, 5, 2, 6, 3, 7}; /* in the word, of each row */
    mpk_context cx = {0};
    load_model m;
    file f = {0};
    add(&f, "a.qweight", "I32", "[32, 1]", 128, NULL);
    add(&f, "a.qzeros", "I32", "[1, 1]", 4, NULL);
    add(&f, "a.scales", "F16", "[1, 8]", 16, scales);
    check_ok(&cx, read_file(&cx, &f, &of_awq, &m));
    const load_tensor *t = load_find(&m, "a.weight");
    assert_true(t && t->dtype == IR_Q4_1 && t->dims[0] == 8 && t->dims[1] == 32);
    for (int n = 0; n < 8; n++)
        for (int k = 0; k < 32; k++) {
            const int q = (int)(word_of((size_t)k * 4) >> place[n] * 4 & 15),
                      zero = (int)(word_of(128) >> place[n] * 4 & 15);
            const float scale = num_from_f16(scales[n]);
            const unsigned char *row = (const unsigned char *)t->data + n * 20;
            assert_float_equal(value_of_q4_1(row, k), scale * (float)(q - zero), 0);
        }
    end(&f, &m);
}

/* E4M3, a scale for each block of 16 x 16, the last ones cut. */
static void test_f8(void **state)
{
    (void)state;
    mpk_context cx = {0};
    load_model m;
    file f = {0};
    add(&f, "a.weight", "F8_E4M3", "[20, 18]", 360, NULL);
    add(&f, "a.weight_scale_inv", "BF16", "[2, 2]", 8, NULL);
    add(&f, "a.input_scale", "F32", "[]", 4, NULL);
    check_ok(&cx, read_file(&cx, &f, &of_fp8, &m));
    assert_int_equal(m.tensors.n, 1);
    const load_tensor *t = load_find(&m, "a.weight");
    assert_true(t && t->dtype == IR_F32 && !t->is_f8 && t->n_bytes == 1440);
    for (int i = 0; i < 360; i++) {
        const unsigned char v = byte_at((size_t)i);
        const size_t at = 360 + 2 * (size_t)(i / 18 / 16 * 2 + i % 18 / 16);
        const float scale = num_from_bf16((bf16)(byte_at(at) | byte_at(at + 1) << 8)),
                    got = load_number(t, i);
        const int exponent = v >> 3 & 15;
        float size = ldexpf((float)(8 + (v & 7)), exponent - 10);
        if (exponent == 0)
            size = ldexpf((float)(v & 7), -9);
        if (v & 0x80)
            size = -size;
        if ((v & 0x7f) == 0x7f)
            assert_true(isnan(got));
        else
            assert_true(got == size * scale);
    }
    end(&f, &m);
}

static const float tenths[2] = {0.1f, 0.1f};

/* A matrix of two rows of compressed-tensors, whose form follows from what blocks can hold. */
static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *dtype, *dims, *scales, *scale_dims;
        int64_t columns;
        size_t n_bytes, n_scale_bytes;
        ir_dtype form;
    } cases[] = {
        {"I8", "[2, 32]", "F16", "[2, 1]", 32, 64, 4, IR_Q8_0},
        {"I8", "[2, 32]", "F16", "[]", 32, 64, 2, IR_Q8_0},
        {"I8", "[2, 33]", "F16", "[2, 1]", 33, 66, 4, IR_F32},
        {"I8", "[2, 32]", "F32", "[2]", 32, 64, 8, IR_F32}, /* 0.1 is no f16 */
        {"I32", "[2, 4]", "F16", "[2, 1]", 32, 32, 4, IR_Q4_0},
        {"I32", "[2, 8]", "F16", "[2, 1]", 32, 64, 4, IR_Q8_0},
        {"I32", "[2, 2]", "F16", "[2, 1]", 32, 16, 4, IR_Q4_1}, /* numbers of 2 bits */
        {"I32", "[2, 4]", "F16", "[2, 2]", 32, 32, 8, IR_F32},  /* groups of 16 columns */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        load_model m;
        file f = {0};
        const bool packed = strcmp(cases[i].dtype, "I32") == 0;
        const int64_t sizes[2] = {2, cases[i].columns};
        add(&f, packed ? "a.weight_packed" : "a.weight", cases[i].dtype, cases[i].dims,
            cases[i].n_bytes, NULL);
        add(&f, "a.weight_scale", cases[i].scales, cases[i].scale_dims, cases[i].n_scale_bytes,
            strcmp(cases[i].scales, "F32") == 0 ? tenths : NULL);
        if (packed)
            add(&f, "a.weight_shape", "I64", "[2]", 16, sizes);
        check_ok(&cx, read_file(&cx, &f, &of_compressed, &m));
        const load_tensor *t = load_find(&m, "a.weight");
        assert_true(m.tensors.n == 1 && t);
        assert_int_equal(t->dtype, cases[i].form);
        assert_true(t->rank == 2 && t->dims[0] == 2 && t->dims[1] == cases[i].columns);
        end(&f, &m);
    }
}

/* E2M1 with scales of E4M3 and one for all, which multiplies or divides; with powers of two; and a
 * table of values: number q is q + 1 there.  Numbers are 0 to 15 in turn. */
static void test_nibbles(void **state)
{
    (void)state;
    static const float e2m1[16] = {0,    0.5f,  1,  1.5f,  2,  3,  4,  6,
                                   -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6},
                       quarter[1] = {0.25f}, absmax[1] = {8};
    static const unsigned char f8_scales[4] = {0x38, 0x40, 0x30, 0x3c} /* 1, 2, 0.5, 1.5 */,
                               exponents[2] = {128, 126} /* 2, 0.5 */;
    static const char sizes[] = "{\"shape\": [2, 32], \"blocksize\": 64}";
    unsigned char low_first[32], high_first[32];
    float table[16];
    for (int i = 0; i < 32; i++) {
        low_first[i] = (unsigned char)(i * 2 % 16 | (i * 2 + 1) % 16 << 4);
        high_first[i] = (unsigned char)(i * 2 % 16 << 4 | (i * 2 + 1) % 16);
    }
    for (int i = 0; i < 16; i++)
        table[i] = (float)i + 1;
    for (int kind = 0; kind < 4; kind++) { /* modelopt, compressed-tensors, MXFP4, table */
        mpk_context cx = {0};
        load_model m;
        file f = {0};
        const bool whole = kind == 0 || kind == 3;
        const unsigned char *numbers = kind == 3 ? high_first : low_first;
        add(&f, whole ? "a.weight" : "a.weight_packed", "U8", "[2, 16]", 32, numbers);
        if (kind < 2) {
            add(&f, "a.weight_scale", "F8_E4M3", "[2, 2]", 4, f8_scales);
            add(&f, kind ? "a.weight_global_scale" : "a.weight_scale_2", "F32", "[]", 4, quarter);
        } else if (kind == 2) {
            add(&f, "a.weight_scale", "U8", "[2, 1]", 2, exponents);
        } else {
            add(&f, "a.weight.absmax", "F32", "[1]", 4, absmax);
            add(&f, "a.weight.quant_map", "F32", "[16]", 64, table);
            add(&f, "a.weight.quant_state.bitsandbytes__fp4", "U8", NULL, sizeof sizes - 1, sizes);
        }
        check_ok(&cx, read_file(&cx, &f, kind == 3 ? &of_bits : &of_compressed, &m));
        const load_tensor *t = load_find(&m, "a.weight");
        assert_true(m.tensors.n == 1 && t && t->rank == 2 && t->dims[0] == 2 && t->dims[1] == 32);
        assert_int_equal(t->dtype, kind == 2 ? IR_MXFP4 : IR_F32);
        const unsigned char *block = t->data;
        for (int i = 0; kind == 2 && i < 34; i++) {
            const int at = i % 17 - 1; /* numbers at and at + 16 of 32 are the same here */
            assert_int_equal(block[i], at < 0 ? exponents[i / 17] : at | at << 4);
        }
        for (int i = 0; kind != 2 && i < 64; i++) {
            static const float scales_of[4] = {1, 2, 0.5f, 1.5f};
            const float all = kind ? 4 : 0.25f;
            float expected = e2m1[i % 16] * scales_of[i / 16] * all;
            if (kind == 3)
                expected = table[i % 16] * 8;
            assert_true(load_number(t, i) == expected);
        }
        end(&f, &m);
    }
}

/* GPTQ with two groups of 32 columns: scales of a group lie together. */
static void test_groups(void **state)
{
    (void)state;
    static const f16 two[16] = {0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00, 0x3c00,
                                0x4000, 0x4000, 0x4000, 0x4000, 0x4000, 0x4000, 0x4000, 0x4000};
    mpk_context cx = {0};
    load_model m;
    file f = {0};
    add(&f, "a.qweight", "I32", "[8, 8]", 256, NULL);
    add(&f, "a.scales", "F16", "[2, 8]", 32, two);
    add(&f, "a.qzeros", "I32", "[2, 1]", 8, NULL);
    check_ok(&cx, read_file(&cx, &f, &of_gptq, &m));
    const load_tensor *t = load_find(&m, "a.weight");
    assert_true(t && t->dtype == IR_Q4_1 && t->n_bytes == 8 * 40);
    for (int n = 0; n < 8; n++)
        for (int g = 0; g < 2; g++) {
            const unsigned char *block = (const unsigned char *)t->data + n * 40 + g * 20;
            const int zero = (int)(word_of(256 + 32 + 4 * (size_t)g) >> n * 4 & 15) + 1;
            assert_int_equal(block[0] | block[1] << 8, two[8 * g]);
            assert_true(num_from_f16((f16)(block[2] | block[3] << 8)) ==
                        (float)-(g + 1) * (float)zero);
        }
    end(&f, &m);
}

/* A part of a file for the faults below. */
typedef struct part {
    const char *name, *dtype, *dims;
    size_t n_bytes;
    const void *data;
} part;

static const int32_t far_group[8] = {0, 0, 0, 0, 0, 0, 0, 1};
static const char no_group[] = "{\"shape\": [2, 32]}",
                  other_shape[] = "{\"shape\": [2, 34], \"blocksize\": 64}",
                  nested[] = "{\"shape\": [2, 32], \"blocksize\": 64, \"nested_blocksize\": 4}",
                  no_text[] = "{shape}";
static const int64_t no_sizes[2] = {2, -8}, other_sizes[2] = {2, 40};

#define TABLE(state)                                                                          \
    {"a.weight", "U8", "[32, 1]", 32, NULL}, {"a.weight.quant_map", "F32", "[16]", 64, NULL}, \
    {                                                                                         \
        "a.weight.quant_state.bitsandbytes__nf4", "U8", NULL, sizeof(state) - 1, state        \
    }
#define ABSMAX(dtype, dims, n_bytes)                  \
    {                                                 \
        "a.weight.absmax", dtype, dims, n_bytes, NULL \
    }
static const load_scheme plain = {0}, mxfp4 = {.method = LOAD_MXFP4};
/* Parts that are missing or do not fit, and numbers that no scheme explains. */
static const struct {
    mpk_status status;
    const char *needle;
    const load_scheme *scheme;
    part parts[5];
} faults[] = {
    {MPK_EUNSUPPORTED,
     "a.weight is f8_e4m3, and config.json does not say how",
     &plain,
     {{"a.weight", "F8_E4M3", "[2]", 2, NULL}}},
    {MPK_EUNSUPPORTED,
     "a is i32, and config.json does not say what it stands for",
     &of_awq,
     {{"a", "I32", "[2]", 8, NULL}}},
    {MPK_EUNSUPPORTED, "\"mxfp4\" is not supported in this family", &mxfp4, {{0}}},
    {MPK_EFORMAT,
     "a.weight_scale is missing",
     &of_fp8,
     {{"a.weight", "F8_E4M3", "[2, 4]", 8, NULL}}},
    {MPK_EUNSUPPORTED, "has 3 axes", &of_fp8, {{"a.weight", "F8_E4M3", "[1, 2, 4]", 8, NULL}}},
    {MPK_EUNSUPPORTED,
     "a.weight_scale are i32",
     &of_fp8,
     {{"a.weight", "F8_E4M3", "[2, 4]", 8, NULL}, {"a.weight_scale", "I32", "[1]", 4, NULL}}},
    {MPK_ESHAPE,
     "are [3, 1]; a matrix [2, 4]",
     &of_fp8,
     {{"a.weight", "F8_E4M3", "[2, 4]", 8, NULL}, {"a.weight_scale", "F32", "[3, 1]", 12, NULL}}},
    {MPK_ESHAPE,
     "have 3 axes",
     &of_fp8,
     {{"a.weight", "F8_E4M3", "[2, 4]", 8, NULL}, {"a.weight_scale", "F32", "[1, 1, 1]", 4, NULL}}},
    {MPK_ESHAPE,
     "4 columns have 3 scales",
     &of_fp8,
     {{"a.weight", "F8_E4M3", "[2, 4]", 8, NULL}, {"a.weight_scale", "F32", "[2, 3]", 24, NULL}}},
    {MPK_ESHAPE,
     "a.weight_zero_point is not i8 [2, 1]",
     &of_compressed,
     {{"a.weight", "I8", "[2, 4]", 8, NULL},
      {"a.weight_scale", "F32", "[2, 1]", 8, NULL},
      {"a.weight_zero_point", "I8", "[1, 2]", 2, NULL}}},
    {MPK_EFORMAT,
     "a.weight_shape is missing",
     &of_compressed,
     {{"a.weight_packed", "I32", "[2, 1]", 8, NULL}}},
    {MPK_EFORMAT,
     "a.weight_shape is not a pair of sizes",
     &of_compressed,
     {{"a.weight_packed", "I32", "[2, 1]", 8, NULL},
      {"a.weight_scale", "F32", "[2, 1]", 8, NULL},
      {"a.weight_shape", "I64", "[2]", 16, no_sizes}}},
    {MPK_ESHAPE,
     "a.weight_packed is not i32 [2, 10]",
     &of_compressed,
     {{"a.weight_packed", "I32", "[2, 1]", 8, NULL},
      {"a.weight_scale", "F32", "[2, 1]", 8, NULL},
      {"a.weight_shape", "I64", "[2]", 16, other_sizes}}},
    {MPK_EFORMAT, "a.SCB is missing", &of_bits, {{"a.weight", "I8", "[2, 4]", 8, NULL}}},
    {MPK_EFORMAT,
     "bitsandbytes__fp4 is missing",
     &of_bits,
     {{"a.weight", "U8", "[32, 1]", 32, NULL}}},
    {MPK_EFORMAT,
     "does not have the sizes of a matrix",
     &of_bits,
     {TABLE(no_group), ABSMAX("F32", "[1]", 4)}},
    {MPK_EFORMAT, "not valid JSON", &of_bits, {TABLE(no_text), ABSMAX("F32", "[1]", 4)}},
    {MPK_ESHAPE, "needs 34", &of_bits, {TABLE(other_shape), ABSMAX("F32", "[2]", 8)}},
    {MPK_ESHAPE,
     "a.weight.absmax is not f32 [1]",
     &of_bits,
     {TABLE(nested), ABSMAX("F32", "[2]", 8)}},
    {MPK_EFORMAT,
     "a.weight.nested_absmax is missing",
     &of_bits,
     {TABLE(nested), ABSMAX("U8", "[1]", 1)}},
    {MPK_EFORMAT,
     "a.qzeros is missing",
     &of_gptq,
     {{"a.qweight", "I32", "[1, 8]", 32, NULL}, {"a.scales", "F16", "[1, 8]", 16, NULL}}},
    {MPK_ESHAPE,
     "a.qweight is not an i32 matrix",
     &of_gptq,
     {{"a.qweight", "I32", "[8]", 32, NULL}}},
    {MPK_ESHAPE,
     "a.scales are not [groups, 8]",
     &of_gptq,
     {{"a.qweight", "I32", "[1, 8]", 32, NULL},
      {"a.scales", "F16", "[1, 4]", 8, NULL},
      {"a.qzeros", "I32", "[1, 1]", 4, NULL}}},
    {MPK_ESHAPE,
     "a.qzeros is not i32 [1, 2]",
     &of_gptq_8,
     {{"a.qweight", "I32", "[1, 8]", 32, NULL},
      {"a.scales", "F16", "[1, 8]", 16, NULL},
      {"a.qzeros", "I32", "[1, 1]", 4, NULL}}},
    {MPK_EFORMAT,
     "a.g_idx: column 7 is of group 1 of 1",
     &of_gptq,
     {{"a.qweight", "I32", "[1, 8]", 32, NULL},
      {"a.scales", "F16", "[1, 8]", 16, NULL},
      {"a.qzeros", "I32", "[1, 1]", 4, NULL},
      {"a.g_idx", "I32", "[8]", 32, far_group}}},
    {MPK_ESHAPE,
     "a.g_idx is not i32 [8]",
     &of_gptq,
     {{"a.qweight", "I32", "[1, 8]", 32, NULL},
      {"a.scales", "F16", "[1, 8]", 16, NULL},
      {"a.qzeros", "I32", "[1, 1]", 4, NULL},
      {"a.g_idx", "I32", "[4]", 16, far_group}}},
};

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        mpk_context cx = {0};
        load_model m;
        file f = {0};
        add(&f, "norm", "F32", "[1]", 4, NULL);
        for (const part *p = faults[i].parts; p < faults[i].parts + 5 && p->name; p++)
            add(&f, p->name, p->dtype, p->dims, p->n_bytes, p->data);
        check_fails(&cx, faults[i].status, faults[i].needle,
                    read_file(&cx, &f, faults[i].scheme, &m));
        end(&f, &m);
    }
}

/* What config.json says. */
static void test_schemes(void **state)
{
    (void)state;
#define SCHEME(members) "{\"quantization_config\": {" members "}}"
    static const struct {
        mpk_status status;
        const char *needle, *json;
        load_scheme scheme;
    } cases[] = {
        {MPK_OK, "", "{}", {.block = {128, 128}}},
        {MPK_OK, "", SCHEME("\"quant_method\": \"mxfp4\""), {LOAD_MXFP4, 0, 0, {128, 128}, 0}},
        {MPK_OK,
         "",
         SCHEME("\"quant_method\": \"fp8\", \"weight_block_size\": [64, 32]"),
         {LOAD_FP8, 0, 0, {64, 32}, 0}},
        {MPK_OK,
         "",
         SCHEME("\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 64"),
         {LOAD_GPTQ, 8, 1, {128, 128}, 64}},
        {MPK_OK,
         "",
         SCHEME(
             "\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -1, \"checkpoint_format\": "
             "\"gptq_v2\""),
         {LOAD_GPTQ, 4, 0, {128, 128}, 0}},
        {MPK_OK,
         "",
         SCHEME("\"quant_method\": \"auto-round\", \"bits\": 4, \"packing_format\": "
                "\"auto_round:auto_gptq\""),
         {LOAD_GPTQ, 4, 1, {128, 128}, 0}},
        {MPK_OK,
         "",
         "{\"text_config\": " SCHEME("\"quant_method\": \"awq\", \"bits\": 4") "}",
         {LOAD_AWQ, 4, 0, {128, 128}, 0}},
        {MPK_OK,
         "",
         SCHEME("\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", "
                "\"config_groups\": {\"group_0\": {\"weights\": {\"block_structure\": [8, 4], "
                "\"group_size\": 16}}}"),
         {LOAD_COMPRESSED, 0, 0, {8, 4}, 16}},
        {MPK_EFORMAT, "is not an object", "{\"quantization_config\": 4}", {0}},
        {MPK_EUNSUPPORTED,
         "\"aqlm\" is not supported; fp8",
         SCHEME("\"quant_method\": \"aqlm\""),
         {0}},
        {MPK_EUNSUPPORTED,
         "\"bits\" 3 of gptq",
         SCHEME("\"quant_method\": \"gptq\", \"bits\": 3"),
         {0}},
        {MPK_EUNSUPPORTED,
         "\"checkpoint_format\" \"marlin\"",
         SCHEME("\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"marlin\""),
         {0}},
        {MPK_EUNSUPPORTED,
         "\"packing_format\" \"auto_round:auto_awq\"",
         SCHEME("\"quant_method\": \"auto-round\", \"bits\": 4, \"packing_format\": "
                "\"auto_round:auto_awq\""),
         {0}},
        {MPK_EUNSUPPORTED,
         "\"bits\" 8 of awq",
         SCHEME("\"quant_method\": \"awq\", \"bits\": 8"),
         {0}},
        {MPK_EUNSUPPORTED,
         "\"version\" \"gemv\"",
         SCHEME("\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\""),
         {0}},
        {MPK_EUNSUPPORTED,
         "\"format\" \"marlin-24\"",
         SCHEME("\"quant_method\": \"compressed-tensors\", \"format\": "
                "\"marlin-24\""),
         {0}},
        {MPK_EUNSUPPORTED,
         "sparse weights",
         SCHEME("\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", "
                "\"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}"),
         {0}},
        {MPK_EFORMAT,
         "not a list of two",
         SCHEME("\"quant_method\": \"fp8\", \"weight_block_size\": [64]"),
         {0}},
        {MPK_EFORMAT,
         "no number of 1 or more",
         SCHEME("\"quant_method\": \"fp8\", \"weight_block_size\": [64, 0]"),
         {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mpk_context cx = {0};
        load_scheme s = {0};
        const load_scheme *e = &cases[i].scheme;
        if (cases[i].status != MPK_OK) {
            check_fails(&cx, cases[i].status, cases[i].needle,
                        load_hf_scheme(&cx, str_from(cases[i].json), &s));
            continue;
        }
        check_ok(&cx, load_hf_scheme(&cx, str_from(cases[i].json), &s));
        assert_true(s.method == e->method && s.bits == e->bits && s.zero_more == e->zero_more);
        assert_true(s.block[0] == e->block[0] && s.block[1] == e->block[1]);
        assert_int_equal(s.group, e->group);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gptq),    cmocka_unit_test(test_awq),
        cmocka_unit_test(test_f8),      cmocka_unit_test(test_forms),
        cmocka_unit_test(test_faults),  cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_nibbles), cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
