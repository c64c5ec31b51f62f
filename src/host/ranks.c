/* ranks.c - processes of one host that meet at a socket (ranks.h).
 *
 * What goes over a socket are frames: a head that says kind and length, then the bytes.  The first
 * frame of a rank, HELLO, has kept its form since the first version, so that processes of different
 * versions tell each other so instead of misreading.
 *
 *   rank r -> 0   HELLO rank, n, terms      0 -> r   WELCOME told, or REFUSED words
 *   rank r -> 0   DATA                      0 -> r   DATA of all, or REFUSED words
 *                                           0 -> r   MEMORY size, with a descriptor
 *   rank r -> 0   HANDED r, with a descriptor
 *                                           0 -> r   HANDED of each other, or REFUSED words
 *                                           0 -> r   CLOSED
 *
 * Rank 0 judges: it finds what differs and tells all in the same words, which each gives as its own
 * error.  A socket that ends without CLOSED is a process that has ended, whatever the reason: the
 * system closes it even after SIGKILL.
 *
 * Only processes of the same user are let in.  Relies on Linux (memfd_create, SO_PEERCRED).
 */
#include "host/ranks.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/thread.h"

enum { HELLO = 1, WELCOME, REFUSED, DATA, MEMORY, CLOSED, HANDED };
enum { RETRY_NS = 20000000, WORDS_BYTES = 512 };
/* How long to wait for the others between meeting and watching: they may load a large model
 * meanwhile.  The limit is for a process that hangs; one that ends is noticed at once, since every
 * wait also sees its socket close. */
static const uint64_t WORK_NS = 1800ull * 1000000000u;

typedef struct frame {
    char magic[4];
    uint32_t kind;
    uint64_t n;
} frame;

typedef struct hello {
    uint32_t rank, n;
    char terms[RANKS_TERMS_BYTES]; /* of which as many are sent as there are */
} hello;

struct host_ranks {
    uint32_t rank, n;
    int fd[RANKS_MOST]; /* rank 0: of each other rank; the others: [0] alone; -1: none */
    bool watches;
    int wake; /* an eventfd that ends the watch */
    pthread_t thread;
    ranks_watcher watcher;
    _Atomic bool closed;
};

uint32_t ranks_rank(const host_ranks *r)
{
    return r->rank;
}

uint32_t ranks_count(const host_ranks *r)
{
    return r->n;
}

/* ---- frames ---- */

