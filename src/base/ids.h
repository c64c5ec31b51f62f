/* ids.h - token ids against the size of a vocabulary. */
#ifndef BASE_IDS_H
#define BASE_IDS_H

#include <stdint.h>

#include "base/status.h"

/* MPK_EARG, with the first id that the vocabulary does not have and its place among the n. */
mpk_status ids_check(mpk_context *cx, const int32_t *ids, size_t n, uint32_t vocab_size);

#endif
