/* fake_cuda_books.h - what the entry points of the stand-in for libcuda share (fake_cuda.h).
 *
 * One set of books for the whole process, under one lock: devices, ranges of memory, living handles
 * by kind, calls by entry point.  Handles are real allocations, so that a sanitizer sees a use
 * after release.  Included by fake_cuda_books.c, which keeps the books and answers tests,
 * fake_cuda.c
 * (driver, links, memory), fake_cuda_shared.c (memory that processes share) and fake_cuda_streams.c
 * (streams, code, graphs).
 */
#ifndef TESTS_FAKE_CUDA_BOOKS_H
#define TESTS_FAKE_CUDA_BOOKS_H

#include "fake_cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    INVALID = 1,
    NO_MEMORY = 2,
    NO_CONTEXT = 201,
    BAD_PTX = 218,
    NO_PEER = 217,
    NOT_FOUND = 500,
    NOT_READY = 600,
    BAD_ADDRESS = 700,
    PEER_ALREADY = 704,
    CONTEXT_DESTROYED = 709,
    TOO_LARGE = 720
};

typedef enum kind {
    CONTEXT,
    MEMORY,
    PINNED,
    REGISTERED,
    STREAM,
    EVENT,
    MODULE,
    GRAPH,
    READY_GRAPH,
    ACCESS,
    SHARED,   /* a handle of memory that processes share */
    RESERVED, /* addresses for it */
    MAPPED,   /* it, at these */
    N_KINDS
} kind;

/* Ranges of memory that the driver knows. */
typedef struct range {
    struct range *next;
    kind kind;
    int device;
    uint64_t at, n;
    uint32_t touched_by; /* MAPPED: bit d: device d has access */
} range;

typedef struct function {
    struct function *next;
    char name[128];
    int dynamic_shared;
} function;
typedef struct module {
    /* a copy; NULL: machine code, which has every name but those that begin with "missing" */
    const char *ptx;
    function *functions;
    char variables[256];
} module;
/* A launch, or a copy to the host. */
typedef struct node {
    fake_launch launch;
    uint64_t to, from;
    size_t n_bytes; /* 0: a launch */
} node;
typedef struct graph {
    node *nodes;
    size_t n;
} graph;
typedef struct stream {
    graph *recording; /* NULL: runs */
} stream;

enum { MAX_ENTRIES = 112, MAX_DEVICES = 16 };

/* A device is its own context; the thread's current one is fake_current. */
typedef struct gpu {
    int retained; /* 0: its context is destroyed, or was never made */
    bool reaches[MAX_DEVICES];
    uint64_t used_bytes;
} gpu;

typedef struct fake_books {
    pthread_mutex_t lock;
    int live[N_KINDS];
    gpu devices[MAX_DEVICES];
    range *ranges;
    const char *entries[MAX_ENTRIES];
    unsigned calls[MAX_ENTRIES], n_launches;
    fake_launch last;
    fake_kernel *run;
    void *user;
    const void *variables; /* of the module loaded last */
    int held[MAX_DEVICES]; /* kernels that go on after their launch */
} fake_books;

extern fake_books fake;
extern _Thread_local gpu *fake_current;

#define ENTRY EXPORT int
/* Every entry point begins with one of these: it counts the call, and fails it if MPK_FAKE_CUDA
 * says so, or, the second one, if the thread has no context. */
#define ENTER(entry)                   \
    do {                               \
        int code_ = fake_enter(entry); \
        if (code_)                     \
            return code_;              \
    } while (0)
#define ENTER_CURRENT(entry)           \
    do {                               \
        ENTER(entry);                  \
        const int no_ = fake_usable(); \
        if (no_)                       \
            return no_;                \
    } while (0)

/* 0, or the error of a thread that has no context or one that was destroyed. */
int fake_usable(void);

/* The device of the thread; the first where none is current. */
int fake_here(void);
/* Kernels that the test has let go on, of the thread's device. */
bool fake_is_held(void);
void fake_await_kernels(void);
/* The number after `word:` in MPK_FAKE_CUDA, else `otherwise`. */
uint64_t fake_setting(const char *word, uint64_t otherwise);
/* Count a call; the error that it is to return, or 0. */
int fake_enter(const char *entry);

/* So many more (or fewer) of a kind are alive. */
void fake_count(kind k, int change);
/* A handle of zeros, counted as alive until its end.  INVALID: there is none. */
void *fake_new_handle(kind k, size_t bytes);
int fake_end_handle(kind k, void *handle);

/* Memory that the driver knows.  remove: false if no such range begins there. */
void fake_add_range(kind k, uint64_t at, uint64_t n);
bool fake_remove_range(kind k, uint64_t at);
/* Memory of a device, maybe of another process's, that no device may touch yet; 0, or INVALID: it
 * is not there, or NO_PEER: the two have no link. */
void fake_add_mapping(uint64_t at, uint64_t n, int device);
int fake_let_touch(uint64_t at, uint64_t n, int device);
/* Do devices reach each other's memory? */
bool fake_has_link(int from, int to);
uint64_t fake_used_bytes(void);
/* All of [at, at + n) is memory of the GPU or pinned. */
bool fake_is_known(uint64_t at, uint64_t n);
/* May a kernel of this device touch all of [at, at + n)?  Pinned memory, its own, that of devices
 * that it reaches. */
int fake_may_touch(int device, uint64_t at, uint64_t n);
/* The device whose memory holds this address; -1: none. */
int fake_device_of(uint64_t at);

/* Copy n bytes; of the sides that are to be checked, BAD_ADDRESS if the driver does not know
 * them. */
int fake_copy(uint64_t to, bool check_to, uint64_t from, bool check_from, size_t n);
/* Add a copy of *n to a graph that is being recorded. */
void fake_record(graph *g, const node *n);

#endif
