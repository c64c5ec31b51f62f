/* numbers_test.c - are the numbers right?  Operators against formulas in double written anew,
 * against values from other programs, and fused operators against the single ones, bit for bit.
 */
#include "numbers_bed.h"

#include <math.h>

#include "base/num.h"
#include "base/rng.h"
#include "ir/blocks.h"
#include "ir/op.h"
#include "op/rules.h"
#include "op/largest.h"
#include "op/split_own.h"

static void test_blocks(void **state)
{
    /* one block of bytes 37 i + 11, its scale 0.5, its minimum -1.25; values from the gguf package
     * of Python */
    static const struct {
        ir_dtype dtype;
        int n, scale_at[2], index[12];
        float value[12];
    } rows[] = {
        {IR_Q4_0, 6, {0, -1}, {0, 1, 15, 16, 17, 31}, {-1.5, 1.0, -4.0, -1.5, -0.5, 0.0}},
        {IR_Q4_1, 6, {0, 2}, {0, 1, 15, 16, 17, 31}, {6.25, 0.75, 3.75, 3.25, 4.75, 4.75}},
        {IR_Q5_0, 6, {0, -1}, {0, 1, 15, 16, 17, 31}, {4.5, -1.0, -6.0, 7.0, 0.0, 0.5}},
        {IR_Q5_1, 6, {0, 2}, {0, 1, 15, 16, 17, 31}, {8.25, 10.75, 13.75, 8.25, 1.25, 1.25}},
        {IR_Q8_0, 6, {0, -1}, {0, 1, 15, 16, 17, 31}, {42.5, 61.0, -64.0, -45.5, -27.0, -24.0}},
        {IR_Q2_K,
         12,
         {80, 82},
         {0, 15, 16, 33, 63, 64, 100, 127, 128, 200, 223, 255},
         {16.5, 11.0, 3.75, 6.25, 13.75, 18.75, 31.0, 21.0, 8.25, 22.0, 35.5, 6.75}},
        {IR_Q3_K,
         12,
         {108, -1},
         {0, 15, 16, 33, 63, 64, 100, 127, 128, 200, 223, 255},
         {40.5, -27.0, -48.0, 22.0, 5.0, 17.0, 0.0, 36.0, 1.0, 12.5, 44.0, 21.0}},
        {IR_Q4_K,
         12,
         {0, 2},
         {0, 15, 16, 33, 63, 64, 100, 127, 128, 200, 223, 255},
         {234.25, 156.75, 234.25, 46.0, 56.0, 301.75, 98.5, 91.5, 229.5, 94.75, 168.25, 76.75}},
        {IR_Q5_K,
         12,
         {0, 2},
         {0, 15, 16, 33, 63, 64, 100, 127, 128, 200, 223, 255},
         {482.25, 156.75, 482.25, 34.0, 76.0, 301.75, 168.5, 49.5, 541.5, 94.75, 560.25, 106.75}},
        {IR_Q6_K,
         12,
         {208, -1},
         {0, 15, 16, 33, 63, 64, 100, 127, 128, 200, 223, 255},
         {-715.5, -159.0, -216.0, -336.0, -290.0, -1520.0, 1261.5, 750.0, -175.5, 544.5, -504.0,
          -30.0}},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        unsigned char bytes[2][256];
        float out[512];
        size_t size = ir_dtype_table[rows[r].dtype].block_bytes,
               n = ir_dtype_table[rows[r].dtype].block_elements;
        for (size_t i = 0; i < size; i++)
            bytes[0][i] = (unsigned char)(i * 37 + 11);
        for (int k = 0; k < 2 && rows[r].scale_at[k] >= 0; k++) {
            f16 half = num_to_f16(k ? -1.25f : 0.5f);
            memcpy(bytes[0] + rows[r].scale_at[k], &half, sizeof half);
        }
        unsigned char two[2 * 256];
        memcpy(two, bytes[0], size);
        memcpy(two + size, bytes[0], size);
        assert_true(blocks_unpack_row(rows[r].dtype, two, (int64_t)(2 * n), out));
        for (int i = 0; i < rows[r].n; i++) {
            assert_true(out[rows[r].index[i]] == rows[r].value[i]);
            assert_true(out[n + (size_t)rows[r].index[i]] == rows[r].value[i]);
        }
    }
    float untouched = 5;
    assert_false(blocks_unpack_row(IR_F32, &untouched, 1, &untouched));
}

/* Random blocks against the gguf package of Python, by a hash over the bytes of all weights: bytes
 * are the high bits of x = 1664525 x + 1013904223 from x = 1 on, 64 blocks, each with a scale of
 * 0.5 (MXFP4: an exponent of 120 ... 127). */
static uint64_t hash_blocks(ir_dtype dtype, int scale_at)
{
    static unsigned char bytes[64 * 256];
    static float weights[64 * 256];
    const size_t size = ir_dtype_table[dtype].block_bytes,
                 n = 64 * ir_dtype_table[dtype].block_elements;
    uint32_t x = 1;
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < 64 * size; i++)
        bytes[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
    for (unsigned char *block = bytes; block < bytes + 64 * size; block += size) {
        const f16 half = num_to_f16(0.5f);
        if (scale_at >= 0)
            memcpy(block + scale_at, &half, sizeof half);
        for (int i = 0; dtype == IR_IQ1_M && i < 4; i++)
            block[49 + 2 * i] =
                (unsigned char)((block[49 + 2 * i] & 15) | (half >> 4 * i & 15) << 4);
        block[0] = dtype == IR_MXFP4 ? (unsigned char)(120 + block[0] % 8) : block[0];
    }
    assert_true(blocks_unpack_row(dtype, bytes, (int64_t)n, weights));
    for (size_t i = 0; i < n; i++)
        weights[i] += 0.0f; /* -0 becomes 0 */
    for (size_t i = 0; i < n * sizeof *weights; i++)
        hash = (hash ^ ((const unsigned char *)weights)[i]) * 1099511628211u;
    return hash;
}

