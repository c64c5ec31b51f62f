/* rt_courier_test.c - entries between the host's rings and the machine's (rt_courier.h): each
 * arrives once and in order, a command after its request, and no ring that is full holds up a
 * command.
 *
 * The test plays the host and the step task at random, and now and then another kernel's courier
 * goes on.  Two threads are not needed: the courier sees counts that are older than what it could
 * see, which the test draws.
 */
#include "base/rng.h"
#include "check.h"
#include "rt/rt_courier.h"

enum { LENGTH = 4, COMMANDS = 64, ROUNDS = 20000 };

typedef struct bed {
    rt_kernel kernel;
    rt_ring host[3], machine[3]; /* requests, commands, tokens */
    rt_request host_requests[LENGTH], requests[LENGTH];
    rt_command host_commands[COMMANDS], commands[COMMANDS];
    rt_token host_tokens[LENGTH], tokens[LENGTH];
    rt_courier courier;
    rt_sight seen;
    uint64_t said, begun, obeyed, told, heard; /* entries, by number */
    uint64_t commanded[COMMANDS];              /* the request of a command */
} bed;

static bed *make_bed(void)
{
    bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    rt_kernel *k = &b->kernel;
    k->machine = (rt_machine){.request_ring = &b->machine[0],
                              .command_ring = &b->machine[1],
                              .token_ring = &b->machine[2],
                              .requests = b->requests,
                              .commands = b->commands,
                              .tokens = b->tokens,
                              .request_mask = LENGTH - 1,
                              .command_mask = COMMANDS - 1,
                              .token_mask = LENGTH - 1};
    k->host_request_ring = &b->host[0];
    k->host_command_ring = &b->host[1];
    k->host_token_ring = &b->host[2];
    k->host_requests = b->host_requests;
    k->host_commands = b->host_commands;
    k->host_tokens = b->host_tokens;
    b->courier = rt_courier_begin(k);
    return b;
}

/* Request number n, from 1 on, has the id n. */
static void submit(bed *b)
{
    if (!rt_ring_space(&b->host[0], LENGTH))
        return;
    b->host_requests[b->said++ % LENGTH] = (rt_request){.id = b->said, .seed = ~b->said};
    rt_ring_wrote(&b->host[0], 1);
}

/* About a request that was sent: of those that the step task may still know, the last. */
static void command(bed *b, uint64_t id)
{
    const rt_u32 at = b->host[1].written.value;
    if (!id || !rt_ring_space(&b->host[1], COMMANDS))
        return;
    b->host_commands[at % COMMANDS] = (rt_command){.kind = RT_CANCEL, .id = id};
    b->commanded[at % COMMANDS] = id;
    rt_ring_wrote(&b->host[1], 1);
}

/* What the courier sees of the host: never less than before, and not always all. */
static void see(bed *b, bool all)
{
    const rt_u32 commands = b->host[1].written.value, requests = b->host[0].written.value;
    b->seen.commands += all ? commands - b->seen.commands : (commands - b->seen.commands) / 2;
    b->seen.requests = requests; /* a command was written after its request */
    b->seen.begun = b->machine[0].read.value;
}

/* The step task reads one entry of the request ring. */
static void begin(bed *b)
{
    rt_ring *r = &b->machine[0];
    if (!rt_ring_ready(r))
        return;
    const rt_request *q = &b->requests[r->read.value % LENGTH];
    assert_int_equal(q->id, ++b->begun);
    assert_int_equal(q->seed, ~b->begun);
    rt_ring_took(r, 1);
}

/* Its request lies in the machine's ring, or the step task has read it before. */
static void obey(bed *b)
{
    rt_ring *r = &b->machine[1];
    while (rt_ring_ready(r)) {
        const rt_command *c = &b->commands[r->read.value % COMMANDS];
        assert_int_equal(c->id, b->commanded[b->obeyed++ % COMMANDS]);
        assert_true(c->id <= b->machine[0].written.value);
        rt_ring_took(r, 1);
    }
}

static void tell(bed *b)
{
    if (!rt_ring_space(&b->machine[2], LENGTH))
        return;
    b->tokens[b->told % LENGTH] = (rt_token){.id = b->told, .age_ns = ~b->told};
    b->told++;
    rt_ring_wrote(&b->machine[2], 1);
}

static void hear(bed *b)
{
    rt_ring *r = &b->host[2];
    if (!rt_ring_ready(r))
        return;
    const rt_token *t = &b->host_tokens[r->read.value % LENGTH];
    assert_int_equal(t->id, b->heard);
    assert_int_equal(t->age_ns, ~b->heard);
    b->heard++;
    rt_ring_took(r, 1);
}

static void look(bed *b, bool all)
{
    rt_courier_tells(&b->courier, b->machine[2].written.value, b->host[2].read.value);
    see(b, all);
    rt_courier_asks(&b->courier, &b->kernel.machine, b->seen);
}

static void test_order(void **state)
{
    (void)state;
    uint64_t seed = check_seed();
    bed *b = make_bed();
    for (uint64_t i = 0; i < ROUNDS; i++) {
        const uint64_t draw = rng_u64(seed, i);
        switch (draw % 8) {
        case 0:
            b->courier = rt_courier_begin(&b->kernel);
            break;
        case 1:
            submit(b);
            break;
        case 2:
            command(b, b->said ? b->said - draw / 8 % (b->said < LENGTH ? b->said : LENGTH) : 0);
            break;
        case 3:
            begin(b);
            break;
        case 4:
            obey(b);
            break;
        case 5:
            tell(b);
            break;
        case 6:
            hear(b);
            break;
        default:
            look(b, draw / 8 % 2);
        }
    }
    for (uint64_t i = 0; i < 4 * LENGTH; i++) {
        look(b, true);
        begin(b);
        obey(b);
        hear(b);
    }
    assert_true(b->said > ROUNDS / 40 && b->obeyed > ROUNDS / 40 && b->heard > ROUNDS / 40);
    assert_int_equal(b->begun, b->said);
    assert_int_equal(b->heard, b->told);
    assert_int_equal((rt_u32)b->obeyed, b->host[1].written.value);
    free(b);
}

/* The step task cannot begin a request before it has obeyed a command.  The host sends requests as
 * long as it can, then the command. */
static void test_full_ring(void **state)
{
    (void)state;
    bed *b = make_bed();
    for (int i = 0; i < 3 * LENGTH; i++) {
        submit(b);
        look(b, true);
    }
    assert_int_equal(b->said, LENGTH);
    assert_int_equal(rt_ring_ready(&b->machine[0]), LENGTH);
    command(b, 1);
    look(b, true);
    look(b, true);
    obey(b);
    assert_int_equal(b->obeyed, 1);
    begin(b);
    look(b, true);
    submit(b); /* there is room again */
    assert_int_equal(b->said, LENGTH + 1);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_full_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
