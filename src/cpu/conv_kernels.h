/* conv_kernels.h - fast bodies of conv over the vectors of vec_*.h.
 *
 * In general a product: rows are filters, columns are places of the result, and the sum runs
 * over the entries of a filter in row-major order.  Windows of PRODUCT_COLUMNS places are packed
 * into a panel, for as many channels as stay in the second cache, and used by all filters.
 *
 * Where a group has one channel (depthwise), a panel would serve hardly a filter.  There a
 * channel's plane is copied once with its padding, its columns sorted by their remainder modulo
 * the stride, so that neighbours in the result read neighbours in the plane; then each filter
 * goes over it, four rows of the result at a time, which share rows of x.
 *
 * The order of a sum, and so its bits, is that of the filter's entries; for planes it is columns
 * before rows.  Padding adds zeros.
 *
 * An example of a panel: x of 5 x 5, a filter of 3 x 3, stride 1, padding 1.  Row k of the panel
 * is filter entry k = (kh, kw), column p the place p of the result, and the cell what the window
 * of p has there.  For k = (0, 0) the first five places of the result are at the padding's row
 * and the next one at the padding's column:
 *
 *   p:      0  1  2  3  4    5    6       7
 *   cell:   0  0  0  0  0    0  x[0][0] x[0][1] ...
 *
 * So a row is made of a few pieces (conv_piece), runs of zeros and runs of x; product_rows then
 * multiplies it with all filters.  Used by the isa_*_general.c files.
 */
#ifndef CPU_CONV_KERNELS_H
#define CPU_CONV_KERNELS_H

#include "cpu/product_kernels.h"

/* Inputs and attributes, by index; attributes 5 and after CV_TRANSPOSED that are not named here
 * do not concern the body. */
enum { CV_X, CV_W, CV_BIAS };
enum { CV_STRIDE, CV_PADDING, CV_DILATION, CV_GROUPS, CV_TRANSPOSED, CV_EXPR = 6, CV_LAST };
/* CV_SPACE: spatial axes, missing ones being of one entry.  CV_PIECES: most pieces of a panel's
 * row.  CV_PLANE_ROWS: rows of the result that are computed together by planes.  CV_ENTRIES: most
 * entries of a filter whose rows are filled together. */
enum { CV_SPACE = 3, CV_PIECES = 3 * PRODUCT_COLUMNS + 1, CV_PLANE_ROWS = 4, CV_ENTRIES = 16 };

/* A spatial axis: x has n entries, a filter k, and the box has the entries lo .. lo + count - 1
 * of the result; x_stride and y_stride in elements. */
typedef struct conv_axis {
    int64_t n, k, stride, padding, dilation, lo, count, x_stride, y_stride;
} conv_axis;

/* One call. */
typedef struct conv_task {
    const op_call *call;
    conv_axis axis[CV_SPACE];  /* fewer than three: the first ones have one entry */
    int64_t channels, filters; /* channels and filters of one group */
    /* entries of a filter in one channel; places of the result in the box */
    int64_t kernel, places;
    int64_t n;               /* the batch entry that is being computed */
    const float *w;          /* rows of channels * kernel entries, from filter `first` on */
    int64_t w_stride, first; /* first: the first filter of the box */
    /* scratch: the panel, or the plane; sums [filters, PRODUCT_COLUMNS]; bias as f32, from filter
     * `first` on (NULL: there is none) */
    float *panel, *sums, *bias;
} conv_task;

/* Lanes [at, at + n) of a panel's row: zeros, or x from `offset` on (elements within the
 * channel). */
typedef struct conv_piece {
    int64_t at, n, offset;
    bool zero;
} conv_piece;

/* Entry i of a list attribute, or `otherwise` if the list is shorter: an empty list stands for
 * the default. */
static int64_t conv_number(const op_call *call, uint32_t list, uint32_t i, int64_t otherwise)
{
    return i < call->attributes[list].ints.n ? call->attributes[list].ints.at[i] : otherwise;
}

/* Do a filter's entries lie in row-major order without gaps?  Then a filter is one row of the
 * left operand. */
static bool filters_are_dense(const op_view *w)
{
    int64_t n = 1;
    for (uint32_t i = w->rank; i-- > 1; n *= w->dims[i])
        if (w->dims[i] != 1 && w->stride[i] != n)
            return false;
    return true;
}

