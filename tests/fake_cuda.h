/* fake_cuda.h - a stand-in for libcuda: GPUs whose memory is the host's, which count everything and
 * fail on demand.
 *
 * A test calls fake_cuda_start and then uses cuda/driver.h as ever.  What the GPU is and which
 * calls fail is said in MPK_FAKE_CUDA, words with commas between:
 *     fail:cuMemAlloc:3        the third call of cuMemAlloc since the reset fails with
 *                              CUDA_ERROR_UNKNOWN
 *     fail:cuMemAlloc:3:2      the same with error 2
 *     gpus:0  version:11040  capability:86  sms:4  shared:101376  memory:1048576  blocks:1 (that an
 *     SM holds) links:0 (GPUs do not reach each other)  atomics:0 (they do by a link that has none)
 *     island:2 (GPUs 0 and 1 reach each other, 2 and 3, and so on)
 *     more:4096 (bytes of memory that all GPUs but the first have more)
 *     bus:8 (the first GPU is at 0000:09:00.0, not at 0000:01:00.0)
 *     busy:1 (work on streams of GPU 1 is never done, as with a kernel that does not end)
 *
 * Streams run at once, on the calling thread.  A kernel does nothing, unless the test gives it a
 * function.  Kernels have one argument of 8 bytes or more, or none; addresses that were not
 * allocated are refused, as are calls of a thread without a current context.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct fake_launch {
    const char *function;
    unsigned n_blocks, n_threads, shared_bytes;
    int cooperative, early, from_graph, device;
    uint64_t argument;       /* its first 8 bytes; 0: none */
    const void *argument_at; /* all of it, while it is launched; NULL: by a graph, or none */
} fake_launch;

typedef void fake_kernel(void *user, const fake_launch *l);

/* What the library exports beside the driver's entry points, as `fake_cuda`. */
typedef struct fake_cuda_face {
    /* counters of calls, launches and faults begin anew; no GPU is current on this thread */
    void (*reset)(void);
    void (*leaks)(char *words, size_t n); /* "" or "2 memory, 1 stream": what lives */
    unsigned (*launches)(void);           /* so far, those of graphs included */
    /* the last one; function is borrowed from its module */
    void (*last)(fake_launch *out);
    void (*kernel)(fake_kernel *run, void *user); /* what a launch does; NULL: nothing */
    const char *(*entry)(unsigned i);             /* names that fail: takes; NULL after the last */
    unsigned (*calls)(const char *entry);         /* since the reset */
    /* where every variable lies of the module loaded last; NULL: none was */
    const void *(*variables)(void);
    /* 1: a kernel of this device may touch these bytes */
    int (*may_touch)(int device, uint64_t at, uint64_t n);
    int (*device_of)(uint64_t at); /* whose memory this is; -1: no GPU's */
    /* so many more kernels (or fewer) go on after their launch: work on this device's streams is
     * not done until none does */
    void (*hold)(int device, int change);
} fake_cuda_face;

/* Make cuda_driver_open find the stand-in, with these words in MPK_FAKE_CUDA (NULL: none), and
 * reset it.  NULL: it was not built (the message is printed). */
static inline const fake_cuda_face *fake_cuda_start(const char *words)
{
    const char *build = getenv("MPK_BUILD");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/libfake_cuda.so", build ? build : "build");
    /* stays open: counters outlive what the test closes */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("%s (MPK_BUILD is the build folder)\n", dlerror());
        return NULL;
    }
    const fake_cuda_face *face = (const fake_cuda_face *)dlsym(library, "fake_cuda");
    setenv("MPK_LIBCUDA", path, 1);
    setenv("MPK_FAKE_CUDA", words ? words : "", 1);
    face->reset();
    return face;
}

#endif