/* A block of each format with a code book, unpacked, against a hash of what the gguf package of
 * Python gives for the same bytes. */
static void test_codebooks(void **state)
{
    static const struct {
        ir_dtype dtype;
        int scale_at;
        uint64_t hash;
    } rows[] = {
        {IR_IQ4_NL, 0, 0x6572362ca63a2d5eu},  {IR_MXFP4, -1, 0xc327eb1c94d160eau},
        {IR_IQ1_S, 0, 0x14cafb963dc9cae7u},   {IR_IQ1_M, -1, 0xef99ae715f29bd14u},
        {IR_IQ2_XXS, 0, 0x7f75ada49cda36bbu}, {IR_IQ2_XS, 0, 0xb7865ba8d25a449cu},
        {IR_IQ2_S, 0, 0xcb64cc8467afc0f7u},   {IR_IQ3_XXS, 0, 0xa378e4d4892ca071u},
        {IR_IQ3_S, 0, 0x04d0df75b735ca5du},   {IR_IQ4_XS, 0, 0x017ffbfd6105ab2bu},
        {IR_TQ1_0, 52, 0x19d1f03d0c15dfd3u},  {IR_TQ2_0, 64, 0x647196f86b70fed3u},
        {IR_Q4_0, 0, 0x67e753f48d2c8f4au},    {IR_Q6_K, 208, 0x28c49216030a2b83u},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        if (hash_blocks(rows[r].dtype, rows[r].scale_at) != rows[r].hash)
            fail_msg("%s", ir_dtype_table[rows[r].dtype].name);
}

/* Norms and softmax against sums in double, with an epsilon that is large enough to be noticed. */
static void test_norms(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[3, 320]\nconst %w : f32[320]\nconst %b : f32[320]\n%r = "
               "rms_norm(%x, %w) {eps = 0.25}\n"
               "%l = layer_norm(%x, %w, %b) {eps = 0.5}\n%s = softmax(%x)\n");
    eval(&b);
    for (int64_t t = 0; t < 3; t++) {
        double squares = 0, mean = 0, variance = 0, sum = 0;
        for (int64_t i = 0; i < 320; i++) {
            squares += at(&b, "x", t * 320 + i) * at(&b, "x", t * 320 + i) / 320;
            mean += at(&b, "x", t * 320 + i) / 320;
            sum += exp(at(&b, "x", t * 320 + i));
        }
        variance = squares - mean * mean;
        for (int64_t i = 0; i < 320; i++) {
            double x = at(&b, "x", t * 320 + i), w = at(&b, "w", i);
            near(at(&b, "r", t * 320 + i), x / sqrt(squares + 0.25) * w, 1e-6);
            near(at(&b, "l", t * 320 + i), (x - mean) / sqrt(variance + 0.5) * w + at(&b, "b", i),
                 1e-6);
            near(at(&b, "s", t * 320 + i), exp(x) / sum, 1e-6);
        }
    }
    tear_down(&b);
}

/* x . row of w in double; x and w have rows of the same width. */
static double product(const bed *b, const char *x, int64_t t, const char *w, int64_t row)
{
    double sum = 0;
    int64_t width = tensor_of(b, x)->dims[1];
    for (int64_t i = 0; i < width; i++)
        sum += at(b, x, t * width + i) * at(b, w, row * width + i);
    return sum;
}

/* Widths that no vector divides. */
static void test_odd_widths(void **state)
{
    (void)state;
    for (int width = 1; width < 70; width += 17) {
        char graph[256];
        bed b;
        snprintf(graph, sizeof graph,
                 "input %%x : f32[11, %d]\nconst %%w : f16[3, %d]\n%%y = linear(%%x, %%w)\n", width,
                 width);
        set_up(&b, graph);
        eval(&b);
        for (int64_t i = 0; i < 33; i++)
            near(at(&b, "y", i), product(&b, "x", i / 3, "w", i % 3), 1e-5);
        tear_down(&b);
    }
}

/* Products of random rows with weights of every dtype, against sums in double of the unpacked
 * weights. */
static void test_linear(void **state)
{
    (void)state;
    for (int d = 0; d < IR_DTYPES; d++) {
        char graph[512];
        bed b;
        if (d == IR_F64 || d == IR_I32 || d == IR_I64 || d == IR_BOOL || d >= IR_U8)
            continue;
        snprintf(graph, sizeof graph,
                 "input %%x : f32[3, 512]\nconst %%w : %s[5, 512]\nconst %%u : f32[4, 512]\nconst "
                 "%%b : f32[4]\n"
                 "input %%r : f32[3, 9]\n%%y = linear(%%x, %%w, %%u, _, _, %%b, _, _, %%r)\n"
                 "input %%i : i32[2]\n%%e = embedding(%%i, %%w)\n",
                 ir_dtype_table[d].name);
        set_up(&b, graph);
        ((int32_t *)data_of(&b, "i"))[0] = 4;
        ((int32_t *)data_of(&b, "i"))[1] = 5; /* not there */
        eval(&b);
        for (int64_t t = 0; t < 3; t++)
            for (int64_t f = 0; f < 9; f++) {
                double y = f < 5 ? product(&b, "x", t, "w", f)
                                 : product(&b, "x", t, "u", f - 5) + at(&b, "b", f - 5);
                near(at(&b, "y", t * 9 + f), y + at(&b, "r", t * 9 + f), 1e-4);
            }
        for (int64_t i = 0; i < 512; i++) {
            assert_true(at(&b, "e", i) == at(&b, "w", 4 * 512 + i));
            assert_true(at(&b, "e", 512 + i) == 0);
        }
        tear_down(&b);
    }
}

