/* rt_step_lanes_test.c - rt_step_test.c with a step task of 32 lanes, as a GPU's warp runs it. */
#define RT_LANES_HEADER "rt_lanes_model.h"
#include "rt_step_test.c"
