/* attention_numbers_test.c - are the numbers of attention right?  Whole, fused with projections and
 * norms, and split into parts of a context, against formulas in double written anew and against
 * single operators, bit for bit.
 */
#include "numbers_bed.h"

#include "base/num.h"
#include "op/split_own.h"

/* Score of token t, head h with position p of the slot of page table row `slot`; its values start
 * at *value. */
static double score_of(const bed *b, int64_t t, int64_t h, int64_t slot, int64_t p, int64_t *value)
{
    double score = 0;
    int64_t page = (int64_t)at(b, "pages", slot * 3 + p / 4),
            row = ((page * 2 + h / 2) * 4 + p % 4) * 16;
    for (int64_t i = 0; i < 16; i++)
        score += at(b, "q", (t * 4 + h) * 16 + i) * at(b, "k", row + i);
    *value = row;
    return score * 0.3;
}

/* Attention over a paged cache against softmax in double, with and without a sliding window. */
static void test_attention(void **state)
{
    (void)state;
    for (int64_t window = 0; window < 4; window += 3) {
        char graph[512];
        bed b;
        snprintf(graph, sizeof graph,
                 "input %%q : f32[3, 4, 16]\nstate %%k : bf16[6, 2, 4, 16]\nstate %%v : f32[6, 2, "
                 "4, 16]\ninput %%p : "
                 "i32[3]\n"
                 "input %%s : i32[3]\ninput %%pages : i32[2, 3]\n"
                 "%%y = attention(%%q, %%k, %%v, %%p, %%s, %%pages) {scale = 0.3, window = %lld}\n",
                 (long long)window);
        set_up(&b, graph);
        memcpy(data_of(&b, "p"), (int32_t[]){0, 11, 6}, 12);
        memcpy(data_of(&b, "s"), (int32_t[]){1, 0, 1}, 12);
        memcpy(data_of(&b, "pages"), (int32_t[]){5, 0, 3, 1, 4, 2}, 24);
        eval(&b);
        for (int64_t t = 0; t < 3; t++)
            for (int64_t c = 0; c < 64; c++) {
                double sum = 0, answer = 0;
                int64_t last = (int64_t)at(&b, "p", t), value;
                const int64_t first = window && last >= window ? last - window + 1 : 0;
                for (int64_t p = first; p <= last; p++) {
                    double weight =
                        exp(score_of(&b, t, c / 16, (int64_t)at(&b, "s", t), p, &value));
                    sum += weight;
                    answer += weight * at(&b, "v", value + c % 16);
                }
                near(at(&b, "y", t * 64 + c), answer / sum, 1e-5);
            }
        tear_down(&b);
    }
}

/* The value of element i of a tensor of q8_0, from its blocks of 34 bytes. */
static double unpacked_at(const bed *b, const char *name, int64_t i)
{
    const unsigned char *block = (const unsigned char *)data_of(b, name) + i / 32 * 34;
    uint16_t scale;
    memcpy(&scale, block, 2);
    return (double)num_from_f16(scale) * (signed char)block[2 + i % 32];
}

/* Each entry of a block is the nearest of 255 steps, the largest has 127 of them; what stood there
 * before is gone. */
static void test_written_in_8_bits(void **state)
{
    (void)state;
    bed b;
    set_up(
        &b,
        "input %k : f32[3, 2, 64]\ninput %v : f32[3, 2, 64]\ninput %p : i32[3]\ninput %s : i32[3]\n"
        "input %pages : i32[1, 3]\nstate %kc : q8_0[6, 2, 4, 64]\nstate %vc : q8_0[6, 2, 4, 64]\n"
        "%ka, %va = kv_write(%k, %v, %p, %s, %pages, %kc, %vc)\n");
    memcpy(data_of(&b, "p"), (int32_t[]){0, 9, 6}, 12);
    memcpy(data_of(&b, "s"), (int32_t[]){0, 0, 0}, 12);
    memcpy(data_of(&b, "pages"), (int32_t[]){5, 0, 3}, 12);
    memset((float *)data_of(&b, "v") + 32, 0, 32 * sizeof(float));
    ((float *)data_of(&b, "v"))[2 * 2 * 64 + 70] = INFINITY; /* the row of token 2, head 1 */
    eval(&b);
    for (int64_t i = 0; i < 3 * 2 * 64; i++) {
        /* of head 0: page * G * P + position in it */
        static const int64_t places[] = {5 * 8, 3 * 8 + 1, 0 * 8 + 2};
        int64_t to = (places[i / 128] + i / 64 % 2 * 4) * 64 + i % 64;
        for (int which = 0; which < 2; which++) {
            const char *from = which ? "v" : "k";
            double largest = 0;
            for (int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; j++)
                largest = fmax(largest, fabs(at(&b, from, j)));
            double x = at(&b, from, i), found = unpacked_at(&b, which ? "vc" : "kc", to);
            if (which && i / 64 == 5) {
                assert_true(isnan(found));
                continue;
            }
            assert_true(fabs(found - x) <= largest / 127 * 0.501 + largest * 5e-4);
            if (fabs(x) == largest)
                assert_true(fabs(found - x) <= largest * 5e-4);
        }
    }
    tear_down(&b);
}

