/* rt_sched_lanes_test.c - rt_sched_test.c with a scheduler of 32 lanes, as a GPU's warp runs it. */
#define RT_LANES_HEADER "rt_lanes_model.h"
#include "rt_sched_test.c"
