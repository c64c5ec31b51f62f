/* net_server.c - the listening socket and libmicrohttpd's daemon: start and stop.
 *
 * libmicrohttpd has a thread for each connection; all of them call net_exchange.c with the
 * server as their argument.  Stopping takes two steps: first new requests are refused while
 * running answers go on (`stopping`), then, after the caller's grace time, running answers are
 * cut off (`cancelling`).
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/thread.h"
#include "net/net_exchange.h"

/* Limits of TLS files and of libmicrohttpd's buffer for a connection; LAST_WORDS_MS: time for
 * the replies of requests that are cut off; NAP_MS: between two looks at the exchanges;
 * SPARE_DESCRIPTORS: for files other than connections. */
enum {
    MAX_PEM_BYTES = 1 << 20,
    CONNECTION_BYTES = 64 << 10,
    LAST_WORDS_MS = 2000,
    NAP_MS = 10,
    SPARE_DESCRIPTORS = 32
};

/* ---- the socket ---- */

/* -1: errno says why. Bound but not listening: clients are refused until the model is loaded. */
static int bind_to(const struct addrinfo *a)
{
    const int yes = 1;
    int s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (s < 0)
        return -1;
    /* connections of an earlier run may still be in TIME_WAIT */
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (a->ai_family == AF_INET6)
        setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0},
                   sizeof(int)); /* "::" then accepts IPv4 too */
    if (bind(s, a->ai_addr, a->ai_addrlen) == 0)
        return s;
    int error = errno;
    close(s);
    errno = error;
    return -1;
}

/* Names what can be done, since a port in use is the commonest error of all. */
static mpk_status refuse_address(mpk_context *cx, const char *host, uint16_t port, int error)
{
    FAIL(cx, MPK_EIO, "cannot listen on %s, port %u: %s%s", host, port, strerror(error),
         error == EADDRINUSE
             ? "; stop what listens there, or choose another port (0: any that is free)"
             : "");
}

/* The first address of the host that can be bound wins. */
static mpk_status open_socket(mpk_context *cx, const char *host, uint16_t port, int *out)
{
    const struct addrinfo wanted = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int error = getaddrinfo(host, service, &wanted, &found);
    CHECK(cx, !error, MPK_EIO, "host '%s': %s; give a name or an address of this machine", host,
          error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
    int s = -1;
    for (const struct addrinfo *a = found; a && s < 0; a = a->ai_next)
        s = bind_to(a);
    error = errno;
    freeaddrinfo(found);
    if (s < 0)
        return refuse_address(cx, host, port, error);
    *out = s;
    return MPK_OK;
}

/* The port is asked from the socket, since 0 lets the system choose it. */
static void write_url(net_server *s)
{
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    getsockname(s->socket, (struct sockaddr *)&at, &n);
    unsigned port = at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                             : ((struct sockaddr_in *)&at)->sin_port;
    const char *scheme = s->certificate ? "https" : "http";
    const bool is_ipv6 = strchr(s->options.host, ':') != NULL;
    snprintf(s->url, sizeof s->url, is_ipv6 ? "%s://[%.250s]:%u" : "%s://%.250s:%u", scheme,
             s->options.host, ntohs((uint16_t)port));
}

/* How many connections are possible: as many as wanted, or as there are descriptors for; the
 * soft limit of the process is raised if its hard limit allows.  Without a descriptor accept
 * would fail in an endless loop. */
static uint32_t fit_connections(const net_server *s)
{
    struct rlimit limit;
    const uint32_t wanted = s->options.max_connections;
    /* descriptors are given out from the lowest: the socket's tells how many others are open */
    const rlim_t others = (rlim_t)s->socket + SPARE_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return wanted;
    if (limit.rlim_cur < others + wanted) {
        limit.rlim_cur = limit.rlim_max < others + wanted ? limit.rlim_max : others + wanted;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur >= others + wanted)
        return wanted;
    return limit.rlim_cur > others ? (uint32_t)(limit.rlim_cur - others) : 1;
}

/* ---- the daemon ---- */

/* A thread for each connection: an exchange may wait for the engine for minutes, and blocks no
 * other. The last item of `tls` alone is used without a certificate. */
static mpk_status start_daemon(mpk_context *cx, net_server *s)
{
    const net_options *o = &s->options;
    const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                           MHD_USE_POLL | MHD_USE_ITC | (s->certificate ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)s->certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)s->private},
        {MHD_OPTION_END, 0, NULL}};
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, net_exchange_handle, s, MHD_OPTION_LISTEN_SOCKET, s->socket,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)fit_connections(s), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)o->timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, net_exchange_complete, s, MHD_OPTION_URI_LOG_CALLBACK,
        net_exchange_begin, s, MHD_OPTION_ARRAY, s->certificate ? tls : tls + 2, MHD_OPTION_END);
    CHECK(cx, s->daemon || !s->certificate, MPK_EFORMAT,
          "the HTTPS server cannot start: is %s the certificate to the key %s, both PEM?",
          o->tls_certificate, o->tls_key);
    CHECK(cx, s->daemon, MPK_ELIMIT, "the HTTP server cannot start its threads: %s",
          strerror(errno));
    return MPK_OK;
}