/* In forms that keep their digits where 1 + erf and 1 + tanh cancel. */
static double activation(const char *name, double x)
{
    if (strcmp(name, "silu") == 0)
        return x / (1 + exp(-x));
    if (strcmp(name, "gelu") == 0)
        return 0.5 * x * erfc(-x / sqrt(2));
    return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* Where 1 + erf and 1 + tanh(u) cancel gelu keeps its relative precision, alone and inside a
 * product's end. */
static void test_gelu_keeps_digits(void **state)
{
    static const char *const names[] = {"gelu", "gelu_tanh"};
    enum { N = 256 };
    (void)state;
    for (int k = 0; k < 2; k++) {
        char graph[256];
        bed b;
        snprintf(graph, sizeof graph,
                 "input %%x : f32[256, 1]\nconst %%w : f32[1, 1]\n%%y = gelu(%%x) {tanh = %d}\n"
                 "%%z = linear(%%x, %%w, %%w) {glu = \"%s\"}\n",
                 k, names[k]);
        set_up(&b, graph);
        for (int i = 0; i < N; i++)
            ((float *)data_of(&b, "x"))[i] = -5.0f * (float)(i + 1) / N;
        *(float *)data_of(&b, "w") = 1;
        eval(&b);
        for (int64_t i = 0; i < N; i++) {
            double x = at(&b, "x", i), exact = activation(names[k], x);
            assert_true(fabs(at(&b, "y", i) / exact - 1) < 5e-6);
            assert_true(fabs(at(&b, "z", i) / (exact * x) - 1) < 5e-6);
        }
        tear_down(&b);
    }
}

/* activation(gate) times up inside one product, for each activation. */
static void test_gated_linear(void **state)
{
    static const char *const names[] = {"silu", "gelu", "gelu_tanh"};
    (void)state;
    for (int k = 0; k < 3; k++) {
        char graph[512];
        bed b;
        snprintf(graph, sizeof graph,
                 "input %%x : f32[2, 512]\nconst %%g : bf16[5, 512]\nconst %%u : f32[5, "
                 "512]\nconst %%n : f32[512]\n"
                 "%%m = rms_norm(%%x, %%n) {eps = 0.001}\n%%y = linear(%%x, %%g, %%u, _, _, _, _, "
                 "%%n) {eps = 0.001, "
                 "glu = \"%s\"}\n"
                 "%%z = linear(%%m, %%g, %%u) {glu = \"%s\"}\n",
                 names[k], names[k]);
        set_up(&b, graph);
        eval(&b);
        for (int64_t i = 0; i < 10; i++) {
            double gate = product(&b, "m", i / 5, "g", i % 5),
                   up = product(&b, "m", i / 5, "u", i % 5);
            near(at(&b, "y", i), activation(names[k], gate) * up, 2e-4);
        }
        assert_memory_equal(data_of(&b, "y"), data_of(&b, "z"), 10 * sizeof(float));
        tear_down(&b);
    }
}

static void test_rope_table(void **state)
{
    static const int32_t positions[6] = {0, 1, 17, 1000, 131071, 999999};
    /* cos and sin of pairs 0, 1, H/6, H/4, H/2 - 1 as Transformers computes them in fp32 */
    static const struct {
        const char *attributes;
        int64_t half;
        float value[6][10];
    } rows[] = {
        {"size = 64, theta = 100000.0",
         32,
         {{1, 0, 1, 0, 1, 0, 1, 0, 1, 0},
          {0.540302336f, 0.841470957f, 0.766237974f, 0.642556906f, 0.999625087f, 0.0273807738f,
           0.999994993f, 0.00316227251f, 1, 1.43301268e-05},
          {-0.275163352f, -0.961397469f, 0.762743473f, -0.646701157f, 0.893583179f, 0.44889766f,
           0.998555362f, 0.0537328348f, 1, 0.000243612158f},
          {0.562379062f, 0.826879561f, 0.922226131f, 0.38665092f, -0.629304349f, 0.777158916f,
           -0.999786079f, -0.0206838083f, 0.999897301f, 0.0143296355f},
          {-0.817983508f, -0.575241685f, 0.520768106f, 0.853698194f, -0.0043190415f, 0.999990702f,
           0.978586078f, -0.205838144f, -0.302646101f, 0.953103006f},
          {0.211619958f, -0.977352023f, 0.893718958f, 0.448627234f, -0.457875252f, 0.889016449f,
           -0.258677036f, 0.9659639f, -0.191750586f, 0.981443703f}}},
        {"size = 48, scaling = \"linear\", factor = 4.0",
         24,
         {{1, 0, 1, 0, 1, 0, 1, 0, 1, 0},
          {0.968912423f, 0.247403964f, 0.985530078f, 0.169500694f, 0.999932706f, 0.0116037102f,
           0.999996901f, 0.00249999738f, 1, 3.66949898e-05},
          {-0.44608748f, -0.894989371f, -0.969869554f, 0.243624821f, 0.980605781f, 0.195990562f,
           0.99909699f, 0.0424872078f, 0.999999821f, 0.000623814762f},
          {0.240988299f, -0.970528007f, 0.779449344f, 0.626465261f, 0.571552992f, -0.820565164f,
           -0.801143587f, 0.598472118f, 0.999326825f, 0.0366867557f},
          {0.590899408f, 0.806745231f, 0.968712509f, 0.248185515f, 0.915821552f, 0.401585549f,
           0.58017379f, 0.814492702f, 0.0971067473f, -0.995273948f},
          {-0.332912922f, -0.94295758f, -0.171902597f, -0.985113978f, 0.467551053f, -0.883966088f,
           0.758235633f, -0.651980639f, 0.536798894f, -0.843710244f}}},
        {"size = 128, theta = 500000.0, scaling = \"llama3\", factor = 32.0, original_positions = "
         "8192",
         64,
         {{1, 0, 1, 0, 1, 0, 1, 0, 1, 0},
          {0.540302336f, 0.841470957f, 0.686146915f, 0.727463007f, 0.999908984f, 0.013490011f,
           0.99999994f, 0.000429556705f, 1, 7.67231469e-08},
          {-0.275163352f, -0.961397469f, 0.284681648f, 0.958622098f, 0.973817289f, 0.22733207f,
           0.999973357f, 0.00730239926f, 1, 1.30429351e-06},
          {0.562379062f, 0.826879561f, -0.585993946f, -0.81031543f, 0.602594018f, 0.7980479f,
           0.909150481f, 0.416467816f, 1, 7.67231468e-05},
          {-0.817983508f, -0.575241685f, -0.817231834f, 0.576309025f, -0.87083143f, 0.491581738f,
           0.969835222f, -0.24376142f, 0.999949455f, 0.0100560104f},
          {0.211619958f, -0.977352023f, 0.170041874f, 0.985436857f, 0.918155909f, 0.396219313f,
           -0.666032553f, 0.745922685f, 0.997058213f, 0.0766478181f}}},
        {"size = 128, theta = 1000000.0, scaling = \"yarn\", factor = 4.0, original_positions = "
         "32768",
         64,
         {{1.13862944f, 0, 1.13862944f, 0, 1.13862944f, 0, 1.13862944f, 0, 1.13862944f, 0},
          {0.615204155f, 0.958123624f, 0.788505316f, 0.821423411f, 1.13856363f, 0.012235566f,
           1.1386292f, 0.000686526473f, 1.13862944f, 3.53242058e-07},
          {-0.313309103f, -1.09467542f, 0.482770175f, 1.03121769f, 1.11968231f, 0.206853569f,
           1.13856959f, 0.0116707459f, 1.13862944f, 6.00511521e-06},
          {0.640341341f, 0.941509426f, -0.0269926377f, 1.13830948f, -0.281145155f, -1.10337412f,
           0.937856436f, 0.645679712f, 1.13862932f, 0.000353242067f},
          {-0.931380093f, -0.654987097f, -0.671797037f, 0.919328988f, 0.550914824f, 0.996478677f,
           -1.00556886f, -0.534142435f, 1.13768828f, 0.0462870337f},
          {0.240956709f, -1.11284173f, -0.680067122f, -0.913228154f, -0.281382829f, 1.10331357f,
           1.10456121f, -0.276444376f, 1.0842737f, 0.347602636f}}},
        {"size = 64, scaling = \"yarn\", factor = 40.0, mscale = 0.7, mscale_all_dim = 1.0, "
         "original_positions = 4096, "
         "truncate = 0",
         32,
         {{0.919156015f, 0, 0.919156015f, 0, 0.919156015f, 0, 0.919156015f, 0, 0.919156015f, 0},
          {0.496622145f, 0.773443103f, 0.672602534f, 0.626461208f, 0.917703092f, 0.0516606979f,
           0.919142008f, 0.0050774496f, 0.919156015f, 3.06428547e-06},
          {-0.252918065f, -0.883674264f, 0.904003084f, 0.166211396f, 0.530176878f, 0.75083971f,
           0.915105999f, 0.0861902609f, 0.919156015f, 5.20928552e-05},
          {0.51691407f, 0.760031343f, -0.537332058f, 0.745735884f, 0.874060929f, -0.284368277f,
           0.666792691f, -0.632641494f, 0.919150949f, 0.00306427968f},
          {-0.751854479f, -0.52873683f, 0.0512109362f, 0.917728305f, 0.812205732f, 0.430313349f,
           0.0851149857f, 0.915206671f, 0.832792342f, 0.388979048f},
          {0.194511756f, -0.898338974f, 0.0151864355f, 0.919030547f, 0.833833575f, -0.386742055f,
           0.386134863f, 0.834114909f, -0.902229667f, -0.175583035f}}},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char graph[512];
        bed b;
        snprintf(graph, sizeof graph, "input %%p : i32[6]\n%%t = rope_table(%%p) {%s}\n",
                 rows[r].attributes);
        set_up(&b, graph);
        memcpy(data_of(&b, "p"), positions, sizeof positions);
        eval(&b);
        int64_t half = rows[r].half, pairs[5] = {0, 1, half / 3, half / 2, half - 1};
        for (int64_t t = 0; t < 6; t++)
            for (int k = 0; k < 10; k++)
                near(at(&b, "t", (t * 2 + k % 2) * half + pairs[k / 2]),
                     (double)rows[r].value[t][k], 1e-6);
        tear_down(&b);
    }
}

/* The head has 10 entries and the table 4 angles' worth: entries beyond the table pass
 * unrotated. */
static void test_rope(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[3, 2, 10]\ninput %t : f32[3, 2, 4]\n%y = rope(%x, %t)\n");
    eval(&b);
    for (int64_t row = 0; row < 6; row++)
        for (int64_t i = 0; i < 10; i++) {
            double expected = at(&b, "x", row * 10 + i);
            if (i < 8) {
                int64_t angle = row / 2 * 8;
                double cosine = at(&b, "t", angle + i % 4), sine = at(&b, "t", angle + 4 + i % 4);
                double other = at(&b, "x", row * 10 + (i + 4) % 8);
                expected = expected * cosine + (i < 4 ? -other : other) * sine;
            }
            near(at(&b, "y", row * 10 + i), expected, 1e-6);
        }
    tear_down(&b);
}

/* A position, slot or page just beyond the last has no place: nothing is written. */
static void test_places_beyond_the_cache(void **state)
{
    (void)state;
    static const struct {
        int32_t position, slot, page;
        bool written;
    } rows[] = {{11, 0, 5, true},  {12, 0, 5, false},  {11, 2, 5, false}, {11, 0, 6, false},
                {-1, 0, 5, false}, {11, -1, 5, false}, {11, 0, -1, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bed b;
        set_up(&b, "input %x : f32[1, 1, 8]\ninput %p : i32[1]\ninput %s : i32[1]\ninput %pages : "
                   "i32[2, 3]\n"
                   "state %k : f32[6, 1, 4, 8]\nstate %v : f32[6, 1, 4, 8]\n%ka, %va = "
                   "kv_write(%x, %x, %p, %s, %pages, "
                   "%k, %v)\n");
        const int32_t pages[6] = {0, 1, rows[i].page, 2, 3, 4};
        size_t n = (size_t)ir_bytes(tensor_of(&b, "k"));
        char *before = malloc(n);
        assert_non_null(before);
        memcpy(data_of(&b, "p"), &rows[i].position, 4);
        memcpy(data_of(&b, "s"), &rows[i].slot, 4);
        memcpy(data_of(&b, "pages"), pages, sizeof pages);
        memcpy(before, data_of(&b, "k"), n);
        eval(&b);
        assert_int_equal(memcmp(before, data_of(&b, "k"), n) != 0, rows[i].written);
        free(before);
        tear_down(&b);
    }
}

/* logits and sample against gather, rms_norm, linear and sample, the same bits; NaN is passed
 * over. */
static void test_logits(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[7, 64] live=tokens\nconst %w : f32[1003, 64]\nconst %n : "
               "f32[64]\ninput %r : i32[5] "
               "live=rows\ninput %s : f32[5, 4] live=rows\ninput %seed : i64[5] live=rows\ninput "
               "%d : i32[5] "
               "live=rows\n%g = gather(%x, %r)\n%h = rms_norm(%g, %n) {eps = 1e-05}\n%l1 = "
               "linear(%h, %w)\n"
               "input %a : i32[5, 7] live=rows\ninput %u : i32[1, 11]\ninput %y : i32[1]\nstate %c "
               ": f32[1, 1003]\n"
               "%t1, %c1, %p1 = sample(%l1, %s, %seed, %d, %a, %u, %y, %c)\n%l2, %peaks = "
               "logits(%x, %w, %n, %r) {eps "
               "= 1e-05}\n"
               "%t2, %c2, %p2 = sample(%l2, %s, %seed, %d, %a, %u, %y, %c1, %peaks)\n");
    memcpy(data_of(&b, "r"), (int32_t[]){6, 0, 99, 3, 3}, 20);
    memset(data_of(&b, "a"), 0, 140); /* no row asks for more */
    memcpy(data_of(&b, "s"), (float[20]){[16] = 1, [18] = 1}, 80);
    float *w = data_of(&b, "w");
    for (int i = 0; i < 130 * 64; i++)
        w[i] = NAN;
    memcpy(w + 900 * 64, w + 200 * 64, 256); /* ties */
    eval(&b);
    assert_memory_equal(data_of(&b, "l2"), data_of(&b, "l1"), 5 * 1003 * sizeof(float));
    assert_memory_equal(data_of(&b, "t2"), data_of(&b, "t1"), 5 * sizeof(int32_t));
    assert_true(at(&b, "peaks", 3) == -1 && at(&b, "peaks", 2) == -INFINITY);
    assert_int_equal(at(&b, "t2", 2), 130); /* all zeros but for NaN */
    tear_down(&b);
}

/* A peak in a column that the row has not is none: the token is 0. */
static void test_peaks_beyond_a_row(void **state)
{
    static const float columns[] = {6, 5, 100, -1};
    static const int tokens[] = {0, 5, 0, 0};
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[4, 6]\ninput %s : f32[4, 4]\ninput %seed : i64[4]\ninput %d : "
               "i32[4]\ninput %a : i32[4, 7]\ninput %u : i32[1, 11]\ninput %h : i32[1]\nstate %c "
               ": f32[1, 6]\ninput %k : f32[4, 1, 2]\n%t, %choice, %p = sample(%x, %s, %seed, %d, "
               "%a, %u, %h, %c, %k)\n");
    memset(data_of(&b, "s"), 0, 64);
    memset(data_of(&b, "a"), 0, 112);
    for (int r = 0; r < 4; r++)
        memcpy((float *)data_of(&b, "k") + 2 * r, (float[]){1, columns[r]}, 8);
    eval(&b);
    for (int r = 0; r < 4; r++)
        assert_int_equal(at(&b, "t", r), tokens[r]);
    tear_down(&b);
}

