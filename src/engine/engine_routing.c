/* engine_routing.c - which experts a step's tokens went to, and random routers that prefer some.
 *
 * Output of the first part: how many experts of a layer some token went to, and what bytes of
 * weights the step had to read for that, from the ids that a step leaves (count_experts).  The
 * second part serves random weights (mpk_engine_options.random_routing): biases of the routers
 * decide how even the routing is.  Attention's results would make the tokens of a step alike, and
 * so their experts; its last product is therefore zeros, and each token's experts follow from the
 * token alone.
 *
 * Called by engine_compile.c, and to measure (mpk bench).  Example: 4 tokens with 2 experts each
 * name 8 experts at most; if two tokens agree in both, 6 are hit, and of a layer with 64 experts a
 * step reads 6 / 64 of their weights.
 */
#include <math.h>
#include <stdlib.h>

#include "base/num.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { IDS = 1 }; /* of expert_linear's inputs */

/* ---- what a step hit ---- */

static bool is_op(const ir_op *op, const char *name)
{
    return strcmp(op->def->name, name) == 0;
}

/* How many experts the n ids name at least once; is_hit [n_experts] is scratch.  Ids out of range
 * name none. */
static uint32_t count_hit(const int32_t *ids, size_t n, uint32_t n_experts, bool *is_hit)
{
    uint32_t hit = 0;
    memset(is_hit, 0, n_experts * sizeof *is_hit);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_experts)
            continue;
        hit += !is_hit[ids[i]];
        is_hit[ids[i]] = true;
    }
    return hit;
}

/* The output of the graph that copies the ids of this route, found as the output whose operator
 * reads them first, whatever operator the passes made of the copy; IR_NONE: there is none. */
static ir_tensor_id find_record(const ir_graph *g, const ir_op *route)
{
    for (size_t k = 0; k < g->outputs.n; k++) {
        const ir_tensor_id id = g->outputs.at[k];
        const ir_op_id by = g->tensors.at[id].producer;
        if (by != IR_NONE && g->ops.at[by].n_in && g->ops.at[by].in[0] == route->out[0])
            return id;
    }
    return IR_NONE;
}

/* Add the experts that a layer's `route` chose in the last step.  A layer whose ids were not
 * recorded is left out. */
static mpk_status add_layer(mpk_context *cx, arena *a, machine *m, uint32_t graph, const ir_op *op,
                            mpk_routing *to)
{
    const ir_graph *g = m->image.ir[graph];
    const ir_tensor_id id = find_record(g, op);
    if (id == IR_NONE)
        return MPK_OK;
    const ir_tensor *record = &g->tensors.at[id], *logits = &g->tensors.at[op->in[0]];
    bool *is_hit;
    int32_t *ids;
    to->experts = (uint32_t)logits->dims[1];
    to->of_token = (uint32_t)record->dims[1];
    NEW(cx, a, ids, (size_t)ir_bytes(record) / sizeof *ids);
    NEW(cx, a, is_hit, to->experts);
    TRY(machine_read_tensor(cx, m, graph, id, ids));
    to->hit += count_hit(ids, (size_t)to->tokens * to->of_token, to->experts, is_hit);
    to->layers++;
    return MPK_OK;
}

/* Bytes of the constants that the operator reads, each counted once in a graph (is_counted, by
 * tensor); of experts' weights the share that was hit. */
static double bytes_of_op(const ir_graph *g, const ir_op *op, bool *is_counted, double share)
{
    double n = 0;
    for (uint32_t i = 0; i < op->n_in; i++) {
        const ir_tensor *t = op->in[i] == IR_NONE ? NULL : &g->tensors.at[op->in[i]];
        if (!t || t->kind != IR_CONST || is_counted[op->in[i]])
            continue;
        is_counted[op->in[i]] = true;
        const bool of_experts = is_op(op, "expert_linear") && i > IDS && t->rank == 3;
        n += (double)ir_bytes(t) * (of_experts ? share : 1);
    }
    return n;
}

/* Of a whole step.  An embedding is read by rows, few of them, and is left out. */
static mpk_status count_bytes(mpk_context *cx, arena *a, const ir_graph *g, mpk_routing *to)
{
    bool *is_counted;
    NEW(cx, a, is_counted, g->tensors.n);
    for (ir_op_id i = 0; i < g->ops.n; i++)
        if (!is_op(&g->ops.at[i], "embedding"))
            to->weight_bytes +=
                bytes_of_op(g, &g->ops.at[i], is_counted, to->hit / (double)to->experts);
    return MPK_OK;
}

/* to->hit: a sum over layers first, then their mean.  No layer with experts: all stays 0. */
static mpk_status read_routing(mpk_context *cx, arena *a, machine *m, uint32_t graph,
                               mpk_routing *to)
{
    const ir_graph *g = m->image.ir[graph];
    for (ir_op_id i = 0; i < g->ops.n; i++)
        if (is_op(&g->ops.at[i], "route"))
            TRY(add_layer(cx, a, m, graph, &g->ops.at[i], to));
    if (!to->layers)
        return MPK_OK;
    to->hit /= to->layers;
    return count_bytes(cx, a, g, to);
}

/* The graph is the one that a step of `tokens` tokens takes.  The ids are those that its last step
 * left, so no request may be under way. */