/* Not for transposed convolutions, fused expressions and results with channels last; those have
 * other code. */
static bool conv_accepts(const op_call *call)
{
    return !call->attributes[CV_TRANSPOSED].i && !call->attributes[CV_EXPR].s.n &&
           !call->attributes[CV_LAST].i && all_are_floats(call) &&
           filters_are_dense(&call->in[CV_W]);
}

/* An axis that is missing, or was joined to another. */
static const conv_axis conv_no_axis = {.n = 1, .k = 1, .stride = 1, .dilation = 1, .count = 1};

/* Is each place of the result made of one entry of x, at the same index, along this axis? */
static bool is_pointwise(const conv_axis *a)
{
    return a->k == 1 && a->stride == 1 && a->padding == 0;
}

/* Join the last two axes while no window spans either, as with filters of one entry: longer rows
 * make fewer pieces. */
static void join_axes(conv_task *t)
{
    conv_axis *in = &t->axis[2], *out = &t->axis[1];
    while (is_pointwise(in) && is_pointwise(out) && in->count == in->n &&
           out->x_stride == in->x_stride * in->n && out->y_stride == in->y_stride * in->n) {
        in->lo += out->lo * in->n;
        in->count *= out->count;
        in->n *= out->n;
        t->axis[1] = t->axis[0];
        t->axis[0] = conv_no_axis;
    }
}

/* Describe the axes and count channels and filters: all that does not depend on scratch.  A
 * convolution of one or two spatial axes gets leading axes of one entry. */
static void describe_axes(const op_call *call, const ir_box *box, conv_task *t)
{
    const op_view *x = &call->in[CV_X], *w = &call->in[CV_W], *y = &call->out[0];
    uint32_t missing = CV_SPACE + 2 - x->rank;
    t->kernel = t->places = 1;
    for (uint32_t a = 0; a < CV_SPACE; a++) {
        t->axis[a] = conv_no_axis;
        if (a < missing)
            continue;
        uint32_t s = a - missing, i = s + 2;
        t->axis[a] = (conv_axis){x->dims[i],
                                 w->dims[i],
                                 conv_number(call, CV_STRIDE, s, 1),
                                 conv_number(call, CV_PADDING, s, 0),
                                 conv_number(call, CV_DILATION, s, 1),
                                 box->lo[i],
                                 box->hi[i] - box->lo[i],
                                 x->stride[i],
                                 y->stride[i]};
        t->kernel *= t->axis[a].k;
        t->places *= t->axis[a].count;
    }
    t->channels = w->dims[1];
    t->filters = w->dims[0] / call->attributes[CV_GROUPS].i;
}

/* Whether planes are used: one channel in a group, and no filter that spans the first of three
 * axes. */
static bool goes_by_planes(const conv_task *t)
{
    const conv_axis *depth = &t->axis[0];
    return t->channels == 1 && depth->k == 1 && depth->stride == 1 && depth->padding == 0;
}

/* ---- windows in panels ---- */

/* How many channels' windows are packed together: PRODUCT_DEPTH rows of a panel, but at least
 * one channel. */
static int64_t chunk_channels(const conv_task *t)
{
    int64_t n = t->kernel < PRODUCT_DEPTH ? PRODUCT_DEPTH / t->kernel : 1;
    return n < t->channels ? n : t->channels;
}

/* Append a piece, unless it is empty. */
static void add_piece(conv_piece *pieces, int *n, int64_t at, int64_t count, int64_t offset,
                      bool zero)
{
    if (count > 0)
        pieces[(*n)++] = (conv_piece){at, count, offset, zero};
}

/* The entry of x along an axis that filter entry k reads for entry `at` of the box; it may lie
 * in the padding. */
static int64_t conv_source(const conv_axis *a, int64_t at, int64_t k)
{
    return (a->lo + at) * a->stride - a->padding + k * a->dilation;
}

/* Append the pieces for n places of one row of the result, from `place` on, and filter entry k:
 * padding on the left, x, padding on the right; zeros alone if the row of x lies in the padding. */
