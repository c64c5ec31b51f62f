/* cache_test.c - the kernel cache: hits, damage, many writers, a full one, one that cannot be
 * written; programs in it.
 *
 * Skipped where there is no NVRTC (see nvrtc_test.c): without it nothing is compiled, and so
 * nothing kept.
 */
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/rng.h"
#include "base/str.h"
#include "cuda/cache.h"

/* A cache in a folder of its own, and a source that no other test compiles. */
typedef struct fixture {
    char folder[64];
    mpk_context cx;
    char source[256];
} fixture;

/* Sources of different numbers have different keys and the same size. */
static void new_source(fixture *f, uint64_t number)
{
    snprintf(f->source, sizeof f->source, "__global__ void f(int *x)\n{\n    *x += %llu;\n}\n",
             (unsigned long long)(number % 1000000007));
}

/* An empty cache of this test, or the test is skipped. */
static fixture *start(fixture *f)
{
    cuda_nvrtc *n;
    *f = (fixture){.folder = "/tmp/mpk-cache-XXXXXX"};
    if (cuda_nvrtc_open(&f->cx, &n) != MPK_OK) {
        check_skip(f->cx.text);
    }
    cuda_nvrtc_close(n);
    assert_non_null(mkdtemp(f->folder));
    setenv("MPK_CACHE", f->folder, 1);
    new_source(f, check_seed());
    return f;
}

/* Nothing but kernels may have been left in the folder: clearing empties it. */
static void end(fixture *f)
{
    setenv("MPK_CACHE", f->folder, 1);
    check_ok(&f->cx, cuda_cache_clear(&f->cx));
    if (rmdir(f->folder) != 0)
        fail_msg("something is left in %s", f->folder);
    unsetenv("MPK_CACHE");
}

/* Compile; was it in the cache? */
static bool is_hit(fixture *f, text *code)
{
    bool hit;
    text own = {0}, log = {0};
    cuda_source s = {
        .name = "unit.cu", .code = str_from(f->source), .arch = gen_arch_find("sm_80")};
    check_ok(&f->cx, cuda_cache_compile(&f->cx, &s, &own, &log, &hit));
    assert_memory_equal(own.at, "\177ELF", 4);
    assert_non_null(strstr(log.at, "registers")); /* the log is part of an entry */
    text_free(&log);
    if (code)
        *code = own;
    else
        text_free(&own);
    return hit;
}

/* What the cache says of itself, without its folder. */
static cuda_cache_facts describe(fixture *f)
{
    arena a = {0};
    cuda_cache_facts facts;
    check_ok(&f->cx, cuda_cache_describe(&f->cx, &a, &facts));
    arena_free(&a);
    facts.folder = NULL; /* was in the arena */
    return facts;
}

/* The path of the only entry. */
static void find_entry(const fixture *f, char *path, size_t n)
{
    DIR *d = opendir(f->folder);
    assert_non_null(d);
    path[0] = 0;
    for (struct dirent *item = readdir(d); item; item = readdir(d))
        if (strstr(item->d_name, ".kernel"))
            snprintf(path, n, "%s/%s", f->folder, item->d_name);
    closedir(d);
    assert_true(path[0]);
}

/* A hit gives the bytes and the log of the first time; one character more in the source is a
 * miss. */
static void second_time_is_a_hit(void **state)
{
    (void)state;
    fixture own, *f = start(&own);
    text first, second;
    assert_false(is_hit(f, &first));
    assert_true(is_hit(f, &second));
    assert_int_equal(first.n, second.n);
    assert_memory_equal(first.at, second.at, first.n);
    text_free(&first);
    text_free(&second);
    assert_int_equal(describe(f).n_kernels, 1);
    strcat(f->source, " ");
    assert_false(is_hit(f, NULL)); /* another source */
    assert_int_equal(describe(f).n_kernels, 2);
    check_ok(&f->cx, cuda_cache_clear(&f->cx));
    assert_int_equal(describe(f).n_kernels, 0);
    assert_false(is_hit(f, NULL));
    setenv("MPK_CACHE", "", 1); /* switched off */
    assert_false(is_hit(f, NULL));
    assert_int_equal(describe(f).n_kernels, 0);
    check_ok(&f->cx, cuda_cache_clear(&f->cx));
    end(f);
}

