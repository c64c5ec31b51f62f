/* ranks_test.c - what rank 0 believes of the processes that come: only those of its own user, and
 * only what the protocol says.  The others are threads that speak it by hand, and one process.
 */
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/ranks.h"

enum { HELLO = 1, WELCOME, DATA = 4, HANDED = 7, OTHER_USER = 65534, MOST = 3 };
static const uint64_t WAIT_NS = 60000000000u;

/* As in ranks.c: the head of a message, and a first message with few terms. */
typedef struct frame {
    char magic[4];
    uint32_t kind;
    uint64_t n;
} frame;
typedef struct hello {
    frame head;
    uint32_t rank, n;
    char terms[16];
} hello;

/* A rank: it comes, hands over a descriptor as that of rank `of`, and waits for rank 0 to end.
 * comes_us, hands_us: how long it takes for each of the first two.  terms: NULL if it has none.
 * no_input: number 0 is let go before it comes, so that it is the next to be given. */
typedef struct peer {
    const char *path;
    uint32_t rank, n;
    uint64_t of;
    unsigned comes_us, hands_us;
    const char *terms;
    bool no_input;
    pthread_t thread;
} peer;

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    return at;
}

static int make_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* Connect as soon as rank 0 listens, and say who comes; fd, or -1: it cannot be. */
static int come(int fd, const char *path, uint32_t rank, uint32_t n, const char *terms)
{
    const struct sockaddr_un at = address_of(path);
    const size_t n_terms = terms ? strlen(terms) : 0, bytes = offsetof(hello, terms) + n_terms;
    hello h = {{"mpkr", HELLO, 2 * sizeof(uint32_t) + n_terms}, rank, n, ""};
    assert_true(n_terms <= sizeof h.terms);
    memcpy(h.terms, terms ? terms : "", n_terms);
    for (int i = 0; i < 10000; i++) {
        if (connect(fd, (const struct sockaddr *)&at, sizeof at) == 0)
            return send(fd, &h, bytes, MSG_NOSIGNAL) == (ssize_t)bytes ? fd : -1;
        usleep(2000);
    }
    return -1;
}

static void hand_over(int fd, uint64_t of, int descriptor)
{
    frame f = {"mpkr", HANDED, of};
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
    (void)!sendmsg(fd, &message, MSG_NOSIGNAL);
}

static void *be_peer(void *of)
{
    const peer *p = of;
    char rest[256];
    usleep(p->comes_us);
    const int file = open("/dev/null", O_RDONLY | O_CLOEXEC), with = make_socket();
    if (p->no_input) { /* rank 0 listens, and not there */
        for (int i = 0; i < 10000 && access(p->path, F_OK) != 0; i++)
            usleep(2000);
        close(STDIN_FILENO);
    }
    const int fd = come(with, p->path, p->rank, p->n, p->terms);
    usleep(p->hands_us);
    if (fd >= 0)
        hand_over(fd, p->of, file);
    while (fd >= 0 && recv(fd, rest, sizeof rest, 0) > 0)
        ;
    close(file);
    close(fd);
    return NULL;
}