/* Rows of few different values, many of them NaN or -inf, dense ones beside spread ones, against a
 * plain loop. */
static void test_largest(void **state)
{
    enum { COLUMNS = 400 };
    static const float values[] = {-INFINITY, NAN, -1, 0, 2, INFINITY};
    float x[2 * COLUMNS];
    (void)state;
    for (uint64_t n = 0; n < 2000; n++) {
        uint64_t seed = base_seed + n, kinds = 1 + rng_u64(seed, 0) % 6;
        int64_t stride = 1 + (int64_t)(rng_u64(seed, 1) % 2), lo = (int64_t)(rng_u64(seed, 2) % 70);
        int64_t hi = lo + (int64_t)(rng_u64(seed, 3) % (COLUMNS - 70)), best = -1;
        op_view v = {.data = x,
                     .dtype = IR_F32,
                     .rank = 2,
                     .dims = {1, COLUMNS},
                     .stride = {COLUMNS, stride}};
        for (int64_t i = 0; i < 2 * COLUMNS; i++)
            x[i] = values[rng_u64(seed, 10 + (uint64_t)i) % kinds];
        for (int64_t i = lo; i < hi; i++)
            if (!isnan(x[i * stride]) && (best < 0 || x[i * stride] > x[best * stride]))
                best = i;
        assert_int_equal(largest_in_row(&v, 0, lo, hi), best);
    }
}

