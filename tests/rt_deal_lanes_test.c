/* rt_deal_lanes_test.c - rt_deal_test.c with 32 lanes, as a GPU's warp deals. */
#define RT_LANES_HEADER "rt_lanes_model.h"
#include "rt_deal_test.c"
