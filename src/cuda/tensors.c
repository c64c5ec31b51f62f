/* tensors.c - tensors of a machine on a GPU, written and read by the host between steps.
 *
 * The host sees dense row-major bytes.  On the GPU a KV page may lie in the order of tensor-core
 * fragments (device/tile/kv.cuh); it is put into that order, and back, here.  Weights are written
 * through upload.c, which packs them again; packed ones cannot be read back.  Called through
 * machine_def; writing a weight and clearing state make the kernel leave the SMs first. */
#include <stdlib.h>

#include "cuda/cuda_machine.h"

/* ---- the order of KV pages: must say what device/tile/kv.cuh says ---- */

typedef enum kv_kind { KV_NONE, KV_KEYS, KV_VALUES } kv_kind;

/* Element (token, dim) of a page of keys: blocks of 8 tokens by 32 dims, 512 bytes; in a block the
 * four groups of 8 dims (16 bytes) of a token change places by the token's number:
 *
 *   tokens 0, 1   0 1 2 3        tokens 4, 5   2 3 0 1
 *   tokens 2, 3   1 0 3 2        tokens 6, 7   3 2 1 0
 *
 * so that a warp's loads of one group of eight tokens meet different banks.
 */
static int64_t key_at(int64_t token, int64_t dim, int64_t head_size)
{
    int64_t block = token / 8 * (head_size / 32) + dim / 32, r = token % 8, c = dim % 32;
    return block * 256 + r * 32 + ((c / 8) ^ (r / 2)) * 8 + c % 8;
}

/* Element (token, dim) of a page of values: blocks of 16 tokens by 8 dims, transposed, with pairs
 * of tokens in the order of a tensor-core fragment: a place of 4 holds tokens t, t + 1, t + 8 and
 * t + 9 of an even t below 8, which one lane takes together; dims 4 to 7 have the halves of their
 * 32 bytes exchanged.
 */
static int64_t value_at(int64_t token, int64_t dim, int64_t head_size)
{
    int64_t block = token / 16 * (head_size / 8) + dim / 8, t = token % 16;
    int64_t piece = t % 8 / 2, place = (piece % 2 * 2 + piece / 2) ^ (dim % 8 / 4 * 2);
    return block * 128 + dim % 8 * 16 + place * 4 + t / 8 * 2 + t % 2;
}

/* What an operator calls the operand that lies here, in any graph: every graph uses the same cache,
 * so the first that reads it decides. */
static kv_kind kind_of_place(const cuda_machine *m, const tg_place *place)
{
    const program_image *image = &m->machine.image;
    for (uint32_t g = 0; g < image->n_graphs; g++)
        for (uint32_t k = 0; k < image->ir[g]->ops.n; k++) {
            const ir_op *op = &image->ir[g]->ops.at[k];
            for (uint32_t i = 0; i < op->n_in && i < op->def->n_in; i++) {
                const tg_place *p = op->in[i] == IR_NONE ? NULL : &image->places[g][op->in[i]];
                if (!p || p->area != place->area || p->offset != place->offset)
                    continue;
                if (strcmp(op->def->in[i].name, "k_cache") == 0)
                    return KV_KEYS;
                if (strcmp(op->def->in[i].name, "v_cache") == 0)
                    return KV_VALUES;
            }
        }
    return KV_NONE;
}

/* Pages [n, G, P, K] of 16-bit elements from plain order into the bodies', or back; from and to do
 * not overlap. */
static void reorder(const ir_tensor *t, kv_kind kind, const uint16_t *from, uint16_t *to, bool back)
{
    int64_t n = t->dims[0] * t->dims[1], tokens = t->dims[2], size = t->dims[3];
    for (int64_t i = 0; i < n; i++, from += tokens * size, to += tokens * size)
        for (int64_t token = 0; token < tokens; token++)
            for (int64_t dim = 0; dim < size; dim++) {
                int64_t plain = token * size + dim, blocked = kind == KV_KEYS
                                                                  ? key_at(token, dim, size)
                                                                  : value_at(token, dim, size);
                if (back)
                    to[plain] = from[blocked];
                else
                    to[blocked] = from[plain];
            }
}

