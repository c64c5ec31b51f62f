/* rt_lend_test.c - loans of KV pages (rt_lend.h) against the law in plain words, on random states
 * of slots and promises: what may be promised, what can be taken back, what is borrowed.
 *
 * Pages are numbers here: no two requests hold one together.
 */
#include "base/rng.h"
#include "check.h"
#include "rt_laws.h"

enum { SLOTS = 6, PAGE_TOKENS = 4 };

typedef struct bed {
    rt_machine m;
    rt_serving serving;
    rt_slot slots[SLOTS];
    rt_request running[SLOTS];
    uint64_t seed, used;
} bed;

static uint32_t draw(bed *b, uint32_t n)
{
    return (uint32_t)(rng_u64(b->seed, b->used++) % n);
}

static rt_u32 claim_of(const bed *b, uint32_t i)
{
    return (b->slots[i].limit + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* A slot that is free, or runs or pauses with some pages of its promise, some of its claim. */
static void draw_slot(bed *b, uint32_t i)
{
    static const rt_u32 states[] = {RT_SLOT_FREE, RT_SLOT_FEEDING, RT_SLOT_FEEDING, RT_SLOT_PARKED,
                                    RT_SLOT_WAITING};
    rt_slot *s = &b->slots[i];
    *s = (rt_slot){.state = states[draw(b, 5)], .admitted = draw(b, 8)};
    b->running[i] = (rt_request){.flags = draw(b, 4) ? 0 : RT_HOST_SAMPLES};
    if (s->state == RT_SLOT_FREE)
        return;
    s->limit = 1 + draw(b, 40);
    s->reserved = draw(b, 2) ? claim_of(b, i) : 1 + draw(b, claim_of(b, i));
    s->held = draw(b, s->reserved + 1);
    s->position = s->held ? (s->held - 1) * PAGE_TOKENS + draw(b, PAGE_TOKENS) : 0;
    s->source = draw(b, 2) ? RT_NOWHERE : 0;
    s->n_source = draw(b, 20);
    s->n_fed = draw(b, s->n_source + 1);
}

static void make(bed *b, uint64_t seed)
{
    *b = (bed){.seed = seed};
    b->serving = (rt_serving){.n_slots = SLOTS, .page_tokens = PAGE_TOKENS, .n_admitted = 8};
    b->m = (rt_machine){.serving = &b->serving, .slots = b->slots, .running = b->running};
    rt_u32 held = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        draw_slot(b, i);
        held += b->slots[i].held;
        b->serving.n_promised += b->slots[i].reserved - b->slots[i].held;
        b->serving.n_short += claim_of(b, i) != b->slots[i].reserved;
        b->serving.n_active += b->slots[i].state == RT_SLOT_FEEDING;
        b->serving.n_parked += b->slots[i].state == RT_SLOT_PARKED;
    }
    b->serving.n_free = b->serving.n_promised + draw(b, 12);
    b->serving.n_pages = held + b->serving.n_free;
}

/* The law: the pages are there, and for each request that has to stay safe, which are the short
 * ones that are older and, if it is new and short, the one that asks, what it lacks is there beside
 * the promises of all others that are short or whose tokens the host samples, or beside this one.
 */
static bool may_hold(const bed *b, rt_loan l)
{
    const bool is_new = l.index == RT_NONE;
    rt_u32 left = b->serving.n_free - b->serving.n_promised, standing = 0, most = 0;
    if (!is_new)
        left += b->slots[l.index].reserved;
    if (is_new)
        most = l.lacks;
    for (uint32_t i = 0; i < SLOTS; i++) {
        const rt_u32 lacks = claim_of(b, i) - b->slots[i].reserved;
        const bool older = is_new || b->slots[i].admitted < b->slots[l.index].admitted;
        if (i == l.index || b->slots[i].state == RT_SLOT_FREE)
            continue;
        if (lacks || b->running[i].flags & RT_HOST_SAMPLES)
            standing += b->slots[i].reserved;
        if (older && lacks > most)
            most = lacks;
    }
    if (l.lacks || l.of_host)
        standing += l.n;
    const bool none_is_short = !b->serving.n_short && !(is_new && l.lacks);
    return left >= l.n &&
           (none_is_short || standing + most <= b->serving.n_pages || most <= left - l.n);
}

/* Each number of pages up to the claim, for each slot and for a request that comes. */
static void check_law(const bed *b)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        for (rt_u32 n = 0; b->slots[i].state != RT_SLOT_FREE && n <= claim_of(b, i); n++) {
            const rt_loan l = {i, n, claim_of(b, i) - n, 0};
            assert_int_equal(rt_may_hold(&b->m, l), may_hold(b, l));
        }
    for (rt_u32 claim = 0; claim < 14; claim++)
        for (rt_u32 n = 0; n <= claim; n++)
            for (rt_u32 of_host = 0; of_host < 2; of_host++) {
                const rt_loan l = {RT_NONE, n, claim - n, of_host};
                assert_int_equal(rt_may_hold(&b->m, l), may_hold(b, l));
            }
}