static void add_lanes(const conv_task *t, const int64_t *place, const int64_t *k, int64_t lane,
                      int64_t n, conv_piece *pieces, int *count)
{
    const conv_axis *a = t->axis, *last = &a[2];
    int64_t d = conv_source(&a[0], place[0], k[0]), h = conv_source(&a[1], place[1], k[1]);
    int64_t w = conv_source(last, place[2], k[2]),
            lo = w < 0 ? (-w + last->stride - 1) / last->stride : 0;
    int64_t hi = w < last->n ? (last->n - 1 - w) / last->stride + 1 : 0;
    lo = lo < n ? lo : n;
    hi = hi < n ? hi : n;
    if (d < 0 || d >= a[0].n || h < 0 || h >= a[1].n || hi <= lo)
        lo = hi = n;
    int64_t offset =
        d * a[0].x_stride + h * a[1].x_stride + (w + lo * last->stride) * last->x_stride;
    add_piece(pieces, count, lane, lo, 0, true);
    add_piece(pieces, count, lane + lo, hi - lo, offset, false);
    add_piece(pieces, count, lane + hi, n - hi, 0, true);
}

/* The coordinates of place p, which counts the box's places in row-major order. */
static void place_of(const conv_task *t, int64_t p, int64_t place[CV_SPACE])
{
    place[2] = p % t->axis[2].count;
    p /= t->axis[2].count;
    place[1] = p % t->axis[1].count;
    place[0] = p / t->axis[1].count;
}

/* The pieces of a panel's row: n places from p on, then zeros up to `lanes` lanes.  Returns how
 * many. */
static int find_pieces(const conv_task *t, int64_t p, int64_t n, int64_t lanes, const int64_t *k,
                       conv_piece *pieces)
{
    int64_t place[CV_SPACE], done = 0, run;
    int count = 0;
    for (; done < n; done += run) {
        place_of(t, p + done, place);
        run = t->axis[2].count - place[2] < n - done ? t->axis[2].count - place[2] : n - done;
        add_lanes(t, place, k, done, run, pieces, &count);
    }
    add_piece(pieces, &count, n, lanes - n, 0, true);
    return count;
}

/* Store n lanes of a row.  A whole vector is stored wherever the row has room: the next piece
 * overwrites what was too much. */
V_INLINE void store_piece(float *row, int64_t at, int64_t n, int64_t lanes, vf v)
{
    if (at + 16 <= lanes)
        v_store(row + at, v);
    else
        v_store_n(row + at, n, v);
}

/* Fill a row of the panel from one channel; step: the distance in x, in elements, of neighbours
 * in the result. */
V_INLINE void fill_row(const op_view *x, ir_dtype dtype, int64_t offset, int64_t step,
                       const conv_piece *pieces, int n, int64_t lanes, float *row)
{
    for (int i = 0; i < n; i++) {
        const conv_piece *p = &pieces[i];
        if (step != 1 && !p->zero) {
            for (int64_t j = 0; j < p->n; j++)
                row[p->at + j] = row_element(x->data, dtype, offset + p->offset + j * step);
            continue;
        }
        for (int64_t j = 0; j < p->n; j += 16)
            store_piece(row, p->at + j, p->n - j, lanes,
                        p->zero ? v_zero()
                                : row_load(x->data, dtype, offset + p->offset + j, p->n - j));
    }
}

/* Where the lanes of one vector come from, for f32 and neighbours in x: lanes [at, end) from
 * `offset` on, where its lane 0 would be; the rest are zeros. */
typedef struct conv_lanes {
    struct {
        int64_t offset;
        int32_t at, end;
    } parts[16];
    int n;
} conv_lanes;

/* The part of a panel's row from lane `first` on that one vector holds. */
static void find_lanes(const conv_piece *pieces, int n, int64_t first, conv_lanes *out)
{
    out->n = 0;
    for (int i = 0; i < n; i++) {
        const conv_piece *p = &pieces[i];
        int64_t at = p->at > first ? p->at - first : 0, end = p->at + p->n - first;
        end = end < 16 ? end : 16;
        if (p->zero || at >= end)
            continue;
        out->parts[out->n].offset = p->offset + first - p->at;
        out->parts[out->n].at = (int32_t)at;
        out->parts[out->n++].end = (int32_t)end;
    }
}

