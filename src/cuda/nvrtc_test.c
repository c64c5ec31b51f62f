/* nvrtc_test.c - NVRTC found, missing and broken; good and bad sources.  What needs NVRTC is
 * skipped where python3 of PATH (the tests' own environment, see ./dev) and the system have
 * none. */
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "cuda/nvrtc.h"

static const char good[] = "extern \"C\" __global__ void scale(float *x, float by)\n"
                           "{\n"
                           "    x[blockIdx.x * blockDim.x + threadIdx.x] *= by;\n"
                           "}\n";

static cuda_source source_of(const char *code, const char *arch)
{
    return (cuda_source){.name = "unit.cu", .code = str_from(code), .arch = gen_arch_find(arch)};
}

/* NVRTC, or the test is skipped. */
static cuda_nvrtc *open_or_skip(mpk_context *cx)
{
    cuda_nvrtc *n;
    mpk_status status = cuda_nvrtc_open(cx, &n);
    if (status != MPK_OK) {
        assert_int_equal(status, MPK_EUNSUPPORTED);
        check_skip(cx->text);
    }
    return n;
}

/* A path that is not there, a folder without NVRTC, a damaged file, a file that is another library:
 * each is told apart. */
static void missing_or_broken(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_nvrtc *n;
    char folder[] = "/tmp/mpk-nvrtc-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    setenv("MPK_NVRTC", "/no/such/libnvrtc.so.13", 1);
    check_fails(&cx, MPK_EUNSUPPORTED,
                "MPK_NVRTC=/no/such/libnvrtc.so.13: ", cuda_nvrtc_open(&cx, &n));
    setenv("MPK_NVRTC", folder, 1);
    check_fails(&cx, MPK_EUNSUPPORTED, "no libnvrtc.so.13 or .12 in it", cuda_nvrtc_open(&cx, &n));
    snprintf(path, sizeof path, "%s/libnvrtc.so.13", folder);
    check_ok(&cx, file_write(&cx, path, "\177ELF, but nothing follows", 25));
    check_fails(&cx, MPK_EUNSUPPORTED, "that can be opened", cuda_nvrtc_open(&cx, &n));
    setenv("MPK_NVRTC", path, 1);
    check_fails(&cx, MPK_EUNSUPPORTED, "must name libnvrtc.so.13", cuda_nvrtc_open(&cx, &n));
    setenv("MPK_NVRTC", "libm.so.6", 1); /* a library, but not this one */
    check_fails(&cx, MPK_EUNSUPPORTED, "libm.so.6 has no nvrtcVersion", cuda_nvrtc_open(&cx, &n));
    unsetenv("MPK_NVRTC");
    unlink(path);
    rmdir(folder);
}

/* Without a python3 the system alone is left, which may have one. */
static void no_python(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_nvrtc *n;
    const char *before = getenv("PATH");
    char *path = before ? strdup(before) : NULL;
    setenv("PATH", "/no/such/folder", 1);
    mpk_status status = cuda_nvrtc_open(&cx, &n);
    if (path)
        setenv("PATH", path, 1);
    free(path);
    if (status == MPK_OK)
        cuda_nvrtc_close(n);
    else if (status != MPK_EUNSUPPORTED || !strstr(cx.text, "pip install nvidia-cuda-nvrtc"))
        fail_msg("%s: %s", status_sentence(status), cx.text);
}

/* Machine code and PTX for each row of the table, with what a caller relies on: ELF, the NUL, a log
 * with registers. */
static void every_architecture(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_nvrtc *n = open_or_skip(&cx);
    print_message("%s, version %u\n", cuda_nvrtc_path(n), cuda_nvrtc_version(n));
    assert_true(cuda_nvrtc_version(n) >= 12000);
    for (const gen_arch *row = gen_arch_table; row->name; row++)
        for (int ptx = 0; ptx < 2; ptx++) {
            text code = {0}, log = {0};
            cuda_source s = source_of(good, row->name);
            s.as_ptx = ptx;
            check_ok(&cx, cuda_nvrtc_compile(&cx, n, &s, &code, &log));
            if (ptx) {
                assert_true(strstr(code.at, ".version") && strstr(code.at, "scale"));
                assert_int_equal(code.at[code.n - 1], 0);
            } else {
                assert_memory_equal(code.at, "\177ELF", 4);
                assert_non_null(strstr(log.at, "registers"));
            }
            text_free(&code);
            text_free(&log);
        }
    cuda_nvrtc_close(n);
}

/* The cache's key has these lines, so two ways of compiling must not give the same. */
static void options_tell_sources_apart(void **state)
{
    (void)state;
    mpk_context cx = {0};
    arena a = {0};
    str lines[4];
    cuda_source s = source_of(good, "sm_90a");
    check_ok(&cx, cuda_source_options(&cx, &a, &s, &lines[0]));
    s.checked = true;
    check_ok(&cx, cuda_source_options(&cx, &a, &s, &lines[1]));
    s.as_ptx = true;
    check_ok(&cx, cuda_source_options(&cx, &a, &s, &lines[2]));
    s.arch = gen_arch_find("sm_80");
    check_ok(&cx, cuda_source_options(&cx, &a, &s, &lines[3]));
    assert_true(strstr(lines[0].at, "--gpu-architecture=sm_90a\n") &&
                strstr(lines[2].at, "=compute_90a\n"));
    assert_true(strstr(lines[1].at, "line-info\n") && strstr(lines[1].at, "=MPK_CHECKED\n"));
    assert_false(strstr(lines[0].at, "line-info") || strstr(lines[0].at, "MPK_CHECKED"));
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_false(str_equal(lines[i], lines[j]));
    arena_free(&a);
}