/* Milliseconds until `end`, as poll takes them: no more than an int holds. */
static int left_ms(uint64_t end)
{
    const uint64_t now = clock_ns(), ms = now >= end ? 0 : (end - now) / 1000000 + 1;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

/* Until one of them has something, or has closed; false: not before `end`.  A signal that comes
 * meanwhile, which the program may have a handler for, says nothing of any of them. */
static bool await_ready(struct pollfd *p, nfds_t n, uint64_t end)
{
    for (;;) {
        const int ready = poll(p, n, left_ms(end));
        if (ready > 0)
            return true;
        if (ready == 0 ? clock_ns() >= end : errno != EINTR)
            return false;
    }
}

static mpk_status say_ended(mpk_context *cx, uint32_t rank)
{
    FAIL(cx, MPK_EDEVICE, "the process of rank %u has ended: its own message says why", rank);
}

/* n bytes from a socket, until `end`.  from: the rank at its other end, for messages.
 *
 * await_ready bounds the wait; recv does not block, so one that reported too much costs another
 * turn and no time beyond `end`, and no signal interrupts it.  0 bytes, or any error but that
 * nothing is there yet, mean that the socket has closed: the other process has ended. */
static mpk_status take(mpk_context *cx, int fd, uint32_t from, void *to, size_t n, uint64_t end)
{
    for (size_t got = 0; got < n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (!await_ready(&p, 1, end))
            FAIL(cx, MPK_EDEVICE, "rank %u does not answer: its process is stopped or hangs", from);
        ssize_t more = recv(fd, (char *)to + got, n - got, MSG_DONTWAIT);
        if (more == 0 || (more < 0 && errno != EAGAIN))
            return say_ended(cx, from);
        got += more > 0 ? (size_t)more : 0;
    }
    return MPK_OK;
}

/* All of it, also where a signal comes between. */
static void send_whole(int fd, const void *bytes, size_t n)
{
    for (size_t sent = 0; sent < n;) {
        const ssize_t more = send(fd, (const char *)bytes + sent, n - sent, MSG_NOSIGNAL);
        if (more < 0 && errno != EINTR)
            return;
        sent += more > 0 ? (size_t)more : 0;
    }
}

/* Send a message.  A failure is not reported here: if the other process has ended, the next read
 * from it says so. */
static void give(int fd, uint32_t kind, const void *bytes, size_t n)
{
    const frame f = {.magic = "mpkr", .kind = kind, .n = n};
    send_whole(fd, &f, sizeof f);
    send_whole(fd, bytes, n);
}

/* Is it the head that is expected?  One of REFUSED is an error with the words of rank 0. */
static mpk_status check_head(mpk_context *cx, int fd, uint32_t from, uint32_t kind, const frame *f,
                             uint64_t end)
{
    char words[WORDS_BYTES] = "";
    CHECK(cx, memcmp(f->magic, "mpkr", 4) == 0, MPK_EARG,
          "a process that is no rank of mpk is at the path where the ranks meet");
    if (f->kind == REFUSED && f->n < sizeof words) {
        TRY(take(cx, fd, from, words, f->n, end));
        FAIL(cx, MPK_EARG, "%s", words);
    }
    CHECK(cx, f->kind == kind, MPK_EARG,
          "rank %u broke the protocol of ranks: start all ranks with the same mpk", from);
    return MPK_OK;
}

/* A frame of the kind that is due, of at most `most` bytes.  The length comes from another process
 * and is checked before anything is written to `to`. */
static mpk_status take_frame(mpk_context *cx, int fd, uint32_t from, uint32_t kind, void *to,
                             size_t most, size_t *n, uint64_t end)
{
    frame f = {0};
    *n = 0;
    TRY(take(cx, fd, from, &f, sizeof f, end));
    TRY(check_head(cx, fd, from, kind, &f, end));
    CHECK(cx, f.n <= most, MPK_EARG,
          "rank %u broke the protocol of ranks: start all ranks with the same mpk", from);
    *n = f.n;
    return take(cx, fd, from, to, f.n, end);
}

/* Rank 0: the words of cx to all that have come. */
static void refuse_all(const mpk_context *cx, const host_ranks *r)
{
    const size_t n = strnlen(cx->text, WORDS_BYTES - 1);
    for (uint32_t i = 1; r->rank == 0 && i < r->n; i++)
        if (r->fd[i] >= 0)
            give(r->fd[i], REFUSED, cx->text, n);
}

/* ---- meeting ---- */

static mpk_status check_place(mpk_context *cx, const ranks_place *p, struct sockaddr_un *at)
{
    CHECK(cx, p->n >= 2 && p->n <= RANKS_MOST && p->rank < p->n, MPK_EARG,
          "rank %u of %u: expected 0 to %u", p->rank, p->n, p->n - 1);
    CHECK(
        cx, strchr(p->path, '/') || !strchr(p->path, ':'), MPK_EUNSUPPORTED,
        "ranks on several hosts are not supported, and %s names a host: give the path of a socket "
        "on this one",
        p->path);
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    const size_t n = strlen(p->path);
    CHECK(cx, n && n < sizeof at->sun_path, MPK_EARG,
          "the path where ranks meet has %zu bytes, expected 1 to %zu", n, sizeof at->sun_path - 1);
    memcpy(at->sun_path, p->path, n + 1);
    return MPK_OK;
}

/* Listen at the path.  If a socket file is there, try to connect to it: an answer means that
 * another rank 0 listens, which is an error; a refusal (ECONNREFUSED) means that the process which
 * made the file has gone, so the file is removed. */
static mpk_status listen_at(mpk_context *cx, const struct sockaddr_un *at, int *out)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(cx, fd >= 0, MPK_EIO, "no socket: %s", strerror(errno));
    if (connect(fd, (const struct sockaddr *)at, sizeof *at) == 0) {
        close(fd);
        FAIL(cx, MPK_EARG, "another rank 0 waits at %s", at->sun_path);
    }
    if (errno == ECONNREFUSED)
        unlink(at->sun_path);
    close(fd);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)at, sizeof *at) || listen(fd, RANKS_MOST)) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        FAIL(cx, MPK_EIO, "cannot wait for ranks at %s: %s", at->sun_path, strerror(error));
    }
    *out = fd;
    return MPK_OK;
}

