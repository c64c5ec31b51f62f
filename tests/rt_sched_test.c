/* rt_sched_test.c - a scheduler deals the JIT tasks of activated events to workers in turn, with as
 * many lanes as the includer says (rt_sched_lanes_test.c).
 */
#include "base/rng.h"
#include "check.h"
#include "rt_lanes.h"

enum { DEALT_WORKERS = 140, DEALT_TASKS = 400, DEALT_EVENTS = 8, DEALT_SLOTS = 512 };

typedef struct dealer {
    rt_machine m;
    rt_control control;
    rt_graph graph;
    rt_scheduler scheduler;
    rt_worker workers[DEALT_WORKERS];
    rt_task tasks[DEALT_TASKS];
    rt_event events[DEALT_EVENTS];
    rt_queue event, jit[DEALT_WORKERS];
    rt_slot_word event_slots[DEALT_EVENTS], jit_slots[DEALT_WORKERS][DEALT_SLOTS];
} dealer;

static dealer *make_dealer(uint64_t seed)
{
    dealer *d = calloc(1, sizeof *d);
    assert_non_null(d);
    d->m = (rt_machine){.graphs = &d->graph,
                        .events = d->events,
                        .tasks = d->tasks,
                        .n_workers = 1 + (rt_u32)(rng_u64(seed, 0) % DEALT_WORKERS),
                        .control = &d->control,
                        .workers = d->workers,
                        .limits = {.processors = 1},
                        .event = &d->event,
                        .event_slots = d->event_slots,
                        .event_mask = DEALT_EVENTS - 1,
                        .jit = d->jit,
                        .jit_slots = &d->jit_slots[0][0],
                        .jit_mask = DEALT_SLOTS - 1};
    rt_queue_reset(&d->event, d->event_slots, DEALT_EVENTS - 1);
    for (uint32_t i = 0; i < d->m.n_workers; i++)
        rt_queue_reset(&d->jit[i], d->jit_slots[i], DEALT_SLOTS - 1);
    for (uint32_t i = 0; i < DEALT_TASKS; i++)
        d->tasks[i].worker = rng_u64(seed, 100 + i) % 4 ? RT_NONE : 0;
    for (uint32_t i = 0, first = 0; i < DEALT_EVENTS; i++) {
        rt_u32 n = (rt_u32)(rng_u64(seed, 1 + i) % (DEALT_TASKS / DEALT_EVENTS + 1));
        d->events[i] = (rt_event){.first = first, .last = first + n};
        first += n;
    }
    d->scheduler.next_worker = (rt_u32)(rng_u64(seed, 50) % d->m.n_workers);
    return d;
}

static int deal(void *user)
{
    dealer *d = user;
    return rt_sched_poll(&d->m, &d->scheduler);
}

/* Each JIT task of the events goes to one worker, and the workers have them in turn, over all
 * events. */
static void check_dealt(dealer *d, rt_u32 next)
{
    for (uint32_t i = 0; i < DEALT_EVENTS; i++)
        for (rt_u32 t = d->events[i].first; t < d->events[i].last; t++) {
            if (d->tasks[t].worker != RT_NONE)
                continue;
            rt_u32 found = 0;
            for (rt_u32 k = 0; k < d->jit[next].written.value; k++)
                found += d->jit_slots[next][k].item == t;
            assert_int_equal(found, 1);
            d->tasks[t].worker = next; /* marks it */
            next = (next + 1) % d->m.n_workers;
        }
    assert_int_equal(d->scheduler.next_worker, next);
}

static void test_scheduler_deals_in_turn(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    for (uint32_t round = 0; round < 40; round++) {
        dealer *d = make_dealer(seed + round);
        rt_u32 begin = d->scheduler.next_worker, item, dealt = 0, jit = 0;
        assert_int_equal(by_lanes(MOST_LANES, deal, d), 0);
        for (uint32_t i = 0; i < DEALT_EVENTS; i++)
            assert_true(rt_queue_push(&d->event, d->event_slots, DEALT_EVENTS - 1, i));
        for (uint32_t i = 0; i < DEALT_EVENTS; i++)
            assert_int_equal(by_lanes(MOST_LANES, deal, d), 1);
        assert_int_equal(by_lanes(MOST_LANES, deal, d), 0);
        for (uint32_t i = 0; i < d->events[DEALT_EVENTS - 1].last; i++)
            jit += d->tasks[i].worker == RT_NONE;
        check_dealt(d, begin);
        for (uint32_t w = 0; w < d->m.n_workers; w++)
            while (rt_queue_pop(&d->jit[w], d->jit_slots[w], DEALT_SLOTS - 1, &item)) {
                assert_int_equal(d->tasks[item].worker, w);
                dealt++;
            }
        assert_int_equal(dealt, jit);
        assert_int_equal(d->control.abort.value, RT_RUNNING);
        free(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scheduler_deals_in_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
