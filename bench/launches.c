/* launches.c - what the calls of the driver that belong to a launch cost the host.
 *
 *     launches [GPU] [microseconds]
 *
 * Each way is called CALLS times, and then waited for; printed is the least time of a call in
 * ROUNDS of these, in microseconds: on the default stream, and on one of its own.  The kernel has a
 * block for each SM with all of its shared memory, as mpk's has, and does nothing for so many
 * microseconds (0): with many, the host runs ahead.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "cuda/driver.h"

enum { CALLS = 40, ROUNDS = 25, THREADS = 256, TABLE = 400 * 8 };

static const char spin[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                           ".visible .entry spin(.param .u64 ns)\n{\n"
                           "  .reg .b64 %n, %begin, %now;\n  .reg .pred %again;\n"
                           "  ld.param.u64 %n, [ns];\n  mov.u64 %begin, %globaltimer;\n"
                           "more:\n  mov.u64 %now, %globaltimer;\n  sub.u64 %now, %now, %begin;\n"
                           "  setp.lt.u64 %again, %now, %n;\n  @%again bra more;\n  ret;\n}\n";

typedef struct bed {
    cuda_gpu *gpu;
    cuda_module module;
    cuda_function function;
    cuda_event event;
    cuda_graph graph; /* of a cooperative launch */
    cuda_stream own;
    cuda_address table;
    void *pinned;
    uint64_t ns;
} bed;

typedef mpk_status way(mpk_context *cx, bed *b, cuda_stream s);

static mpk_status launch(mpk_context *cx, bed *b, cuda_stream s, bool cooperative)
{
    const cuda_facts *f = cuda_gpu_facts(b->gpu);
    void *arguments[] = {&b->ns};
    cuda_launch l = {.function = b->function,
                     .name = "spin",
                     .n_blocks = f->n_sms,
                     .n_threads = THREADS,
                     .shared_bytes = f->shared_bytes,
                     .arguments = arguments,
                     .cooperative = cooperative};
    return cuda_launch_on(cx, b->gpu, s, &l);
}

static mpk_status enter_and_leave(mpk_context *cx, bed *b, cuda_stream s)
{
    cuda_context before;
    (void)s;
    TRY(cuda_gpu_enter(cx, b->gpu, &before));
    cuda_gpu_leave(b->gpu, before);
    return MPK_OK;
}

static mpk_status ask_for_capture(mpk_context *cx, bed *b, cuda_stream s)
{
    bool yes;
    return cuda_stream_is_captured(cx, b->gpu, s, &yes);
}

static mpk_status record(mpk_context *cx, bed *b, cuda_stream s)
{
    return cuda_event_record(cx, b->gpu, b->event, s);
}

static mpk_status launch_plainly(mpk_context *cx, bed *b, cuda_stream s)
{
    return launch(cx, b, s, false);
}

static mpk_status launch_together(mpk_context *cx, bed *b, cuda_stream s)
{
    return launch(cx, b, s, true);
}

static mpk_status launch_and_record(mpk_context *cx, bed *b, cuda_stream s)
{
    TRY(launch(cx, b, s, true));
    return record(cx, b, s);
}

static mpk_status launch_graph(mpk_context *cx, bed *b, cuda_stream s)
{
    return cuda_graph_launch(cx, b->gpu, b->graph, s);
}

static mpk_status copy_words(mpk_context *cx, bed *b, cuda_stream s)
{
    const uint64_t words[2] = {1, 2};
    return cuda_upload_on(cx, b->gpu, s, b->table, words, sizeof words);
}

static mpk_status copy_table(mpk_context *cx, bed *b, cuda_stream s)
{
    static const char table[TABLE];
    return cuda_upload_on(cx, b->gpu, s, b->table, table, sizeof table);
}

static mpk_status copy_pinned(mpk_context *cx, bed *b, cuda_stream s)
{
    return cuda_upload_on(cx, b->gpu, s, b->table, b->pinned, TABLE);
}

static mpk_status copy_words_and_launch(mpk_context *cx, bed *b, cuda_stream s)
{
    TRY(copy_words(cx, b, s));
    return launch(cx, b, s, true);
}

