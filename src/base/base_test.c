/* base_test.c - arenas, maps, text, number formats, random numbers, files, many calls on
 * threads. */
#include "check.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/free_memory.h"
#include "base/map.h"
#include "base/nodes.h"
#include "base/num.h"
#include "base/rng.h"
#include "base/thread.h"

static mpk_context cx;

/* Allocations are zeroed, aligned, and stay where they are while others come; a reset gives back
 * all since the mark and nothing before it. */
static void arena_keeps_and_resets(void **state)
{
    (void)state;
    arena a = {0};
    unsigned char *first = arena_alloc(&a, 100, 1);
    memset(first, 7, 100);
    arena_mark mark = arena_get_mark(&a);
    for (size_t i = 1; i < 5000; i += 7) {
        unsigned char *p = arena_alloc(&a, i, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t j = 0; j < 3 * i; j++)
            assert_int_equal(p[j], 0);
        memset(p, 0xff, 3 * i);
    }
    arena_reset(&a, mark);
    for (int i = 0; i < 100; i++)
        assert_int_equal(first[i], 7);
    assert_null(arena_alloc(&a, SIZE_MAX / 2, 4));
    arena_free(&a);
    assert_int_equal(a.reserved_bytes, 0);
}

/* What a reset empties is used again, zeroed, before the system is asked for more. */
static void arena_uses_blocks_again(void **state)
{
    (void)state;
    arena a = {0}, from = {0};
    enum { N = 200, LARGE = 3 << 20 };
    unsigned char *first[N];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            size_t bytes = i == N / 2 ? LARGE : 5000;
            unsigned char *p = arena_alloc(&a, bytes, 1);
            assert_non_null(p);
            for (size_t k = 0; k < bytes; k += 100)
                assert_int_equal(p[k], 0);
            memset(p, 0xff, bytes);
            bool known = !round;
            for (int k = 0; k < N && round; k++)
                known = known || first[k] == p;
            assert_true(known);
            if (!round)
                first[i] = p;
        }
        arena_reset(&a, (arena_mark){0});
        assert_null(a.block);
        assert_int_equal(a.reserved_bytes, 0);
    }
    arena_adopt(&from, &a); /* nothing is in use, and what was kept goes */
    assert_null(a.kept);
    assert_null(from.block);
}

/* Memory of one arena becomes another's without being moved; the first is empty afterwards. */
static void arena_adopts(void **state)
{
    (void)state;
    arena a = {0}, from = {0}, none = {0};
    char *kept = arena_copy(&a, "kept", 4), *moved[300];
    arena_mark mark = arena_get_mark(&a);
    for (int i = 0; i < 300; i++) {
        moved[i] = arena_alloc(&from, 1000, 1);
        memset(moved[i], i % 100, 1000);
    }
    size_t both = a.reserved_bytes + from.reserved_bytes;
    arena_adopt(&a, &from);
    arena_adopt(&a, &none);
    assert_null(from.block);
    assert_int_equal(from.reserved_bytes, 0);
    assert_int_equal(a.reserved_bytes, both);
    arena_free(&from);
    memset(arena_alloc(&a, 5000, 1), 0xff, 5000);
    for (int i = 0; i < 300; i++)
        assert_int_equal(moved[i][999], i % 100);
    arena_reset(&a, mark); /* as if allocated after it */
    assert_string_equal(kept, "kept");
    assert_true(a.reserved_bytes < both);
    arena_adopt(&none, &a); /* into an empty one */
    assert_string_equal(kept, "kept");
    arena_free(&none);
    assert_int_equal(none.reserved_bytes + a.reserved_bytes, 0);
}

/* Calls that count themselves; those in `bad` fail. */
typedef struct many {
    _Atomic unsigned calls[200];
    uint32_t first_bad;
} many;

static mpk_status call_one(mpk_context *own, void *user, uint32_t i)
{
    many *m = user;
    m->calls[i]++;
    CHECK(own, i < m->first_bad, MPK_ESHAPE, "number %u is bad", i);
    return MPK_OK;
}