/* KV_NONE: the tensor's bytes lie as the host sees them. */
static kv_kind kind_of(const cuda_machine *m, uint32_t graph, ir_tensor_id root)
{
    const ir_tensor *t = &m->machine.image.ir[graph]->tensors.at[root];
    if (t->rank != 4 || ir_dtype_table[t->dtype].block_bytes != 2 || t->dims[2] % 16 ||
        t->dims[3] % 32)
        return KV_NONE;
    return kind_of_place(m, &m->machine.image.places[graph][root]);
}

/* ---- writing ---- */

/* Does any copy on this GPU come from the weight? */
static bool has_weight(const cuda_machine *m, uint32_t weight)
{
    for (size_t i = 0; i < m->weights.packed.n; i++)
        for (uint32_t k = 0; k < m->weights.packed.at[i].n_parts; k++)
            if (m->weights.packed.at[i].parts[k].weight == weight)
                return true;
    return m->weights.weights[weight].plain;
}

/* A weight that scales others is part of their packed copies too, whose own source may be gone. */
static mpk_status check_alone(mpk_context *cx, const cuda_machine *m, uint32_t weight)
{
    for (uint32_t i = 0; i < m->n_peers; i++)
        CHECK(cx, !m->peers[i]->weights.weights[weight].scales, MPK_EUNSUPPORTED,
              "weight %.*s is multiplied into others and cannot be replaced alone",
              STR_ARG(m->machine.image.weights[weight].name));
    return MPK_OK;
}

/* On every GPU that has it; the GPU of the last is current afterwards. */
static mpk_status upload_weight(mpk_context *cx, cuda_machine *m, const machine_weights *from,
                                uint32_t weight)
{
    for (uint32_t i = 0; i < m->n_peers; i++) {
        TRY(cuda_gpu_use(cx, m->peers[i]->gpu));
        if (has_weight(m->peers[i], weight))
            TRY(cuda_upload_weights(cx, m->peers[i], from, weight));
    }
    return MPK_OK;
}

/* A weight is packed again, which wants the SMs: the kernel leaves them meanwhile.  The list has an
 * entry for each weight of the image, as upload.c expects; only this one's is looked at. */
static mpk_status write_weight(mpk_context *cx, cuda_machine *m, uint32_t weight, const void *from)
{
    CHECK(cx, !m->ranks, MPK_EUNSUPPORTED,
          "a weight cannot be replaced where each GPU has a process of its own");
    TRY(check_alone(cx, m, weight));
    machine_weight *one = calloc(m->machine.image.n_weights, sizeof *one);
    CHECK(cx, one, MPK_ENOMEM, "out of memory for the list of weights");
    one[weight] = (machine_weight){.at = from, .dtype = m->machine.image.weights[weight].dtype};
    mpk_status status = cuda_pause(cx, m);
    if (status == MPK_OK)
        status = upload_weight(cx, m, &(machine_weights){.at = one}, weight);
    free(one);
    return status;
}

/* machine_def's write_tensor: when it returns the bytes are there, and `from` is free again.  But
 * for weights the copy goes beside a running kernel: that no step reads the tensor meanwhile is the
 * caller's care. */
mpk_status cuda_write_tensor(mpk_context *cx, machine *base, uint32_t graph, ir_tensor_id tensor,
                             const void *from)
{
    cuda_machine *m = cuda_of(base);
    const ir_tensor *t = &base->image.ir[graph]->tensors.at[tensor];
    const tg_place *p = &base->image.places[graph][tensor];
    /* inputs of a step: GPU 0, whose step task sends them on */
    const cuda_machine *own = cuda_owner(m, graph, tensor);
    CHECK(cx, t->shares == IR_NONE, MPK_EARG, "tensor %%%.*s is a part of another: write that",
          STR_ARG(t->name));
    TRY(cuda_gpu_use(cx, own->gpu));
    if (p->area == TG_WEIGHTS)
        return write_weight(cx, m, (uint32_t)p->offset, from);
    TRY(cuda_check_reach(cx, m, graph, tensor));
    kv_kind kind = kind_of(m, graph, tensor);
    uint64_t n = (uint64_t)ir_bytes(t);
    uint16_t *ordered = NULL;
    if (kind != KV_NONE) {
        ordered = malloc(n);
        CHECK(cx, ordered, MPK_ENOMEM, "out of memory for %llu bytes of a KV cache",
              (unsigned long long)n);
        reorder(t, kind, from, ordered, false);
    }
    mpk_status status =
        cuda_upload_on(cx, own->gpu, own->copies, cuda_tensor_address(m, graph, tensor),
                       ordered ? ordered : from, n);
    if (status == MPK_OK)
        status = cuda_stream_wait(cx, own->gpu, own->copies);
    free(ordered);
    return status;
}

