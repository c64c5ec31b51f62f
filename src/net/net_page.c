/* net_page.c - the page at /: a chat and a view of the engine.  Its text is page.html, which the
 * build turns into C.
 *
 * The page needs no key, as it holds nothing secret; the requests that it makes need one.  Its
 * policy lets it run no script but its own and connect to no other host.
 */
#include "net/net_page.h"
#include "net/net_exchange.h"

/* The page is one file with its script and style inside; the policy lets it talk to this server and
 * load nothing from elsewhere. MHD_RESPMEM_PERSISTENT: the bytes are constants of the program and
 * are not copied. */
mpk_status net_page_send(net_exchange *x, const char *path)
{
    static const char policy[] =
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors "
        "'none'";
    struct MHD_Response *response = MHD_create_response_from_buffer(
        net_page_bytes, (void *)(uintptr_t)net_page_text, MHD_RESPMEM_PERSISTENT);
    (void)path;
    if (response) {
        (void)MHD_add_response_header(response, "Content-Security-Policy", policy);
        (void)MHD_add_response_header(response, "Cache-Control", "no-cache");
        (void)MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
        (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    }
    return net_reply_send(x, 200, "text/html; charset=utf-8", response);
}
