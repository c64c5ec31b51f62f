/* gpu_report.h - what mpk doctor tells of GPUs, their compiler and its cache. */
#ifndef CUDA_GPU_REPORT_H
#define CUDA_GPU_REPORT_H

#include "base/str.h"

/* Add three members of a JSON object to t:
 *   "gpus"          {"driver": "13.0", "list": [{"name", "pci", "capability": "9.0", "sms", "memory_bytes",
 *                   "target": "sm_90a" or null, "as_ptx": false}]}; without one that works {"problem": WORDS,
 * "driver_file": true if there is a libcuda at all} "nvrtc"         {"path", "version": "13.0"} or {"problem": WORDS}
 *   "kernel_cache"  {"folder", "kernels", "programs", "bytes", "limit_bytes"}; folder null: switched off
 * What is missing is part of the report and no failure.  MPK_ENOMEM is t->failed. */
void cuda_report_add(text *t);

#endif
