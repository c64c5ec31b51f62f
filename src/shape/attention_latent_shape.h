/* attention_latent_shape.h - attention over cached latents, as host and device see it
 * (gen/body_attention_latent.c, device/task/attention_latent.cuh). */
#ifndef SHAPE_ATTENTION_LATENT_SHAPE_H
#define SHAPE_ATTENTION_LATENT_SHAPE_H

enum {
    LATENT_SIZE = 576, /* entries of a cached row: 512 of the latent, 64 of the rotated key */
    LATENT_ROWS = 32,  /* of a chunk: tokens times query heads */
    LATENT_UNIT = 32,  /* positions of a stage, half a KV page */
    LATENT_AREAS = 4,  /* of the entries, for scores */
    LATENT_SCORE_FLOATS = 40, /* from a row of scores to the next: apart in banks */
    LATENT_WEIGHT_BYTES = 80, /* from a row of weights, bf16, to the next */
};

/* Scratch, offsets in bytes, with room for a number of stages:
 *
 *   stages    LATENT_UNIT rows of the cache each
 *   SCORES    float[LATENT_AREAS][LATENT_ROWS][LATENT_SCORE_FLOATS] of a stage: a sum of each area
 *   WEIGHTS   bf16[LATENT_ROWS][LATENT_UNIT]
 *   KEPT      float[LATENT_ROWS]: what results so far, at the end all, are multiplied by
 *   SEEN      int[LATENT_ROWS][2]: the positions that a row sees
 *   MOST      float[LATENT_ROWS]: its largest score so far
 *   SOURCE    latent_source */
#define LATENT_STAGE_BYTES (LATENT_UNIT * LATENT_SIZE * 2)
#define LATENT_SCORES(stages) ((stages)*LATENT_STAGE_BYTES)
#define LATENT_WEIGHTS(stages) \
    (LATENT_SCORES(stages) + LATENT_AREAS * LATENT_ROWS * LATENT_SCORE_FLOATS * 4)
#define LATENT_KEPT(stages) (LATENT_WEIGHTS(stages) + LATENT_ROWS * LATENT_WEIGHT_BYTES)
#define LATENT_SEEN(stages) (LATENT_KEPT(stages) + LATENT_ROWS * 4)
#define LATENT_MOST(stages) (LATENT_SEEN(stages) + LATENT_ROWS * 8)
#define LATENT_SOURCE(stages) (LATENT_MOST(stages) + LATENT_ROWS * 4)
#define LATENT_SCRATCH_BYTES(stages) (LATENT_SOURCE(stages) + 32)

#endif
