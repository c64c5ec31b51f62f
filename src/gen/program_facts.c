/* program_facts.c - what one kernel for several graphs has to know of all of them (see source.h):
 * the 16-bit type that its products multiply, its peers, the pages that its rings hold at least.
 * Which graphs belong to the kernel for prompts, and which bodies to which of its units.
 *
 * Each is one walk over operators or tensors.  source.c asks once a kernel, or once a graph; tests
 * of bodies ask for graphs of their own. */
#include "gen/source.h"

#include <string.h>

/* f16 only if nothing is bf16: most models are bf16, and products of the other kind have block
 * programs. */
ir_dtype gen_find_halves(uint32_t n_graphs, const gen_graph *graphs)
{
    bool seen[2] = {false, false}; /* f16, bf16 */
    for (uint32_t g = 0; g < n_graphs; g++)
        for (uint32_t i = 0; i < graphs[g].ir->tensors.n; i++) {
            seen[0] |= graphs[g].ir->tensors.at[i].dtype == IR_F16;
            seen[1] |= graphs[g].ir->tensors.at[i].dtype == IR_BF16;
        }
    return seen[0] && !seen[1] ? IR_F16 : IR_BF16;
}

/* Those for many tokens say theirs. */
gen_unit gen_unit_of(const gen_body *b)
{
    if (b->many)
        return (gen_unit)b->many;
    if (b->some)
        return GEN_UNIT_SOME;
    return b->waits ? GEN_UNIT_KERNEL : GEN_UNIT_PLAIN;
}

/* The most peers that any graph keeps busy. */
uint32_t gen_find_peers(uint32_t n_graphs, const gen_graph *graphs)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < n_graphs; i++) {
        uint32_t n = ir_count_peers(graphs[i].ir);
        most = n > most ? n : most;
    }
    return most;
}

bool gen_has_jit(uint32_t n_graphs, const gen_graph *graphs)
{
    bool any = false;
    for (uint32_t g = 0; g < n_graphs; g++)
        any |= graphs[g].jit != NULL;
    return any;
}

/* A body whose record says nothing takes two. */
uint32_t gen_find_pages(uint32_t n_graphs, const gen_graph *graphs, const gen_arch *arch)
{
    uint32_t most = 2;
    for (const gen_body *const *b = gen_body_table; *b; b++)
        for (uint32_t g = 0; (*b)->pages > most && g < n_graphs; g++)
            for (size_t i = 0; i < graphs[g].ir->ops.n; i++)
                if (strcmp(graphs[g].ir->ops.at[i].def->name, (*b)->op) == 0 &&
                    !((*b)->needs & ~arch->features))
                    most = (*b)->pages;
    return most;
}

/* The shortest steps whose bodies save more time than the switch to another kernel takes: where
 * weights in blocks are multiplied by warpgroups; where the layers' products come by boxes; and
 * where teams of warps multiply, or experts take most of the time. */
enum { FEWEST_IN_BLOCKS = 17, FEWEST_BY_BOXES = 33, FEWEST_IN_PROMPTS = 65 };

/* Has it products of many tokens, in steps that are long enough? */
bool gen_is_for_prompts(const gen_graph *g, const gen_use *uses)
{
    bool many = false, boxes = false, experts = false, blocks = false;
    for (uint32_t i = 0; i < g->ir->ops.n; i++) {
        const gen_body *b = uses[i].body;
        many |= b && b->many;
        boxes |= b && b->parts && gen_comes_by_boxes(g->ir, i);
        experts |= b && strcmp(b->op, "expert_linear") == 0;
        blocks |= b && strcmp(b->name, "linear_blocks") == 0;
    }
    const uint32_t by_boxes = boxes && !experts ? FEWEST_BY_BOXES : FEWEST_IN_PROMPTS;
    return many && g->n_tokens >= (blocks ? FEWEST_IN_BLOCKS : by_boxes);
}

bool gen_needs_maps(const gen_graph *g, const gen_use *uses)
{
    bool needed = false;
    for (uint32_t i = 0; i < g->ir->ops.n; i++)
        needed |= uses[i].body && uses[i].body->by_maps;
    return needed;
}
