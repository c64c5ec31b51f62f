/* driver_test.c - the driver's wrapper against the stand-in of tests/fake_cuda.h: every call, and
 * every call failing.
 *
 * One run (use_all) opens a GPU and uses each function once.  It is counted how often it calls each
 * entry; then it is repeated as often, and each time another call fails.  The stand-in keeps a book
 * of what lives: contexts, memory, streams, events, modules, graphs.  Its words are those of
 * fake_cuda.h:
 *
 *   fail:cuMemAlloc:2      the second call of it fails
 *   fail:cuInit:1:803      the first, with this CUresult
 *   gpus:0, version:11040  another machine */
#include "check.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "cuda/cuda.h"
#include "fake_cuda.h"

/* What the stand-in looks for names in; the NUL at its end counts. */
static const char ptx[] = ".version 8.0 .visible .entry kernel() .global variable";

/* Use everything once; what it opened is closed whatever fails. */
typedef struct use {
    cuda_driver *d;
    cuda_gpu *g;
    cuda_address memory, other, pinned_there;
    void *pinned;
    char registered[64], mapped[64], back[64];
    bool is_registered, is_mapped, is_recording;
    cuda_shared made, opened;
    int descriptor; /* 0: none */
    cuda_stream s;
    cuda_event from, to;
    cuda_module m;
    cuda_graph graph;
} use;

/* The copies also prove that each of the four kinds goes from and to where it should. */
static mpk_status use_memory(mpk_context *cx, use *u)
{
    uint64_t available, total;
    TRY(cuda_memory_available(cx, u->g, &available, &total));
    assert_int_equal(total, 1 << 30);
    TRY(cuda_memory_alloc(cx, u->g, "weights", 64, &u->memory));
    TRY(cuda_memory_alloc(cx, u->g, "the cache", 64, &u->other));
    TRY(cuda_host_alloc(cx, u->g, 64, &u->pinned, &u->pinned_there));
    assert_int_equal(((char *)u->pinned)[63], 0);
    TRY(cuda_host_register(cx, u->g, u->registered, sizeof u->registered, true));
    u->is_registered = true;
    TRY(cuda_upload(cx, u->g, u->memory, "sixteen bytes...", 16));
    TRY(cuda_copy_on(cx, u->g, u->s, u->other, u->memory, 16));
    TRY(cuda_fill_on(cx, u->g, u->s, u->other + 7, '-', 1));
    TRY(cuda_download_on(cx, u->g, u->s, u->back, u->other, 16));
    assert_memory_equal(u->back, "sixteen-bytes...", 16);
    TRY(cuda_upload_on(cx, u->g, u->s, u->other, u->back, 8));
    TRY(cuda_download(cx, u->g, u->back + 32, u->other, 8));
    assert_memory_equal(u->back + 32, "sixteen-", 8);
    return MPK_OK;
}

/* Two mappings of the same memory, as two processes would have them. */
static mpk_status use_shared(mpk_context *cx, use *u)
{
    cuda_address there;
    TRY(cuda_host_map(cx, u->g, u->mapped, sizeof u->mapped, &there));
    u->is_mapped = true;
    assert_int_equal(there, (uintptr_t)u->mapped);
    TRY(cuda_shared_make(cx, u->g, "what is shared", 100, &u->made, &u->descriptor));
    TRY(cuda_shared_open(cx, u->g, u->descriptor, u->made.n_bytes, &u->opened));
    assert_true(u->made.n_bytes >= 100 && u->opened.n_bytes == u->made.n_bytes);
    assert_true(u->made.at != u->opened.at);
    TRY(cuda_upload(cx, u->g, u->made.at + 90, "both see", 8));
    TRY(cuda_download(cx, u->g, u->back, u->opened.at + 90, 8));
    assert_memory_equal(u->back, "both see", 8);
    return MPK_OK;
}

/* The stand-in's stream has always ended; so only that the calls are made, and in a valid order. */
static mpk_status use_events(mpk_context *cx, use *u)
{
    float ms;
    bool done;
    TRY(cuda_event_create(cx, u->g, true, &u->from));
    TRY(cuda_event_create(cx, u->g, true, &u->to));
    TRY(cuda_event_record(cx, u->g, u->from, u->s));
    TRY(cuda_event_record(cx, u->g, u->to, u->s));
    TRY(cuda_event_wait(cx, u->g, u->to));
    TRY(cuda_event_elapsed(cx, u->g, u->from, u->to, &ms));
    assert_true(ms == 1.0f);
    TRY(cuda_stream_after(cx, u->g, u->s, u->to));
    TRY(cuda_stream_poll(cx, u->g, u->s, &done));
    assert_true(done);
    TRY(cuda_stream_wait(cx, u->g, u->s));
    return cuda_gpu_wait(cx, u->g);
}

