/* tg_places.c - bind the tensors of a compiled graph to memory (see program.h).
 *
 * Input: a compiled graph and the addresses of its areas.  Output: an address for each tensor.
 * The targets compute the same addresses from the image; this is the short form for callers that
 * run a graph in one process with tg_run, as the tests of the passes do.
 */
#include "tgraph/program.h"

void tg_bind(const tg_compiled *c, void *const area[TG_AREAS], void *const *weights, void **data)
{
    for (ir_tensor_id t = 0; t < c->ir->tensors.n; t++) {
        const ir_tensor *tensor = &c->ir->tensors.at[t];
        const tg_place *place = &c->places[t];
        char *root = place->area == TG_WEIGHTS ? weights[place->offset]
                                               : (char *)area[place->area] + place->offset;
        data[t] = root ? root + ir_row_bytes(tensor->dtype, tensor->offset) : NULL;
    }
}
