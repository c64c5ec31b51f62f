/* hf_config.h - what the readers of a config.json share (hf_config.c, hf_experts.c). */
#ifndef LOAD_HF_CONFIG_H
#define LOAD_HF_CONFIG_H

#include "base/json.h"
#include "load/load.h"

/* A number that must be given. */
mpk_status hf_read_needed(mpk_context *cx, const json_value *j, const char *key, uint32_t *out);
/* A factor above 0, of which 1 is written as 0: it costs an operator for nothing. */
mpk_status hf_read_factor(mpk_context *cx, const json_value *j, const char *key, double *out);
/* A member that must have this text if it is there. */
mpk_status hf_expect_text(mpk_context *cx, const json_value *j, const char *key,
                          const char *expected);
/* All about experts. */
mpk_status hf_fill_experts(mpk_context *cx, const json_value *j, const model_def *def,
                           model_config *c);

#endif