/* is_recording tells end_all that a recording has to be ended, also where the end itself failed. */
static mpk_status record_launches(mpk_context *cx, use *u, cuda_launch *l)
{
    TRY(cuda_graph_begin(cx, u->g, u->s));
    u->is_recording = true;
    TRY(cuda_launch_on(cx, u->g, u->s, l));
    TRY(cuda_launch_on(cx, u->g, u->s, l));
    u->is_recording = false;
    TRY(cuda_graph_end(cx, u->g, u->s, MPK_OK, &u->graph));
    return cuda_graph_launch(cx, u->g, u->graph, u->s);
}

/* A launch by itself, with the flag of a cooperative one, and two that are recorded, early ones. */
static mpk_status use_code(mpk_context *cx, use *u)
{
    cuda_address at;
    uint64_t n, argument = 77;
    cuda_function_facts f;
    void *arguments[] = {&argument};
    cuda_launch l = {.name = "kernel",
                     .n_blocks = 8,
                     .n_threads = 384,
                     .shared_bytes = 200000,
                     .arguments = arguments};
    TRY(cuda_module_load(cx, u->g, "test.ptx", (str){ptx, sizeof ptx}, &u->m));
    TRY(cuda_module_function(cx, u->g, u->m, "kernel", &l.function));
    TRY(cuda_module_variable(cx, u->g, u->m, "variable", &at, &n));
    TRY(cuda_function_describe(cx, u->g, l.function, &f));
    assert_int_equal(f.registers, 168);
    assert_int_equal(f.binary, 90);
    TRY(cuda_function_allow_shared(cx, u->g, l.function, l.shared_bytes));
    TRY(cuda_launch_check(cx, u->g, &l));
    l.cooperative = true;
    TRY(cuda_launch_on(cx, u->g, u->s, &l));
    l.cooperative = false;
    l.early = true;
    return record_launches(cx, u, &l);
}

/* Everything of the driver that mpk uses, once; the tests let each call of it fail. */
static mpk_status use_all(mpk_context *cx, use *u)
{
    TRY(cuda_driver_open(cx, &u->d));
    assert_int_equal(cuda_driver_version(u->d), 13000);
    TRY(cuda_gpu_open(cx, u->d, 0, &u->g));
    TRY(cuda_gpu_use(cx, u->g));
    TRY(cuda_stream_create(cx, u->g, &u->s));
    TRY(use_memory(cx, u));
    TRY(use_shared(cx, u));
    TRY(use_events(cx, u));
    return use_code(cx, u);
}

/* In any state, also of a run that failed half-way. */
static void end_all(use *u)
{
    mpk_context cx = {0};
    if (u->is_recording)
        cuda_graph_end(&cx, u->g, u->s, MPK_OK, &u->graph);
    if (u->is_registered)
        cuda_host_unregister(u->g, u->registered);
    if (u->is_mapped)
        cuda_host_unregister(u->g, u->mapped);
    if (u->descriptor)
        close(u->descriptor);
    if (u->g) {
        cuda_shared_release(u->g, &u->opened);
        cuda_shared_release(u->g, &u->made);
        cuda_graph_release(u->g, u->graph);
        cuda_module_release(u->g, u->m);
        cuda_event_release(u->g, u->from);
        cuda_event_release(u->g, u->to);
        cuda_host_release(u->g, u->pinned);
        cuda_memory_release(u->g, u->memory);
        cuda_memory_release(u->g, u->other);
        cuda_stream_release(u->g, u->s);
    }
    cuda_gpu_close(u->g);
    cuda_driver_close(u->d);
}

/* `after`: what was done, for the message. */
static void check_no_leaks(const fake_cuda_face *fake, const char *after)
{
    char words[256];
    fake->leaks(words, sizeof words);
    if (words[0])
        fail_msg("after %s there live %s", after, words);
}

/* words: what fails, as fake_cuda.h has it. */
static const fake_cuda_face *start(const char *words)
{
    const fake_cuda_face *fake = fake_cuda_start(words);
    assert_non_null(fake);
    return fake;
}

