/* driver.h - an NVIDIA GPU through its driver: libcuda opened when the program runs, no toolkit, no
 * headers of CUDA.
 *
 * Every call of the driver is wrapped by a function here that turns a failure into a status with
 * what, where and what to do.  Statuses: MPK_ENOMEM (of the GPU or the host), MPK_EUNSUPPORTED (no
 * driver, no GPU, not this GPU), MPK_EARG, MPK_ELIMIT (a launch that does not fit), MPK_EDEVICE
 * (the rest; after a fault inside a kernel the GPU is lost to the process, which the message says,
 * and every later call returns it again).
 *
 * Threads: a cuda_driver and a cuda_gpu may be used by any number of threads.  Everything below
 * cuda_gpu_use wants the GPU to be current on the calling thread; the thread that opened it has it
 * so.
 *
 * Release functions return nothing: what they free is gone in any case.
 */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

typedef uint64_t cuda_address; /* in the GPU's address space; 0: nothing */
typedef struct cuda_driver cuda_driver;
typedef struct cuda_gpu cuda_gpu;
/* NULL: the default stream, which waits for the blocking ones */
typedef struct CUstream_st *cuda_stream;
typedef struct CUevent_st *cuda_event;
typedef struct CUmod_st *cuda_module;
typedef struct CUfunc_st *cuda_function;
typedef struct CUgraphExec_st *cuda_graph; /* ready to launch */
typedef struct CUctx_st *cuda_context;     /* which GPU is current on a thread; NULL: none */

/* ---- The driver and its GPUs ---- */

/* Open libcuda (MPK_LIBCUDA: its path; else libcuda.so.1 where the loader finds it).
 * MPK_EUNSUPPORTED: there is none, or one older than what we need.  Close it after every GPU. */
mpk_status cuda_driver_open(mpk_context *cx, cuda_driver **out);
/* Is there a libcuda at all?  Where none is there is nothing to mend. */
bool cuda_driver_is_there(void);
/* NULL is allowed. */
void cuda_driver_close(cuda_driver *d);
/* The CUDA version that the driver implements, 1000 * major + 10 * minor: 13000. */
uint32_t cuda_driver_version(const cuda_driver *d);
/* GPUs that this process may use (CUDA_VISIBLE_DEVICES counts). */
uint32_t cuda_driver_gpus(const cuda_driver *d);

typedef struct cuda_facts {
    char name[128], pci[32]; /* "NVIDIA H100 80GB HBM3", "0000:19:00.0" */
    uint32_t major, minor;   /* compute capability */
    uint32_t n_sms;
    uint64_t memory_bytes;
    uint32_t shared_bytes;    /* that one block may have, after cuda_function_allow_shared */
    uint32_t shared_sm_bytes; /* of an SM */
    uint32_t registers_sm, threads_sm;
    uint32_t l2_bytes, clock_khz;
    /* its memory's bandwidth, from clock and width of the bus; 0: not said */
    uint64_t memory_bytes_s;
    bool maps_host;   /* kernels read and write pinned host memory */
    bool cooperative; /* launches whose blocks are all resident, or that fail */
} cuda_facts;

/* What GPU `index` is; nothing is set up on it.  MPK_EARG: there is no such GPU. */
mpk_status cuda_driver_describe(mpk_context *cx, const cuda_driver *d, uint32_t index,
                                cuda_facts *out);

/* Retain the primary context of GPU `index` (the one that PyTorch uses too) and make it current on
 * this thread. */
mpk_status cuda_gpu_open(mpk_context *cx, cuda_driver *d, uint32_t index, cuda_gpu **out);
/* Release it, from any thread; what was allocated and not freed stays the process's.  NULL is
 * allowed. */
void cuda_gpu_close(cuda_gpu *g);
const cuda_facts *cuda_gpu_facts(const cuda_gpu *g);
/* Make it current on the calling thread. */
mpk_status cuda_gpu_use(mpk_context *cx, cuda_gpu *g);
/* The same, and back to what was current before: for threads that use GPUs on their own, too. */
mpk_status cuda_gpu_enter(mpk_context *cx, cuda_gpu *g, cuda_context *before);
void cuda_gpu_leave(cuda_gpu *g, cuda_context before);
/* What is current on the calling thread. */
cuda_context cuda_driver_current(const cuda_driver *d);
/* Make it so again; NULL: none is.  Before a GPU is closed: a context that is no longer held
 * must not stay current on a thread. */
void cuda_driver_leave(const cuda_driver *d, cuda_context before);
/* Wait until everything that was started on it has ended.  Never returns while a persistent kernel
 * runs. */
mpk_status cuda_gpu_wait(mpk_context *cx, cuda_gpu *g);

/* ---- Links between GPUs ---- */