/* thread_each calls each number once, and the error of a call becomes the error of all. */
static void calls_are_spread(void **state)
{
    (void)state;
    for (uint32_t n = 0; n <= 200; n += 40) {
        many m = {.first_bad = UINT32_MAX};
        check_ok(&cx, thread_each(&cx, n, call_one, &m));
        for (uint32_t i = 0; i < 200; i++)
            assert_int_equal(m.calls[i], i < n);
    }
    many bad = {.first_bad = 100};
    check_fails(&cx, MPK_ESHAPE, "is bad", thread_each(&cx, 200, call_one, &bad));
    assert_int_equal(bad.calls[0], 0); /* the last come first, and after a failure no more */
    many one = {.first_bad = 0};
    check_fails(&cx, MPK_ESHAPE, "number 0 is bad", thread_each(&cx, 1, call_one, &one));
}

/* A folder that looks like /sys/devices/system/cpu, with the threads that share processor i's
 * core. */
static void write_siblings(const char *root, unsigned i, const char *list)
{
    char path[128];
    snprintf(path, sizeof path, "%s/cpu%u", root, i);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/cpu%u/topology", root, i);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/cpu%u/topology/thread_siblings_list", root, i);
    check_ok(&cx, file_write(&cx, path, list, strlen(list)));
}

/* Random machines: cores of one to four processors, numbered one after the other or a stride apart,
 * of which the process may use some. */
