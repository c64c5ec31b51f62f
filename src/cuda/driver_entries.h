/* driver_entries.h - entry points of libcuda and what a call of one needs: for driver.c and
 * driver_code.c alone.
 *
 * The types and numbers below are the driver's binary interface: a handle is a pointer, a device an
 * int, a size a size_t, an address 64 bits.  Names with _v2 are the exports that the interface has
 * meant since CUDA 4.
 */
#ifndef CUDA_DRIVER_ENTRIES_H
#define CUDA_DRIVER_ENTRIES_H

#include "cuda/driver.h"

typedef struct CUgraph_st *graph_handle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NO_DEVICE = 100,
    CUDA_NOT_READY = 600,
    CUDA_PEER_ALREADY = 704,

    /* of memory that other processes map: CUmemAllocationType, CUmemAllocationHandleType,
     * CUmemLocationType, CUmemAccess_flags, CUmemAllocationGranularity_flags */
    MEMORY_PINNED = 1,
    MEMORY_BY_DESCRIPTOR = 1,
    MEMORY_OF_DEVICE = 1,
    MEMORY_READ_WRITE = 3,
    MEMORY_RECOMMENDED = 1,

    LINK_RANK = 1, /* CUdevice_P2PAttribute, of a pair of GPUs */
    LINK_ATOMICS = 3,

    /* 1000 * major + 10 * minor, as cuDriverGetVersion has it; the newest entry that is used: */
    OLDEST_DRIVER = 11080, /* cuLaunchKernelEx */

    /* flags: of cuMemHostAlloc and cuMemHostRegister, then of a stream and of an event */
    HOST_PORTABLE = 1,
    HOST_MAPPED = 2,
    REGISTER_READ_ONLY = 8,
    STREAM_NON_BLOCKING = 1,
    EVENT_UNTIMED = 2,
    /* the mode that lets other threads allocate and free while this one records */
    CAPTURE_THIS_THREAD = 1,

    /* CUjit_option */
    JIT_ERROR_LOG = 5,
    JIT_ERROR_LOG_BYTES = 6,

    /* CUlaunchAttributeID */
    LAUNCH_COOPERATIVE = 2,
    LAUNCH_EARLY = 6, /* programmatic stream serialization */

    /* CUfunction_attribute */
    FUNCTION_MAX_THREADS = 0,
    FUNCTION_SHARED = 1,
    FUNCTION_LOCAL = 3,
    FUNCTION_REGISTERS = 4,
    FUNCTION_BINARY = 6,
    FUNCTION_MAX_DYNAMIC_SHARED = 8,
};

/* CUlaunchAttribute: an id, padded to 8 bytes, and a union of 64. */
typedef struct launch_attribute {
    int id;
    int padding;
    union {
        int on;
        char bytes[64];
    } value;
} launch_attribute;

/* CUlaunchConfig: blocks, threads of a block, bytes of dynamic shared memory. */
typedef struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    cuda_stream stream;
    launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;

/* CUmemAllocationProp: memory of one GPU that is handed on as a descriptor. */
typedef struct memory_form {
    int type, handle_types, location, device;
    void *unused;
    unsigned char flags[8];
} memory_form;

/* CUmemAccessDesc: whose kernels may do what. */
typedef struct memory_access {
    int location, device, flags;
} memory_access;