/* The fused operators and the chain of single ones, from the same memory. */
static void check_fused(const char *dtype, const char *cache, const char *norms, const char *q,
                        const char *k)
{
    char graph[4096];
    bed b;
    snprintf(
        graph, sizeof graph,
        "input %%x : %s[7, 640] live=tokens\ninput %%p : i32[7] live=tokens\ninput %%s : i32[7] "
        "live=tokens\n"
        "input %%pages : i32[3, 3]\n%s"
        "state %%k1 : %s[10, 2, 4, 80]\nstate %%v1 : %s[10, 2, 4, 80]\nstate %%k2 : %s[10, 2, 4, "
        "80]\n"
        "state %%v2 : %s[10, 2, 4, 80]\nstate %%k3 : %s[10, 2, 4, 80]\nstate %%v3 : %s[10, 2, 4, "
        "80]\n"
        "%%t = rope_table(%%p) {size = 64, scaling = \"linear\", factor = 2.0}\n"
        "%%xq = slice(%%x) {starts = [0, 0], stops = [7, 320]}\n%%xk = slice(%%x) {starts = [0, "
        "320], stops = [7, "
        "480]}\n"
        "%%xv = slice(%%x) {starts = [0, 480], stops = [7, 640]}\n%%hq = reshape(%%xq) {shape = "
        "[7, 4, 80]}\n"
        "%%hk = reshape(%%xk) {shape = [7, 2, 80]}\n%%hv = reshape(%%xv) {shape = [7, 2, 80]}\n%s"
        "%%q1 = rope(%%nq, %%t)\n%%r1 = rope(%%nk, %%t)\n"
        "%%k1a, %%v1a = kv_write(%%r1, %%hv, %%p, %%s, %%pages, %%k1, %%v1)\n"
        "%%y1 = attention(%%q1, %%k1a, %%v1a, %%p, %%s, %%pages) {window = 5}\n"
        "%%q2, %%k2a, %%v2a = rope_kv(%%x, %%t, %%p, %%s, %%pages, %%k2, %%v2, %s, %s) {heads = 4, "
        "kv_heads = 2, "
        "head_size = 80, eps = 1e-05}\n"
        "%%y3, %%k3a, %%v3a = attention_qkv(%%x, %%p, %%s, %%pages, %%k3, %%v3, %s, %s) {size = "
        "64, scaling = "
        "\"linear\", "
        "factor = 2.0, heads = 4, kv_heads = 2, head_size = 80, eps = 1e-05, window = 5}\n",
        dtype, "const %qn : f32[80]\nconst %kn : f32[80]\n", cache, cache, cache, cache, cache,
        cache, norms, q, k, q, k);
    set_up(&b, graph);
    b.values.live[IR_TOKENS] = 6;
    const char *const caches[2][3] = {{"k1", "k2", "k3"}, {"v1", "v2", "v3"}};
    for (int i = 0; i < 2; i++)
        for (int c = 1; c < 3; c++)
            memcpy(data_of(&b, caches[i][c]), data_of(&b, caches[i][0]),
                   (size_t)ir_bytes(tensor_of(&b, "k1")));
    eval(&b);
    size_t row = (size_t)ir_row_bytes(tensor_of(&b, "x")->dtype, 320);
    assert_memory_equal(data_of(&b, "q1"), data_of(&b, "q2"), 6 * row);
    assert_memory_equal(data_of(&b, "y1"), data_of(&b, "y3"), 6 * row);
    for (int i = 0; i < 2; i++)
        for (int c = 1; c < 3; c++)
            assert_memory_equal(data_of(&b, caches[i][c]), data_of(&b, caches[i][0]),
                                (size_t)ir_bytes(tensor_of(&b, "k1")));
    tear_down(&b);
}