static void cores_are_counted(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    char root[] = "/tmp/mpk_cores_XXXXXX", machine[64], command[64];
    assert_non_null(mkdtemp(root));
    for (uint64_t round = 0; round < 8; round++) {
        unsigned n_cores = 1 + (unsigned)(rng_u64(seed, 4 * round) % 6),
                 each = 1 + (unsigned)(rng_u64(seed, 4 * round + 1) % 4);
        bool neighbours = rng_u64(seed, 4 * round + 2) % 2, may_run[32] = {false},
             used[8] = {false};
        unsigned n = n_cores * each, expected = 0, allowed = 0;
        snprintf(machine, sizeof machine, "%s/%u", root, (unsigned)round);
        assert_int_equal(mkdir(machine, 0700), 0);
        for (unsigned i = 0; i < n; i++) {
            unsigned core = neighbours ? i / each : i % n_cores;
            char list[64] = "";
            for (unsigned k = 0; k < each && !neighbours; k++)
                snprintf(list + strlen(list), sizeof list - strlen(list), "%s%u", k ? "," : "",
                         core + k * n_cores);
            if (neighbours)
                snprintf(list, sizeof list, each > 1 ? "%u-%u\n" : "%u\n", core * each,
                         core * each + each - 1);
            write_siblings(machine, i, list);
            may_run[i] = rng_u64(seed ^ 1, 32 * round + i) % 4 != 0;
            allowed += may_run[i];
            expected += may_run[i] && !used[core];
            used[core] = used[core] || may_run[i];
        }
        assert_int_equal(thread_count_cores(machine, may_run, n), expected);
        assert_int_equal(thread_count_cores("/nowhere", may_run, n), allowed);
    }
    assert_in_range(thread_cores(), 1, thread_processors());
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

/* Nodes of memory as Linux lists them; memory that was spread is memory like any other. */
static void nodes_are_listed(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        uint64_t nodes;
    } cases[] = {{"0\n", 1}, {"0-3\n", 15},           {"0,2-3,5\n", 45}, {"", 0},
                 {"\n", 0},  {"62-70\n", 3ull << 62}, {"1,x", 2},        {"3-1\n", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(nodes_of_list(cases[i].list) == cases[i].nodes);
    enum { BYTES = 3 << 20 };
    char *p = malloc(BYTES);
    assert_non_null(p);
    nodes_spread(p, BYTES);
    nodes_spread(p, 1);
    memset(p, 7, BYTES);
    assert_int_equal(p[BYTES - 1], 7);
    free(p);
}

static mpk_status push_numbers(arena *a, size_t n)
{
    VEC(uint32_t) v = {0};
    for (uint32_t i = 0; i < n; i++)
        PUSH(&cx, a, &v, i * i);
    for (uint32_t i = 0; i < n; i++)
        CHECK(&cx, v.at[i] == i * i, MPK_EVERIFY, "item %u", i);
    return MPK_OK;
}

/* Keys that all have one hash_bytes have hashes of their own in a map: a second word takes back
 * what the first one did. */
static void map_keys_cannot_be_made_to_collide(void **state)
{
    (void)state;
    enum { KEYS = 1000 };
    arena a = {0};
    map m = {0};
    uint64_t value, seed = check_seed(), words[KEYS][2];
    for (size_t i = 0; i < KEYS; i++) {
        uint64_t h = 16 * UINT64_C(0x9e3779b97f4a7c15);
        words[i][0] = rng_u64(seed, i);
        h = (h ^ words[i][0]) * UINT64_C(0xff51afd7ed558ccd);
        words[i][1] = h ^ (h >> 32);
        assert_true(hash_bytes(words[i], 16, 0) == hash_bytes(words[0], 16, 0));
        check_ok(&cx, map_put(&cx, &a, &m, (str){(const char *)words[i], 16}, i));
    }
    for (size_t i = 0; i < KEYS; i++)
        assert_true(map_get(&m, (str){(const char *)words[i], 16}, &value) && value == i);
    for (size_t i = 0; i < m.capacity; i++)
        for (size_t k = 0; k < i; k++)
            assert_true(!m.slots[i].key.at || !m.slots[k].key.at ||
                        m.slots[i].hash != m.slots[k].hash);
    arena_free(&a);
}

static void map_finds_what_was_put(void **state)
{
    (void)state;
    arena a = {0};
    map m = {0};
    check_ok(&cx, push_numbers(&a, 1000));
    for (uint64_t i = 0; i < 3000; i++) {
        char name[32];
        int n = snprintf(name, sizeof name, "key %llu", (unsigned long long)i);
        check_ok(&cx, map_put(&cx, &a, &m, (str){arena_copy(&a, name, (size_t)n), (size_t)n}, i));
    }
    check_ok(&cx, map_put(&cx, &a, &m, STR(""), 99));
    uint64_t value = 0;
    assert_true(map_get(&m, STR("key 2999"), &value));
    assert_int_equal(value, 2999);
    assert_true(map_get(&m, STR(""), &value));
    assert_int_equal(value, 99);
    assert_false(map_get(&m, STR("key 3000"), &value));
    assert_int_equal(m.n, 3001);
    arena_free(&a);
}

static void errors_keep_the_first_message(void **state)
{
    (void)state;
    assert_int_equal(status_fail(&cx, MPK_EARG, "bad %d", 5), MPK_EARG);
    status_note(&cx, MPK_EARG, "loading %s", "x");
    assert_string_equal(cx.text, "bad 5\n  while loading x");
    status_fail(&cx, MPK_EARG, "name %s", "a\n\033[31mb"); /* as a file may hold it */
    assert_string_equal(cx.text, "name a??[31mb");
    for (int i = 0; i < 1000; i++)
        status_note(&cx, MPK_EARG, "a long note that must not overflow the buffer");
    assert_true(strlen(cx.text) < sizeof cx.text);
}

/* Every 16-bit value survives the way to f32 and back; every f32 in between goes to the nearest. */
static void numbers_convert_exactly(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = num_from_f16((f16)h), y = num_from_bf16((bf16)h);
        if (!isnan(x))
            assert_int_equal(num_to_f16(x), h);
        if (!isnan(y))
            assert_int_equal(num_to_bf16(y), h);
        if (h + 1 < 0x7c00) {
            float next = num_from_f16((f16)(h + 1)), middle = x + (next - x) / 2;
            assert_int_equal(num_to_f16(middle), h + (h & 1)); /* ties to even */
            assert_int_equal(num_to_f16(nextafterf(middle, 1e9f)), h + 1);
            assert_int_equal(num_to_f16(nextafterf(middle, -1e9f)), h);
        }
    }
    assert_true(isnan(num_from_f16(num_to_f16(NAN))) && isnan(num_from_bf16(num_to_bf16(NAN))));
    assert_int_equal(num_to_f16(65520.0f), 0x7c00);
    assert_int_equal(num_to_f16(65519.0f), 0x7bff);
}

static void random_numbers_have_their_moments(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    double sum = 0, squares = 0, uniform = 0;
    enum { N = 200000 };
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(seed, i), u = rng_float(seed, i);
        assert_true(u >= 0 && u < 1);
        sum += x;
        squares += x * x;
        uniform += u;
    }
    assert_true(fabs(sum / N) < 0.02 && fabs(squares / N - 1) < 0.02 &&
                fabs(uniform / N - 0.5) < 0.01);
}