/* The same index from the whole row and from parts that are reduced afterwards. Of equal values
 * the first counts; NaN never does, and a row of nothing else gives 0. */
static void test_argmax(void **state)
{
    bed b;
    (void)state;
    set_up(&b,
           "input %x : f32[3, 10]\n%a = argmax(%x)\n%v, %i = argmax_partial(%x) {parts = 3}\n%c = "
           "argmax_reduce(%v, %i)\n");
    float *x = data_of(&b, "x");
    memcpy(x, (float[]){1,   5,   5,   NAN, 5,         0,  0,   0,  0,  0,
                        NAN, NAN, NAN, NAN, -INFINITY, -3, NAN, -3, -4, NAN},
           80);
    for (int i = 20; i < 30; i++)
        x[i] = NAN;
    static const int largest[] = {1, 5, 0};
    eval(&b);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(at(&b, "a", r), largest[r]);
        assert_int_equal(at(&b, "c", r), at(&b, "a", r));
    }
    tear_down(&b);
}

#define SAMPLE(rows, columns, rules, history)                                                     \
    "input %x : f32[" rows ", " columns "]\ninput %s : f32[" rows ", 4]\ninput %seed : i64[" rows \
    "]\ninput %d : i32[" rows "]\ninput %a : i32[" rows ", 7]\ninput %u : i32[" rules             \
    "]\ninput %h : i32[" history "]\nstate %c : f32[3, " columns                                  \
    "]\n%t, %choice, %p = sample(%x, %s, %seed, %d, %a, %u, %h, %c)\n"