/* What can be taken back of a promise: all but what the text and one more token need, or is held;
 * nothing where the host samples. */
static rt_u32 unused(const bed *b, uint32_t i)
{
    const rt_slot *s = &b->slots[i];
    if (s->state == RT_SLOT_FREE || b->running[i].flags & RT_HOST_SAMPLES)
        return 0;
    rt_u32 end = s->position + 1 + (s->source == RT_NOWHERE ? 0 : s->n_source - s->n_fed);
    end = end < s->limit ? end : s->limit;
    rt_u32 least = (end + PAGE_TOKENS - 1) / PAGE_TOKENS;
    least = least > s->held ? least : s->held;
    return s->reserved > least ? s->reserved - least : 0;
}

/* Pages for one more for each that is short, and what can be taken back, to the page. */
static void check_sums(const bed *b)
{
    rt_u32 wanted = 0, there = b->serving.n_free - b->serving.n_promised;
    for (uint32_t i = 0; i < SLOTS; i++) {
        assert_int_equal(rt_slot_unused(&b->m, i), unused(b, i));
        wanted += b->slots[i].state != RT_SLOT_FREE && claim_of(b, i) > b->slots[i].reserved;
        there += unused(b, i);
    }
    assert_int_equal(rt_pages_wanted(&b->m), wanted);
    assert_true(rt_can_take_back(&b->m, there));
    assert_false(rt_can_take_back(&b->m, there + 1));
    for (rt_u32 n = 0; n < 10; n++) {
        const rt_loan l = {RT_NONE, n, 10 - n, 0};
        const bool may = b->serving.n_free - b->serving.n_promised >= n + wanted && may_hold(b, l);
        assert_int_equal(rt_may_come(&b->m, n, 10, 0), may);
    }
}

/* Taking back takes the largest part that the law allows, of equals that of the first slot, and
 * leaves what is needed. */
static void check_taking_back(bed *b)
{
    uint32_t best = SLOTS;
    rt_u32 most = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        const rt_u32 n = unused(b, i), rest = b->slots[i].reserved - n;
        const rt_loan l = {i, rest, claim_of(b, i) - rest, 0};
        if (n > most && (claim_of(b, i) > b->slots[i].reserved || may_hold(b, l))) {
            most = n;
            best = i;
        }
    }
    const bed was = *b;
    assert_int_equal(rt_take_back(&b->m), best < SLOTS);
    for (uint32_t i = 0; i < SLOTS; i++)
        assert_int_equal(b->slots[i].reserved, was.slots[i].reserved - (i == best ? most : 0));
    assert_int_equal(b->serving.n_promised, was.serving.n_promised - most);
    rt_u32 n_short = 0;
    for (uint32_t i = 0; i < SLOTS; i++)
        n_short += claim_of(b, i) != b->slots[i].reserved;
    assert_int_equal(b->serving.n_short, n_short);
}

/* A short request gets a share of what is left where the law allows it, else one page; it gets none
 * only where the law allows not even that when nothing more can be taken back. */
static void check_borrowing(bed *b)
{
    const uint32_t i = draw(b, SLOTS);
    if (b->slots[i].state == RT_SLOT_FREE || claim_of(b, i) == b->slots[i].reserved || unused(b, i))
        return; /* it does not ask */
    const rt_u32 lacks = claim_of(b, i) - b->slots[i].reserved, before = b->slots[i].reserved,
                 left = b->serving.n_free - b->serving.n_promised;
    rt_u32 share = 1;
    b->serving.blocked = draw(b, 2);
    if (!b->serving.blocked)
        share += left / (2 * (b->serving.n_active + b->serving.n_parked));
    share = share < lacks ? share : lacks;
    const rt_loan l = {i, before + share, lacks - share, 0};
    const bool has_share = may_hold(b, l), has = rt_slot_borrow(&b->m, i);
    const rt_loan one = {i, before + 1, lacks - 1, 0};
    if (has_share)
        assert_true(has && b->slots[i].reserved == before + share);
    else if (has)
        assert_true(b->slots[i].reserved == before + 1);
    else
        assert_true(b->slots[i].reserved == before && !may_hold(b, one) && !rt_take_back(&b->m));
}

static void loans_follow_the_law(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint64_t round = 0; round < check_rounds(4000); round++) {
        bed b;
        make(&b, seed + round);
        check_law(&b);
        check_sums(&b);
        bed other = b;
        other.m.serving = &other.serving;
        other.m.slots = other.slots;
        other.m.running = other.running;
        check_taking_back(&other);
        if (b.serving.n_active + b.serving.n_parked)
            check_borrowing(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loans_follow_the_law)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
