/* random.c - random weights: a model's shape without its file.
 *
 * A value depends only on the seed, the weight's name and the element's index, so threads may
 * fill parts of a weight in any order.  Norm weights are near 1; all others have a standard
 * deviation of 0.02, as in models before training, so that the sums of all layers stay finite
 * and the logits vary.  Blocks of quantised formats have random bits and moderate scales.
 */
#include "base/num.h"
#include "base/rng.h"
#include "ir/blocks.h"
#include "load/load.h"

/* Each block comes from a stream of its own, so any range of blocks can be made alone. */
static void fill_blocks(uint64_t stream, ir_dtype dtype, int64_t first, int64_t n,
                        unsigned char *to)
{
    const ir_dtype_info *info = &ir_dtype_table[dtype];
    for (int64_t i = 0; i < n; i += info->block_elements, to += info->block_bytes)
        blocks_fill_random(dtype, info->block_elements, rng_u64(stream, (uint64_t)(first + i)), to);
}

/* The stream depends on the tensor's name alone, so a weight has the same numbers in any order,
 * split among any devices. 0.02 is what models are initialised with: activations keep their scale
 * through the layers. */
load_law load_random_law(uint64_t seed, str name)
{
    uint64_t stream = rng_u64(seed, hash_bytes(name.at, name.n, 0));
    /* norms scale by about 1, as trained ones do */
    if (str_ends(name, STR("norm.weight")))
        return (load_law){.stream = stream, .mean = 1.0f, .deviation = 0.1f};
    return (load_law){.stream = stream, .mean = 0.0f, .deviation = 0.02f};
}

/* Elements first .. first + n - 1 of the weight into to[0 ..]; for block formats both are
 * multiples of a block. */
void load_random_fill(uint64_t seed, str name, ir_dtype dtype, int64_t first, int64_t n, void *to)
{
    load_law law = load_random_law(seed, name);
    uint64_t stream = law.stream, index = (uint64_t)first;
    float mean = law.mean, deviation = law.deviation;
    /* one loop for each format, so that the branch is not in the loop */
    if (dtype == IR_F32)
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = mean + deviation * rng_normal(stream, index + (uint64_t)i);
    else if (dtype == IR_BF16)
        for (int64_t i = 0; i < n; i++)
            ((bf16 *)to)[i] =
                num_to_bf16(mean + deviation * rng_normal(stream, index + (uint64_t)i));
    else if (dtype == IR_F16)
        for (int64_t i = 0; i < n; i++)
            ((f16 *)to)[i] = num_to_f16(mean + deviation * rng_normal(stream, index + (uint64_t)i));
    else
        fill_blocks(stream, dtype, first, n, to);
}