/* The first line in which two texts of terms differ, in words. */
static mpk_status compare_terms(mpk_context *cx, uint32_t rank, str ours, str theirs)
{
    while (ours.n || theirs.n) {
        const char *a = memchr(ours.at, '\n', ours.n), *b = memchr(theirs.at, '\n', theirs.n);
        const size_t n = a ? (size_t)(a - ours.at) : ours.n,
                     m = b ? (size_t)(b - theirs.at) : theirs.n;
        if (n != m || memcmp(ours.at, theirs.at, n) != 0)
            FAIL(cx, MPK_EARG,
                 "rank %u was started otherwise than rank 0: it has %.*s, and rank 0 has %.*s",
                 rank, (int)m, theirs.at, (int)n, ours.at);
        ours = (str){ours.at + n + (a != NULL), ours.n - n - (a != NULL)};
        theirs = (str){theirs.at + m + (b != NULL), theirs.n - m - (b != NULL)};
    }
    return MPK_OK;
}

/* A process has connected: who is it, and does it fit?  After a failure the descriptor is in no
 * table, and the caller tells the words to it and closes it. */
static mpk_status admit(mpk_context *cx, host_ranks *r, int fd, str terms, uint64_t end)
{
    struct ucred who;
    socklen_t size = sizeof who;
    hello h;
    size_t n;
    h.rank = h.n = 0; /* for the message, if too few bytes come */
    CHECK(cx, getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid(),
          MPK_EARG, "a process of another user came in the place of a rank");
    TRY(take_frame(cx, fd, RANKS_MOST, HELLO, &h, sizeof h, &n, end));
    CHECK(cx, n >= offsetof(hello, terms) && h.rank && h.rank < r->n && h.n == r->n, MPK_EARG,
          "rank %u of %u came to rank 0 of %u", h.rank, h.n, r->n);
    CHECK(cx, r->fd[h.rank] < 0, MPK_EARG, "two processes are rank %u", h.rank);
    TRY(compare_terms(cx, h.rank, terms, (str){h.terms, n - offsetof(hello, terms)}));
    r->fd[h.rank] = fd;
    return MPK_OK;
}

/* "1, 2" */
static void list_missing(const host_ranks *r, char words[64])
{
    int n = 0;
    words[0] = 0;
    for (uint32_t i = 1; i < r->n; i++)
        if (r->fd[i] < 0)
            n += snprintf(words + n, 64 - (size_t)n, "%s%u", n ? ", " : "", i);
}

/* Rank 0: until all have come. */
static mpk_status gather(mpk_context *cx, host_ranks *r, int listener, const ranks_place *p,
                         str terms)
{
    const uint64_t end = clock_ns() + p->wait_ns;
    char missing[64];
    for (list_missing(r, missing); missing[0]; list_missing(r, missing)) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        CHECK(cx, await_ready(&ready, 1, end), MPK_EDEVICE,
              "rank %s did not come to %s within %llu s", missing, p->path,
              (unsigned long long)(p->wait_ns / 1000000000u));
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        mpk_status status = admit(cx, r, fd, terms, end);
        if (status == MPK_OK)
            continue;
        give(fd, REFUSED, cx->text, strnlen(cx->text, WORDS_BYTES - 1));
        close(fd);
        return status;
    }
    return MPK_OK;
}

/* WELCOME goes out only when all have come and fit, so a rank that has it knows that all agree.
 * The path is removed before, since no further rank may come. */
static mpk_status meet_as_first(mpk_context *cx, host_ranks *r, const ranks_place *p,
                                const struct sockaddr_un *at, str terms, uint64_t told)
{
    int listener = -1;
    TRY(listen_at(cx, at, &listener));
    mpk_status status = gather(cx, r, listener, p, terms);
    close(listener);
    unlink(at->sun_path);
    if (status != MPK_OK)
        refuse_all(cx, r);
    for (uint32_t i = 1; status == MPK_OK && i < r->n; i++)
        give(r->fd[i], WELCOME, &told, sizeof told);
    return status;
}

/* Until rank 0 listens. */
static mpk_status connect_to(mpk_context *cx, const ranks_place *p, const struct sockaddr_un *at,
                             uint64_t end, int *out)
{
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(cx, fd >= 0, MPK_EIO, "no socket: %s", strerror(errno));
        if (connect(fd, (const struct sockaddr *)at, sizeof *at) == 0) {
            *out = fd;
            return MPK_OK;
        }
        const int error = errno;
        close(fd);
        CHECK(cx, error == ENOENT || error == ECONNREFUSED, MPK_EIO, "cannot meet rank 0 at %s: %s",
              p->path, strerror(error));
        CHECK(cx, clock_ns() < end, MPK_EDEVICE, "rank 0 did not come to %s within %llu s", p->path,
              (unsigned long long)(p->wait_ns / 1000000000u));
        nanosleep(&(struct timespec){0, RETRY_NS}, NULL);
    }
}