static void files_are_whole_or_untouched(void **state)
{
    (void)state;
    char path[] = "/tmp/mpk-base-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    arena a = {0};
    str s;
    file_map m;
    check_ok(&cx, file_write(&cx, path, "hello", 5));
    check_ok(&cx, file_read(&cx, &a, path, 100, &s));
    assert_true(str_is(s, "hello"));
    check_fails(&cx, MPK_ELIMIT, "more than 4 bytes", file_read(&cx, &a, path, 4, &s));
    check_ok(&cx, file_map_open(&cx, path, &m));
    assert_int_equal(m.n_bytes, 5);
    file_map_close(&m);
    unlink(path);
    check_fails(&cx, MPK_EIO, "cannot open", file_map_open(&cx, path, &m));
    check_fails(&cx, MPK_EIO, "not a regular file", file_map_open(&cx, "/tmp", &m));
    check_fails(&cx, MPK_EIO, "No space left", file_write(&cx, "/dev/full", "x", 1));
    arena_free(&a);
}

/* Until it is committed a sink changes nothing, and nothing is left of one that is abandoned. */
static void sinks_commit_or_leave_nothing(void **state)
{
    (void)state;
    char folder[] = "/tmp/mpk-base-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    arena a = {0};
    str s;
    file_map m;
    file_sink sink;
    check_ok(&cx, file_write(&cx, path, "old", 3));
    for (int commit = 0; commit <= 1; commit++) {
        check_ok(&cx, file_sink_open(&cx, path, 8, &sink));
        check_ok(&cx, file_sink_write(&cx, &sink, "new ", 4));
        check_ok(&cx, file_sink_write(&cx, &sink, "file", 4));
        check_ok(&cx, file_read(&cx, &a, path, 100, &s));
        assert_true(str_is(s, "old"));
        if (commit)
            check_ok(&cx, file_sink_commit(&cx, &sink));
        file_sink_abandon(&sink);
    }
    check_ok(&cx, file_read(&cx, &a, path, 100, &s));
    assert_true(str_is(s, "new file"));
    check_ok(&cx, file_map_open(&cx, path, &m));
    assert_true(file_map_is(&m, path) && !file_map_is(&m, folder) && !file_map_is(&m, "/dev/null"));
    file_map_close(&m);
    char link[70];
    snprintf(link, sizeof link, "%s-link", path);
    assert_int_equal(symlink(path, link), 0);
    assert_true(file_is_same(link, path) && file_is_same(path, path) &&
                !file_is_same(path, folder));
    assert_false(file_is_same("/dev/null", "/dev/null") || file_is_same("/none", "/none"));
    unlink(link);
    check_fails(&cx, MPK_EIO, "too large", file_sink_open(&cx, path, UINT64_MAX, &sink));
    unlink(path);
    assert_int_equal(rmdir(folder), 0); /* nothing else is there */
    check_fails(&cx, MPK_EIO, "No such file", file_sink_open(&cx, path, 8, &sink));
    arena_free(&a);
}

/* A file that another writer has under the name for unfinished ones, or a link there, is neither
 * written nor removed. */
static void sinks_leave_the_parts_of_others(void **state)
{
    (void)state;
    char folder[] = "/tmp/mpk-base-test-XXXXXX", path[64], part[96], other[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)gettid());
    arena a = {0};
    str s;
    check_ok(&cx, file_write(&cx, other, "others", 6));
    assert_int_equal(symlink(other, part), 0);
    check_ok(&cx, file_write(&cx, path, "ours", 4));
    check_ok(&cx, file_read(&cx, &a, path, 100, &s));
    assert_true(str_is(s, "ours"));
    check_ok(&cx, file_read(&cx, &a, part, 100, &s));
    assert_true(str_is(s, "others"));
    assert_true(unlink(part) == 0 && unlink(path) == 0 && unlink(other) == 0);
    assert_int_equal(rmdir(folder), 0);
    arena_free(&a);
}

