/*
 * Chaos over the lane `blocks`: two sources and a receiver, which are threads, over a callback
 * table. Ranks die and come back, the bytes to a rank stall, and operations fail, but never at both
 * sources. No receive ends with bytes of another step. In the end the process holds no more memory,
 * threads and descriptors than after a tenth of the transfers.
 *
 * WHERRY_CHAOS_TRANSFERS sets how many receives must succeed over each table; without it, this goes
 * on for some seconds. WHERRY_CHAOS_SEED repeats the random choices.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "group/callback/callback.h"
#include "lane/lanes.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/callback_hub.h"
#include "support/holdings.h"
#include "support/step_state.h"
#include "transfer/serve.h"

enum {
    SOURCES = 2,
    RECEIVER = SOURCES,
    RANKS = SOURCES + 1,
    STORM_S = 4,
    FIRST_S = 60 * JOB_SLOW, /**< How much longer the first receive that succeeds may take. */
    STALE_MS = 1000 * JOB_SLOW,
    TIMEOUT_MS = 8000 * JOB_SLOW,
    LATE_MS = 5000 * JOB_SLOW,
    PHASE_MS = 1500,
    SETTLED_MS = 10000 * JOB_SLOW,
    GROWTH_KIB = 4096,
};

typedef struct player {
    int32_t rank;
    wh_group *group;
    wherry_transport *transport;
    job_state state; /**< The state that was sent, or received into. */
    atomic_bool dead;
    pthread_t thread;
} player;

static player players[RANKS];
static callback_hub *hub;
static atomic_int step;
static atomic_int pauses; /**< If above 0, no rank begins a transfer. */
static atomic_int paused; /**< Number of ranks that have noticed the pause. */
static atomic_bool over;
static atomic_int received;
static atomic_int failed;
static atomic_int deaths;

static void join(player *p) {
    static const wh_lane_ops *const lanes[] = {&wh_lane_blocks};
    wherry_group_ops ops;
    wherry_error error;
    void *context = callback_hub_member(hub, p->rank, &ops);
    must(wh_callback_create(&ops, context, &p->group, &error));
    must(wh_transport_create(p->group, 0, lanes, 1, &p->transport, &error));
}

static void leave(player *p) {
    wherry_transport_destroy(p->transport);
    wh_group_destroy(p->group);
}

/** Joins again after a death, and waits in a pause. @return false if all is over. */
static bool go_on(player *p) {
    if (atomic_load(&p->dead)) {
        leave(p);
        atomic_store(&p->dead, false);
        join(p);
    }
    if (atomic_load(&pauses)) {
        atomic_fetch_add(&paused, 1);
        while (atomic_load(&pauses) && !atomic_load(&over)) {
            usleep(1000);
        }
        atomic_fetch_sub(&paused, 1);
    }
    return !atomic_load(&over);
}

static bool is_step_over(void *context) {
    return atomic_load(&over) || atomic_load(&pauses) || (context && atomic_load(&step) != *(int *)context);
}

static wherry_transfer_options options_of(int *of) {
    wherry_transfer_options options;
    wherry_transfer_options_init(&options);
    options.timeout_ms = TIMEOUT_MS;
    options.no_progress_ms = STALE_MS;
    options.step = *of;
    options.interrupt = is_step_over;
    return options;
}

static void *be_source(void *context) {
    player *p = context;
    const int32_t receiver = RECEIVER;
    while (go_on(p)) {
        int of = atomic_load(&step);
        wherry_error error;
        wherry_transfer_options options = options_of(&of);
        options.interrupt_context = &of;
        step_fill(&p->state, of);
        wherry_checkpoint_send(p->transport, &receiver, 1, p->state.value, &options, NULL, &error);
        /* The source overwrites its state, because nobody may read it now. */
        memset(p->state.memory, 0xEE, p->state.bytes);
    }
    return NULL;
}

static void *be_receiver(void *context) {
    static const int32_t sources[SOURCES] = {0, 1};
    player *p = context;
    unsigned seed = (unsigned)wh_clock_now();
    while (go_on(p)) {
        int of = atomic_load(&step);
        wherry_error error;
        wherry_transfer_options options = options_of(&of);
        options.verify = rand_r(&seed) % 3 == 0 ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF;
        options.target = job_target;
        options.target_context = p->state.value;
        uint64_t begin = wh_clock_now();
        wherry_status status = wherry_checkpoint_recv_from(p->transport, sources, SOURCES, &options, NULL, &error);
        assert_true((wh_clock_now() - begin) / 1000000 < TIMEOUT_MS + LATE_MS);
        if (status == WHERRY_OK) {
            assert_int_equal(step_find_torn(&p->state, of), SIZE_MAX);
            atomic_fetch_add(&received, 1);
        } else {
            assert_true(status != WHERRY_INVALID_ARGUMENT && *error.message);
            atomic_fetch_add(&failed, 1);
        }
    }
    return NULL;
}