/* The bytes of a text that no context can hold, so that megabytes are refused before they are
 * tokenized: every token as long as the longest one, times four, because a tokenizer may first
 * shorten the text (composed letters). */
static void measure_tokens(mpk_context *cx, net_server *s)
{
    const mpk_tokenizer *tokenizer = mpk_engine_tokenizer(s->engine);
    size_t longest = 1, n;
    char *bytes;
    for (int32_t id = 0; tokenizer && (uint32_t)id < s->facts.vocab_size; id++) {
        if (mpk_detokenize(cx, tokenizer, &id, 1, &bytes, &n) != MPK_OK)
            continue; /* the vocabulary of a model may be larger than its tokenizer's */
        longest = n > longest ? n : longest;
        mpk_free(bytes);
    }
    s->most_text_bytes = 4 * (uint64_t)longest * s->facts.context_tokens;
}

/* The PEM texts must stay in memory as long as the daemon runs. */
static mpk_status read_tls(mpk_context *cx, net_server *s)
{
    const net_options *o = &s->options;
    str certificate, key;
    if (!o->tls_certificate)
        return MPK_OK;
    CHECK(
        cx, MHD_is_feature_supported(MHD_FEATURE_TLS) == MHD_YES, MPK_EUNSUPPORTED,
        "this libmicrohttpd was built without TLS: put a proxy that ends TLS before the server, or "
        "build libmicrohttpd with GnuTLS");
    TRY(file_read(cx, &s->arena, o->tls_certificate, MAX_PEM_BYTES, &certificate));
    TRY(file_read(cx, &s->arena, o->tls_key, MAX_PEM_BYTES, &key));
    s->certificate = certificate.at;
    s->private = key.at;
    return MPK_OK;
}

/* All that can fail without an engine; the socket is bound, but does not listen. */
static mpk_status prepare(mpk_context *cx, net_server *s)
{
    TRY(net_keys_read(cx, &s->keys));
    TRY(read_tls(cx, s));
    TRY(open_socket(cx, s->options.host, s->options.port, &s->socket));
    write_url(s);
    return MPK_OK;
}

static void free_server(net_server *s)
{
    net_keys_close(&s->keys);
    arena_free(&s->arena);
    free(s);
}

/* Bound early, so that a wrong address fails before a model is loaded. */
mpk_status net_server_open(mpk_context *cx, const net_options *options, net_server **out)
{
    net_server *s = calloc(1, sizeof *s);
    CHECK(cx, s, MPK_ENOMEM, "out of memory for the server");
    s->options = *options;
    s->created = time(NULL);
    s->keys.one = options->api_key;
    s->keys.path = options->key_file;
    snprintf(s->fingerprint, sizeof s->fingerprint, "mpk-%s", mpk_version());
    if (pthread_mutex_init(&s->keys.mutex, NULL) != 0) {
        free(s);
        FAIL(cx, MPK_ENOMEM, "out of memory for the server");
    }
    mpk_status status = prepare(cx, s);
    if (status == MPK_OK)
        *out = s;
    else
        free_server(s);
    return status;
}

mpk_status net_server_reload(mpk_context *cx, net_server *s)
{
    return net_keys_read(cx, &s->keys);
}

/* listen() is called here, after the model is loaded: from the first connection on, every request
 * can be answered. */
mpk_status net_server_start(mpk_context *cx, net_server *s, mpk_engine *engine)
{
    s->engine = engine;
    s->facts.size = sizeof s->facts;
    mpk_engine_describe(engine, &s->facts);
    measure_tokens(cx, s);
    if (listen(s->socket, SOMAXCONN) != 0) /* another program was faster */
        return refuse_address(cx, s->options.host, s->options.port, errno);
    TRY(start_daemon(cx, s));
    s->started = true;
    return MPK_OK;
}

const char *net_server_url(const net_server *s)
{
    return s->url;
}

/* ---- stopping ---- */

/* Wait until no exchange waits for its reply, at most ms milliseconds. */
static void wait_idle(net_server *s, uint64_t ms)
{
    const struct timespec nap = {.tv_nsec = NAP_MS * 1000000L};
    const uint64_t end = clock_ns() + ms * 1000000;
    while (s->exchanges && clock_ns() < end)
        nanosleep(&nap, NULL);
}

/* In stages: no new connections; up to grace_s for the running requests; then they are cancelled,
 * and have LAST_WORDS_MS to tell their clients. */
static void stop_daemon(net_server *s, uint32_t grace_s)
{
    s->stopping = true;
    MHD_socket listening = MHD_quiesce_daemon(s->daemon);
    shutdown(s->socket, SHUT_RDWR); /* new connections are refused, not left waiting */
    wait_idle(s, (uint64_t)grace_s * 1000);
    s->cancelling = true;
    wait_idle(s, LAST_WORDS_MS); /* for the replies to requests that were cut off */
    MHD_stop_daemon(s->daemon);
    if (listening != MHD_INVALID_SOCKET)
        close(s->socket); /* otherwise the daemon has closed it */
}

/* The engine is the caller's and must still be alive: exchanges use it until they end. */
void net_server_stop(net_server *s, uint32_t grace_s)
{
    if (!s)
        return;
    if (s->started)
        stop_daemon(s, grace_s);
    else
        close(s->socket);
    free_server(s);
}