/* The vector, from a channel at x. */
V_INLINE vf load_lanes(const conv_lanes *from, const float *x)
{
    vf v = v_zero();
    if (from->n == 1 && from->parts[0].at == 0 && from->parts[0].end == 16)
        return v_load(x + from->parts[0].offset);
    for (int i = 0; i < from->n; i++) {
        vf part = v_load_part(x + from->parts[i].offset, from->parts[i].at, from->parts[i].end);
        v = v_from_bits(vi_or(vi_bits(v), vi_bits(part)));
    }
    return v;
}

/* Rows of the panel for some filter entries, which are n vectors, from every channel: x stays in
 * the first cache for the next entry. */
static void fill_rows(const float *x, int64_t x_stride, int64_t channels, const conv_lanes *from,
                      int64_t n, float *to, int64_t to_stride)
{
    for (int64_t c = 0; c < channels; c++, x += x_stride, to += to_stride)
        for (int64_t v = 0; v < n; v++)
            v_store(to + 16 * v, load_lanes(&from[v], x));
}

/* Pack the windows of places [p, p + n) over `channels` channels, the first of which begins at
 * x_offset.  Pieces are found once for each filter entry and used by all channels. */
static void pack_windows(const conv_task *t, int64_t x_offset, int64_t channels, int64_t p,
                         int64_t n, int64_t lanes)
{
    const op_view *x = &t->call->in[CV_X];
    const conv_axis *a = t->axis;
    conv_piece pieces[CV_PIECES];
    conv_lanes from[CV_ENTRIES * V_TILE_VECTORS];
    ir_box kernel = {.hi = {a[0].k, a[1].k, a[2].k}};
    int64_t k[IR_MAX_RANK] = {0}, step = a[2].stride * a[2].x_stride, vectors = 0;
    bool more = true;
    for (float *row = t->panel; more; row += lanes) {
        int count = find_pieces(t, p, n, lanes, k, pieces);
        more = walk_next(&kernel, CV_SPACE, k);
        if (x->dtype != IR_F32 || step != 1) {
            for (int64_t c = 0; c < channels; c++)
                fill_row(x, x->dtype, x_offset + c * x->stride[1], step, pieces, count, lanes,
                         row + c * t->kernel * lanes);
            continue;
        }
        for (int64_t i = 0; i < lanes; i += 16)
            find_lanes(pieces, count, i, &from[vectors++]);
        if (more && vectors < CV_ENTRIES * lanes / 16)
            continue;
        fill_rows((const float *)x->data + x_offset, x->stride[1], channels, from, vectors,
                  row + lanes - 16 * vectors, t->kernel * lanes);
        vectors = 0;
    }
}

/* Do the places of the box follow each other in a result of f32?  Then sums lie there. */
static bool places_in_row(const conv_task *t)
{
    int64_t n = 1;
    for (int i = CV_SPACE; i-- > 0; n *= t->axis[i].count)
        if (t->axis[i].count != 1 && t->axis[i].y_stride != n)
            return false;
    return t->call->out[0].dtype == IR_F32;
}

/* The offset in the result of place p of filter f. */
static int64_t place_offset(const conv_task *t, int64_t f, int64_t p)
{
    const op_view *y = &t->call->out[0];
    int64_t place[CV_SPACE], offset = t->n * y->stride[0] + f * y->stride[1];
    place_of(t, p, place);
    for (int i = 0; i < CV_SPACE; i++)
        offset += (t->axis[i].lo + place[i]) * t->axis[i].y_stride;
    return offset;
}

/* Store the sums of places [p, p + n) of filters [f, f + filters), plus bias. */
static void store_places(const conv_task *t, int64_t f, int64_t filters, int64_t p, int64_t n)
{
    const op_view *bias = &t->call->in[CV_BIAS];
    const conv_axis *last = &t->axis[2];
    for (int64_t r = 0; r < filters; r++) {
        float *sums = t->sums + r * PRODUCT_COLUMNS;
        float b = bias->data ? row_element(bias->data, bias->dtype, (f + r) * bias->stride[0]) : 0;
        for (int64_t i = 0; i < n && bias->data; i++)
            sums[i] += b;
        for (int64_t done = 0, run; done < n; done += run) {
            run = last->count - (p + done) % last->count;
            run = run < n - done ? run : n - done;
            store_floats(&t->call->out[0], place_offset(t, f + r, p + done), last->y_stride, run,
                         sums + done);
        }
    }
}