typedef struct cuda_link {
    bool reaches;  /* kernels of the first read and write the second's memory */
    bool atomics;  /* and change single words there: NVLink does, PCIe does not */
    uint32_t rank; /* 0: the fastest kind of link in this machine */
} cuda_link;

/* From one GPU to another.  MPK_EARG: there is no such GPU. */
mpk_status cuda_driver_link(mpk_context *cx, const cuda_driver *d, uint32_t from, uint32_t to,
                            cuda_link *out);
/* Let kernels of g reach all memory of `to`, what is allocated later too; g is current.  *made: it
 * was not so before (PyTorch may have done it), so that the caller that switched it on ends it by
 * cuda_gpu_unreach.  MPK_EUNSUPPORTED: no link. */
mpk_status cuda_gpu_reach(mpk_context *cx, cuda_gpu *g, cuda_gpu *to, bool *made);
void cuda_gpu_unreach(cuda_gpu *g, cuda_gpu *to);

/* ---- Memory ---- */

mpk_status cuda_memory_available(mpk_context *cx, cuda_gpu *g, uint64_t *free_bytes,
                                 uint64_t *total_bytes);
/* n bytes, aligned to 256 at least, not zeroed; n = 0: *out = 0.  MPK_ENOMEM says how many are
 * free.  `what` is for that message: "weights". */
mpk_status cuda_memory_alloc(mpk_context *cx, cuda_gpu *g, const char *what, uint64_t n,
                             cuda_address *out);
/* 0 is allowed.  Waits for kernels that run. */
void cuda_memory_release(cuda_gpu *g, cuda_address at);

/* Pinned host memory that kernels read and write too: *host here, *device there; zeroed. */
mpk_status cuda_host_alloc(mpk_context *cx, cuda_gpu *g, uint64_t n, void **host,
                           cuda_address *device);
/* NULL is allowed. */
void cuda_host_release(cuda_gpu *g, void *host);
/* Pin memory that the caller owns, so that copies from it run at the speed of the bus.  read_only:
 * a mapped file.  A refusal is a status that the caller may ignore: copies work without. */
mpk_status cuda_host_register(mpk_context *cx, cuda_gpu *g, void *host, uint64_t n, bool read_only);
void cuda_host_unregister(cuda_gpu *g, void *host);

/* The same for memory that kernels reach too: *device, until cuda_host_unregister. */
mpk_status cuda_host_map(mpk_context *cx, cuda_gpu *g, void *host, uint64_t n,
                         cuda_address *device);

/* ---- Memory that processes share (driver_shared.c) ---- */

/* Memory of one GPU as this process sees it; zeros: none.  It lives until the last process that has
 * it mapped releases it or ends, so kernels may go on storing to the memory of a process that was
 * killed. */
typedef struct cuda_shared {
    cuda_address at;
    uint64_t n_bytes; /* at least those that were asked for: a multiple of the driver's pages */
} cuda_shared;

/* Memory of g, which kernels of g reach, and a descriptor by which another process opens it; the
 * caller closes that.  Statuses and `what` as of cuda_memory_alloc. */
mpk_status cuda_shared_make(mpk_context *cx, cuda_gpu *g, const char *what, uint64_t n,
                            cuda_shared *out, int *descriptor);
/* n bytes that another process has made on a GPU to which g has a link, for kernels of g.  The
 * descriptor stays the caller's. */
mpk_status cuda_shared_open(mpk_context *cx, cuda_gpu *g, int descriptor, uint64_t n,
                            cuda_shared *out);
/* *s is zeros afterwards; of zeros nothing.  No kernel of this process may touch it any more. */
void cuda_shared_release(cuda_gpu *g, cuda_shared *s);

/* ---- Copies ---- */

/* Copies.  The first two have ended when they return. Those on a stream have ended when the stream
 * has; their host memory must be pinned, or they wait. */
mpk_status cuda_upload(mpk_context *cx, cuda_gpu *g, cuda_address to, const void *from, uint64_t n);
mpk_status cuda_download(mpk_context *cx, cuda_gpu *g, void *to, cuda_address from, uint64_t n);
mpk_status cuda_upload_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_address to,
                          const void *from, uint64_t n);
mpk_status cuda_download_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, void *to,
                            cuda_address from, uint64_t n);
mpk_status cuda_copy_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_address to,
                        cuda_address from, uint64_t n);
/* n bytes of value. */
mpk_status cuda_fill_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_address to, uint8_t value,
                        uint64_t n);

/* An entry point that is not needed to run: NULL if this driver is too old to have it. */
void *cuda_find_entry(const cuda_gpu *g, const char *symbol);

/* ---- Streams and events ---- */