/* The operator that norms, rotates, writes the cache and attends gives the bits of these four
 * operators one after the other, for every pair of activation and cache dtypes that a target
 * uses. */
static void test_fused_attention(void **state)
{
    (void)state;
    const char *with =
        "%nq = rms_norm(%hq, %qn) {eps = 1e-05}\n%nk = rms_norm(%hk, %kn) {eps = 1e-05}\n";
    const char *without = "%nq = copy(%hq)\n%nk = copy(%hk)\n";
    check_fused("f32", "f32", with, "%qn", "%kn");
    check_fused("f32", "bf16", without, "_", "_");
    check_fused("bf16", "f16", with, "%qn", "%kn");
}

/* attention_split and attention_fold against attention_qkv over a long and a short context, prompts
 * among them; what is left of a split that saw nothing must not be read. */
static void check_split_attention(int splits, int unit, int window, int own)
{
    enum { TOKENS = 6 };
    static const int32_t positions[TOKENS] = {50, 0, 1, 2, 13, 14},
                         slots[TOKENS] = {1, 0, 0, 0, 2, 2};
    char graph[4096];
    bed b;
    snprintf(
        graph, sizeof graph,
        "input %%x : f32[6, 640] live=tokens\ninput %%p : i32[6] live=tokens\ninput %%s : i32[6] "
        "live=tokens\n"
        "input %%pages : i32[3, 16]\nconst %%qn : f32[80]\nconst %%kn : f32[80]\n"
        "state %%k1 : f32[48, 2, 4, 80]\nstate %%v1 : f32[48, 2, 4, 80]\nstate %%k2 : f32[48, 2, "
        "4, 80]\n"
        "state %%v2 : f32[48, 2, 4, 80]\n%%t = rope_table(%%p) {size = 64}\n"
        "%%y1, %%k1a, %%v1a = attention_qkv(%%x, %%p, %%s, %%pages, %%k1, %%v1, %%qn, %%kn) {size "
        "= 64, heads = "
        "4, kv_heads = 2, head_size = 80, window = %d}\n"
        "%%part, %%lse, %%k2a, %%v2a = attention_split(%%x, %%t, %%p, %%s, %%pages, %%k2, %%v2, "
        "%%qn, %%kn) "
        "{heads = 4, kv_heads = 2, head_size = 80, window = %d, splits = %d, unit = %d, own = %d}\n"
        "%%y2 = attention_fold(%%part, %%lse)\n",
        window, window, splits, unit, own);
    set_up(&b, graph);
    memcpy(data_of(&b, "p"), positions, sizeof positions);
    memcpy(data_of(&b, "s"), slots, sizeof slots);
    for (int32_t i = 0; i < 48; i++)
        ((int32_t *)data_of(&b, "pages"))[i] = (i * 5 + 2) % 48;
    memcpy(data_of(&b, "k2"), data_of(&b, "k1"), (size_t)ir_bytes(tensor_of(&b, "k1")));
    memcpy(data_of(&b, "v2"), data_of(&b, "v1"), (size_t)ir_bytes(tensor_of(&b, "v1")));
    eval(&b);
    for (int64_t i = 0; i < (int64_t)TOKENS * 320; i++)
        near(at(&b, "y2", i), at(&b, "y1", i), 1e-5);
    assert_memory_equal(data_of(&b, "k2"), data_of(&b, "k1"),
                        (size_t)ir_bytes(tensor_of(&b, "k1")));
    assert_memory_equal(data_of(&b, "v2"), data_of(&b, "v1"),
                        (size_t)ir_bytes(tensor_of(&b, "v1")));
    for (int64_t i = 0; i < (int64_t)TOKENS * splits * 4; i++) {
        bool seen = at(&b, "lse", i) > -INFINITY;
        for (int64_t c = 0; !seen && c < 80; c++)
            ((float *)data_of(&b, "part"))[i / 4 * 320 + i % 4 * 80 + c] = NAN;
    }
    const ir_op *fold = &b.g->ops.at[tensor_of(&b, "y2")->producer];
    op_call call;
    float scratch[1024];
    ir_box whole = ir_box_whole(tensor_of(&b, "y2"));
    op_bind(b.g, fold, b.values.data, b.values.live, &call);
    memset(data_of(&b, "y2"), 0xFF, TOKENS * 320 * sizeof(float));
    fold->def->ref(&call, &whole, scratch);
    for (int64_t i = 0; i < (int64_t)TOKENS * 320; i++)
        near(at(&b, "y2", i), at(&b, "y1", i), 1e-5);
    tear_down(&b);
}