/* name, export, parameters */
#define ENTRIES(X)                                                                                \
    X(cuInit, "cuInit", (unsigned))                                                               \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                          \
    X(cuGetErrorName, "cuGetErrorName", (int, const char **))                                     \
    X(cuGetErrorString, "cuGetErrorString", (int, const char **))                                 \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                              \
    X(cuDeviceGet, "cuDeviceGet", (int *, int))                                                   \
    X(cuDeviceGetName, "cuDeviceGetName", (char *, int, int))                                     \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *, int, int))                             \
    X(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, int))                                   \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))                            \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (cuda_context *, int))                \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int))                           \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", (cuda_context))                                         \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", (cuda_context *))                                       \
    X(cuCtxSynchronize, "cuCtxSynchronize", (void))                                               \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *, int, int))                          \
    X(cuDeviceGetP2PAttribute, "cuDeviceGetP2PAttribute", (int *, int, int, int))                 \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", (cuda_context, unsigned))                   \
    X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", (cuda_context))                           \
    X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                      \
    X(cuMemAlloc, "cuMemAlloc_v2", (cuda_address *, size_t))                                      \
    X(cuMemFree, "cuMemFree_v2", (cuda_address))                                                  \
    X(cuMemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned))                              \
    X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2",                                  \
      (cuda_address *, void *, unsigned))                                                         \
    X(cuMemFreeHost, "cuMemFreeHost", (void *))                                                   \
    X(cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned))                      \
    X(cuMemHostUnregister, "cuMemHostUnregister", (void *))                                       \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                             \
      (size_t *, const memory_form *, int))                                                       \
    X(cuMemCreate, "cuMemCreate",                                                                 \
      (unsigned long long *, size_t, const memory_form *, unsigned long long))                    \
    X(cuMemRelease, "cuMemRelease", (unsigned long long))                                         \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                               \
      (void *, unsigned long long, int, unsigned long long))                                      \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle",                           \
      (unsigned long long *, void *, int))                                                        \
    X(cuMemAddressReserve, "cuMemAddressReserve",                                                 \
      (cuda_address *, size_t, size_t, cuda_address, unsigned long long))                         \
    X(cuMemAddressFree, "cuMemAddressFree", (cuda_address, size_t))                               \
    X(cuMemMap, "cuMemMap",                                                                       \
      (cuda_address, size_t, size_t, unsigned long long, unsigned long long))                     \
    X(cuMemUnmap, "cuMemUnmap", (cuda_address, size_t))                                           \
    X(cuMemSetAccess, "cuMemSetAccess", (cuda_address, size_t, const memory_access *, size_t))    \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (cuda_address, const void *, size_t))                      \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *, cuda_address, size_t))                            \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                                  \
      (cuda_address, const void *, size_t, cuda_stream))                                          \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, cuda_address, size_t, cuda_stream))     \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                                  \
      (cuda_address, cuda_address, size_t, cuda_stream))                                          \
    X(cuMemsetD8Async, "cuMemsetD8Async", (cuda_address, unsigned char, size_t, cuda_stream))     \
    X(cuStreamCreate, "cuStreamCreate", (cuda_stream *, unsigned))                                \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (cuda_stream))                                       \
    X(cuStreamSynchronize, "cuStreamSynchronize", (cuda_stream))                                  \
    X(cuStreamQuery, "cuStreamQuery", (cuda_stream))                                              \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", (cuda_stream, cuda_event, unsigned))                \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", (cuda_stream, int *))                           \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (cuda_stream, int))                        \
    X(cuStreamEndCapture, "cuStreamEndCapture", (cuda_stream, graph_handle *))                    \
    X(cuEventCreate, "cuEventCreate", (cuda_event *, unsigned))                                   \
    X(cuEventDestroy, "cuEventDestroy_v2", (cuda_event))                                          \
    X(cuEventRecord, "cuEventRecord", (cuda_event, cuda_stream))                                  \
    X(cuEventSynchronize, "cuEventSynchronize", (cuda_event))                                     \
    X(cuEventElapsedTime, "cuEventElapsedTime", (float *, cuda_event, cuda_event))                \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx",                                                   \
      (cuda_module *, const void *, unsigned, int *, void **))                                    \
    X(cuModuleUnload, "cuModuleUnload", (cuda_module))                                            \
    X(cuModuleGetFunction, "cuModuleGetFunction", (cuda_function *, cuda_module, const char *))   \
    X(cuModuleGetGlobal, "cuModuleGetGlobal_v2",                                                  \
      (cuda_address *, size_t *, cuda_module, const char *))                                      \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *, int, cuda_function))                      \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (cuda_function, int, int))                        \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", \
      (int *, cuda_function, int, size_t))                                                        \
    X(cuLaunchKernelEx, "cuLaunchKernelEx",                                                       \
      (const launch_config *, cuda_function, void **, void **))                                   \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags",                                 \
      (cuda_graph *, graph_handle, unsigned long long))                                           \
    X(cuGraphDestroy, "cuGraphDestroy", (graph_handle))                                           \
    X(cuGraphLaunch, "cuGraphLaunch", (cuda_graph, cuda_stream))                                  \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (cuda_graph))

/* An opened libcuda with its entries.  Nothing changes once it is open: any thread calls through
 * it.  Owned by the machine (or probe) that opened it.
 */
struct cuda_driver {
    void *library;
    uint32_t version, n_gpus;
#define ENTRY_MEMBER(name, symbol, parameters) int(*name) parameters;
    ENTRIES(ENTRY_MEMBER)
#undef ENTRY_MEMBER
};

/* A holder of a GPU's primary context.  device: the driver's number; facts as they were when it was
 * opened.  Threads may share one, each after it has made the context its own (cuda_gpu_use).
 */
struct cuda_gpu {
    cuda_driver *d;
    int device;
    cuda_context context;
    cuda_facts facts;
};

/* The status of a failed call, with "cannot DO IT: out of memory (CUDA_ERROR_OUT_OF_MEMORY of
 * cuMemAlloc); ADVICE" in cx. */
mpk_status cuda_driver_fail(mpk_context *cx, const cuda_driver *d, int code, const char *entry,
                            const char *doing, ...) BASE_PRINTF(5, 6);

/* CALL(cx, d, entry, (arguments), "do it", ...): return the status unless the entry succeeds. */
#define CALL(cx, d, entry, arguments, ...)                                  \
    do {                                                                    \
        int code_ = (d)->entry arguments;                                   \
        if (code_ != CUDA_SUCCESS)                                          \
            return cuda_driver_fail((cx), (d), code_, #entry, __VA_ARGS__); \
    } while (0)

#define U64(x) ((unsigned long long)(x))

#endif