/* Rank 0 may have begun to wait later, so its answer may take as long again. */
static mpk_status meet_as_other(mpk_context *cx, host_ranks *r, const ranks_place *p,
                                const struct sockaddr_un *at, str terms, uint64_t *told)
{
    uint64_t end = clock_ns() + p->wait_ns;
    hello h = {.rank = r->rank, .n = r->n};
    size_t n;
    TRY(connect_to(cx, p, at, end, &r->fd[0]));
    memcpy(h.terms, terms.at, terms.n);
    give(r->fd[0], HELLO, &h, offsetof(hello, terms) + terms.n);
    end = clock_ns() + p->wait_ns + 1000000000u;
    return take_frame(cx, r->fd[0], 0, WELCOME, told, sizeof *told, &n, end);
}

mpk_status ranks_meet(mpk_context *cx, const ranks_place *p, str terms, uint64_t *told,
                      host_ranks **out)
{
    struct sockaddr_un at;
    TRY(check_place(cx, p, &at));
    CHECK(cx, terms.n <= RANKS_TERMS_BYTES, MPK_ELIMIT, "%zu bytes of terms, at most %d", terms.n,
          RANKS_TERMS_BYTES);
    host_ranks *r = calloc(1, sizeof *r);
    CHECK(cx, r, MPK_ENOMEM, "out of memory for ranks");
    r->rank = p->rank;
    r->n = p->n;
    r->wake = -1;
    for (uint32_t i = 0; i < RANKS_MOST; i++)
        r->fd[i] = -1;
    mpk_status status = r->rank ? meet_as_other(cx, r, p, &at, terms, told)
                                : meet_as_first(cx, r, p, &at, terms, *told);
    if (status == MPK_OK)
        *out = r;
    else
        ranks_free(r);
    return status;
}

void ranks_free(host_ranks *r)
{
    if (!r)
        return;
    ranks_unwatch(r);
    for (uint32_t i = 0; i < RANKS_MOST; i++)
        if (r->fd[i] >= 0)
            close(r->fd[i]);
    if (r->wake >= 0)
        close(r->wake);
    free(r);
}

/* ---- between meeting and watching ---- */

/* Which of the others has something to read, or has ended?  So that a rank that ends while another
 * still works is told at once. */
static mpk_status await_any(mpk_context *cx, const host_ranks *r, const bool *has, uint32_t *which,
                            uint64_t end)
{
    struct pollfd p[RANKS_MOST];
    for (uint32_t i = 0; i < r->n; i++)
        p[i] = (struct pollfd){.fd = has[i] ? -1 : r->fd[i], .events = POLLIN};
    CHECK(cx, await_ready(p, r->n, end), MPK_EDEVICE, "the ranks were not ready within %llu s",
          (unsigned long long)(WORK_NS / 1000000000u));
    for (*which = 0; *which + 1 < r->n && !p[*which].revents;)
        ++*which;
    return MPK_OK;
}

/* Rank 0: n bytes of each other rank to all[rank], in whatever order they come. */
static mpk_status collect(mpk_context *cx, const host_ranks *r, size_t n, char *all)
{
    const uint64_t end = clock_ns() + WORK_NS;
    bool has[RANKS_MOST] = {true}; /* rank 0's own part is there */
    for (uint32_t left = r->n - 1; left; left--) {
        uint32_t from = 0;
        size_t got;
        TRY(await_any(cx, r, has, &from, end));
        TRY(take_frame(cx, r->fd[from], from, DATA, all + from * n, n, &got, end));
        CHECK(cx, got == n, MPK_EARG, "rank %u gave %zu bytes, expected %zu", from, got, n);
        has[from] = true;
    }
    return MPK_OK;
}