/* However a context is cut, into more parts than it has units too, the folded parts equal the
 * whole within rounding. own: whether each token's context is cut by itself, and whether that
 * gives it more than one part. */
static void test_split_attention(void **state)
{
    (void)state;
    for (int window = 0; window < 13; window += 6)
        for (int splits = 1; splits < 40; splits = splits * 2 + 1)
            for (int unit = 4; unit <= 128; unit *= 2)
                for (int own = 0; own < 4; own++)
                    check_split_attention(splits, unit, window, own);
}

/* Which splits do anything of two tokens with 3 and 2 units, of five splits: a bit each. */
static void check_units(int own, unsigned first, unsigned second)
{
    char graph[1024];
    bed b;
    snprintf(graph, sizeof graph,
             "input %%x : f32[2, 24]\ninput %%t : f32[2, 2, 4]\ninput %%p : i32[2]\ninput %%s : "
             "i32[2]\ninput %%pages : "
             "i32[2, 5]\nstate %%k : f32[10, 1, 4, 8]\nstate %%v : f32[10, 1, 4, 8]\n%%y, %%l, "
             "%%ka, %%va = "
             "attention_split(%%x, %%t, %%p, %%s, %%pages, %%k, %%v) {heads = 1, kv_heads = 1, "
             "head_size = 8, splits = "
             "5, unit = 4, own = %d}\n",
             own);
    set_up(&b, graph);
    memcpy(data_of(&b, "p"), (int32_t[]){10, 8}, 8);
    memcpy(data_of(&b, "s"), (int32_t[]){0, 1}, 8);
    for (int32_t i = 0; i < 10; i++)
        ((int32_t *)data_of(&b, "pages"))[i] = i;
    eval(&b);
    for (int i = 0; i < 10; i++)
        assert_int_equal(at(&b, "l", i) > -INFINITY, (i / 5 ? second : first) >> i % 5 & 1);
    tear_down(&b);
}

/* Five splits get one unit each; two units make a part, the last of which may be shorter. */
static void test_units_of_splits(void **state)
{
    (void)state;
    check_units(0, 0x07, 0x18);
    check_units(1, 0x07, 0x18);
    check_units(2, 0x03, 0x04);
    check_units(9, 0x01, 0x02);
}

/* The rule itself: parts of a token rise with the split, are of equal length but for the last, and
 * hold each unit once; the next token begins where they end. */
static void test_own_units(void **state)
{
    (void)state;
    for (int splits = 1; splits < 20; splits++)
        for (int own = 1; own < 5; own++)
            for (int units = 1; units < 90; units++)
                for (int before = 0; before < splits; before++) {
                    int parts = split_own_parts(units, splits, own), end = 0, length = 0, taken = 0,
                        lo, hi;
                    for (int s = 0; s < splits; s++) {
                        const bool mine = (s - before + splits) % splits < parts;
                        split_own_units(s, splits, own, before, units, &lo, &hi);
                        assert_true(lo <= hi && (mine || lo == hi));
                        if (lo == hi)
                            continue;
                        assert_int_equal(lo, end);
                        assert_true(!taken || hi - lo == length || hi == units);
                        length = taken ? length : hi - lo;
                        end = hi;
                        taken++;
                    }
                    assert_true(end == units && taken <= parts);
                    assert_true(parts <= splits &&
                                (length == own || parts == splits || parts == 1));
                }
}

/* A token after `cached` positions; number `row` of all that the test makes up. */
typedef struct joined {
    int32_t cached, row;
} joined;

/* The answers y [n, 8] of tokens that share a step, one a slot.  What a token and its context hold
 * follows from its number alone. */