/* Any one byte changed, any end cut off: compiled again, and the entry is good afterwards. */
static void damage_is_replaced(void **state)
{
    (void)state;
    fixture own, *f = start(&own);
    uint64_t seed = check_seed();
    char path[512];
    arena a = {0};
    str good;
    assert_false(is_hit(f, NULL));
    find_entry(f, path, sizeof path);
    check_ok(&f->cx, file_read(&f->cx, &a, path, 1 << 30, &good));
    for (uint64_t i = 0; i < 20; i++) {
        char *bad = arena_copy(&a, good.at, good.n);
        /* the head's first words, then anywhere; each fourth file ends there */
        const size_t at = i < 8 ? i * 8 : rng_u64(seed, i) % good.n;
        const size_t n = i % 4 == 3 ? at : good.n;
        bad[at] = (char)(bad[at] ^ (1 << i % 8));
        check_ok(&f->cx, file_write(&f->cx, path, bad, n));
        if (is_hit(f, NULL))
            fail_msg("%zu of %zu bytes, byte %zu changed: taken", n, good.n, at);
        assert_true(is_hit(f, NULL));
    }
    assert_int_equal(describe(f).n_kernels, 1);
    arena_free(&a);
    end(f);
}

/* Writers, readers and one that empties the folder: every process gets right code, none fails. */
static void processes_write_at_the_same_time(void **state)
{
    (void)state;
    enum { PROCESSES = 4 };
    fixture own, *f = start(&own);
    pid_t children[PROCESSES];
    uint64_t seed = check_seed();
    fflush(NULL);
    for (int i = 0; i < PROCESSES; i++)
        if ((children[i] = fork()) == 0) {
            /* the same three sources in every process; between them the cache is emptied */
            mpk_status status = MPK_OK;
            for (uint64_t j = 0; j < 6 && status == MPK_OK; j++) {
                text code = {0};
                new_source(f, seed + j % 3);
                cuda_source s = {
                    .name = "unit.cu", .code = str_from(f->source), .arch = gen_arch_find("sm_80")};
                status = cuda_cache_compile(&f->cx, &s, &code, NULL, NULL);
                if (status == MPK_OK && memcmp(code.at, "\177ELF", 4) != 0)
                    status = MPK_EFORMAT;
                text_free(&code);
                if (i == 0 && j == 3 && status == MPK_OK)
                    status = cuda_cache_clear(&f->cx);
            }
            _exit(status == MPK_OK ? 0 : 1);
        }
    for (int i = 0; i < PROCESSES; i++) {
        int result = -1;
        assert_int_equal(waitpid(children[i], &result, 0), children[i]);
        assert_int_equal(result, 0);
    }
    assert_true(describe(f).n_kernels <= 3);
    for (uint64_t j = 0; j < 3; j++) {
        new_source(f, seed + j);
        is_hit(f, NULL);
        assert_true(is_hit(f, NULL));
    }
    assert_int_equal(describe(f).n_kernels, 3);
    end(f);
}

/* A file of n bytes that takes no room on the disk, last used so many seconds ago. */
static void add_large(const fixture *f, const char *name, off_t n, time_t ago)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, n), 0);
    struct timespec times[2] = {{time(NULL) - ago, 0}, {time(NULL) - ago, 0}};
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static bool has(const fixture *f, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    return file_exists(path);
}

/* The oldest whole entry and an abandoned part go; a fresh part and a file of somebody else
 * stay. */
static void full_cache_forgets_the_oldest(void **state)
{
    (void)state;
    static const char oldest[] = "00000000000000000000000000000001.kernel",
                      newer[] = "00000000000000000000000000000002.kernel",
                      dead[] = "00000000000000000000000000000003.kernel.77.part",
                      alive[] = "00000000000000000000000000000004.kernel.78.part",
                      other[] = "somebody-elses.file";
    fixture own, *f = start(&own);
    add_large(f, oldest, 600 << 20, 9000);
    add_large(f, newer, 600 << 20, 100);
    add_large(f, dead, 10, 8000);
    add_large(f, alive, 10, 5);
    add_large(f, other, 10, 100000);
    assert_int_equal(describe(f).n_kernels, 2);
    assert_true(describe(f).n_bytes > describe(f).limit_bytes);
    assert_false(is_hit(f, NULL));
    assert_false(has(f, oldest) || has(f, dead));
    assert_true(has(f, newer) && has(f, alive) && has(f, other));
    assert_true(is_hit(f, NULL));
    assert_true(describe(f).n_bytes <= describe(f).limit_bytes);
    check_ok(&f->cx, cuda_cache_clear(&f->cx));
    assert_true(has(f, other));
    assert_false(has(f, newer));
    char path[512];
    snprintf(path, sizeof path, "%s/%s", f->folder, other);
    unlink(path);
    end(f);
}

static void count_warnings(void *user, int level, const char *line)
{
    (void)line;
    *(int *)user += level == LOG_WARN;
}