mpk_status ranks_exchange(mpk_context *cx, host_ranks *r, const void *mine, size_t n, void *all)
{
    size_t got;
    if (r->rank) {
        give(r->fd[0], DATA, mine, n);
        TRY(take_frame(cx, r->fd[0], 0, DATA, all, r->n * n, &got, clock_ns() + 2 * WORK_NS));
        CHECK(cx, got == r->n * n, MPK_EARG, "rank 0 gave %zu bytes, expected %zu", got, r->n * n);
        return MPK_OK;
    }
    memcpy(all, mine, n);
    mpk_status status = collect(cx, r, n, all);
    if (status != MPK_OK)
        refuse_all(cx, r);
    for (uint32_t i = 1; status == MPK_OK && i < r->n; i++)
        give(r->fd[i], DATA, all, r->n * n);
    return status;
}

/* A frame of a head alone, and with it a descriptor. */
static void give_descriptor(int fd, uint32_t kind, int descriptor, uint64_t n)
{
    frame f = {.magic = "mpkr", .kind = kind, .n = n};
    struct iovec part = {&f, sizeof f};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &descriptor, sizeof descriptor);
    while (sendmsg(fd, &message, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

/* A frame of a head alone with the descriptor that came with it, which is then the caller's, also
 * where the head is refused (*descriptor is -1 if none came).  *n: of the head.
 *
 * The system ties a descriptor to the bytes that it was sent with, so the head must be read by this
 * recvmsg and not by take, which would drop it.  A head is small enough to come in one piece. */
static mpk_status take_descriptor(mpk_context *cx, int fd, uint32_t from, uint32_t kind,
                                  int *descriptor, uint64_t *n, uint64_t end)
{
    frame f = {0};
    struct iovec part = {&f, sizeof f};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK(cx, await_ready(&p, 1, end), MPK_EDEVICE,
          "rank %u does not answer: its process is stopped or hangs", from);
    ssize_t got;
    do
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return say_ended(cx, from);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(descriptor, CMSG_DATA(c), sizeof *descriptor);
    TRY(check_head(cx, fd, from, kind, &f, end));
    CHECK(cx, *descriptor >= 0, MPK_EARG, "rank %u sent no descriptor", from);
    *n = f.n;
    return MPK_OK;
}

static mpk_status take_memory(mpk_context *cx, int fd, uint64_t n, int *memory)
{
    uint64_t got = 0;
    mpk_status status = take_descriptor(cx, fd, 0, MEMORY, memory, &got, clock_ns() + WORK_NS);
    if (status == MPK_OK && got != n)
        status = status_fail(cx, MPK_EARG,
                             "rank 0 has %llu bytes of memory for all, and this rank expects %llu",
                             (unsigned long long)got, (unsigned long long)n);
    if (status != MPK_OK && *memory >= 0)
        close(*memory);
    return status;
}

static mpk_status make_memory(mpk_context *cx, const host_ranks *r, uint64_t n, int *memory)
{
    int fd = memfd_create("mpk ranks", MFD_CLOEXEC);
    CHECK(cx, fd >= 0, MPK_EIO, "no memory that ranks can share: %s", strerror(errno));
    if (ftruncate(fd, (off_t)n)) {
        close(fd);
        FAIL(cx, MPK_ENOMEM, "out of memory for %llu bytes that ranks share",
             (unsigned long long)n);
    }
    for (uint32_t i = 1; i < r->n; i++)
        give_descriptor(r->fd[i], MEMORY, fd, n);
    *memory = fd;
    return MPK_OK;
}

mpk_status ranks_map(mpk_context *cx, host_ranks *r, size_t n, void **out)
{
    int memory = -1;
    TRY(r->rank ? take_memory(cx, r->fd[0], n, &memory) : make_memory(cx, r, n, &memory));
    void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    close(memory);
    CHECK(cx, at != MAP_FAILED, MPK_ENOMEM, "out of memory for %zu bytes that ranks share", n);
    *out = at;
    return MPK_OK;
}

/* ---- descriptors ---- */

/* One of a rank that has not given any yet. */
static mpk_status take_handed(mpk_context *cx, const host_ranks *r, int fd, uint32_t from, int *all)
{
    int descriptor = -1;
    uint64_t of = 0;
    mpk_status status =
        take_descriptor(cx, fd, from, HANDED, &descriptor, &of, clock_ns() + WORK_NS);
    if (status == MPK_OK && (of >= r->n || of == r->rank || all[of] >= 0))
        status = status_fail(
            cx, MPK_EARG, "rank %u broke the protocol of ranks: start all ranks with the same mpk",
            from);
    if (status == MPK_OK)
        all[of] = descriptor;
    else if (descriptor >= 0)
        close(descriptor);
    return status;
}

/* Rank 0: those of all others, in whatever order they come, then to each those that are not its. */
static mpk_status pass_on(mpk_context *cx, const host_ranks *r, int mine, int *all)
{
    const uint64_t end = clock_ns() + WORK_NS;
    bool has[RANKS_MOST] = {true};
    for (uint32_t left = r->n - 1; left; left--) {
        uint32_t from = 0;
        TRY(await_any(cx, r, has, &from, end));
        TRY(take_handed(cx, r, r->fd[from], from, all));
        has[from] = true;
    }
    for (uint32_t to = 1; to < r->n; to++)
        for (uint32_t i = 0; i < r->n; i++)
            if (i != to)
                give_descriptor(r->fd[to], HANDED, i ? all[i] : mine, i);
    return MPK_OK;
}

static mpk_status hand_over(mpk_context *cx, const host_ranks *r, int mine, int *all)
{
    give_descriptor(r->fd[0], HANDED, mine, r->rank);
    for (uint32_t i = 1; i < r->n; i++)
        TRY(take_handed(cx, r, r->fd[0], 0, all));
    return MPK_OK;
}

mpk_status ranks_pass(mpk_context *cx, host_ranks *r, int mine, int *all)
{
    for (uint32_t i = 0; i < r->n; i++)
        all[i] = -1;
    mpk_status status = r->rank ? hand_over(cx, r, mine, all) : pass_on(cx, r, mine, all);
    if (status == MPK_OK)
        return MPK_OK;
    refuse_all(cx, r);
    for (uint32_t i = 0; i < r->n; i++)
        if (all[i] >= 0)
            close(all[i]);
    return status;
}

/* ---- watching ---- */

/* Something came from a rank.  While a watch runs no rank sends anything but rank 0's CLOSED, so
 * all else is the end of that process.  True: rank 0 has closed in good order, and the watch is
 * over. */
static bool see(host_ranks *r, uint32_t from)
{
    mpk_context unheard = {0};
    frame f = {0};
    mpk_status status = take(&unheard, r->fd[from], from, &f, sizeof f, clock_ns() + RETRY_NS);
    if (status == MPK_OK && f.kind == CLOSED)
        r->closed = true;
    else
        r->watcher.ended(r->watcher.user, from);
    return r->closed;
}

/* The thread of a watch.  It sleeps in poll on the sockets of the others and on `wake`, by which
 * ranks_unwatch ends it.  A rank that has ended is left out from then on, since its socket would
 * report its end again at once, for ever. */
static void *watch(void *argument)
{
    host_ranks *r = argument;
    struct pollfd p[RANKS_MOST + 1];
    bool has_ended[RANKS_MOST] = {0};
    for (bool over = false; !over;) {
        for (uint32_t i = 0; i < r->n; i++)
            p[i] = (struct pollfd){.fd = has_ended[i] ? -1 : r->fd[i], .events = POLLIN};
        p[r->n] = (struct pollfd){.fd = r->wake, .events = POLLIN};
        if (r->watcher.tick)
            r->watcher.tick(r->watcher.user);
        if (poll(p, r->n + 1, r->watcher.tick ? RANKS_TICK_MS : -1) < 0)
            continue;
        over = p[r->n].revents != 0;
        for (uint32_t i = 0; i < r->n && !over; i++) {
            has_ended[i] |= p[i].revents != 0;
            over = p[i].revents && see(r, i);
        }
    }
    return NULL;
}

mpk_status ranks_watch(mpk_context *cx, host_ranks *r, ranks_watcher watcher)
{
    r->watcher = watcher;
    r->wake = eventfd(0, EFD_CLOEXEC);
    CHECK(cx, r->wake >= 0, MPK_ELIMIT, "no eventfd: %s", strerror(errno));
    TRY(thread_start(cx, &r->thread, watch, r));
    r->watches = true;
    return MPK_OK;
}

bool ranks_closed(const host_ranks *r)
{
    return r->closed;
}

void ranks_unwatch(host_ranks *r)
{
    const uint64_t one = 1;
    if (!r->watches)
        return;
    r->watches = false;
    (void)!write(r->wake, &one, sizeof one);
    pthread_join(r->thread, NULL); /* from here on no other thread reads the sockets */
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->fd[i] < 0)
            continue;
        if (r->rank == 0)
            give(r->fd[i], CLOSED, NULL, 0);
        close(r->fd[i]);
        r->fd[i] = -1;
    }
}
