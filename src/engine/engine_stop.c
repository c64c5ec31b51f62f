/* engine_stop.c - stop texts in text that comes piece by piece.
 *
 * Input: pieces of whole characters; output: how much of the text may be shown.  A stop text may
 * begin in one piece and end in another, so the longest end of the text that is the beginning of a
 * stop text waits.  The text is cut where the first stop text begins, or after it where the stop
 * text belongs to the answer.  Cost: O(stops * their length) for each piece and its length.
 *
 *     stop text "END":  "the E" -> "the " is shown, "E" waits
 *                       "ven"   -> "the Even" is shown
 *
 * Called by engine_request.c with the engine's mutex held.
 */
#include "engine/engine.h"

/* Where the text is cut by the first of the stop texts that begins at or after `from`, or SIZE_MAX;
 * s->stop is its index.  Of two that begin there the shorter one counts, which was complete
 * first. */
static size_t find_cut(engine_stream *s, size_t from)
{
    size_t first = SIZE_MAX, length = 0;
    for (uint32_t i = 0; i < s->n_stops; i++) {
        const char *found =
            memmem(s->text.at + from, s->text.n - from, s->stops[i].at, s->stops[i].n);
        size_t at = found ? (size_t)(found - s->text.at) : SIZE_MAX;
        if (at < first || (at == first && s->stops[i].n < length)) {
            first = at;
            length = s->stops[i].n;
            s->stop = i;
        }
    }
    return first == SIZE_MAX || !s->keeps_stop ? first : first + length;
}

/* Where the longest end of the text begins that some stop text begins with, at or after `from`; the
 * length of the text if there is none. */
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

/* n_shown only grows: what has been shown cannot be taken back, so text that may begin a stop
 * text waits.  Hence no stop text begins before n_shown, and the search starts there.
 */
bool engine_stream_put(engine_stream *s, str piece)
{
    if (s->stopped || !piece.n)
        return true;
    text_add(&s->text, piece.at, piece.n);
    if (s->text.failed)
        return false;
    size_t cut = find_cut(s, s->n_shown); /* no stop text begins before what is not yet shown */
    if (cut != SIZE_MAX) {
        s->text.n = cut;
        s->text.at[cut] = 0;
        s->n_shown = cut;
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
