/* net_stream.c - answers as server-sent events, as they arrive.
 *
 * libmicrohttpd asks for bytes; the thread waits until an answer has something new, lets the
 * dialect write it as events, and hands them over.  An event holds all that has come since the
 * last one.  A failure after the beginning is an event, too.  While nothing comes, a ping is
 * sent from time to time, so that proxies and clients do not close the connection.
 */
#include "base/thread.h"
#include "net/net_exchange.h"

/* The last event of a stream that fails; the engine's requests are freed. */
static void write_failure(net_exchange *x, mpk_status status, text *to)
{
    net_refuse_status(&x->refusal, status);
    x->work.dialect->write_failure(x, to);
    net_work_close(x);
    x->ended = true;
}

/* Write what is new in each answer, and after the last one has ended the end. */
static void write_news(net_exchange *x)
{
    const net_work *w = &x->work;
    for (uint32_t i = 0; i < w->n; i++)
        w->dialect->write_news(x, &w->answers[i], i, &x->out);
    if (!w->n_running) {
        w->dialect->write_end(x, &x->out);
        x->ended = true;
    }
}

static void ping(net_exchange *x)
{
    const uint64_t every = x->work.ping_s;
    if (!x->out.n && every && clock_ns() - x->sent_ns >= every * 1000000000)
        text_print(&x->out, "%s", x->work.dialect->ping);
}

/* Wait until there is something to send, until the end, or until the client has gone. */
static void fill(net_exchange *x)
{
    x->out.n = x->out_at = 0;
    net_exchange_stop_clock(x, true);
    while (!x->out.n && !x->ended && !x->gone && !x->out.failed) {
        mpk_status status = net_work_wait(x);
        if (status != MPK_OK && !x->gone)
            write_failure(x, status, &x->out);
        if (status != MPK_OK)
            break;
        write_news(x);
        ping(x);
    }
    if (x->ended)
        /* before it is sent: a client that has the last event may ask again at once */
        net_meter_end(x);
    x->sent_ns = clock_ns();
    net_exchange_stop_clock(x, false);
}

/* libmicrohttpd's callback for more bytes: first the rest of the last events, then new ones. */
static ssize_t read_stream(void *user, uint64_t position, char *to, size_t most)
{
    net_exchange *x = user;
    (void)position;
    if (x->out_at == x->out.n && !x->ended)
        fill(x);
    if (x->gone || x->out.failed)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = x->out.n - x->out_at;
    if (!n)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n > most)
        n = most;
    memcpy(to, x->out.at + x->out_at, n);
    x->out_at += n;
    return (ssize_t)n;
}

/* The status is 200 from here on, whatever happens: failures become events (write_failure). */
mpk_status net_stream_begin(net_exchange *x)
{
    x->sent_ns = clock_ns();
    /* no callback to free anything: the exchange does that in net_exchange_complete */
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, read_stream, x, NULL);
    if (response) {
        (void)MHD_add_response_header(response, "Cache-Control", "no-cache");
        /* tells nginx not to buffer */
        (void)MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    return net_reply_send(x, 200, "text/event-stream", response);
}
