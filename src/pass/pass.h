/* pass.h - the compiler (paper §4): options, the state of a compile, one prototype for each pass.
 *
 * compile.c is the page of calls.  A pass is one file named for its verb; `mpk opt --pass=NAME` runs one on the text form.
 */
#ifndef PASS_H
#define PASS_H

#include "tgraph/program.h"

/* Which operators the tensor program is made of. */
typedef enum pass_fusion {
    PASS_FUSE_FULL,  /* as few as our bodies can do: norm and residual inside linear, q/k/v and gate/up as one, rope with the KV write */
    PASS_FUSE_PAPER, /* the paper's own: 8 a layer + 5 */
    PASS_FUSE_NONE,  /* as the model's forward pass is written */
} pass_fusion;

typedef enum pass_launch { PASS_LAUNCH_AUTO, PASS_LAUNCH_PAPER, PASS_LAUNCH_AOT, PASS_LAUNCH_JIT } pass_launch;

/* The user's own degree of parallelism: cut axis `axis` of output 0 of every operator that matches into `degree` parts. */
typedef struct pass_degree {
    str match; /* name of an operator kind ("linear") or of one operator */
    uint32_t axis, degree;
} pass_degree;

typedef struct pass_options {
    uint32_t n_workers;
    uint32_t page_bytes, pages_per_worker;
    pass_fusion fusion;
    pass_launch launch;
    bool coarse_events; /* one event between operators instead of tiles (ablation, paper Fig. 1c) */
    bool verify;        /* prove every level (always on in tests) */
    uint32_t tasks_per_worker; /* upper bound of tasks of an operator, in multiples of workers; 0: chosen */
    const pass_degree *degrees;
    uint32_t n_degrees;
} pass_options;

#endif