/* Draw many times from logits log(1, 2, 3, 4, 6, 8) shuffled; returns counts by id. */
static void draw(const float *sampling, int counts[6])
{
    bed b;
    static const float weights[6] = {3, 8, 1, 6, 2, 4};
    set_up(&b, SAMPLE("4000", "6", "1, 11", "1"));
    for (int r = 0; r < 4000; r++) {
        for (int i = 0; i < 6; i++)
            ((float *)data_of(&b, "x"))[r * 6 + i] = logf(weights[i]) + 10;
        memcpy((float *)data_of(&b, "s") + r * 4, sampling, 16);
        ((int64_t *)data_of(&b, "seed"))[r] = (int64_t)base_seed;
        ((int32_t *)data_of(&b, "d"))[r] = r;
    }
    eval(&b);
    memset(counts, 0, 6 * sizeof *counts);
    for (int r = 0; r < 4000; r++)
        counts[(int)at(&b, "t", r)]++;
    tear_down(&b);
}

/* Shares of the counts; 4000 draws: a standard deviation is at most 0.008, and of some sixty
 * shares one beyond 0.05 comes in fewer than one of 10^8 runs. */
static void check_shares(const float *sampling, const double *weights)
{
    int counts[6];
    double sum = 0;
    draw(sampling, counts);
    for (int i = 0; i < 6; i++)
        sum += weights[i];
    for (int i = 0; i < 6; i++) {
        assert_true(fabs(counts[i] / 4000.0 - weights[i] / sum) < 0.05);
        assert_true(weights[i] > 0 || counts[i] == 0);
    }
}

/* Drawn shares against exact ones: first temperature, top_k, top_p and min_p, then the weight
 * that each token should have. */
static void test_sample(void **state)
{
    (void)state;
    check_shares((float[]){1, 0, 1, 0}, (double[]){3, 8, 1, 6, 2, 4});
    check_shares((float[]){0.5f, 0, 1, 0}, (double[]){9, 64, 1, 36, 4, 16});
    check_shares((float[]){0, 5, 0.5f, 0}, (double[]){0, 1, 0, 0, 0, 0});
    check_shares((float[]){1, 3, 1, 0}, (double[]){0, 8, 0, 6, 0, 4});
    /* 8 + 6 of 24 is 0.583, below 0.6 */
    check_shares((float[]){1, 0, 0.6f, 0}, (double[]){0, 8, 0, 6, 0, 4});
    check_shares((float[]){1, 0, 0.58f, 0}, (double[]){0, 8, 0, 6, 0, 0});
    check_shares((float[]){1, 3, 0.75f, 0}, (double[]){0, 8, 0, 6, 0, 0}); /* 14 of 18 is 0.78 */
    check_shares((float[]){1, 0, 1, 0.45f}, (double[]){0, 8, 0, 6, 0, 4});
    check_shares((float[]){1, 2, 0.99f, 0.9f}, (double[]){0, 8, 0, 0, 0, 0});
    check_shares((float[]){1, 0, 0, 0}, (double[]){0, 8, 0, 0, 0, 0});
}