/* Places [p, p + n) of filters [f, end), which are of one group; nv vectors.  Chunks of channels
 * are added one after the other. */
static void convolve_places(const conv_task *t, int64_t f, int64_t end, int64_t p, int64_t n,
                            int nv)
{
    const op_view *x = &t->call->in[CV_X], *y = &t->call->out[0];
    int64_t first = f / t->filters * t->channels, chunk = chunk_channels(t);
    bool in_row = places_in_row(t);
    product_sums to = {t->sums, PRODUCT_COLUMNS, 16 * nv, false, NULL};
    if (in_row)
        to = (product_sums){(float *)y->data + place_offset(t, f, p), y->stride[1], n, false, NULL};
    for (int64_t c = 0; c < t->channels; c += chunk) {
        int64_t channels = t->channels - c < chunk ? t->channels - c : chunk;
        pack_windows(t, t->n * x->stride[0] + (first + c) * x->stride[1], channels, p, n, 16 * nv);
        to.add = c > 0;
        if (in_row && t->bias && c + channels == t->channels)
            to.bias = t->bias + (f - t->first);
        product_rows(t->w + (f - t->first) * t->w_stride + c * t->kernel, t->w_stride, end - f,
                     t->panel, nv, channels * t->kernel, to);
    }
    if (!in_row)
        store_places(t, f, end - f, p, n);
}

/* All places of the box, panel by panel, for filters [f, end) of one group. */
static void convolve_group(const conv_task *t, int64_t f, int64_t end)
{
    for (int64_t i = 0; i < panel_count(t->places); i++) {
        int64_t first = panel_first(t->places, i), nv = panel_first(t->places, i + 1) - first,
                p = 16 * first;
        convolve_places(t, f, end, p, t->places - p < 16 * nv ? t->places - p : 16 * nv, (int)nv);
    }
}

/* ---- planes ---- */

/* A channel's plane with its padding: each row is `stride` parts of `length` columns, part i
 * holding the columns i, i + stride, ..  After the rows there is room for what the last
 * CV_PLANE_ROWS rows of the result may read too much. */
typedef struct conv_plane {
    int64_t rows, columns, length, floats;
} conv_plane;

/* The size of the part of a channel's plane that the box needs, with padding.  Rows are sixteen
 * columns longer than needed, because a vector may begin at the last one. */
static conv_plane plane_of(const conv_task *t)
{
    const conv_axis *h = &t->axis[1], *w = &t->axis[2];
    conv_plane p = {.rows = (h->count - 1) * h->stride + (h->k - 1) * h->dilation + 1,
                    .columns = (w->count - 1) * w->stride + (w->k - 1) * w->dilation + 1};
    p.length = (p.columns + w->stride - 1) / w->stride + 16;
    p.floats = (p.rows + (CV_PLANE_ROWS - 1) * h->stride) * w->stride * p.length;
    return p;
}

/* Copy the part of x that the box needs.  The padding is the same for every channel and zero
 * from the start. */
static void fill_plane(const conv_task *t, const conv_plane *p, int64_t offset)
{
    const op_view *x = &t->call->in[CV_X];
    const conv_axis *h = &t->axis[1], *w = &t->axis[2];
    int64_t top = h->lo * h->stride - h->padding, left = w->lo * w->stride - w->padding;
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t part = 0; part < w->stride && top + r >= 0 && top + r < h->n; part++) {
            float *to = t->panel + (r * w->stride + part) * p->length;
            int64_t from = left + part, lo = from < 0 ? (-from + w->stride - 1) / w->stride : 0;
            int64_t hi = from < w->n ? (w->n - 1 - from) / w->stride + 1 : 0;
            int64_t used = (p->columns - part + w->stride - 1) / w->stride;
            hi = hi < used ? hi : used;
            if (hi > lo)
                load_floats(
                    x, offset + (top + r) * h->x_stride + (from + lo * w->stride) * w->x_stride,
                    w->stride * w->x_stride, hi - lo, to + lo);
        }
}

/* CV_PLANE_ROWS rows and sixteen columns of the result; from: the first column of the first row
 * of x that they read.  Each row of x is loaded once for a column of the filter and added to all
 * rows of the result that need it. */
