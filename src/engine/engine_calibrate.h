/* engine_calibrate.h - importances of weights from a text, for mpk_quantize. */
#ifndef ENGINE_CALIBRATE_H
#define ENGINE_CALIBRATE_H

#include "engine/engine.h"
#include "load/quantize.h"

/* What a text says of a model. */
typedef struct engine_calibration {
    quantize_importance importance; /* by names of weights; in the arena */
    size_t n_tokens;                /* that were read */
} engine_calibration;

/* Read o->calibration with the model; what is found lies in a.  MPK_EARG: the text is shorter than
 * a window; MPK_EUNSUPPORTED: no tokenizer, or a model that does not run; MPK_EFORMAT: numbers that
 * are not finite; MPK_ECANCELLED. */
mpk_status engine_calibrate(mpk_context *cx, arena *a, const load_model *m,
                            const mpk_quantize_options *o, engine_calibration *out);

#endif