/* The ends of what is drawn, by streams whose bits are 2^63 and 0.  Half of two equal weights is
 * the second one's; and 0 is no token's that has no weight. */
static void test_ends_of_draws(void **state)
{
    static const uint64_t streams[2] = {0xb9a18c5a78cb6be5, 0xa398b211843b3261};
    static const float x[4] = {9, 9, -90, 9}, sampling[8] = {1, 0, 1, 0.5f, 1, 0, 1, 0.5f};
    static const int32_t zeros[2 * ASKS] = {0};
    bed b;
    (void)state;
    set_up(&b, SAMPLE("2", "2", "1, 11", "1"));
    memcpy(data_of(&b, "x"), x, sizeof x);
    memcpy(data_of(&b, "s"), sampling, sizeof sampling);
    memcpy(data_of(&b, "seed"), streams, sizeof streams);
    memcpy(data_of(&b, "d"), zeros, sizeof(int32_t[2]));
    memcpy(data_of(&b, "a"), zeros, sizeof zeros);
    eval(&b);
    assert_true(at(&b, "t", 0) + at(&b, "t", 1) == 2);
    tear_down(&b);
}

/* Rows with rules: a mask in the first row of rules, and biases and bans of ids beside the
 * vocabulary, which change no neighbour of the row's copy; its history begins where it begins. */
static void test_rules_at_the_ends(void **state)
{
    enum { V = 6, WORDS = 24, MASKED = 3, BIASED = 1 };
    bed b;
    (void)state;
    set_up(&b, SAMPLE("2", "6", "3, 24", "2"));
    float *x = data_of(&b, "x");
    int32_t *asks = data_of(&b, "a"), *records = data_of(&b, "u");
    const float one = 1, bias[] = {100, 100, 1, 50};
    const int32_t ids[] = {-1, V, 0, BIASED}, sequence[] = {3, 0, 0, BIASED};
    for (const char *name = "sadhuc"; *name; name++) /* what no line below sets is off */
        memset(data_of(&b, (char[]){*name, 0}), 0,
               (size_t)ir_bytes(tensor_of(&b, (char[]){*name, 0})));
    memset(data_of(&b, "seed"), 0, sizeof(int64_t[2]));
    for (int i = 0; i < 2 * V; i++)
        x[i] = (float)(i % V == 0 ? 9 : V - i % V);
    records[MASK_NUMBER] = 1; /* of draw 0 */
    records[MASK_BITS] = 1 << MASKED | 1 << (V - 1);
    for (int i = 1; i < 3; i++) {
        memcpy(records + i * WORDS + RULES_REPETITION, &one, sizeof one);
        memcpy(records + i * WORDS + RULES_TYPICAL, &one, sizeof one);
    }
    records[2 * WORDS + RULES_BIASES] = 4;
    records[2 * WORDS + RULES_LEAST] = 9; /* until then no end may come */
    records[2 * WORDS + RULES_ENDS] = 1;
    records[2 * WORDS + RULES_LISTS + 8] = V;
    records[2 * WORDS + RULES_BANNED] = 4;
    memcpy(records + 2 * WORDS + RULES_LISTS + 9, sequence, sizeof sequence);
    for (int i = 0; i < 4; i++) {
        int32_t *pair = records + 2 * WORDS + RULES_LISTS + 2 * i;
        pair[0] = ids[i];
        memcpy(pair + 1, &bias[i], sizeof bias[i]);
    }
    for (int i = 0; i < 2; i++) {
        asks[i * ASKS + ASK_RULES] = 2 + i;
        asks[i * ASKS + ASK_CHOICE] = i;
    }
    asks[ASK_MASK] = asks[ASKS + ASK_FROM] = asks[ASKS + ASK_HISTORY] = 1;
    eval(&b);
    assert_int_equal(at(&b, "t", 0), MASKED);
    assert_int_equal(at(&b, "t", 1), BIASED);
    assert_true(at(&b, "choice", V - 1) == x[V - 1]);
    assert_true(at(&b, "choice", V) == x[0] + 1 && at(&b, "choice", V + BIASED) == x[BIASED] + 50);
    assert_true(at(&b, "choice", 2 * V) == 0);
    tear_down(&b);
}