/* The message has file, line and what is wrong; nothing is left in *code. */
static void bad_sources(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_nvrtc *n = open_or_skip(&cx);
    text code = {0}, log = {0};
    cuda_source s = source_of("__global__ void f(int *x)\n{\n    *x = no_such_name;\n}\n", "sm_80");
    check_fails(&cx, MPK_EFORMAT, "unit.cu(3): error: identifier \"no_such_name\" is undefined",
                cuda_nvrtc_compile(&cx, n, &s, &code, &log));
    assert_non_null(strstr(cx.text, "--keep=FOLDER"));
    assert_non_null(strstr(log.at, "1 error detected"));
    assert_null(code.at);
    text_free(&log);
    s = source_of("#include <stdio.h>\n", "sm_80");
    check_fails(&cx, MPK_EFORMAT, "unit.cu(1)", cuda_nvrtc_compile(&cx, n, &s, &code, NULL));
    s = source_of("int a = 0;\n", "sm_80");
    s.code.n = sizeof "int a = 0;\n";
    check_fails(&cx, MPK_EARG, "unit.cu holds a NUL", cuda_nvrtc_compile(&cx, n, &s, &code, NULL));
    s.name = "../unit.cu";
    check_fails(&cx, MPK_EARG, "has no folder", cuda_nvrtc_compile(&cx, n, &s, &code, NULL));
    gen_arch old = *gen_arch_find("sm_80");
    old.name = "sm_30";
    old.major = 3;
    s = source_of(good, "sm_80");
    s.arch = &old;
    check_fails(&cx, MPK_EUNSUPPORTED, "does not know sm_30",
                cuda_nvrtc_compile(&cx, n, &s, &code, NULL));
    cuda_nvrtc_close(n);
}

/* Is there folder/name with something in it?  It is removed. */
static void check_kept(const char *folder, const char *name, bool wanted)
{
    char path[128];
    struct stat s = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bool there = stat(path, &s) == 0 && s.st_size > 0;
    unlink(path);
    if (there != wanted)
        fail_msg("%s: %s", path, there ? "is there" : "is not there");
}

/* With keep_folder: source, log and code; of a source that does not compile, no code. */
static void what_is_kept(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_nvrtc *n = open_or_skip(&cx);
    text code = {0};
    char folder[] = "/tmp/mpk-keep-XXXXXX", inner[64];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof inner, "%s/kept", folder);
    cuda_source s = source_of(good, "sm_90a");
    s.keep_folder = inner; /* is made */
    check_ok(&cx, cuda_nvrtc_compile(&cx, n, &s, &code, NULL));
    text_free(&code);
    check_kept(inner, "unit.cu", true);
    check_kept(inner, "unit.cu.log", true);
    check_kept(inner, "unit.cu.cubin", true);
    s.code = STR("broken");
    check_fails(&cx, MPK_EFORMAT, "kept/unit.cu", cuda_nvrtc_compile(&cx, n, &s, &code, NULL));
    check_kept(inner, "unit.cu", true);
    check_kept(inner, "unit.cu.log", true);
    check_kept(inner, "unit.cu.cubin", false);
    rmdir(inner);
    rmdir(folder);
    check_fails(&cx, MPK_EIO, "cannot make the folder",
                cuda_nvrtc_compile(&cx, n, &s, &code, NULL));
    cuda_nvrtc_close(n);
}

typedef struct job {
    const cuda_nvrtc *n;
    mpk_status status;
    text code;
    mpk_context cx;
} job;

/* Several threads compile at a time, with one library that is opened once. */
static void *compile_some(void *argument)
{
    job *j = argument;
    cuda_source s = source_of(good, "sm_80");
    for (int i = 0; i < 3 && j->status == MPK_OK; i++) {
        text_free(&j->code);
        j->code = (text){0};
        j->status = cuda_nvrtc_compile(&j->cx, j->n, &s, &j->code, NULL);
    }
    return NULL;
}

/* One open library, two threads: the same bytes. */
static void threads_compile_at_the_same_time(void **state)
{
    (void)state;
    static job jobs[2];
    mpk_context cx = {0};
    cuda_nvrtc *n = open_or_skip(&cx);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        jobs[i].n = n;
        assert_int_equal(pthread_create(&threads[i], NULL, compile_some, &jobs[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        check_ok(&jobs[i].cx, jobs[i].status);
    }
    assert_int_equal(jobs[0].code.n, jobs[1].code.n);
    assert_memory_equal(jobs[0].code.at, jobs[1].code.at, jobs[0].code.n);
    text_free(&jobs[0].code);
    text_free(&jobs[1].code);
    cuda_nvrtc_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_or_broken),
        cmocka_unit_test(no_python),
        cmocka_unit_test(every_architecture),
        cmocka_unit_test(options_tell_sources_apart),
        cmocka_unit_test(bad_sources),
        cmocka_unit_test(what_is_kept),
        cmocka_unit_test(threads_compile_at_the_same_time),
    };
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