static mpk_status copy_table_and_launch(mpk_context *cx, bed *b, cuda_stream s)
{
    TRY(copy_table(cx, b, s));
    return launch(cx, b, s, true);
}

static const struct {
    const char *name;
    way *call;
} ways[] = {
    {"ask which context is current", enter_and_leave},
    {"ask whether the stream is captured", ask_for_capture},
    {"record an event", record},
    {"a plain launch", launch_plainly},
    {"a cooperative launch", launch_together},
    {"a cooperative launch, and an event", launch_and_record},
    {"a graph with a cooperative launch", launch_graph},
    {"copy 16 bytes", copy_words},
    {"copy 3,200 bytes", copy_table},
    {"copy 3,200 pinned bytes", copy_pinned},
    {"copy 16 bytes, cooperative launch", copy_words_and_launch},
    {"copy 3,200 bytes, cooperative launch", copy_table_and_launch},
};

static mpk_status least_time(mpk_context *cx, bed *b, way *call, cuda_stream s, double *us)
{
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        TRY(cuda_gpu_wait(cx, b->gpu));
        uint64_t begin = clock_ns();
        for (int i = 0; i < CALLS; i++)
            TRY(call(cx, b, s));
        uint64_t spent = clock_ns() - begin;
        least = spent < least ? spent : least;
    }
    *us = (double)least / CALLS / 1e3;
    return cuda_gpu_wait(cx, b->gpu);
}

static mpk_status record_graph(mpk_context *cx, bed *b)
{
    TRY(cuda_graph_begin(cx, b->gpu, b->own));
    mpk_status status = launch_together(cx, b, b->own);
    return cuda_graph_end(cx, b->gpu, b->own, status, &b->graph);
}

static mpk_status set_up(mpk_context *cx, bed *b)
{
    cuda_address there;
    TRY(cuda_module_load(cx, b->gpu, "spin", (str){spin, sizeof spin}, &b->module));
    TRY(cuda_module_function(cx, b->gpu, b->module, "spin", &b->function));
    TRY(cuda_function_allow_shared(cx, b->gpu, b->function, cuda_gpu_facts(b->gpu)->shared_bytes));
    TRY(cuda_event_create(cx, b->gpu, false, &b->event));
    TRY(cuda_stream_create(cx, b->gpu, &b->own));
    TRY(cuda_memory_alloc(cx, b->gpu, "a table", TABLE, &b->table));
    TRY(cuda_host_alloc(cx, b->gpu, TABLE, &b->pinned, &there));
    return record_graph(cx, b);
}

static mpk_status measure(mpk_context *cx, bed *b)
{
    TRY(set_up(cx, b));
    printf("%s, a kernel of %llu us: us of a call on the default stream, on another\n",
           cuda_gpu_facts(b->gpu)->name, (unsigned long long)b->ns / 1000);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        double us[2];
        TRY(least_time(cx, b, ways[i].call, NULL, &us[0]));
        TRY(least_time(cx, b, ways[i].call, b->own, &us[1]));
        printf("%-40s %7.2f %7.2f\n", ways[i].name, us[0], us[1]);
    }
    return MPK_OK;
}

static void tear_down(bed *b)
{
    cuda_graph_release(b->gpu, b->graph);
    cuda_host_release(b->gpu, b->pinned);
    cuda_memory_release(b->gpu, b->table);
    cuda_stream_release(b->gpu, b->own);
    cuda_event_release(b->gpu, b->event);
    cuda_module_release(b->gpu, b->module);
    cuda_gpu_close(b->gpu);
}

int main(int argc, char **argv)
{
    mpk_context cx = {0};
    cuda_driver *d = NULL;
    bed b = {.ns = argc > 2 ? strtoull(argv[2], NULL, 10) * 1000 : 0};
    mpk_status status = cuda_driver_open(&cx, &d);
    if (status == MPK_OK)
        status = cuda_gpu_open(&cx, d, argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0, &b.gpu);
    if (status == MPK_OK) {
        status = measure(&cx, &b);
        tear_down(&b);
    }
    cuda_driver_close(d);
    if (status != MPK_OK)
        fprintf(stderr, "launches: %s\n", cx.text);
    return status != MPK_OK;
}
