/* net_http.c - what HTTP forbids and libmicrohttpd lets pass: requests that this server and a
 * proxy before it could read in two ways (RFC 9112, sections 3.2, 5.1 and 6.3), by which a
 * client could smuggle a request past the proxy.
 *
 * Called by net_exchange.c at the headers.  A fault is a 400, and the connection is closed.
 */
#include <strings.h>

#include "net/net_exchange.h"

/* Longer distances between target and version are not of one line. */
enum { LINE_BYTES = 64 << 10 };

/* What the headers of a request show, as far as it matters here. */
typedef struct findings {
    unsigned n_hosts, n_lengths, n_encodings;
    const char *length;
    bool two_lengths, bad_name;
} findings;

/* A header's name must be a token: letters, digits and a few signs. */
static bool is_token(const char *name)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (const char *p = name; *p; p++) {
        const bool is_letter =
            (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9');
        if (!is_letter && !strchr(others, *p))
            return false;
    }
    return *name != 0;
}

/* libmicrohttpd's iterator: one header. */
static enum MHD_Result look_at(void *user, enum MHD_ValueKind kind, const char *name,
                               const char *value)
{
    findings *f = user;
    (void)kind;
    f->bad_name |= !is_token(name);
    f->n_hosts += strcasecmp(name, "Host") == 0;
    f->n_encodings += strcasecmp(name, "Transfer-Encoding") == 0;
    if (strcasecmp(name, "Content-Length") == 0) {
        f->two_lengths |= f->length && value && strcmp(f->length, value) != 0;
        f->length = value;
        f->n_lengths++;
    }
    return MHD_YES;
}

/* What is wrong with the request; NULL: nothing. */
static const char *find_fault(const findings *f, const char *version)
{
    if (f->bad_name)
        return "the name of a header holds a space or another character that HTTP forbids";
    if (f->two_lengths)
        return "two headers Content-Length differ";
    if (f->n_lengths && f->n_encodings)
        return "a request has Content-Length or Transfer-Encoding, not both";
    if (f->n_hosts > 1)
        return "there are two headers Host";
    if (!f->n_hosts && strcmp(version, "HTTP/1.1") == 0)
        return "HTTP/1.1 needs a header Host";
    return NULL;
}

/* libmicrohttpd splits the request line in place and ends the target with a NUL.  If the target
 * ends before the place where the version begins, the client has sent a NUL. */
static bool is_cut(const net_exchange *x, const char *version)
{
    const uintptr_t end = (uintptr_t)x->uri + x->uri_bytes, next = (uintptr_t)version;
    return next > end + 1 && next - end < LINE_BYTES;
}

/* Is there a %00 in the path, before any query? */
static bool hides_nul(const char *uri)
{
    const char *found = strstr(uri, "%00");
    return found && found < uri + strcspn(uri, "?");
}

void net_http_note_uri(net_exchange *x, const char *uri)
{
    x->uri = uri;
    x->uri_bytes = strlen(uri);
    x->hides_nul = hides_nul(uri);
}

/* Refuses what two parsers could understand differently (lengths given twice, a NUL in the path): a
 * proxy in front might see another request. The connection closes after the reply, since what
 * follows on it cannot be trusted either. */
mpk_status net_http_check(net_exchange *x, const char *version)
{
    findings f = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, look_at, &f);
    const char *fault =
        x->hides_nul || is_cut(x, version) ? "the path holds a NUL" : find_fault(&f, version);
    if (!fault)
        return MPK_OK;
    x->last = true;
    return net_refuse(x->cx, &x->refusal, 400, NULL, NULL, "%s", fault);
}