/* Every view and copy against its definition by index. */
static void test_views(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : i32[3, 4, 5]\ninput %i : i32[2]\n%s = slice(%x) {starts = [1, 0, 2], "
               "stops = [3, 4, 5]}\n"
               "%t = transpose(%s) {perm = [2, 0, 1]}\n%r = reshape(%t) {shape = [6, 4]}\n%f = "
               "reshape(%s) {shape = [8, 3]}\n"
               "%u = reshape(%t) {shape = [3, 8]}\n%e = expand(%f) {shape = [2, 8, 3]}\n%c = "
               "concat(%f, %f) {axis = 1}\n%g = "
               "gather(%x, %i)\n"
               "%k = copy(%t)\n");
    for (int i = 0; i < 60; i++)
        ((int32_t *)data_of(&b, "x"))[i] = i;
    memcpy(data_of(&b, "i"), (int32_t[]){2, 3}, 8);
    eval(&b);
    /* transposed: cannot be seen as one axis */
    assert_int_equal(tensor_of(&b, "r")->shares, IR_NONE);
    for (int i = 0; i < 24; i++) {
        int sliced = (i / 12 + 1) * 20 + i / 3 % 4 * 5 + i % 3 + 2,
            permuted = (i / 4 % 2 + 1) * 20 + i % 4 * 5 + i / 8 + 2;
        assert_int_equal(at(&b, "s", i), sliced);
        assert_int_equal(at(&b, "f", i), sliced);
        assert_int_equal(at(&b, "e", i + 24), sliced);
        assert_int_equal(at(&b, "c", i / 3 * 6 + i % 3 + 3), sliced);
        assert_int_equal(at(&b, "t", i), permuted);
        assert_int_equal(at(&b, "r", i), permuted);
        assert_int_equal(at(&b, "u", i), permuted);
        assert_int_equal(at(&b, "k", i), permuted);
    }
    for (int i = 0; i < 20; i++) {
        assert_int_equal(at(&b, "g", i), 40 + i);
        assert_int_equal(at(&b, "g", 20 + i), 0);
    }
    tear_down(&b);
}

static void test_arithmetic(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[2, 3, 4]\ninput %y : f32[3, 1]\ninput %n : i64[3, 2]\ninput %w : "
               "f32[4, 5]\n"
               "%add = add(%x, %y)\n%mul = mul(%x, %y)\n%silu = silu_mul(%x, %y)\n%gelu = "
               "gelu(%x)\n%one = silu(%x)\n"
               "%map = map(%x, %y) {expr = \"where(x0 < x1, -x0 * 2 - 1, pow(x1 - x0, 2) / 4)\"}\n"
               "%mean = reduce(%x) {axes = [0, 2], kind = \"mean\"}\n%max = reduce(%x) {axes = "
               "[1], keep = 1, kind = "
               "\"max\"}\n"
               "%prod = reduce(%n) {axes = [0], kind = \"prod\"}\n%square = mul(%n, %n)\n%product "
               "= batch_matmul(%x, %w)\n"
               "%cast = cast(%n) {dtype = \"i32\"}\n%bf = cast(%x) {dtype = \"bf16\"}\n");
    memcpy(data_of(&b, "n"), (int64_t[]){1, INT64_C(3000000019), 2, -3, 5, 7}, 48);
    eval(&b);
    for (int64_t i = 0; i < 24; i++) {
        double x = at(&b, "x", i), y = at(&b, "y", i / 4 % 3);
        near(at(&b, "add", i), x + y, 1e-7);
        near(at(&b, "mul", i), x * y, 1e-7);
        near(at(&b, "silu", i), activation("silu", x) * y, 1e-6);
        near(at(&b, "one", i), activation("silu", x), 1e-6);
        near(at(&b, "gelu", i), activation("gelu", x), 1e-6);
        near(at(&b, "map", i), x < y ? -x * 2 - 1 : (y - x) * (y - x) / 4, 1e-6);
        assert_true(at(&b, "bf", i) == (double)num_from_bf16(num_to_bf16((float)x)));
    }
    for (int64_t k = 0; k < 3; k++) {
        double sum = 0;
        for (int64_t i = 0; i < 8; i++)
            sum += at(&b, "x", i / 4 * 12 + k * 4 + i % 4);
        near(at(&b, "mean", k), sum / 8, 1e-6);
    }
    for (int64_t i = 0; i < 8; i++)
        assert_true(at(&b, "max", i) == fmax(at(&b, "x", i / 4 * 12 + i % 4),
                                             fmax(at(&b, "x", i / 4 * 12 + 4 + i % 4),
                                                  at(&b, "x", i / 4 * 12 + 8 + i % 4))));
    for (int64_t i = 0; i < 30; i++) {
        double sum = 0;
        for (int64_t e = 0; e < 4; e++)
            sum += at(&b, "x", i / 5 * 4 + e) * at(&b, "w", e * 5 + i % 5);
        near(at(&b, "product", i), sum, 1e-6);
    }
    int64_t *square = data_of(&b, "square"), *prod = data_of(&b, "prod");
    assert_int_equal(square[1], INT64_C(3000000019) * INT64_C(3000000019));
    assert_true(prod[0] == 10 && prod[1] == INT64_C(3000000019) * -21);
    assert_int_equal(((int32_t *)data_of(&b, "cast"))[1], (int32_t)(uint32_t)3000000019u);
    tear_down(&b);
}

/* Of tokens that are not alive nothing counts. */
static void test_live_reduction(void **state)
{
    bed b;
    (void)state;
    set_up(&b, "input %x : f32[7, 2] live=tokens\n%m = reduce(%x) {axes = [0], kind = \"mean\"}\n");
    b.values.live[IR_TOKENS] = 2;
    eval(&b);
    for (int i = 0; i < 2; i++)
        near(at(&b, "m", i), (at(&b, "x", i) + at(&b, "x", i + 2)) / 2, 1e-6);
    tear_down(&b);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_codebooks),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_odd_widths),
        cmocka_unit_test(test_gelu_keeps_digits),
        cmocka_unit_test(test_gated_linear),
        cmocka_unit_test(test_rope_table),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_places_beyond_the_cache),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_largest),
        cmocka_unit_test(test_peaks_beyond_a_row),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_sample),
        cmocka_unit_test(test_ends_of_draws),
        cmocka_unit_test(test_rules_at_the_ends),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_live_reduction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