/* What is in the stand-in's last launch came through a graph, so recording has kept it all. */
static void everything_works(void **state)
{
    (void)state;
    mpk_context cx = {0};
    use u = {0};
    fake_launch l;
    const fake_cuda_face *fake = start(NULL);
    check_ok(&cx, use_all(&cx, &u));
    assert_int_equal(fake->launches(), 3);
    fake->last(&l);
    assert_int_equal(l.argument, 77);
    assert_int_equal(l.n_blocks, 8);
    assert_int_equal(l.n_threads, 384);
    assert_true(l.from_graph && l.early && !l.cooperative);
    const cuda_facts *f = cuda_gpu_facts(u.g);
    assert_string_equal(f->name, "Fake GPU 0");
    assert_int_equal(f->major * 10 + f->minor, 90);
    assert_int_equal(f->n_sms, 8);
    assert_int_equal(f->shared_bytes, 232448);
    assert_true(f->maps_host && f->cooperative);
    end_all(&u);
    check_no_leaks(fake, "a run without failures");
}

/* Each call that the run above makes fails once: a status with the entry point's name, and nothing
 * remains. */
static void every_failure_is_a_status(void **state)
{
    (void)state;
    mpk_context cx = {0};
    unsigned n_failures = 0;
    const fake_cuda_face *fake = start(NULL);
    use counted = {0};
    check_ok(&cx, use_all(&cx, &counted));
    unsigned n[112] = {0};
    for (unsigned i = 0; fake->entry(i); i++)
        n[i] = fake->calls(fake->entry(i));
    end_all(&counted);
    for (unsigned i = 0; fake->entry(i); i++)
        for (unsigned call = 1; call <= n[i]; call++) {
            char words[128];
            const char *name = fake->entry(i);
            snprintf(words, sizeof words, "fail:%s:%u", name, call);
            fake = start(words);
            use u = {0};
            status_clear(&cx);
            mpk_status status = use_all(&cx, &u);
            /* a release that fails has released; only the graph's source and handles of memory are
             * released in the run itself */
            const bool releases =
                strcmp(name, "cuGraphDestroy") == 0 || strcmp(name, "cuMemRelease") == 0;
            if (!releases && (status == MPK_OK || !strstr(cx.text, name)))
                fail_msg("%s: got %s: %s", words, status_sentence(status), cx.text);
            n_failures++;
            end_all(&u);
            check_no_leaks(fake, words);
        }
    print_message("%u failures\n", n_failures);
    assert_true(n_failures > 60);
}

