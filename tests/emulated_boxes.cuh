/* emulated_boxes.cuh - the part of emulated_warps.cuh that copies boxes by tensor maps: of matrices
 * and of windows of images. */

/* Row i of a box from row `row` of the map; zeros if there is none, where that may be. */
static inline void emulated_do_row(const emulated_copy *c, rt_u64 i, rt_u64 row)
{
    const emulated_map *m = c->map;
    if (m->inside && row >= m->n_rows)
        abort();
    for (rt_u64 k = 0; k < m->box_bytes; k += 16) {
        const rt_u64 byte = (rt_u64)c->column * m->element_bytes + k;
        char *to = (char *)c->to + i * m->box_bytes + (m->swizzled ? k ^ (i % 8) * 16 : k);
        memset(to, 0, 16);
        if (row < m->n_rows && byte < m->width_bytes)
            memcpy(to, m->at + row * m->stride_bytes + byte,
                   byte + 16 < m->width_bytes ? 16 : m->width_bytes - byte);
    }
}
/* Windows begin at the first place, then a step on, until `end`; then in the next line, and after
 * the last one in the next image. */
static inline void emulated_do_image(const emulated_copy *c)
{
    const emulated_map *m = c->map;
    int right = c->begin[0], down = c->begin[1], n = c->image;
    for (rt_u64 i = 0; i < m->box_rows; i++) {
        const int place = right + c->within[0], line = down + c->within[1];
        const bool inside =
            place >= 0 && place < m->in[0] && line >= 0 && line < m->in[1] && n < m->n;
        emulated_do_row(c, i,
                        inside ? ((rt_u64)n * m->in[1] + line) * m->in[0] + place : m->n_rows);
        if ((right += m->step[0]) < m->end[0])
            continue;
        right = m->first[0];
        if ((down += m->step[1]) < m->end[1])
            continue;
        down = m->first[1];
        n++;
    }
}
static inline void emulated_do_box(const emulated_copy *c)
{
    const emulated_map *m = c->map;
    for (rt_u64 i = 0; i < m->box_rows && !m->n; i++)
        emulated_do_row(c, i, (rt_u64)c->row + i);
    if (m->n)
        emulated_do_image(c);
}

static inline void ptx_fetch_map(const void *map)
{
    if (!((const emulated_map *)map)->box_rows)
        abort();
}
static inline void emulated_copy_box(const emulated_copy &c)
{
    /* a swizzle is that of the address */
    if (((char *)c.to - mpk_s) % (c.map->swizzled || c.map->n ? 1024 : 128))
        abort();
    if (emulated_n_bulk == EMULATED_COPIES || emulated_random(2))
        emulated_do(&c);
    else
        emulated_bulk[emulated_n_bulk++] = c;
}
static inline void ptx_copy_box(rt_u32 to, const void *map, int column, int row, rt_u64 *b)
{
    const emulated_map *m = (const emulated_map *)map;
    if (m->n)
        abort();
    emulated_copy_box({mpk_s + to, 0, (rt_u32)(m->box_bytes * m->box_rows), 0, b, m, column, row});
}
/* A window must begin where the map says that one does, and its entries be few. */
static inline void ptx_copy_image(rt_u32 to, const void *map, int channel, int right, int down,
                                  int n, int along, int below, rt_u64 *b)
{
    const emulated_map *m = (const emulated_map *)map;
    const int begin[2] = {right, down};
    for (int i = 0; i < 2; i++)
        if (begin[i] < m->first[i] || begin[i] >= m->end[i] ||
            (begin[i] - m->first[i]) % m->step[i])
            abort();
    if (n < 0 || n >= m->n || along < 0 || along > 255 || below < 0 || below > 255 || channel < 0 ||
        (rt_u64)channel * m->element_bytes + m->box_bytes > m->width_bytes)
        abort();
    emulated_copy_box({mpk_s + to,
                       0,
                       (rt_u32)(m->box_bytes * m->box_rows),
                       0,
                       b,
                       m,
                       channel,
                       0,
                       {right, down},
                       n,
                       {along, below}});
}
