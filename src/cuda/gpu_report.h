/* gpu_report.h - what mpk doctor tells of GPUs, their compiler and its cache. */
#ifndef CUDA_GPU_REPORT_H
#define CUDA_GPU_REPORT_H

#include "base/str.h"

/* Add three members of a JSON object to t:
 *   "gpus"          {"driver": "13.0",
 *                    "list": [{"name", "pci", "capability": "9.0", "sms", "memory_bytes",
 *                              "target": "sm_90a" or null, "as_ptx": false}]}
 *                   or, where no GPU can be used, {"problem": WORDS, "driver_file": whether a
 *                   libcuda was found}
 *   "nvrtc"         {"path", "version": "13.0"} or {"problem": WORDS}
 *   "kernel_cache"  {"folder", "kernels", "programs", "bytes", "limit_bytes"}; folder is null if
 *                   the cache is off
 * What is missing is part of the report and not a failure.  Running out of memory sets
 * t->failed. */
void cuda_report_add(text *t);

#endif
