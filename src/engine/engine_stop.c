/* engine_stop.c - stop texts in text that comes piece by piece.
 *
 * Input: pieces of whole characters; output: how much of the text may be shown.  A stop text may
 * begin in one piece and end in another, so the longest end of the text that is the beginning of a
 * stop text waits.  Cost: O(stops * their length) for each piece and its length.
 */
#include "engine/engine.h"

/* Where the first of the stop texts begins at or after `from`, or SIZE_MAX. */
static size_t find_stop(const engine_stream *s, size_t from)
{
    size_t first = SIZE_MAX;
    for (uint32_t i = 0; i < s->n_stops; i++) {
        const char *at = memmem(s->text.at + from, s->text.n - from, s->stops[i].at, s->stops[i].n);
        if (at && (size_t)(at - s->text.at) < first)
            first = (size_t)(at - s->text.at);
    }
    return first;
}

/* Where the longest end begins that some stop text begins with. */
static size_t find_unsure(const engine_stream *s, size_t from)
{
    for (size_t at = from; at < s->text.n; at++)
        for (uint32_t i = 0; i < s->n_stops; i++) {
            size_t n = s->text.n - at;
            if (n < s->stops[i].n && memcmp(s->text.at + at, s->stops[i].at, n) == 0)
                return at;
        }
    return s->text.n;
}

bool engine_stream_put(engine_stream *s, str piece)
{
    if (s->stopped || !piece.n)
        return true;
    text_add(&s->text, piece.at, piece.n);
    if (s->text.failed)
        return false;
    size_t stop = find_stop(s, s->n_shown); /* no stop text begins before what is not yet shown */
    if (stop != SIZE_MAX) {
        s->text.n = stop;
        s->text.at[stop] = 0;
        s->n_shown = stop;
        s->stopped = true;
        return true;
    }
    s->n_shown = find_unsure(s, s->n_shown);
    return true;
}

void engine_stream_end(engine_stream *s)
{
    s->n_shown = s->text.n;
}