/* A user who meets these can do something: the message must say what. */
static void statuses_say_what_to_do(void **state)
{
    (void)state;
    mpk_context cx = {0};
    static const struct {
        const char *words, *needle;
        mpk_status status;
    } cases[] = {
        {"gpus:0", "CUDA_VISIBLE_DEVICES", MPK_EUNSUPPORTED},
        {"version:11040", "11.4, too old: update", MPK_EUNSUPPORTED},
        {"fail:cuInit:1:803", "reboot", MPK_EUNSUPPORTED},
        {"fail:cuDevicePrimaryCtxRetain:1:46", "another process has the GPU", MPK_EDEVICE},
        {"fail:cuMemAlloc:1:2",
         "of Fake GPU 0's memory for weights (1.000 GiB are free): out of memory", MPK_ENOMEM},
        {"fail:cuStreamSynchronize:1:719", "lost to this process", MPK_EDEVICE},
        {"fail:cuStreamSynchronize:1:700", "lost to this process", MPK_EDEVICE},
        {"fail:cuModuleLoadDataEx:1:209", "compile again for this one", MPK_EUNSUPPORTED},
        {"blocks:0", "do not fit Fake GPU 0 at the same time", MPK_ELIMIT},
        {"shared:101376", "gives a block 101376", MPK_ELIMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fake_cuda_face *fake = start(cases[i].words);
        use u = {0};
        check_fails(&cx, cases[i].status, cases[i].needle, use_all(&cx, &u));
        end_all(&u);
        check_no_leaks(fake, cases[i].words);
    }
}

/* No file of that name, and a file that is another library. */
static void drivers_that_are_none(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_driver *d;
    setenv("MPK_LIBCUDA", "/no/such/libcuda.so", 1);
    check_fails(&cx, MPK_EUNSUPPORTED, "no NVIDIA driver", cuda_driver_open(&cx, &d));
    setenv("MPK_LIBCUDA", "libm.so.6", 1); /* a library, but not this one */
    check_fails(&cx, MPK_EUNSUPPORTED, "libm.so.6 has no cuInit", cuda_driver_open(&cx, &d));
}

/* The first GPU, which stays current on this thread. */
static void open_with(mpk_context *cx, const char *words, cuda_driver **d, cuda_gpu **g)
{
    start(words);
    check_ok(cx, cuda_driver_open(cx, d));
    check_ok(cx, cuda_gpu_open(cx, *d, 0, g));
}

/* What callers may get wrong: refused by us where the driver would crash or say nothing. */
static void wrong_arguments(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_driver *d;
    cuda_gpu *g, *none;
    cuda_address at;
    cuda_module m;
    cuda_function f;
    open_with(&cx, "memory:4096", &d, &g);
    check_fails(&cx, MPK_EARG, "there is no GPU 1", cuda_gpu_open(&cx, d, 1, &none));
    check_fails(&cx, MPK_ENOMEM, "lower --context",
                cuda_memory_alloc(&cx, g, "weights", 8192, &at));
    check_ok(&cx, cuda_memory_alloc(&cx, g, "nothing", 0, &at));
    assert_int_equal(at, 0);
    check_fails(&cx, MPK_EDEVICE, "lost to this process", cuda_upload(&cx, g, 4096, "x", 1));
    check_fails(&cx, MPK_EFORMAT, "no code", cuda_module_load(&cx, g, "a.cubin", (str){"", 0}, &m));
    check_fails(&cx, MPK_EFORMAT, "neither machine code nor PTX",
                cuda_module_load(&cx, g, "a.ptx", (str){".version", 8}, &m));
    check_fails(&cx, MPK_EFORMAT, "the driver's compiler says: line 7: syntax error",
                cuda_module_load(&cx, g, "a.ptx", (str){".version bad", 13}, &m));
    check_ok(&cx, cuda_module_load(&cx, g, "a.cubin", (str){"\177ELF....", 8}, &m));
    check_fails(&cx, MPK_EFORMAT, "find the kernel missing",
                cuda_module_function(&cx, g, m, "missing", &f));
    cuda_module_release(g, m);
    cuda_gpu_close(g);
    cuda_driver_close(d);
}

/* A thread has no current GPU until it says so. */
static void *on_another_thread(void *argument)
{
    cuda_gpu *g = argument;
    static mpk_context cx;
    cuda_address at;
    if (cuda_memory_alloc(&cx, g, "weights", 64, &at) != MPK_EDEVICE ||
        cuda_gpu_use(&cx, g) != MPK_OK || cuda_memory_alloc(&cx, g, "weights", 64, &at) != MPK_OK)
        return cx.text;
    cuda_memory_release(g, at);
    return NULL;
}

/* Tensors of a machine may be written from any thread: each must say which GPU it means. */
static void threads_make_it_current(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_driver *d;
    cuda_gpu *g;
    pthread_t thread;
    void *fault;
    open_with(&cx, NULL, &d, &g);
    assert_int_equal(pthread_create(&thread, NULL, on_another_thread, g), 0);
    pthread_join(thread, &fault);
    assert_null(fault);
    cuda_gpu_close(g);
    cuda_driver_close(d);
}

/* Who looks at a GPU, or holds it for a while, leaves the thread's own one current, or none. */
static void looking_changes_no_context(void **state)
{
    (void)state;
    mpk_context cx = {0};
    cuda_driver *d;
    cuda_gpu *own;
    cuda_device_facts facts;
    cuda_held *held;
    start("gpus:2");
    check_ok(&cx, cuda_driver_open(&cx, &d));
    check_ok(&cx, cuda_gpu_open(&cx, d, 0, &own));
    for (int has_one = 1; has_one >= 0; has_one--) {
        if (!has_one)
            cuda_driver_leave(d, NULL);
        const cuda_context before = cuda_driver_current(d);
        assert_int_equal(before != NULL, has_one);
        check_ok(&cx, cuda_probe(&cx, 1, &facts));
        assert_ptr_equal(cuda_driver_current(d), before);
        check_ok(&cx, cuda_hold(&cx, 1 - (uint32_t)has_one, &held));
        assert_ptr_equal(cuda_driver_current(d), before);
        check_ok(&cx, cuda_probe(&cx, 1, &facts));
        if (has_one)
            cuda_driver_leave(d, NULL);
        cuda_let_go(held); /* whatever is current now stays so */
        assert_null(cuda_driver_current(d));
        cuda_driver_leave(d, before);
    }
    cuda_gpu_close(own);
    cuda_driver_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_works),
        cmocka_unit_test(every_failure_is_a_status),
        cmocka_unit_test(statuses_say_what_to_do),
        cmocka_unit_test(drivers_that_are_none),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(threads_make_it_current),
        cmocka_unit_test(looking_changes_no_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