/* What a control group leaves: its limit without what it uses, but what it uses for files that can
 * be dropped; never more than the machine has. */
static void groups_limit_memory(void **state)
{
    (void)state;
    static const struct {
        const char *max, *current, *stat;
        uint64_t free;
    } cases[] = {
        {"max\n", "70\n", "inactive_file 5\n", 500},
        {"100\n", "70\n", "anon 9\n", 30},
        {"100\n", "100\n", "anon 1\n", 0},
        {"100\n", "120\n", "anon 1\n", 0},
        {"100\n", "90\n", "anon 9\ninactive_file 60\nactive_file 7\n", 70},
        {"100\n", "100\n", "inactive_file 100\n", 100},
        {"900\n", "10\n", "anon 1\n", 500},
        {"100\n", "50\n", "inactive_file 80\n", 100},
    };
    char folder[] = "/tmp/mpk-base-test-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    assert_int_equal(memory_free_in_group(folder, 500), 500);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *const files[][2] = {{"memory.max", cases[i].max},
                                        {"memory.current", cases[i].current},
                                        {"memory.stat", cases[i].stat}};
        for (size_t k = 0; k < 3; k++) {
            char path[64];
            snprintf(path, sizeof path, "%s/%s", folder, files[k][0]);
            check_ok(&cx, file_write(&cx, path, files[k][1], strlen(files[k][1])));
        }
        assert_int_equal(memory_free_in_group(folder, 500), cases[i].free);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* Make a locale that writes commas for points, and enter it; false where the C library's compiler
 * is missing. */
static bool enter_comma_locale(char folder[32])
{
    static const char source[] = "comment_char %%\nescape_char /\nLC_NUMERIC\ndecimal_point \",\"\n"
                                 "thousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n";
    char command[512];
    strcpy(folder, "/tmp/mpk-locale-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command,
             "cd %s && printf '%s' > source && localedef --no-archive -c -i source -f "
             "ANSI_X3.4-1968 ./comma >log 2>&1",
             folder, source);
    int ignored = system(command); /* it warns of the categories that are left out */
    (void)ignored;
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_NUMERIC, "comma") != NULL;
}

/* Python and other hosts set locales; what is written to files and replies has a point all the
 * same. */
static void numbers_have_points_in_any_locale(void **state)
{
    (void)state;
    char folder[32], command[64], digits[16];
    bool entered = enter_comma_locale(folder);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    if (!entered)
        skip();
    snprintf(digits, sizeof digits, "%g", 0.5);
    assert_string_equal(digits, "0,5");
    text t = {0};
    double x = 0;
    text_print(&t, "%g ", 0.25);
    text_add_double(&t, 1.0 / 3);
    assert_string_equal(t.at, "0.25 0.3333333333333333");
    assert_true(str_read_double(STR("1.5e-3"), &x) && x == 1.5e-3);
    assert_false(str_read_double(STR("1,5"), &x));
    snprintf(digits, sizeof digits, "%g", 0.5);
    assert_string_equal(digits, "0,5"); /* the program's locale is as it was */
    setlocale(LC_NUMERIC, "C");
    text_free(&t);
}

/* Random doubles, NaN and infinities among them, survive being written and read. */
static void numbers_read_back(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    double back = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t bits = rng_u64(seed, i);
        double x;
        text t = {0};
        memcpy(&x, &bits, sizeof x);
        x = i % 2 ? x : (double)(float)(i * 0.01);
        text_add_double(&t, x);
        assert_true(str_read_double((str){t.at, t.n}, &back) &&
                    (back == x || (isnan(x) && isnan(back))));
        text_free(&t);
    }
    static const char *const bad[] = {"", " 1x", "1x", "1..2", "--1", "."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(str_read_double(str_from(bad[i]), &back));
}