/* Does not wait for the default stream. */
mpk_status cuda_stream_create(mpk_context *cx, cuda_gpu *g, cuda_stream *out);
void cuda_stream_release(cuda_gpu *g, cuda_stream s);
mpk_status cuda_stream_wait(mpk_context *cx, cuda_gpu *g, cuda_stream s);
/* *done: everything on it has ended. */
mpk_status cuda_stream_poll(mpk_context *cx, cuda_gpu *g, cuda_stream s, bool *done);
/* Is what is put on it recorded for a CUDA graph, by anyone? */
mpk_status cuda_stream_is_captured(mpk_context *cx, cuda_gpu *g, cuda_stream s, bool *yes);
/* What is put on s from now on waits for e. */
mpk_status cuda_stream_after(mpk_context *cx, cuda_gpu *g, cuda_stream s, cuda_event e);

/* timed: for cuda_event_elapsed. */
mpk_status cuda_event_create(mpk_context *cx, cuda_gpu *g, bool timed, cuda_event *out);
void cuda_event_release(cuda_gpu *g, cuda_event e);
mpk_status cuda_event_record(mpk_context *cx, cuda_gpu *g, cuda_event e, cuda_stream s);
mpk_status cuda_event_wait(mpk_context *cx, cuda_gpu *g, cuda_event e);
/* Milliseconds between two timed events that have both come. */
mpk_status cuda_event_elapsed(mpk_context *cx, cuda_gpu *g, cuda_event from, cuda_event to,
                              float *ms);

/* ---- Code ---- */

/* Machine code (cubin) or PTX, told apart by their first bytes; PTX is translated by the driver,
 * whose words are in the message if it fails.  name: for messages. */
mpk_status cuda_module_load(mpk_context *cx, cuda_gpu *g, const char *name, str code,
                            cuda_module *out);
void cuda_module_release(cuda_gpu *g, cuda_module m);
mpk_status cuda_module_function(mpk_context *cx, cuda_gpu *g, cuda_module m, const char *name,
                                cuda_function *out);
/* A __device__ or __constant__ variable; n_bytes may be NULL. */
mpk_status cuda_module_variable(mpk_context *cx, cuda_gpu *g, cuda_module m, const char *name,
                                cuda_address *out, uint64_t *n_bytes);

typedef struct cuda_function_facts {
    uint32_t registers;    /* of a thread */
    uint32_t local_bytes;  /* of a thread: spilled registers and arrays; 0 in good code */
    uint32_t shared_bytes; /* static */
    uint32_t max_threads;  /* of a block */
    uint32_t binary;       /* 90: what the machine code was made for */
} cuda_function_facts;

mpk_status cuda_function_describe(mpk_context *cx, cuda_gpu *g, cuda_function f,
                                  cuda_function_facts *out);
/* Let blocks of f have n bytes of dynamic shared memory.  MPK_ELIMIT: more than the GPU has. */
mpk_status cuda_function_allow_shared(mpk_context *cx, cuda_gpu *g, cuda_function f, uint32_t n);

typedef struct cuda_launch {
    cuda_function function;
    const char *name;                           /* for messages */
    uint32_t n_blocks, n_threads, shared_bytes; /* shared_bytes: dynamic */
    void **arguments;                           /* one pointer to each argument of the kernel */
    bool cooperative;                           /* all blocks at the same time, or MPK_ELIMIT */
    /* may start before the kernel before it on the stream has ended (programmatic dependent
     * launch) */
    bool early;
} cuda_launch;

/* Blocks of this shape that one SM holds. */
mpk_status cuda_launch_occupancy(mpk_context *cx, cuda_gpu *g, const cuda_launch *l,
                                 uint32_t *blocks_per_sm);
/* MPK_ELIMIT with registers, threads and shared memory in words, unless all its blocks fit at the
 * same time. */
mpk_status cuda_launch_check(mpk_context *cx, cuda_gpu *g, const cuda_launch *l);
mpk_status cuda_launch_on(mpk_context *cx, cuda_gpu *g, cuda_stream s, const cuda_launch *l);

/* ---- Graphs: many launches recorded, then started as one ---- */

/* What this thread puts on s until the end is recorded and not run.  Between the two only launches,
 * copies and fills on a stream are allowed.  status: how these went; after a failure call
 * cuda_graph_end all the same: it ends the recording and returns that failure, whose words stay in
 * cx. */
mpk_status cuda_graph_begin(mpk_context *cx, cuda_gpu *g, cuda_stream s);
mpk_status cuda_graph_end(mpk_context *cx, cuda_gpu *g, cuda_stream s, mpk_status status,
                          cuda_graph *out);
mpk_status cuda_graph_launch(mpk_context *cx, cuda_gpu *g, cuda_graph graph, cuda_stream s);
void cuda_graph_release(cuda_gpu *g, cuda_graph graph);

#endif
