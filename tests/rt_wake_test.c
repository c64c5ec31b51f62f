/* rt_wake_test.c - whom rt_wake_all wakes (rt_wait.h). */
#include "check.h"
#include "rt/rt_wait.h"

enum { WORKERS = 4, AWAKE = 0, SLEEPS = 1 };

/* Workers 0 and 3 have announced that they sleep, `counted` of them before the look at how many
 * do; how many bells ring. */
static uint32_t rung(uint32_t group, uint32_t counted, uint32_t processors)
{
    static rt_machine m;
    static rt_worker workers[WORKERS];
    static rt_control control;
    m = (rt_machine){.workers = workers,
                     .control = &control,
                     .n_workers = WORKERS,
                     .steal = group,
                     .limits.processors = processors};
    for (uint32_t i = 0; i < WORKERS; i++)
        workers[i].bell.value = i % 3 ? AWAKE : SLEEPS;
    control.sleepers.value = counted;
    rt_wake_all(&m);
    return (workers[0].bell.value == AWAKE) + (workers[3].bell.value == AWAKE);
}

/* Groups of workers, as peers are, run their own tasks: all are woken, and one that has announced
 * itself after the look takes no other one's place. */
static void test_groups(void **state)
{
    (void)state;
    assert_int_equal(rung(2, 2, 1), 2);
    assert_int_equal(rung(2, 1, 1), 2);
    assert_int_equal(rung(0, 1, 1), 2); /* each worker runs its own tasks alone */
    assert_int_equal(rung(2, 0, 1), 0); /* `sleepers` was 0 when it was read */
}

/* Where all run each other's tasks, as many as there are processors. */
static void test_one_group(void **state)
{
    (void)state;
    assert_int_equal(rung(WORKERS, 2, 2), 0); /* two are awake */
    assert_int_equal(rung(WORKERS, 2, 3), 1);
    assert_int_equal(rung(WORKERS, 2, 8), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_one_group)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