/* A word begins and ends with itself and with nothing, and with no longer word. */
static void texts_begin_and_end(void **state)
{
    (void)state;
    const str none = {0}, word = STR("split.count");
    assert_true(str_begins(word, STR("split.")) && str_ends(word, STR(".count")));
    assert_true(str_begins(word, word) && str_ends(word, word));
    assert_true(str_begins(word, none) && str_ends(word, none) && str_ends(none, none));
    assert_false(str_begins(word, STR("split.counts")) || str_ends(word, STR("asplit.count")));
    assert_false(str_begins(word, STR(".count")) || str_ends(word, STR("split.")));
    assert_false(str_begins(none, STR("s")) || str_ends(none, STR("t")));
}

static void characters_are_written(void **state)
{
    (void)state;
    static const struct {
        uint32_t c;
        const char *utf8;
    } cases[] = {{'A', "A"},
                 {0x7f, "\x7f"},
                 {0x80, "\xc2\x80"},
                 {0x7ff, "\xdf\xbf"},
                 {0x800, "\xe0\xa0\x80"},
                 {0xffff, "\xef\xbf\xbf"},
                 {0x10000, "\xf0\x90\x80\x80"},
                 {0x10ffff, "\xf4\x8f\xbf\xbf"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bytes[4];
        const size_t n = str_put_char(bytes, cases[i].c);
        assert_int_equal(n, strlen(cases[i].utf8));
        assert_memory_equal(bytes, cases[i].utf8, n);
        assert_int_equal(str_char_bytes(bytes[0]), n);
    }
    static const char digits[] = "0123456789abcdefABCDEF";
    for (int c = 0; c < 256; c++) {
        const char *at = c ? strchr(digits, c) : NULL;
        const int place = at ? (int)(at - digits) : -1;
        assert_int_equal(str_hex_digit((char)c), place < 16 ? place : place - 6);
    }
}

/* A deadline keeps its nanoseconds below a second, and is as far away as was asked. */
static void deadlines_carry(void **state)
{
    (void)state;
    const uint64_t seed = check_seed();
    for (uint64_t i = 0; i < 10000; i++) {
        const struct timespec from = {.tv_sec = (time_t)(rng_u64(seed, 3 * i) >> 30),
                                      .tv_nsec = (long)(rng_u64(seed, 3 * i + 1) % 1000000000)};
        const int64_t ms = (int64_t)(rng_u64(seed, 3 * i + 2) >> (i % 60 + 4));
        const struct timespec to = clock_after(from, ms);
        assert_in_range(to.tv_nsec, 0, 999999999);
        const __int128 passed =
            (__int128)(to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
        assert_true(passed == (__int128)ms * 1000000);
    }
}

/* By the system's clock such a time is long past, and the wait would end at once. */
static void waits_count_monotonic_time(void **state)
{
    (void)state;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never;
    int error = 0;
    assert_int_equal(thread_make_condition(&never), 0);
    const uint64_t begin = clock_ns();
    const struct timespec until = clock_after(clock_now(), 20);
    pthread_mutex_lock(&mutex);
    while (!error)
        error = pthread_cond_timedwait(&never, &mutex, &until);
    pthread_mutex_unlock(&mutex);
    assert_int_equal(error, ETIMEDOUT);
    assert_true(clock_ns() - begin >= 20000000);
    pthread_cond_destroy(&never);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_keeps_and_resets),
        cmocka_unit_test(arena_uses_blocks_again),
        cmocka_unit_test(arena_adopts),
        cmocka_unit_test(calls_are_spread),
        cmocka_unit_test(cores_are_counted),
        cmocka_unit_test(nodes_are_listed),
        cmocka_unit_test(characters_are_written),
        cmocka_unit_test(texts_begin_and_end),
        cmocka_unit_test(deadlines_carry),
        cmocka_unit_test(waits_count_monotonic_time),
        cmocka_unit_test(map_finds_what_was_put),
        cmocka_unit_test(map_keys_cannot_be_made_to_collide),
        cmocka_unit_test(errors_keep_the_first_message),
        cmocka_unit_test(numbers_convert_exactly),
        cmocka_unit_test(random_numbers_have_their_moments),
        cmocka_unit_test(files_are_whole_or_untouched),
        cmocka_unit_test(sinks_commit_or_leave_nothing),
        cmocka_unit_test(sinks_leave_the_parts_of_others),
        cmocka_unit_test(groups_limit_memory),
        cmocka_unit_test(numbers_have_points_in_any_locale),
        cmocka_unit_test(numbers_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