/** Lets a rank die, or its bytes stall, or its operations fail. Ends that a while later. */
static void disturb(unsigned *seed) {
    int32_t rank = rand_r(seed) % RANKS;
    switch (rand_r(seed) % 3) {
    case 0:
        if (!atomic_load(&players[rank].dead)) {
            callback_hub_kill(hub, rank);
            atomic_store(&players[rank].dead, true);
            atomic_fetch_add(&deaths, 1);
        }
        break;
    case 1:
        callback_hub_hold(hub, rank, 0);
        break;
    default:
        callback_hub_break_blocks(hub, rank, WHERRY_PEER_LOST, WHERRY_PEER_LOST, WHERRY_PEER_LOST);
    }
    /* The fault lasts for a random time. */
    usleep((useconds_t)(1000 + rand_r(seed) % (rand_r(seed) % 8 ? 100000 : 2000000)));
    callback_hub_hold(hub, rank, SIZE_MAX);
    callback_hub_break_blocks(hub, rank, WHERRY_OK, WHERRY_OK, WHERRY_OK);
}

static void rage(unsigned *seed, int receives, int seconds) {
    uint64_t end = wh_clock_now() + (uint64_t)seconds * 1000000000;
    uint64_t phase = wh_clock_now();
    uint64_t limit = end + FIRST_S * UINT64_C(1000000000);
    while (receives ? atomic_load(&received) < receives : wh_clock_now() < (atomic_load(&received) ? end : limit)) {
        usleep((useconds_t)(rand_r(seed) % 200000));
        disturb(seed);
        if (wh_clock_now() - phase > PHASE_MS * UINT64_C(1000000)) {
            atomic_fetch_add(&step, 1);
            phase = wh_clock_now();
        }
    }
}

static bool is_within(const holdings *last, const holdings *first) {
    return last->threads <= first->threads && last->descriptors <= first->descriptors &&
           last->blocks <= first->blocks + 2 && (JOB_SLOW > 1 || last->resident < first->resident + GROWTH_KIB);
}

/** Takes stock in a pause. @param first  if it holds more than this, waits, but not forever. */
static holdings survey(const holdings *first) {
    wh_deadline limit = wh_deadline_in_ms(SETTLED_MS);
    atomic_store(&pauses, 1);
    while (atomic_load(&paused) < RANKS) {
        usleep(1000);
    }
    wh_await_asleep(getpid()); /* Lanes end in the background. */
    holdings now = take_stock();
    while (first && !is_within(&now, first) && !wh_deadline_passed(limit)) {
        usleep(20000);
        now = take_stock();
    }
    atomic_store(&pauses, 0);
    while (atomic_load(&paused)) {
        usleep(1000);
    }
    return now;
}

static void run_chaos(const char *name, bool blocks) {
    const char *text = getenv("WHERRY_CHAOS_SEED");
    const char *transfers = getenv("WHERRY_CHAOS_TRANSFERS");
    int receives = transfers ? (int)strtol(transfers, NULL, 10) : 0;
    unsigned first_seed = text ? (unsigned)strtoul(text, NULL, 10) : (unsigned)wh_clock_now();
    unsigned seed = first_seed;
    const callback_hub_options options = {.flags = CALLBACK_HUB_ALL, .blocks = blocks};
    hub = callback_hub_open(RANKS, &options);
    atomic_store(&over, false);
    atomic_store(&step, 1);
    atomic_store(&received, 0);
    atomic_store(&failed, 0);
    atomic_store(&deaths, 0);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        players[rank].rank = rank;
        join(players + rank);
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(
            pthread_create(&players[rank].thread, NULL, rank == RECEIVER ? be_receiver : be_source, players + rank), 0);
    }
    rage(&seed, receives / 10, 1);
    holdings before = survey(NULL);
    rage(&seed, receives, STORM_S - 1);
    holdings after = survey(&before);
    atomic_store(&over, true);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        pthread_join(players[rank].thread, NULL);
        leave(players + rank);
    }
    callback_hub_close(hub);
    print_message("# %s, seed %u: %d receives succeeded, %d failed; %d deaths; %ld, then %ld KiB; %d, then %d threads; "
                  "%d, then %d descriptors; %lld, then %lld allocations\n",
                  name, first_seed, atomic_load(&received), atomic_load(&failed), atomic_load(&deaths), before.resident,
                  after.resident, before.threads, after.threads, before.descriptors, after.descriptors,
                  (long long)before.blocks, (long long)after.blocks);
    assert_true(is_within(&after, &before));
    assert_true(atomic_load(&received) > 0);
}

static void test_a_table_that_moves_blocks(void **state) {
    (void)state;
    run_chaos("put and get", true);
}

static void test_a_table_without_put_and_get(void **state) {
    (void)state;
    run_chaos("without put and get", false);
}

static int set_up(void **state) {
    (void)state;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        players[rank].state = job_state_create((uint64_t)rank);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        job_state_destroy(&players[rank].state);
    }
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_table_that_moves_blocks),
        cmocka_unit_test(test_a_table_without_put_and_get),
    };
    holdings_begin();
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
