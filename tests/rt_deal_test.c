/* rt_deal_test.c - tokens that decode are dealt among those of prompts (rt_deal.h), with as many
 * lanes as the includer says (rt_deal_lanes_test.c).
 *
 * Nothing of a step is lost or changes but the order: each token keeps position and slot, each row
 * its token, pieces of prompts their order; and no lot has more than its share that decodes.
 */
#include "base/rng.h"
#include "check.h"
#include "rt_lanes.h"

enum { SLOTS = 256, T = 2048 };

typedef struct bed {
    rt_machine m;
    rt_serving serving;
    rt_slot slots[SLOTS];
    rt_u32 decoding;
    struct {
        rt_i32 tokens[T], positions[T], slots[T], rows[T];
    } area;
} bed;

/* A step of `decoding` tokens that decode, of random slots, and n of prompts.  Some slots decode
 * that have no token in it, and of some the request has ended.  -1 stands after the step. */
static bed *make(uint64_t seed, rt_u32 decoding, rt_u32 n)
{
    bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->serving = (rt_serving){.n_slots = SLOTS,
                              .tokens = (rt_u64)((char *)b->area.tokens - (char *)&b->area),
                              .positions = (rt_u64)((char *)b->area.positions - (char *)&b->area),
                              .slots = (rt_u64)((char *)b->area.slots - (char *)&b->area),
                              .rows = (rt_u64)((char *)b->area.rows - (char *)&b->area),
                              .built_tokens = decoding + n};
    b->m = (rt_machine){.serving = &b->serving, .slots = b->slots, .step_area = (char *)&b->area};
    b->decoding = decoding;
    for (rt_u32 i = 0, k = 0; i < SLOTS && k < decoding; i++) {
        if (SLOTS - i > decoding - k && rng_u64(seed, i) % 2) {
            /* it had no room in this step, or has ended, and its row is that of an earlier one */
            const bool ended = rng_u64(seed, 3000 + i) % 2;
            b->slots[i] = (rt_slot){.state = ended ? RT_SLOT_FREE : RT_SLOT_FEEDING,
                                    .source = RT_NOWHERE,
                                    .step_tokens = ended,
                                    .step_row = (rt_u32)(rng_u64(seed, 2000 + i) % decoding)};
            continue;
        }
        b->slots[i] = (rt_slot){.state = RT_SLOT_FEEDING,
                                .source = RT_NOWHERE,
                                .step_tokens = 1,
                                .step_row = k,
                                .position = (rt_u32)(rng_u64(seed, 1000 + i) % 5000),
                                .token = (rt_i32)i + T};
        b->area.tokens[k] = b->slots[i].token;
        b->area.positions[k] = (rt_i32)b->slots[i].position;
        b->area.slots[k] = (rt_i32)i;
        b->area.rows[k] = (rt_i32)k;
        k++;
    }
    for (rt_u32 i = decoding; i < decoding + n; i++) {
        b->area.tokens[i] = (rt_i32)i;
        b->area.positions[i] = (rt_i32)i + 7000;
        b->area.slots[i] = (rt_i32)(i - decoding) / 100 + SLOTS;
    }
    for (rt_u32 i = decoding + n; i < T; i++)
        b->area.tokens[i] = b->area.positions[i] = b->area.slots[i] = -1;
    b->serving.built_rows = decoding;
    for (rt_u32 i = decoding; i < decoding + n; i += 1 + (rt_u32)(rng_u64(seed, i) % 50))
        b->area.rows[b->serving.built_rows++] = (rt_i32)i;
    return b;
}

static int deal(void *user)
{
    bed *b = user;
    rt_step_deal(&b->m, b->decoding);
    return 0;
}

/* Each token has what belongs to it; pieces are in order.  Returns the most that decode in a lot.
 * */
static rt_u32 check_tokens(const bed *b, rt_u32 n)
{
    bool seen[SLOTS] = {false};
    rt_u32 next = b->decoding, count = 0, in_lot = 0, most = 0;
    for (rt_u32 p = 0; p < b->serving.built_tokens; p++) {
        const rt_i32 token = b->area.tokens[p];
        in_lot = p % RT_LOT ? in_lot : 0;
        if (token < T) {
            assert_int_equal(token, next);
            assert_int_equal(b->area.positions[p], token + 7000);
            assert_int_equal(b->area.slots[p], (token - (rt_i32)b->decoding) / 100 + SLOTS);
            next++;
            continue;
        }
        assert_int_equal(b->area.slots[p], token - T);
        assert_int_equal(b->area.positions[p], b->slots[token - T].position);
        assert_false(seen[token - T]);
        seen[token - T] = true;
        count++;
        in_lot++;
        most = in_lot > most ? in_lot : most;
    }
    for (rt_u32 p = b->serving.built_tokens; p < T; p++)
        assert_true(b->area.tokens[p] == -1 && b->area.positions[p] == -1 &&
                    b->area.slots[p] == -1);
    assert_int_equal(next, b->decoding + n);
    assert_int_equal(count, b->decoding);
    return most;
}

static void test_a_step_keeps_its_tokens(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint32_t k = 0; k < 400; k++) {
        const rt_u32 decoding = (rt_u32)(rng_u64(seed, 2 * k) % (k % 4 ? 40 : SLOTS + 1)),
                     n = (rt_u32)(rng_u64(seed, 2 * k + 1) % (k % 3 ? T - SLOTS : 200));
        bed *b = make(seed + k, decoding, n), *before = malloc(sizeof *b);
        assert_non_null(before);
        *before = *b;
        by_lanes(k % 5 ? MOST_LANES : 1, deal, b);
        const rt_u32 most = check_tokens(b, n), lots = (decoding + n) / RT_LOT;
        if (decoding && n >= RT_DEAL_LEAST)
            assert_int_equal(most, (decoding + lots - 1) / lots);
        for (rt_u32 r = 0; r < b->serving.built_rows; r++)
            assert_int_equal(b->area.tokens[b->area.rows[r]],
                             before->area.tokens[before->area.rows[r]]);
        free(b);
        free(before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_step_keeps_its_tokens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
