/* split.cuh - which units of a token's context a split of attention_split does
 * (src/op/split_own.h). */
#ifndef TILE_SPLIT_CUH
#define TILE_SPLIT_CUH

#include "tile/task.cuh"

#define SPLIT_FN MPK_FN
#include "op/split_own.h"

#endif
