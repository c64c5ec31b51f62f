/* fake_cuda_streams.c - entry points of the stand-in for libcuda: streams, events, code, graphs.
 *
 * Work on a stream is done at once, in the calling thread; while the stream is captured it is
 * recorded, and done by cuGraphLaunch.  A kernel is the function that the test has set
 * (fake_cuda.h).  Shares the books with fake_cuda.c.
 */
#include "fake_cuda_books.h"

/* ---- streams, events ---- */

ENTRY cuStreamCreate(stream **out, unsigned flags);
ENTRY cuStreamCreate(stream **out, unsigned flags)
{
    (void)flags;
    ENTER_CURRENT("cuStreamCreate");
    *out = fake_new_handle(STREAM, sizeof **out);
    return 0;
}

ENTRY cuStreamDestroy_v2(stream *s);
ENTRY cuStreamDestroy_v2(stream *s)
{
    int code = fake_enter("cuStreamDestroy");
    return fake_end_handle(STREAM, s) ? INVALID : code;
}

ENTRY cuStreamSynchronize(stream *s);
ENTRY cuStreamSynchronize(stream *s)
{
    (void)s;
    ENTER_CURRENT("cuStreamSynchronize");
    fake_await_kernels();
    return 0;
}

ENTRY cuStreamQuery(stream *s);
ENTRY cuStreamQuery(stream *s)
{
    (void)s;
    ENTER_CURRENT("cuStreamQuery");
    const bool busy = fake_setting("busy", MAX_DEVICES) == (uint64_t)(fake_current - fake.devices);
    return busy || fake_is_held() ? NOT_READY : 0;
}

ENTRY cuStreamWaitEvent(stream *s, uint64_t *event, unsigned flags);
ENTRY cuStreamWaitEvent(stream *s, uint64_t *event, unsigned flags)
{
    (void)s;
    ENTER_CURRENT("cuStreamWaitEvent");
    return event && !flags ? 0 : INVALID;
}

ENTRY cuEventCreate(uint64_t **event, unsigned flags);
ENTRY cuEventCreate(uint64_t **event, unsigned flags)
{
    (void)flags;
    ENTER_CURRENT("cuEventCreate");
    *event = fake_new_handle(EVENT, sizeof **event);
    return 0;
}

ENTRY cuEventDestroy_v2(uint64_t *event);
ENTRY cuEventDestroy_v2(uint64_t *event)
{
    int code = fake_enter("cuEventDestroy");
    return fake_end_handle(EVENT, event) ? INVALID : code;
}