mpk_status mpk_engine_routing(mpk_context *cx, mpk_engine *e, uint32_t tokens, mpk_routing *out)
{
    const engine_plan *p = &e->build.plan;
    arena a = {0};
    uint32_t graph = 0;
    mpk_routing found = {.tokens = tokens};
    while (graph < p->n_graphs && p->n_tokens[graph] < tokens)
        graph++;
    CHECK(cx, out->size >= sizeof found.size, MPK_EARG,
          "mpk_routing.size is %zu: set it to sizeof(mpk_routing)", out->size);
    CHECK(cx, p->counts_experts, MPK_EARG, "the engine was not opened with count_experts");
    CHECK(cx, tokens && graph < p->n_graphs, MPK_EARG, "a step has 1 to %u tokens, not %u",
          p->n_tokens[p->n_graphs - 1], tokens);
    CHECK(cx, !host_books_are_busy(&e->machine->books), MPK_EARG,
          "routing is read when no request is under way");
    mpk_status status = read_routing(cx, &a, e->machine, graph, &found);
    arena_free(&a);
    TRY(status);
    found.size = out->size < sizeof found ? out->size : sizeof found;
    memcpy(out, &found, found.size);
    return MPK_OK;
}

/* ---- random routers ---- */

/* A logit is the sum of hidden_size products of a normalised entry and a random weight, whose
 * standard deviation is 0.02 (load/random.c). */
static double deviation_of_logits(const model_config *c)
{
    return 0.02 * sqrt((double)c->hidden_size);
}

/* The experts of a layer in an order of its own, rank[e]: a shuffle of 0 ... n - 1 by the stream of
 * random numbers, the same for the same seed. */
static void draw_ranks(uint64_t stream, uint32_t n, uint32_t *rank)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = (uint32_t)(rng_u64(stream, i) % (i + 1));
        rank[i] = rank[k];
        rank[k] = i;
    }
}

/* Zipf: the largest of numbers ln p + Gumbel noise are drawn by p without putting back; the logits'
 * noise, which is normal, has the deviation of pi / sqrt(6) scales of it. */
static double bias_of(const mpk_engine_options *o, const model_config *c, uint32_t rank)
{
    const double noise = deviation_of_logits(c), scale = noise * sqrt(6) / 3.14159265358979;
    if (o->random_routing == MPK_ROUTING_ZIPF)
        return -scale * log(1.0 + rank);
    return o->random_routing == MPK_ROUTING_SAME && rank < c->experts_per_token ? 32 * noise : 0;
}

/* Entry i of a weight of this dtype, F32, F16 or else BF16. */
static void put(double x, ir_dtype dtype, size_t i, void *to)
{
    if (dtype == IR_F32)
        ((float *)to)[i] = (float)x;
    else if (dtype == IR_F16)
        ((f16 *)to)[i] = num_to_f16((float)x);
    else
        ((bf16 *)to)[i] = num_to_bf16((float)x);
}

/* The bias of a layer's router, in the build's arena.  It is of the whole weight, whatever part of
 * it a peer has; the name gives each layer its own order of experts. */
static mpk_status make_bias(mpk_context *cx, engine_build *b, str name, ir_dtype dtype, char **to)
{
    const uint32_t n = b->model.config.n_experts;
    uint32_t *rank;
    NEW(cx, &b->arena, rank, n);
    NEW(cx, &b->arena, *to, (size_t)ir_row_bytes(dtype, n));
    draw_ranks(rng_u64(b->options.random_seed, hash_bytes(name.at, name.n, 0)), n, rank);
    for (uint32_t i = 0; i < n; i++)
        put(bias_of(&b->options, &b->model.config, rank[i]), dtype, i, *to);
    return MPK_OK;
}

/* Zeros that all layers share: as many bytes as the largest whole weight has. */
typedef struct zeros {
    char *at;
    uint64_t n;
} zeros;

/* Make *z large enough for w's whole weight.  Earlier weights keep the smaller array that they were
 * given, which stays in the arena. */
static mpk_status have_zeros(mpk_context *cx, arena *a, const tg_weight *w, zeros *z)
{
    const ir_share share = ir_read_share(w->name);
    uint64_t n = host_weight_bytes(w);
    if (share.axis != IR_NONE)
        n = n / (uint64_t)w->dims[share.axis] * (uint64_t)share.size;
    if (n <= z->n)
        return MPK_OK;
    NEW(cx, a, z->at, n);
    z->n = n;
    return MPK_OK;
}

/* Sets router_bias in the configuration, before graphs are made from it: only so do the routers
 * have a bias that engine_make_routers can fill. */
mpk_status engine_ask_routing(mpk_context *cx, engine_build *b)
{
    if (!b->options.random_routing)
        return MPK_OK;
    CHECK(cx, b->options.random_weights && !b->model.tensors.n, MPK_EARG,
          "random_routing is for made-up weights: %s",
          b->options.random_weights
              ? "this model has its own, give a folder with its config.json alone"
              : "ask for random_weights too");
    CHECK(cx, b->model.config.n_experts, MPK_EARG,
          "random_routing is for mixtures of experts: this model has none");
    b->model.config.router_bias = true;
    return MPK_OK;
}

/* at = NULL leaves a weight to the machine, which makes it up as any other. */
mpk_status engine_make_routers(mpk_context *cx, engine_build *b, machine_weight *weights)
{
    zeros z = {0};
    for (uint32_t i = 0; i < b->image.n_weights && b->options.random_routing; i++) {
        const tg_weight *w = &b->image.weights[i];
        const str name = ir_read_share(w->name).whole;
        char *made = NULL;
        if (str_ends(name, STR("mlp.gate.bias"))) {
            TRY(make_bias(cx, b, name, w->dtype, &made));
        } else if (str_ends(name, STR("self_attn.o_proj.weight"))) {
            TRY(have_zeros(cx, &b->arena, w, &z));
            made = z.at;
        }
        weights[i] = (machine_weight){.at = made, .dtype = w->dtype};
    }
    return MPK_OK;
}