V_INLINE void convolve_rows_as(int k, int stride, int64_t row, int64_t length, const float *filter,
                               const float *from, vf acc[CV_PLANE_ROWS])
{
    for (int kw = 0; kw < k; kw++) {
        const float *x = from + kw % stride * length + kw / stride;
        vf weight[7];
#pragma GCC unroll 7
        for (int kh = 0; kh < k; kh++)
            weight[kh] = v_set(filter[kh * k + kw]);
#pragma GCC unroll 13
        for (int i = 0; i < (CV_PLANE_ROWS - 1) * stride + k; i++) {
            vf v = v_load(x + i * row);
#pragma GCC unroll 4
            for (int j = 0; j < CV_PLANE_ROWS; j++)
                if (i >= j * stride && i < j * stride + k)
                    acc[j] = v_fma(weight[i - j * stride], v, acc[j]);
        }
    }
}

/* The same for any filter: rows of x are loaded again for each row of the result. */
V_INLINE void convolve_rows_any(const conv_task *t, const conv_plane *p, const float *filter,
                                const float *from, vf acc[CV_PLANE_ROWS])
{
    const conv_axis *h = &t->axis[1], *w = &t->axis[2];
    int64_t row = w->stride * p->length;
    for (int64_t kw = 0; kw < w->k; kw++)
        for (int64_t kh = 0; kh < h->k; kh++) {
            int64_t column = kw * w->dilation;
            int64_t at =
                kh * h->dilation * row + column % w->stride * p->length + column / w->stride;
            vf weight = v_set(filter[kh * w->k + kw]);
#pragma GCC unroll 4
            for (int j = 0; j < CV_PLANE_ROWS; j++)
                acc[j] = v_fma(weight, v_load(from + j * h->stride * row + at), acc[j]);
        }
}

/* Which compiled form the filter has: 10 stride + size for squares of 3, 5 or 7 with stride 1 or
 * 2, other numbers for none. */
static int64_t square_filter(const conv_task *t)
{
    const conv_axis *h = &t->axis[1], *w = &t->axis[2];
    bool square = h->k == w->k && h->stride == w->stride && h->dilation == 1 && w->dilation == 1 &&
                  w->stride <= 2;
    return square ? 10 * w->stride + w->k : 0;
}

/* In the compiled forms sizes and strides are constants, so they unroll to loads and FMAs alone. */
V_INLINE void convolve_rows(const conv_task *t, const conv_plane *p, const float *filter,
                            const float *from, vf acc[CV_PLANE_ROWS])
{
    int64_t length = p->length;
    switch (square_filter(t)) {
    case 13:
        convolve_rows_as(3, 1, length, length, filter, from, acc);
        break;
    case 15:
        convolve_rows_as(5, 1, length, length, filter, from, acc);
        break;
    case 17:
        convolve_rows_as(7, 1, length, length, filter, from, acc);
        break;
    case 23:
        convolve_rows_as(3, 2, 2 * length, length, filter, from, acc);
        break;
    case 25:
        convolve_rows_as(5, 2, 2 * length, length, filter, from, acc);
        break;
    case 27:
        convolve_rows_as(7, 2, 2 * length, length, filter, from, acc);
        break;
    default:
        convolve_rows_any(t, p, filter, from, acc);
    }
}

/* Store up to sixteen columns of a row of the result. */
V_INLINE void store_columns(const op_view *y, int64_t offset, int64_t stride, int64_t n, vf sums)
{
    float lanes[16];
    if (y->dtype == IR_F32 && stride == 1) {
        v_store_n((float *)y->data + offset, n, sums);
        return;
    }
    v_store(lanes, sums);
    store_floats(y, offset, stride, n < 16 ? n : 16, lanes);
}