/* ---- reading ---- */

/* A tensor with storage of its own, in plain order; `to` has room for all of it, and for a KV cache
 * the order is put right in a copy. */
static mpk_status read_root(mpk_context *cx, cuda_machine *m, uint32_t graph, ir_tensor_id root,
                            void *to)
{
    const tg_place *p = &m->machine.image.places[graph][root];
    const ir_tensor *t = &m->machine.image.ir[graph]->tensors.at[root];
    const cuda_machine *own = cuda_owner(m, graph, root);
    cuda_address at = cuda_tensor_address(m, graph, root);
    uint64_t n = (uint64_t)ir_bytes(t);
    TRY(cuda_check_reach(cx, m, graph, root));
    CHECK(cx, p->area != TG_WEIGHTS || at, MPK_EUNSUPPORTED,
          "weight %.*s is kept in the bodies' own layout and cannot be read back",
          STR_ARG(t->name));
    TRY(cuda_gpu_use(cx, own->gpu));
    TRY(cuda_download_on(cx, own->gpu, own->copies, to, at, n));
    TRY(cuda_stream_wait(cx, own->gpu, own->copies));
    kv_kind kind = kind_of(m, graph, root);
    if (kind == KV_NONE)
        return MPK_OK;
    void *plain = malloc(n);
    CHECK(cx, plain, MPK_ENOMEM, "out of memory for %llu bytes of a KV cache",
          (unsigned long long)n);
    reorder(t, kind, to, plain, true);
    memcpy(to, plain, n);
    free(plain);
    return MPK_OK;
}

/* machine_def's read_tensor.  A view is gathered from a copy of its whole root, which may be much
 * larger. */
mpk_status cuda_read_tensor(mpk_context *cx, machine *base, uint32_t graph, ir_tensor_id tensor,
                            void *to)
{
    cuda_machine *m = cuda_of(base);
    const ir_graph *g = base->image.ir[graph];
    ir_tensor_id root = tensor;
    int64_t stride[IR_MAX_RANK], offset;
    while (g->tensors.at[root].shares != IR_NONE)
        root = g->tensors.at[root].shares;
    if (root == tensor)
        return read_root(cx, m, graph, root, to);
    uint64_t n = (uint64_t)ir_bytes(&g->tensors.at[root]);
    char *whole = malloc(n);
    CHECK(cx, whole, MPK_ENOMEM, "out of memory for %llu bytes of tensor %%%.*s",
          (unsigned long long)n, STR_ARG(g->tensors.at[root].name));
    mpk_status status = read_root(cx, m, graph, root, whole);
    ir_strides(g, tensor, stride, &offset);
    if (status == MPK_OK)
        machine_gather(g, tensor, whole + ir_row_bytes(g->tensors.at[tensor].dtype, offset), to);
    free(whole);
    return status;
}

/* machine_def's clear_state.  Filling memory wants an SM, so the kernels leave first; they start
 * again with the next work. */
mpk_status cuda_clear_state(mpk_context *cx, machine *base)
{
    cuda_machine *m = cuda_of(base);
    CHECK(cx, !m->ranks, MPK_EUNSUPPORTED,
          "the state cannot be cleared where each GPU has a process of its own");
    TRY(cuda_gpu_use(cx, m->gpu));
    TRY(cuda_pause(cx, m));
    for (uint32_t i = 0; i < m->n_peers; i++) {
        const cuda_machine *p = m->peers[i];
        TRY(cuda_gpu_use(cx, p->gpu));
        if (p->areas[RT_STATE])
            TRY(cuda_fill_on(cx, p->gpu, p->copies, p->areas[RT_STATE], 0,
                             p->windows[RT_STATE].n_bytes));
        TRY(cuda_stream_wait(cx, p->gpu, p->copies));
    }
    return MPK_OK;
}
