/* watch_test.c - tensors of another library: other ones, moved ones and changed ones are found. */
#include "engine/watch.h"

#include "check.h"

/* A caller's records: their first two words are prefetched, wherever they point.  His list holds
 * pointers to them, which are its items too. */
typedef struct record {
    void *bytes;
    uint64_t elsewhere;
    int64_t version;
} record;

/* The three functions by which a watch reads a list: here a plain array of records stands for
 * Python's list of tensors. */
static void *item_of(void *list, ptrdiff_t i)
{
    return ((void **)list)[i];
}

/* Not 0 if the record cannot be asked, which counts as a change. */
static int32_t where_it_lies(const void *o, void **address)
{
    *address = (*(record *const *)o)->bytes;
    return *address == NULL;
}

static int64_t how_often_changed(const void *o)
{
    return (*(record *const *)o)->version;
}

/* The watch returns the first record that is another object, lies elsewhere, or has been changed
 * in place; n if none. An equal record is another object all the same. */
static void test_tensors_that_are_others_moved_or_changed(void **state)
{
    (void)state;
    char bytes[3];
    record r[] = {{&bytes[0], 0, 4}, {&bytes[1], 1, 0}, {&bytes[2], 2, -1}}, twin = r[1];
    void *list[] = {NULL, &r[2], &r[0], &r[1]}, *const records[] = {&r[0], &r[1], &r[2]};
    void *addresses[] = {&bytes[0], &bytes[1], &bytes[2]};
    const ptrdiff_t place[] = {2, 3, 1};
    const int64_t versions[] = {4, 0};
    const mpk_watch all = {.n = 3,
                           .n_counted = 2,
                           .place = place,
                           .items = records,
                           .records = records,
                           .addresses = addresses,
                           .versions = versions,
                           .item = item_of,
                           .where = where_it_lies,
                           .version = how_often_changed,
                           .follow = {0, 8},
                           .read = {0, 8, 16, 1 << 20}}; /* too far */
    const mpk_watch none = {.item = item_of, .where = where_it_lies, .version = how_often_changed};
    assert_int_equal(0, mpk_first_other(&none, NULL));
    assert_int_equal(3, mpk_first_other(&all, list));
    list[3] = &twin;
    assert_int_equal(1, mpk_first_other(&all, list));
    list[3] = &r[1];
    r[1].version++;
    r[2].version++; /* whose changes are not counted */
    assert_int_equal(1, mpk_first_other(&all, list));
    r[1].version--;
    assert_int_equal(3, mpk_first_other(&all, list));
    r[2].bytes = bytes;
    assert_int_equal(2, mpk_first_other(&all, list));
    r[0].bytes = addresses[0] = NULL; /* nowhere is not where it was */
    assert_int_equal(0, mpk_first_other(&all, list));
}

/* More than are fetched ahead. */
static void test_many_tensors_one_of_which_moved(void **state)
{
    (void)state;
    enum { MANY = 61 };
    char bytes[MANY];
    record r[MANY];
    void *list[MANY], *addresses[MANY];
    ptrdiff_t place[MANY];
    for (int i = 0; i < MANY; i++) {
        r[i] = (record){.bytes = &bytes[i]};
        list[i] = &r[i];
        addresses[i] = &bytes[i];
        place[i] = i;
    }
    const mpk_watch w = {.n = MANY,
                         .place = place,
                         .items = list,
                         .records = list,
                         .addresses = addresses,
                         .item = item_of,
                         .where = where_it_lies,
                         .version = how_often_changed};
    assert_int_equal(MANY, mpk_first_other(&w, list));
    for (int i = 0; i < MANY; i++) {
        r[i].bytes = bytes + (i + 1) % MANY;
        assert_int_equal(i, mpk_first_other(&w, list));
        r[i].bytes = &bytes[i];
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors_that_are_others_moved_or_changed),
        cmocka_unit_test(test_many_tensors_one_of_which_moved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