/* One filter over the plane at hand, for entry d of the first axis. */
static void convolve_plane(const conv_task *t, const conv_plane *p, int64_t f, int64_t d)
{
    const op_view *y = &t->call->out[0];
    const conv_axis *h = &t->axis[1], *w = &t->axis[2];
    const float *filter = t->w + (f - t->first) * t->w_stride;
    float b = t->bias ? t->bias[f - t->first] : 0;
    int64_t plane =
        t->n * y->stride[0] + f * y->stride[1] + (t->axis[0].lo + d) * t->axis[0].y_stride;
    for (int64_t r = 0; r < h->count; r += CV_PLANE_ROWS)
        for (int64_t i = 0; i < w->count; i += 16) {
            vf acc[CV_PLANE_ROWS] = {v_zero(), v_zero(), v_zero(), v_zero()};
            convolve_rows(t, p, filter, t->panel + r * h->stride * w->stride * p->length + i, acc);
            for (int64_t j = 0; j < CV_PLANE_ROWS && r + j < h->count; j++)
                store_columns(y, plane + (h->lo + r + j) * h->y_stride + (w->lo + i) * w->y_stride,
                              w->y_stride, w->count - i,
                              t->bias ? v_add(acc[j], v_set(b)) : acc[j]);
        }
}

/* Filters [f, end) of one group, which is one channel: its plane is filled once for all of them. */
static void convolve_channel(const conv_task *t, int64_t f, int64_t end)
{
    const op_view *x = &t->call->in[CV_X];
    conv_plane p = plane_of(t);
    for (int64_t d = 0; d < t->axis[0].count; d++) {
        fill_plane(t, &p,
                   t->n * x->stride[0] + f / t->filters * x->stride[1] +
                       (t->axis[0].lo + d) * t->axis[0].x_stride);
        for (int64_t i = f; i < end; i++)
            convolve_plane(t, &p, i, d);
    }
}

/* ---- both ---- */

/* The filters of the box, and its bias, as f32 in scratch. */
static void load_filters(const conv_task *t, int64_t filters, float *w)
{
    const op_view *from = &t->call->in[CV_W], *bias = &t->call->in[CV_BIAS];
    for (int64_t f = 0; f < filters && w; f++)
        load_floats(from, (t->first + f) * from->stride[0], 1, t->w_stride, w + f * t->w_stride);
    if (t->bias)
        load_floats(bias, t->first * bias->stride[0], bias->stride[0], filters, t->bias);
}

/* Count the floats of scratch, and lay it out if it is given: filters as f32 unless they are f32
 * already; a panel or a plane; sums; the bias.  Returns bytes. */
static size_t conv_lay_out(const op_call *call, const ir_box *box, float *scratch, conv_task *t)
{
    const op_view *w = &call->in[CV_W];
    const int64_t filters = box->hi[1] - box->lo[1];
    t->call = call;
    t->first = box->lo[1];
    describe_axes(call, box, t);
    int64_t row = t->channels * t->kernel, n = w->dtype == IR_F32 ? 0 : filters * row;
    bool planes = goes_by_planes(t);
    int64_t panel = planes ? plane_of(t).floats : chunk_channels(t) * t->kernel * PRODUCT_COLUMNS;
    int64_t sums = planes ? 0 : (t->filters < filters ? t->filters : filters) * PRODUCT_COLUMNS;
    int64_t biases = call->in[CV_BIAS].data ? filters : 0;
    if (scratch) {
        t->w = n ? scratch : (const float *)w->data + t->first * w->stride[0];
        t->w_stride = n ? row : w->stride[0];
        t->panel = scratch + n;
        t->sums = t->panel + panel;
        t->bias = biases ? t->sums + sums : NULL;
        load_filters(t, filters, n ? scratch : NULL);
    }
    return (size_t)(n + panel + sums + biases) * sizeof(float);
}

static size_t conv_scratch_bytes(const op_call *call, const ir_box *box)
{
    conv_task t = {0};
    return conv_lay_out(call, box, NULL, &t);
}

/* The body.  The padding of a plane is zeroed once: each channel writes the same places and
 * leaves the others. */
static void conv_run(const op_call *call, const ir_box *box, void *scratch)
{
    conv_task t = {0};
    conv_lay_out(call, box, scratch, &t);
    bool planes = goes_by_planes(&t);
    if (planes)
        memset(t.panel, 0, (size_t)plane_of(&t).floats * sizeof(float));
    else
        join_axes(&t);
    for (t.n = box->lo[0]; t.n < box->hi[0]; t.n++)
        for (int64_t f = box->lo[1], end; f < box->hi[1]; f = end) {
            end = (f / t.filters + 1) * t.filters;
            end = end < box->hi[1] ? end : box->hi[1];
            if (planes)
                convolve_channel(&t, f, end);
            else
                convolve_group(&t, f, end);
        }
}

#endif