ENTRY cuEventRecord(uint64_t *event, stream *s);
ENTRY cuEventRecord(uint64_t *event, stream *s)
{
    (void)s;
    static uint64_t now;
    ENTER_CURRENT("cuEventRecord");
    pthread_mutex_lock(&fake.lock);
    *event = ++now;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

ENTRY cuEventSynchronize(uint64_t *event);
ENTRY cuEventSynchronize(uint64_t *event)
{
    ENTER_CURRENT("cuEventSynchronize");
    return event ? 0 : INVALID;
}

ENTRY cuEventElapsedTime(float *ms, uint64_t *from, uint64_t *to);
ENTRY cuEventElapsedTime(float *ms, uint64_t *from, uint64_t *to)
{
    ENTER_CURRENT("cuEventElapsedTime");
    *ms = (float)(*to - *from);
    return *from && *to ? 0 : INVALID;
}

/* ---- code ---- */

ENTRY cuModuleLoadDataEx(module **out, const char *code, unsigned n, int *options, void **values);
ENTRY cuModuleLoadDataEx(module **out, const char *code, unsigned n, int *options, void **values)
{
    ENTER_CURRENT("cuModuleLoadDataEx");
    bool machine_code = memcmp(code, "\177ELF", 4) == 0;
    if (!machine_code && strstr(code, "bad")) {
        for (unsigned i = 0; i < n; i++)
            if (options[i] == 5)
                strcpy(values[i], "line 7: syntax error near 'bad'");
        return BAD_PTX;
    }
    module *m = fake_new_handle(MODULE, sizeof *m);
    m->ptx = machine_code ? NULL : strdup(code);
    fake_add_range(MEMORY, (uintptr_t)m->variables, sizeof m->variables);
    fake.variables = m->variables;
    *out = m;
    return 0;
}

ENTRY cuModuleUnload(module *m);
ENTRY cuModuleUnload(module *m)
{
    int code = fake_enter("cuModuleUnload");
    while (m && m->functions) {
        function *f = m->functions;
        m->functions = f->next;
        free(f);
    }
    if (m) {
        fake_remove_range(MEMORY, (uintptr_t)m->variables);
        free((void *)(uintptr_t)m->ptx);
    }
    return fake_end_handle(MODULE, m) ? INVALID : code;
}

static bool has_name(const module *m, const char *name)
{
    return m->ptx ? strstr(m->ptx, name) != NULL : strncmp(name, "missing", 7) != 0;
}

ENTRY cuModuleGetFunction(function **out, module *m, const char *name);
ENTRY cuModuleGetFunction(function **out, module *m, const char *name)
{
    ENTER_CURRENT("cuModuleGetFunction");
    if (!has_name(m, name))
        return NOT_FOUND;
    function *f = calloc(1, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->next = m->functions;
    *out = m->functions = f;
    return 0;
}

ENTRY cuModuleGetGlobal_v2(uint64_t *at, size_t *n, module *m, const char *name);
ENTRY cuModuleGetGlobal_v2(uint64_t *at, size_t *n, module *m, const char *name)
{
    ENTER_CURRENT("cuModuleGetGlobal");
    *at = (uintptr_t)m->variables;
    *n = sizeof m->variables;
    return has_name(m, name) ? 0 : NOT_FOUND;
}

ENTRY cuFuncGetAttribute(int *value, int id, function *f);
ENTRY cuFuncGetAttribute(int *value, int id, function *f)
{
    static const int values[] = {1024, 512, 0, 0, 168, 90, 90, 0};
    ENTER_CURRENT("cuFuncGetAttribute");
    if (id < 0 || id > 8)
        return INVALID;
    *value = id == 8 ? f->dynamic_shared : values[id];
    return 0;
}

ENTRY cuFuncSetAttribute(function *f, int id, int value);
ENTRY cuFuncSetAttribute(function *f, int id, int value)
{
    ENTER_CURRENT("cuFuncSetAttribute");
    if (id != 8)
        return INVALID;
    f->dynamic_shared = value;
    return 0;
}

ENTRY cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, function *f, int n_threads,
                                                  size_t shared);
ENTRY cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, function *f, int n_threads, size_t shared)
{
    ENTER_CURRENT("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    *n = n_threads > 1024 || (int)shared > f->dynamic_shared ? 0 : (int)fake_setting("blocks", 1);
    return 0;
}

/* The driver's layouts, as in cuda/driver.c. */
typedef struct attribute {
    int id, padding, on;
    char rest[60];
} attribute;
typedef struct config {
    unsigned grid[3], block[3], shared_bytes;
    stream *stream;
    attribute *attributes;
    unsigned n_attributes;
} config;

static void launch(const fake_launch *l)
{
    pthread_mutex_lock(&fake.lock);
    fake.n_launches++;
    fake.last = *l;
    fake.last.argument_at = NULL;
    fake_kernel *run = fake.run;
    void *user = fake.user;
    pthread_mutex_unlock(&fake.lock);
    if (run)
        run(user, l);
}

ENTRY cuLaunchKernelEx(const config *c, function *f, void **arguments, void **extra);
ENTRY cuLaunchKernelEx(const config *c, function *f, void **arguments, void **extra)
{
    ENTER_CURRENT("cuLaunchKernelEx");
    fake_launch l = {.function = f->name,
                     .n_blocks = c->grid[0],
                     .n_threads = c->block[0],
                     .shared_bytes = c->shared_bytes,
                     .device = fake_here()};
    for (unsigned i = 0; i < c->n_attributes; i++) {
        l.cooperative |= c->attributes[i].id == 2 && c->attributes[i].on;
        l.early |= c->attributes[i].id == 6 && c->attributes[i].on;
    }
    if (extra || (int)c->shared_bytes > f->dynamic_shared + 49152 || c->block[0] > 1024 ||
        !c->grid[0])
        return INVALID;
    if (l.cooperative && c->grid[0] > fake_setting("blocks", 1) * fake_setting("sms", 8))
        return TOO_LARGE;
    if (arguments && arguments[0])
        memcpy(&l.argument, arguments[0], sizeof l.argument);
    if (c->stream && c->stream->recording) {
        fake_record(c->stream->recording, &(node){.launch = l});
        return 0;
    }
    l.argument_at = arguments ? arguments[0] : NULL;
    launch(&l);
    return 0;
}

/* ---- graphs ---- */

static void end_graph(kind k, graph *g)
{
    free(g->nodes);
    fake_end_handle(k, g);
}

ENTRY cuStreamIsCapturing(const stream *s, int *state);
ENTRY cuStreamIsCapturing(const stream *s, int *state)
{
    ENTER_CURRENT("cuStreamIsCapturing");
    *state = s && s->recording;
    return 0;
}

ENTRY cuStreamBeginCapture_v2(stream *s, int mode);
ENTRY cuStreamBeginCapture_v2(stream *s, int mode)
{
    ENTER_CURRENT("cuStreamBeginCapture");
    if (!s || s->recording || mode != 1)
        return INVALID;
    s->recording = fake_new_handle(GRAPH, sizeof *s->recording);
    return 0;
}

ENTRY cuStreamEndCapture(stream *s, graph **out);
ENTRY cuStreamEndCapture(stream *s, graph **out)
{
    int code = fake_enter("cuStreamEndCapture");
    graph *g = s->recording;
    s->recording = NULL;
    if (!g)
        return INVALID;
    if (code)
        end_graph(GRAPH, g);
    else
        *out = g;
    return code;
}

ENTRY cuGraphInstantiateWithFlags(graph **out, const graph *recorded, unsigned long long flags);
ENTRY cuGraphInstantiateWithFlags(graph **out, const graph *recorded, unsigned long long flags)
{
    ENTER_CURRENT("cuGraphInstantiateWithFlags");
    if (flags)
        return INVALID;
    graph *g = fake_new_handle(READY_GRAPH, sizeof *g);
    for (size_t i = 0; i < recorded->n; i++)
        fake_record(g, &recorded->nodes[i]);
    *out = g;
    return 0;
}

ENTRY cuGraphDestroy(graph *g);
ENTRY cuGraphDestroy(graph *g)
{
    int code = fake_enter("cuGraphDestroy");
    end_graph(GRAPH, g);
    return code;
}

ENTRY cuGraphLaunch(const graph *g, stream *s);
ENTRY cuGraphLaunch(const graph *g, stream *s)
{
    (void)s;
    ENTER_CURRENT("cuGraphLaunch");
    for (size_t i = 0; i < g->n; i++)
        if (g->nodes[i].n_bytes)
            fake_copy(g->nodes[i].to, false, g->nodes[i].from, true, g->nodes[i].n_bytes);
        else
            launch(&g->nodes[i].launch);
    return 0;
}

ENTRY cuGraphExecDestroy(graph *g);
ENTRY cuGraphExecDestroy(graph *g)
{
    int code = fake_enter("cuGraphExecDestroy");
    end_graph(READY_GRAPH, g);
    return code;
}