/* A folder that cannot be made (what stands in its way is a file): compiled all the same, with a
 * line in the log. */
static void a_cache_that_cannot_be_written(void **state)
{
    (void)state;
    fixture own, *f = start(&own);
    char path[128];
    int warnings = 0;
    snprintf(path, sizeof path, "%s/file", f->folder);
    check_ok(&f->cx, file_write(&f->cx, path, "", 0));
    strcat(path, "/kernels");
    setenv("MPK_CACHE", path, 1);
    f->cx.log = count_warnings;
    f->cx.log_user = &warnings;
    assert_false(is_hit(f, NULL));
    assert_false(is_hit(f, NULL));
    assert_int_equal(warnings, 2);
    *strrchr(path, '/') = 0;
    unlink(path);
    if (geteuid() != 0) { /* root writes everywhere */
        setenv("MPK_CACHE", f->folder, 1);
        chmod(f->folder, 0555);
        assert_false(is_hit(f, NULL));
        assert_int_equal(warnings, 3);
        chmod(f->folder, 0777);
    }
    end(f);
}

/* The bytes of a program, or "none". */
static void check_program(const char *key, const char *expected)
{
    file_map file;
    str bytes;
    if (!cuda_cache_open_program(str_from(key), &file, &bytes)) {
        assert_string_equal(expected, "none");
        return;
    }
    assert_true(str_is(bytes, expected));
    file_map_close(&file);
}

/* No compiler is needed. */
static void programs_are_kept(void **state)
{
    (void)state;
    fixture own = {.folder = "/tmp/mpk-cache-XXXXXX"}, *f = &own;
    char path[512];
    assert_non_null(mkdtemp(f->folder));
    setenv("MPK_CACHE", f->folder, 1);
    check_program("a", "none");
    cuda_cache_store_program(&f->cx, STR("a"), STR("first"));
    cuda_cache_store_program(&f->cx, STR("b"), STR("second"));
    check_program("a", "first");
    check_program("b", "second");
    check_program("ab", "none");
    cuda_cache_store_program(&f->cx, STR("a"), STR("third"));
    check_program("a", "third");
    assert_int_equal(describe(f).n_programs, 2);
    assert_int_equal(describe(f).n_kernels, 0);
    snprintf(path, sizeof path, "%.63s/0123456789abcdef0123456789abcdef.program.7.part", f->folder);
    check_ok(&f->cx, file_write(&f->cx, path, "half", 4));
    assert_int_equal(describe(f).n_programs, 2);
    snprintf(path, sizeof path, "%.63s/0123456789abcdef0123456789abcdef.programme", f->folder);
    check_ok(&f->cx, file_write(&f->cx, path, "somebody's", 10));
    check_ok(&f->cx, cuda_cache_clear(&f->cx));
    check_program("a", "none");
    assert_int_equal(unlink(path), 0); /* it was left alone */
    setenv("MPK_CACHE", "", 1);
    cuda_cache_store_program(&f->cx, STR("a"), STR("first"));
    check_program("a", "none");
    end(f);
}

/* Of MPK_CACHE, XDG_CACHE_HOME and HOME the first that is set decides; a folder that is not
 * there has no kernels and is no error. */
static void where_it_lies(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    cuda_cache_facts facts;
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *xdg_copy = xdg ? strdup(xdg) : NULL;
    char *home_copy = home ? strdup(home) : NULL;
    unsetenv("MPK_CACHE");
    setenv("XDG_CACHE_HOME", "/no/such/place", 1);
    check_ok(&cx, cuda_cache_describe(&cx, &a, &facts));
    assert_string_equal(facts.folder, "/no/such/place/mpk/kernels/");
    assert_int_equal(facts.n_kernels, 0);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "/no/such/home", 1);
    check_ok(&cx, cuda_cache_describe(&cx, &a, &facts));
    assert_string_equal(facts.folder, "/no/such/home/.cache/mpk/kernels/");
    unsetenv("HOME");
    check_ok(&cx, cuda_cache_describe(&cx, &a, &facts));
    assert_null(facts.folder);
    if (xdg_copy)
        setenv("XDG_CACHE_HOME", xdg_copy, 1);
    if (home_copy)
        setenv("HOME", home_copy, 1);
    free(xdg_copy);
    free(home_copy);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_time_is_a_hit),
        cmocka_unit_test(damage_is_replaced),
        cmocka_unit_test(processes_write_at_the_same_time),
        cmocka_unit_test(full_cache_forgets_the_oldest),
        cmocka_unit_test(a_cache_that_cannot_be_written),
        cmocka_unit_test(programs_are_kept),
        cmocka_unit_test(where_it_lies),
    };
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