static void attend_together(int own, int n, const joined *at, float *y)
{
    enum { K = 8, PAGES = 12, P = 4 };
    char graph[1024];
    bed b;
    snprintf(graph, sizeof graph,
             "input %%x : f32[%d, 24] live=tokens\ninput %%t : f32[%d, 2, 4] live=tokens\ninput "
             "%%p : i32[%d] "
             "live=tokens\ninput %%s : i32[%d] live=tokens\ninput %%pages : i32[%d, %d]\nstate %%k "
             ": f32[%d, 1, 4, 8]\n"
             "state %%v : f32[%d, 1, 4, 8]\n%%part, %%l, %%ka, %%va = attention_split(%%x, %%t, "
             "%%p, %%s, %%pages, "
             "%%k, %%v) {heads = 1, kv_heads = 1, head_size = 8, splits = 5, unit = 4, own = %d}\n"
             "%%y = attention_fold(%%part, %%l)\n",
             n, n, n, n, n, PAGES, n * PAGES, n * PAGES, own);
    set_up(&b, graph);
    for (int i = 0; i < n; i++) {
        uint64_t seed = (uint64_t)at[i].row * 1000;
        ((int32_t *)data_of(&b, "p"))[i] = at[i].cached;
        ((int32_t *)data_of(&b, "s"))[i] = i;
        for (int k = 0; k < 24; k++)
            ((float *)data_of(&b, "x"))[i * 24 + k] = rng_normal(seed, (uint64_t)k);
        for (int k = 0; k < K; k++)
            ((float *)data_of(&b, "t"))[i * K + k] = rng_normal(seed + 1, (uint64_t)k);
        for (int k = 0; k < PAGES; k++) /* the pages of the slots alternate */
            ((int32_t *)data_of(&b, "pages"))[i * PAGES + k] = k * n + i;
        for (int k = 0; k < PAGES * P * K; k++) {
            int to = (k / (P * K) * n + i) * P * K + k % (P * K);
            ((float *)data_of(&b, "k"))[to] = rng_normal(seed + 2, (uint64_t)k);
            ((float *)data_of(&b, "v"))[to] = rng_normal(seed + 3, (uint64_t)k);
        }
    }
    eval(&b);
    memcpy(y, data_of(&b, "y"), (size_t)n * K * sizeof(float));
    tear_down(&b);
}

/* A token alone and among random others: the same bits if its own context decides how that is cut.
 * By the step's contexts as one it is cut otherwise, and in 200 tries that shows. */
static void test_split_in_company(void **state)
{
    (void)state;
    const uint64_t seed = base_seed ^ 77;
    for (int own = 0; own < 4; own++) {
        int differ = 0;
        for (uint64_t round = 0; round < 200; round++) {
            joined at[7];
            float alone[8], among[7 * 8];
            int n = 2 + (int)(rng_u64(seed, 8 * round) % 6),
                mine = (int)(rng_u64(seed, 8 * round + 1) % (uint64_t)n);
            for (int i = 0; i < n; i++)
                at[i] = (joined){(int32_t)(rng_u64(seed + 1, 8 * round + (uint64_t)i) % 47),
                                 (int32_t)round * 7 + i};
            attend_together(own, 1, &at[mine], alone);
            attend_together(own, n, at, among);
            differ += memcmp(alone, among + mine * 8, sizeof alone) != 0;
        }
        assert_true(own ? differ == 0 : differ > 0);
    }
}

/* One token in an empty context, with tables: it attends to itself alone, so its answer and what
 * the cache keeps of it are its value, which no table rotates; its key is rotated. */
static void test_values_are_not_rotated(void **state)
{
    (void)state;
    bed b;
    set_up(&b, "input %x : f32[1, 24]\nstate %k : f32[1, 1, 1, 8]\nstate %v : f32[1, 1, 1, 8]\n"
               "input %i : i64[1]\ninput %c : f32[1, 1, 8]\ninput %s : f32[1, 1, 8]\n"
               "%y, %l, %ka, %va = attention_cache(%x, %k, %v, %i, _, %c, %s) "
               "{heads = 1, kv_heads = 1, head_size = 8, splits = 1}\n");
    memset(data_of(&b, "i"), 0, 8);
    eval(&b);
    double rotated = 0;
    for (int64_t i = 0; i < 8; i++) {
        near(at(&b, "y", i), at(&b, "x", 16 + i), 1e-6);
        assert_true(at(&b, "va", i) == at(&b, "x", 16 + i));
        rotated += fabs(at(&b, "ka", i) - at(&b, "x", 8 + i));
    }
    assert_true(rotated > 1e-3);
    tear_down(&b);
}

int main(void)
{
    base_seed = check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),        cmocka_unit_test(test_written_in_8_bits),
        cmocka_unit_test(test_fused_attention),  cmocka_unit_test(test_split_attention),
        cmocka_unit_test(test_units_of_splits),  cmocka_unit_test(test_own_units),
        cmocka_unit_test(test_split_in_company), cmocka_unit_test(test_values_are_not_rotated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