static void begin(char folder[32], char path[64])
{
    snprintf(folder, 32, "/tmp/mpk-ranks-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, 64, "%s/meet", folder);
}

/* Meet n - 1 peers that say that their descriptors are of[1], of[2], ..  no_input: the first that
 * comes gets number 0. */
static mpk_status meet_and_pass(mpk_context *cx, uint32_t n, const uint64_t *of, bool no_input,
                                int *all)
{
    char folder[32], path[64];
    peer peers[MOST];
    host_ranks *r = NULL;
    uint64_t told = 1;
    begin(folder, path);
    for (uint32_t i = 1; i < n; i++) {
        peers[i] = (peer){.path = path, .rank = i, .n = n, .of = of[i]};
        assert_int_equal(pthread_create(&peers[i].thread, NULL, be_peer, &peers[i]), 0);
    }
    const ranks_place place = {.path = path, .n = n, .wait_ns = WAIT_NS};
    check_ok(cx, ranks_meet(cx, &place, STR(""), &told, &r));
    if (no_input)
        close(STDIN_FILENO);
    const mpk_status status = ranks_pass(cx, r, STDERR_FILENO, all);
    ranks_free(r);
    for (uint32_t i = 1; i < n; i++)
        pthread_join(peers[i].thread, NULL);
    assert_int_equal(rmdir(folder), 0);
    return status;
}

/* A descriptor is of another rank that there is, and of each only one. */
static void test_descriptors(void **state)
{
    static const struct {
        uint32_t n;
        uint64_t of[MOST];
        bool is_good;
    } rows[] = {{2, {0, 1}, true},     {2, {0, 0}, false},    {2, {0, 2}, false},
                {3, {0, 1, 2}, true},  {3, {0, 2, 1}, true},  {3, {0, 1, 1}, false},
                {3, {0, 3, 2}, false}, {3, {0, 1, 0}, false}, {2, {0, UINT64_MAX}, false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        int all[MOST + 1] = {-2, -2, -2, -1};
        const mpk_status status = meet_and_pass(&cx, rows[i].n, rows[i].of, false, all);
        assert_int_equal(all[3], -1);
        if (!rows[i].is_good) {
            check_fails(&cx, MPK_EARG, "broke the protocol of ranks", status);
            continue;
        }
        check_ok(&cx, status);
        assert_int_equal(all[0], -1);
        for (uint32_t k = 1; k < rows[i].n; k++)
            assert_int_equal(close(all[k]), 0);
    }
}

/* Of descriptors that came before a failure none stays open, not even number 0. */
static void test_none_stays_open(void **state)
{
    static const uint64_t of[MOST] = {0, 1, 1};
    mpk_context cx = {0};
    int all[MOST + 1] = {0};
    (void)state;
    const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    check_fails(&cx, MPK_EARG, "broke the protocol of ranks", meet_and_pass(&cx, 3, of, true, all));
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    if (input >= 0) {
        assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
        close(input);
    }
}

static void hear(int signal)
{
    (void)signal;
}

/* Have a signal come each millisecond, or no more; for the calling thread alone. */
static void ring(bool on)
{
    const struct sigaction heard = {.sa_handler = hear}; /* calls are not begun anew after it */
    const struct itimerval each = {{0, on ? 1000 : 0}, {0, on ? 1000 : 0}};
    assert_int_equal(sigaction(SIGALRM, &heard, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &each, NULL), 0);
}

/* Signals that come while rank 0 waits: it takes the descriptor of rank 2, and waits for that of
 * rank 1, which comes later. */
static void test_signals(void **state)
{
    char folder[32], path[64];
    mpk_context cx = {0};
    host_ranks *r = NULL;
    uint64_t told = 1;
    int all[MOST];
    sigset_t alarm;
    (void)state;
    begin(folder, path);
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    peer peers[MOST] = {
        {0}, {.rank = 1, .of = 1, .hands_us = 30000}, {.rank = 2, .of = 2, .comes_us = 10000}};
    pthread_sigmask(SIG_BLOCK, &alarm, NULL); /* in the other threads */
    for (uint32_t i = 1; i < MOST; i++) {
        peers[i].path = path;
        peers[i].n = MOST;
        assert_int_equal(pthread_create(&peers[i].thread, NULL, be_peer, &peers[i]), 0);
    }
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    ring(true);
    const ranks_place place = {.path = path, .n = MOST, .wait_ns = WAIT_NS};
    mpk_status status = ranks_meet(&cx, &place, STR(""), &told, &r);
    if (status == MPK_OK)
        status = ranks_pass(&cx, r, STDERR_FILENO, all);
    ring(false);
    ranks_free(r);
    for (uint32_t i = 1; i < MOST; i++)
        pthread_join(peers[i].thread, NULL);
    check_ok(&cx, status);
    for (uint32_t i = 1; i < MOST; i++)
        assert_int_equal(close(all[i]), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A wait of more milliseconds than an int holds is not a short one. */
static void test_long_waits(void **state)
{
    char folder[32], path[64];
    mpk_context cx = {0};
    host_ranks *r = NULL;
    uint64_t told = 1;
    (void)state;
    begin(folder, path);
    peer late = {.path = path, .rank = 1, .n = 2, .of = 1, .comes_us = 30000};
    assert_int_equal(pthread_create(&late.thread, NULL, be_peer, &late), 0);
    const ranks_place place = {.path = path, .n = 2, .wait_ns = 1000000ull << 32};
    check_ok(&cx, ranks_meet(&cx, &place, STR(""), &told, &r));
    ranks_free(r);
    pthread_join(late.thread, NULL);
    assert_int_equal(rmdir(folder), 0);
}

/* A process of another user is told no, though the socket lets it connect. */
static void test_other_users(void **state)
{
    char folder[32], path[64];
    mpk_context cx = {0};
    host_ranks *r = NULL;
    uint64_t told = 1;
    (void)state;
    if (geteuid() != 0)
        check_skip("only root can become another user");
    begin(folder, path);
    assert_int_equal(chmod(folder, 0755), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        char byte;
        for (int i = 0; i < 10000 && chmod(path, 0777) != 0; i++)
            usleep(2000);
        int fd = setgid(OTHER_USER) == 0 && setuid(OTHER_USER) == 0
                     ? come(make_socket(), path, 1, 2, NULL)
                     : -1;
        while (fd >= 0 && recv(fd, &byte, 1, 0) > 0)
            ;
        _exit(fd < 0);
    }
    const ranks_place place = {.path = path, .n = 2, .wait_ns = WAIT_NS};
    check_fails(&cx, MPK_EARG, "a process of another user",
                ranks_meet(&cx, &place, STR(""), &told, &r));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(rmdir(folder), 0);
}

/* What rank 0 of 2, whose terms are "a=1", says of one process that comes. */
static mpk_status meet_one(mpk_context *cx, peer p)
{
    char folder[32], path[64];
    host_ranks *r = NULL;
    uint64_t told = 1;
    begin(folder, path);
    p.path = path;
    assert_int_equal(pthread_create(&p.thread, NULL, be_peer, &p), 0);
    const ranks_place place = {.path = path, .n = 2, .wait_ns = WAIT_NS};
    const mpk_status status = ranks_meet(cx, &place, STR("a=1\n"), &told, &r);
    ranks_free(r);
    pthread_join(p.thread, NULL);
    assert_int_equal(rmdir(folder), 0);
    return status;
}

/* Rank 0 refuses a process whose rank is not one of 1 ... n - 1, although both name the same n, and
 * one that names another n. */
static void test_numbers_of_ranks(void **state)
{
    (void)state;
    static const struct {
        uint32_t rank, n;
    } wrong[] = {{0, 2}, {2, 2}, {3, 2}, {UINT32_MAX, 2}, {1, 3}, {1, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mpk_context cx = {0};
        char needle[64];
        snprintf(needle, sizeof needle, "rank %u of %u came to rank 0 of 2", wrong[i].rank,
                 wrong[i].n);
        check_fails(&cx, MPK_EARG, needle,
                    meet_one(&cx, (peer){.rank = wrong[i].rank, .n = wrong[i].n, .terms = "a=1"}));
    }
}

/* Terms are the same if all their lines are: a rank may have neither fewer nor more.  The end of
 * the last line may be left out. */
static void test_terms(void **state)
{
    (void)state;
    static const struct {
        const char *terms, *needle;
    } rows[] = {{"a=1\n", NULL},
                {"a=1", NULL},
                {"", "it has , and rank 0 has a=1"},
                {"a=2\n", "it has a=2, and rank 0 has a=1"},
                {"a=1\nb=2\n", "it has b=2, and rank 0 has "}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpk_context cx = {0};
        const mpk_status status = meet_one(&cx, (peer){.rank = 1, .n = 2, .terms = rows[i].terms});
        if (rows[i].needle)
            check_fails(&cx, MPK_EARG, rows[i].needle, status);
        else
            check_ok(&cx, status);
    }
}

static void *be_rank_0(void *of)
{
    const char *path = of;
    mpk_context cx = {0};
    host_ranks *r = NULL;
    uint64_t told = 1;
    const ranks_place place = {.path = path, .n = 2, .wait_ns = WAIT_NS};
    check_ok(&cx, ranks_meet(&cx, &place, STR(""), &told, &r));
    return r;
}

static void ignore_end(void *user, uint32_t rank)
{
    (void)user, (void)rank;
}

/* Where the process began without an input, the socket of a rank gets number 0: a rank 0 listens
 * there, or has another rank there, and another rank closes it when it no longer watches. */
static void test_number_0(void **state)
{
    char folder[32], path[64];
    mpk_context cx = {0};
    host_ranks *r = NULL;
    void *first = NULL;
    uint64_t told = 1;
    pthread_t thread;
    (void)state;
    const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    close(STDIN_FILENO);
    check_ok(&cx, meet_one(&cx, (peer){.rank = 1, .n = 2, .comes_us = 30000, .terms = "a=1"}));
    assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    check_ok(&cx, meet_one(&cx, (peer){.rank = 1, .n = 2, .no_input = true, .terms = "a=1"}));
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    begin(folder, path);
    assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    assert_int_equal(pthread_create(&thread, NULL, be_rank_0, path), 0);
    while (access(path, F_OK) != 0)
        usleep(2000);
    close(STDIN_FILENO);
    const ranks_place place = {.path = path, .rank = 1, .n = 2, .wait_ns = WAIT_NS};
    check_ok(&cx, ranks_meet(&cx, &place, STR(""), &told, &r));
    assert_int_not_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    check_ok(&cx, ranks_watch(&cx, r, (ranks_watcher){.ended = ignore_end}));
    ranks_unwatch(r);
    assert_int_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
    ranks_free(r);
    assert_int_equal(pthread_join(thread, &first), 0);
    ranks_free(first);
    assert_int_equal(rmdir(folder), 0);
    if (input >= 0) {
        assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
        close(input);
    }
}

/* A process that may open nothing more says so. */
static void test_no_descriptors(void **state)
{
    (void)state;
    char folder[32], path[64];
    mpk_context cx = {0};
    host_ranks *r = NULL;
    struct rlimit before, none;
    uint64_t told = 1;
    begin(folder, path);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const ranks_place place = {.path = path, .rank = 1, .n = 2, .wait_ns = WAIT_NS};
    const mpk_status status = ranks_meet(&cx, &place, STR(""), &told, &r);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    check_fails(&cx, MPK_EIO, "no socket", status);
    assert_int_equal(rmdir(folder), 0);
}

/* A rank that gives so many bytes in an exchange, and waits for rank 0 to end. */
typedef struct giver {
    const char *path;
    uint64_t n;
} giver;

static void *give_bytes(void *of)
{
    const giver *g = of;
    const frame f = {"mpkr", DATA, g->n};
    char bytes[64] = {1, 2, 3, 4};
    int fd = come(make_socket(), g->path, 1, 2, NULL);
    if (fd >= 0 && recv(fd, bytes + 32, 32, 0) > 0 &&
        send(fd, &f, sizeof f, MSG_NOSIGNAL) == (ssize_t)sizeof f &&
        send(fd, bytes, g->n, MSG_NOSIGNAL) == (ssize_t)g->n)
        while (recv(fd, bytes + 32, 32, 0) > 0)
            ;
    close(fd);
    return NULL;
}

/* In an exchange each rank gives as many bytes as rank 0: fewer are named, more are none of this
 * protocol. */
static void test_exchange(void **state)
{
    (void)state;
    for (uint64_t n = 7; n <= 9; n++) {
        char folder[32], path[64], mine[8] = {9, 9}, all[2][8];
        mpk_context cx = {0};
        host_ranks *r = NULL;
        uint64_t told = 1;
        pthread_t thread;
        begin(folder, path);
        giver g = {path, n};
        assert_int_equal(pthread_create(&thread, NULL, give_bytes, &g), 0);
        const ranks_place place = {.path = path, .n = 2, .wait_ns = WAIT_NS};
        check_ok(&cx, ranks_meet(&cx, &place, STR(""), &told, &r));
        const mpk_status status = ranks_exchange(&cx, r, mine, sizeof mine, all);
        ranks_free(r);
        pthread_join(thread, NULL);
        assert_int_equal(rmdir(folder), 0);
        if (n == 7)
            check_fails(&cx, MPK_EARG, "rank 1 gave 7 bytes, expected 8", status);
        else if (n == 9)
            check_fails(&cx, MPK_EARG, "broke the protocol of ranks", status);
        else
            check_ok(&cx, status);
        if (n == 8)
            assert_true(all[0][0] == 9 && all[1][0] == 1 && all[1][3] == 4);
    }
}

/* Rank 0 by hand: one process comes, is welcome, gives its part of an exchange, and gets g->n bytes
 * for all. */
static void *give_all(void *of)
{
    const giver *g = of;
    const struct sockaddr_un at = address_of(g->path);
    const frame welcome = {"mpkr", WELCOME, sizeof(uint64_t)}, all = {"mpkr", DATA, g->n};
    char bytes[64] = {0};
    const size_t n_hello = offsetof(hello, terms); /* more would be of the next message */
    const int listener = make_socket();
    assert_int_equal(bind(listener, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);
    const int fd = accept(listener, NULL, NULL);
    assert_int_equal(recv(fd, bytes, n_hello, MSG_WAITALL), n_hello);
    assert_int_equal(send(fd, &welcome, sizeof welcome, MSG_NOSIGNAL), sizeof welcome);
    assert_int_equal(send(fd, bytes, sizeof(uint64_t), MSG_NOSIGNAL), sizeof(uint64_t));
    assert_int_equal(recv(fd, bytes, sizeof all + 8, MSG_WAITALL), sizeof all + 8);
    assert_int_equal(send(fd, &all, sizeof all, MSG_NOSIGNAL), sizeof all);
    (void)!send(fd, bytes, g->n, MSG_NOSIGNAL); /* the rank may have gone once it had the head */
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        ;
    close(fd);
    close(listener);
    unlink(g->path);
    return NULL;
}

/* Rank 0 gives the bytes of all ranks: fewer are named, more are none of this protocol. */
static void test_exchange_of_all(void **state)
{
    (void)state;
    for (uint64_t n = 15; n <= 17; n++) {
        char folder[32], path[64], mine[8] = {9, 9}, all[2][8];
        mpk_context cx = {0};
        host_ranks *r = NULL;
        uint64_t told = 1;
        pthread_t thread;
        begin(folder, path);
        giver g = {path, n};
        assert_int_equal(pthread_create(&thread, NULL, give_all, &g), 0);
        const ranks_place place = {.path = path, .rank = 1, .n = 2, .wait_ns = WAIT_NS};
        check_ok(&cx, ranks_meet(&cx, &place, STR(""), &told, &r));
        const mpk_status status = ranks_exchange(&cx, r, mine, sizeof mine, all);
        ranks_free(r);
        pthread_join(thread, NULL);
        assert_int_equal(rmdir(folder), 0);
        if (n == 15)
            check_fails(&cx, MPK_EARG, "rank 0 gave 15 bytes, expected 16", status);
        else if (n == 17)
            check_fails(&cx, MPK_EARG, "broke the protocol of ranks", status);
        else
            check_ok(&cx, status);
    }
}

/* A rank that may open nothing more cannot watch the others, and says so. */
static void test_no_watch(void **state)
{
    (void)state;
    char folder[32], path[64];
    mpk_context cx = {0};
    host_ranks *r = NULL;
    void *first = NULL;
    struct rlimit before, none;
    uint64_t told = 1;
    pthread_t thread;
    begin(folder, path);
    assert_int_equal(pthread_create(&thread, NULL, be_rank_0, path), 0);
    const ranks_place place = {.path = path, .rank = 1, .n = 2, .wait_ns = WAIT_NS};
    check_ok(&cx, ranks_meet(&cx, &place, STR(""), &told, &r));
    pthread_join(thread, &first);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const mpk_status status = ranks_watch(&cx, r, (ranks_watcher){.ended = ignore_end});
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    check_fails(&cx, MPK_ELIMIT, "no eventfd", status);
    ranks_free(r);
    ranks_free(first);
    assert_int_equal(rmdir(folder), 0);
}

static void *map_as_rank_0(void *of)
{
    mpk_context cx = {0};
    void *at, *r = be_rank_0(of);
    check_ok(&cx, ranks_map(&cx, r, 4096, &at));
    munmap(at, 4096);
    return r;
}

/* The memory is number 0: the other rank opens none before it has come. */
static void *map_without_input(void *of)
{
    mpk_context cx = {0};
    void *at, *r = be_rank_0(of);
    close(STDIN_FILENO);
    check_ok(&cx, ranks_map(&cx, r, 4096, &at));
    munmap(at, 4096);
    return r;
}

static void *end_as_rank_0(void *of)
{
    ranks_free(be_rank_0(of));
    return NULL;
}

/* Memory that rank 0 shares has the size that all expect; where rank 0 has ended instead, that is
 * what is said. */
static void test_memory(void **state)
{
    (void)state;
    static const struct {
        void *(*rank_0)(void *);
        size_t n;
        const char *needle; /* NULL: it is mapped */
    } rows[] = {{map_as_rank_0, 4096, NULL},
                {map_as_rank_0, 8192, "rank 0 has 4096 bytes of memory for all, and this rank "},
                {end_as_rank_0, 4096, "the process of rank 0 has ended"},
                {map_without_input, 4096, NULL}};
    const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[32], path[64];
        mpk_context cx = {0};
        host_ranks *r = NULL;
        void *at = NULL, *first = NULL;
        uint64_t told = 1;
        pthread_t thread;
        begin(folder, path);
        assert_int_equal(pthread_create(&thread, NULL, rows[i].rank_0, path), 0);
        const ranks_place place = {.path = path, .rank = 1, .n = 2, .wait_ns = WAIT_NS};
        check_ok(&cx, ranks_meet(&cx, &place, STR(""), &told, &r));
        const mpk_status status = ranks_map(&cx, r, rows[i].n, &at);
        pthread_join(thread, &first);
        ranks_free(r);
        ranks_free(first);
        assert_int_equal(rmdir(folder), 0);
        if (rows[i].needle) {
            check_fails(&cx, rows[i].n == 8192 ? MPK_EARG : MPK_EDEVICE, rows[i].needle, status);
        } else {
            check_ok(&cx, status);
            munmap(at, 4096);
        }
    }
    if (input >= 0) {
        assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
        close(input);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_descriptors),     cmocka_unit_test(test_none_stays_open),
        cmocka_unit_test(test_signals),         cmocka_unit_test(test_long_waits),
        cmocka_unit_test(test_other_users),     cmocka_unit_test(test_numbers_of_ranks),
        cmocka_unit_test(test_terms),           cmocka_unit_test(test_number_0),
        cmocka_unit_test(test_no_descriptors),  cmocka_unit_test(test_exchange),
        cmocka_unit_test(test_exchange_of_all), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_no_watch),
    };
    return check_result(cmocka_run_group_tests(tests, NULL, NULL));
}
