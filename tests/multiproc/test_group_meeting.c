/*
 * Open meetings, through the public interface. A host opens a meeting point at a port that the
 * system chooses, and does not wait for other ranks. Clients join at any time, are refused, or find
 * no host. Transfers start before all their ranks have joined.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <glob.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/group_handle.h"
#include "base/clock.h"
#include "group/sockets/internal.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/process_job.h"

enum { HOST = 0, RANKS = 3, SOON_MS = 10000 * JOB_SLOW, DEATH_MS = 4000, ASK = 1, ANSWER = 2 };

static wherry_error error;

static wherry_group_options options_for(uint32_t wait_for, uint32_t flags) {
    wherry_group_options options;
    wherry_group_options_init(&options);
    options.timeout_ms = SOON_MS;
    options.wait_for = wait_for;
    options.flags = flags;
    return options;
}

/** Opens a meeting point without waiting for other ranks. @param meeting  set to its address. */
static wherry_group *host(char meeting[WHERRY_GROUP_MEETING_MAX]) {
    wherry_group *group;
    wherry_group_options options = options_for(1, 0);
    must(wherry_group_join("tcp://127.0.0.1:0?rank=0&size=3&job=open", &options, &group, &error));
    must(wherry_group_meeting(group, meeting, &error));
    return group;
}

static wherry_status join_client(const char *meeting, int32_t rank, const wherry_group_options *options,
                                 wherry_group **group_p) {
    char address[WHERRY_GROUP_MEETING_MAX + 64];
    snprintf(address, sizeof(address), "%s?rank=%d&size=3&job=open", meeting, (int)rank);
    return wherry_group_join(address, options, group_p, &error);
}

static int port_of(const char *meeting) {
    static const char before[] = "tcp://127.0.0.1:";
    assert_int_equal(strncmp(meeting, before, sizeof(before) - 1), 0);
    char *end;
    long port = strtol(meeting + sizeof(before) - 1, &end, 10);
    assert_true(*end == '\0' && port > 0 && port < 65536);
    return (int)port;
}

/** True if a process listens at a port of the loopback interface. */
static bool listens(int port) {
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected = connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
    close(fd);
    return connected;
}

/** Finds a port at which nobody listens or, if `silent`, at which a listener never answers. */
static int find_port(bool silent, int *listener_p) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    *listener_p = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(*listener_p, (struct sockaddr *)&at, size), 0);
    assert_int_equal(getsockname(*listener_p, (struct sockaddr *)&at, &size), 0);
    if (silent) {
        assert_int_equal(listen(*listener_p, 100), 0);
    }
    return ntohs(at.sin_port);
}

static size_t count_entries(const char *pattern) {
    glob_t found;
    size_t count = glob(pattern, GLOB_NOSORT, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    return count;
}

/**
 * A child process. It is forked before this process has threads, because of the sanitizers, and
 * starts when it is told the address of the meeting point.
 */
typedef struct worker {
    pid_t process;
    int pipe;
} worker;

typedef int (*worker_part)(const char *meeting, int32_t rank, int32_t from);

static worker start(worker_part part, int32_t rank, int32_t from) {
    char meeting[WHERRY_GROUP_MEETING_MAX];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    worker started = {fork(), ends[1]};
    assert_true(started.process >= 0);
    if (started.process == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[1]);
        _exit(read(ends[0], meeting, sizeof(meeting)) == sizeof(meeting) ? part(meeting, rank, from) : 3);
    }
    close(ends[0]);
    return started;
}

static void tell(worker *told, const char meeting[WHERRY_GROUP_MEETING_MAX]) {
    assert_int_equal(write(told->pipe, meeting, WHERRY_GROUP_MEETING_MAX), WHERRY_GROUP_MEETING_MAX);
}

static void finish(worker *ended) {
    kill(ended->process, SIGKILL);
    waitpid(ended->process, NULL, 0);
    close(ended->pipe);
}

/** Answers each message until it is killed. */
static int serve(const char *meeting, int32_t rank, int32_t from_nobody) {
    (void)from_nobody;
    wherry_group *group;
    wherry_group_options options = options_for(2, WHERRY_JOIN_CLIENT);
    if (join_client(meeting, rank, &options, &group) != WHERRY_OK) {
        return 1;
    }
    for (;;) {
        void *bytes;
        size_t size;
        int32_t from;
        if (wherry_group_receive(group, WHERRY_ANY_RANK, ASK, SOON_MS, &bytes, &size, &from, &error) != WHERRY_OK ||
            wherry_group_send(group, from, ANSWER, bytes, size, SOON_MS, &error) != WHERRY_OK) {
            return 2;
        }
        wherry_free(bytes);
    }
}

static void await_alive(wherry_group *group, int32_t rank) {
    uint64_t limit = wh_clock_now() + SOON_MS * UINT64_C(1000000);
    for (; !wherry_group_alive(group, rank); usleep(1000)) {
        assert_true(wh_clock_now() < limit);
    }
}

static void ask(wherry_group *group, int32_t rank) {
    void *bytes;
    size_t size;
    must(wherry_group_send(group, rank, ASK, "who", 3, SOON_MS, &error));
    must(wherry_group_receive(group, rank, ANSWER, SOON_MS, &bytes, &size, NULL, &error));
    assert_int_equal(size, 3);
    wherry_free(bytes);
}

/**
 * The host joins without waiting, and listens when join returns. Calls wait for ranks that have not
 * joined. Clients find each other through the host.
 */
static void test_open_meeting(void **state) {
    (void)state;
    char meeting[WHERRY_GROUP_MEETING_MAX];
    worker servers[] = {start(serve, 1, 0), start(serve, 1, 0)};
    uint64_t begin = wh_clock_now();
    wherry_group *group = host(meeting);
    assert_true((wh_clock_now() - begin) / 1000000 < SOON_MS / 2);
    assert_true(listens(port_of(meeting)));
    assert_false(wherry_group_alive(group, 1));
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_send(group, 1, ASK, "x", 1, 60, &error));
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_barrier(group, 1, 60, &error));
    assert_int_equal(error.rank, 1);
    assert_non_null(strstr(error.message, "has not arrived"));
    wh_socket channel;
    must_fail(
        WHERRY_PEER_LOST, error,
        wh_group_connect(wh_group_of(group), 1, WH_TAG_CONVERSATION, wh_deadline_in_ms(60), NULL, &channel, &error));
    tell(servers, meeting);
    ask(group, 1);
    assert_int_equal(wh_group_process(wh_group_of(group), 1), servers[0].process);
    wherry_group *client;
    wherry_group_options options = options_for(2, WHERRY_JOIN_CLIENT);
    must(join_client(meeting, 2, &options, &client));
    ask(client, 1);
    char told[WHERRY_GROUP_MEETING_MAX];
    must(wherry_group_meeting(client, told, &error));
    assert_string_equal(told, meeting);
    finish(servers);
    void *bytes;
    size_t size;
    must_fail(WHERRY_PEER_LOST, error, wherry_group_receive(group, 1, ASK, SOON_MS, &bytes, &size, NULL, &error));
    tell(servers + 1, meeting);
    await_alive(group, 1);
    ask(group, 1);
    finish(servers + 1);
    wherry_group_leave(client);
    wherry_group_leave(group);
    assert_false(listens(port_of(meeting)));
}

/** Waits until a group has tried the meeting point `tries` more times. */
static void await_tries(wherry_group *group, int tries) {
    wh_sockets *sockets = (wh_sockets *)wh_group_of(group);
    uint64_t limit = wh_clock_now() + SOON_MS * UINT64_C(1000000);
    for (uint64_t last = 0; tries >= 0; usleep(1000)) {
        pthread_mutex_lock(&sockets->lock);
        uint64_t next = sockets->meetings[0].next_try;
        pthread_mutex_unlock(&sockets->lock);
        tries -= next != last;
        last = next;
        assert_true(wh_clock_now() < limit);
    }
}

/**
 * A rank that only dials notices the host's death like that of any rank, and does not take its
 * place.
 */
static void test_host_dies(void **state) {
    (void)state;
    char meeting[WHERRY_GROUP_MEETING_MAX];
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        host(meeting);
        _exit(write(pipes[1], meeting, sizeof(meeting)) == sizeof(meeting) ? pause() : 1);
    }
    assert_int_equal(read(pipes[0], meeting, sizeof(meeting)), sizeof(meeting));
    wherry_group *clients[2];
    wherry_group_options options = options_for(2, WHERRY_JOIN_CLIENT);
    must(join_client(meeting, 1, &options, clients));
    must(join_client(meeting, 2, &options, clients + 1));
    /* The other client has no connection to the host except the one to the meeting point. */
    must(wherry_group_send(clients[0], HOST, ASK, "x", 1, SOON_MS, &error));
    uint64_t begin = wh_clock_now();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 2; i++) {
        void *bytes;
        size_t size;
        must_fail(WHERRY_PEER_LOST, error,
                  wherry_group_receive(clients[i], HOST, ANSWER, SOON_MS, &bytes, &size, NULL, &error));
        assert_int_equal(error.rank, HOST);
        assert_true((wh_clock_now() - begin) / 1000000 < DEATH_MS);
        assert_false(wherry_group_alive(clients[i], HOST));
    }
    for (int i = 0; i < 2; i++) {
        /*
         * The first try fails. At the second try, a member that is not a client would take the
         * place.
         */
        await_tries(clients[i], 2);
    }
    assert_false(listens(port_of(meeting)));
    wherry_group_leave(clients[0]);
    wherry_group_leave(clients[1]);
    close(pipes[0]);
    close(pipes[1]);
}

/**
 * Nobody listens at the meeting point, the listener does not answer, or the host has another
 * secret. Each error says so, and the client never takes the host's place.
 */
static void test_a_client_without_a_host(void **state) {
    (void)state;
    char meeting[WHERRY_GROUP_MEETING_MAX];
    wherry_group *client = NULL;
    int listener;
    wherry_group_options options = options_for(2, WHERRY_JOIN_CLIENT);
    options.timeout_ms = 300;
    snprintf(meeting, sizeof(meeting), "tcp://127.0.0.1:%d", find_port(false, &listener));
    must_fail(WHERRY_TIMED_OUT, error, join_client(meeting, 1, &options, &client));
    assert_non_null(strstr(error.message, "Connection refused"));
    assert_non_null(strstr(error.message, ": nobody has answered; "));
    assert_non_null(strstr(error.message, meeting + sizeof("tcp://") - 1));
    close(listener);

    snprintf(meeting, sizeof(meeting), "tcp://127.0.0.1:%d", find_port(true, &listener));
    options.timeout_ms = 1500;
    must_fail(WHERRY_TIMED_OUT, error, join_client(meeting, 1, &options, &client));
    char pid[64];
    snprintf(pid, sizeof(pid), "process %d, which listens there, does not answer", (int)getpid());
    assert_non_null(strstr(error.message, pid));
    close(listener);
    assert_false(listens(port_of(meeting)));

    options.timeout_ms = 300;
    char address[64];
    char pattern[64];
    snprintf(address, sizeof(address), "unix:///tmp/wherry-nobody-%d?rank=1&size=2", (int)getpid());
    snprintf(pattern, sizeof(pattern), "/tmp/wherry-nobody-%d*", (int)getpid());
    must_fail(WHERRY_TIMED_OUT, error, wherry_group_join(address, &options, &client, &error));
    assert_non_null(strstr(error.message, "No such file"));
    assert_int_equal(count_entries(pattern), 0);

    wherry_group *group = host(meeting);
    options.timeout_ms = SOON_MS; /* The call fails at once. */
    options.secret = "the wrong secret";
    options.secret_size = 16;
    must_fail(WHERRY_BAD_SECRET, error, join_client(meeting, 1, &options, &client));
    wherry_group_leave(group);
    assert_null(client);
}

static void test_invalid_options(void **state) {
    (void)state;
    static const struct {
        const char *address;
        uint32_t wait_for;
        uint32_t flags;
    } rows[] = {
        {"unix:///tmp/nowhere?rank=0&size=2", 3, 0},
        {"tcp://127.0.0.1:0?rank=0&size=2", 1, WHERRY_JOIN_CLIENT},
        {"tcp://127.0.0.1:0,127.0.0.1:0?rank=0&size=2", 1, 0},
        {"tcp://192.0.2.1:0?rank=0&size=2", 1, 0}, /* This is not an address of this host. */
        {"tcp://127.0.0.1:0?rank=0&size=2&shortcut=maybe", 1, 0},
        {"unix:///tmp/nowhere?rank=0&size=2", 1, WHERRY_JOIN_FLAGS + 1},
    };
    wherry_group *group = NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        wherry_group_options options = options_for(rows[i].wait_for, rows[i].flags);
        options.secret = "of sixteen bytes";
        options.secret_size = 16;
        must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_join(rows[i].address, &options, &group, &error));
    }
    assert_null(group);
}

/** Options as a program passes them that was compiled before `wait_for` existed. */
static void test_old_options(void **state) {
    (void)state;
    wherry_group *group;
    wherry_group_options options = options_for(0, 0);
    options.struct_size = offsetof(wherry_group_options, wait_for);
    memset(&options.wait_for, 0xEE, sizeof(options) - offsetof(wherry_group_options, wait_for));
    must(wherry_group_join("tcp://127.0.0.1:0?rank=0&size=1", &options, &group, &error));
    char meeting[WHERRY_GROUP_MEETING_MAX] = "as it was";
    must_fail(WHERRY_UNSUPPORTED, error, wherry_group_meeting(group, meeting, &error));
    assert_string_equal(meeting, "as it was");
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_meeting(NULL, meeting, &error));
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_group_meeting(group, NULL, &error));
    wherry_group_leave(group);
}

static void expect_meeting(const char *address, const char *expected) {
    char meeting[WHERRY_GROUP_MEETING_MAX];
    wherry_group *group;
    wherry_group_options options = options_for(1, 0);
    must(wherry_group_join(address, &options, &group, &error));
    must(wherry_group_meeting(group, meeting, &error));
    assert_string_equal(meeting, expected);
    assert_true(strncmp(meeting, "tcp:", 4) != 0 || listens(port_of(meeting)));
    wherry_group_leave(group);
}

/** wherry_group_meeting returns a valid address, at which others can join. */
static void test_address_of_the_meeting(void **state) {
    (void)state;
    char address[WHERRY_GROUP_MEETING_MAX];
    char meeting[64];
    int probes[2];
    snprintf(meeting, sizeof(meeting), "tcp://127.0.0.1:%d", find_port(false, probes));
    snprintf(address, sizeof(address), "%s,127.0.0.1:%d?rank=0&size=2", meeting, find_port(false, probes + 1));
    close(probes[0]);
    close(probes[1]);
    expect_meeting(address, meeting);
    snprintf(address, sizeof(address), "unix:///tmp/wherry%d%%3fa%%20b%%25%%C3%%A9?rank=0&size=2", (int)getpid());
    snprintf(meeting, sizeof(meeting), "unix:///tmp/wherry%d%%3fa%%20b%%25%%c3%%a9", (int)getpid());
    expect_meeting(address, meeting);
}

static int asked;

static bool interrupt_third(void *context) {
    return context == &asked && ++asked >= 3;
}

static void test_interrupt(void **state) {
    (void)state;
    wherry_group *group = NULL;
    size_t threads = count_entries("/proc/self/task/*");
    size_t files = count_entries("/proc/self/fd/*");
    wherry_group_options options = options_for(0, 0);
    options.interrupt = interrupt_third;
    options.interrupt_context = &asked;
    uint64_t begin = wh_clock_now();
    must_fail(WHERRY_CANCELLED, error, wherry_group_join("tcp://127.0.0.1:0?rank=0&size=3", &options, &group, &error));
    uint64_t took = (wh_clock_now() - begin) / 1000000;
    assert_true(took >= 100 && took < SOON_MS / 2);
    assert_int_equal(asked, 3);
    assert_null(group);
    assert_int_equal(count_entries("/proc/self/fd/*"), files);
    assert_int_equal(count_entries("/proc/self/task/*"), threads);
    options.wait_for = 1;
    asked = 0;
    must(wherry_group_join("tcp://127.0.0.1:0?rank=0&size=3", &options, &group, &error));
    assert_int_equal(asked, 0);
    wherry_group_leave(group);
}

/* ---- transfers with ranks that join later ---- */

/** A worker that sends to all other ranks if it is rank `from`, and else receives. */
static int ferry(const char *meeting, int32_t rank, int32_t from) {
    wherry_group *group;
    wherry_transport *transport;
    wherry_group_options joining = options_for(2, WHERRY_JOIN_CLIENT);
    wherry_transfer_options options = job_options("cma");
    job_state state = job_state_create(7);
    wherry_stats stats;
    options.stats = &stats;
    wherry_status status = join_client(meeting, rank, &joining, &group);
    if (status == WHERRY_OK) {
        status = wherry_transport_create(group, NULL, &transport, &error);
    }
    if (status == WHERRY_OK && rank == from) {
        int32_t others[] = {(rank + 1) % RANKS, (rank + 2) % RANKS};
        status = wherry_checkpoint_send(transport, others, 2, state.value, &options, NULL, &error);
    } else if (status == WHERRY_OK) {
        wherry_value *received = NULL;
        status = wherry_checkpoint_recv(transport, from, &options, &received, &error);
        if (status == WHERRY_OK && (!job_state_equals(&state, received) || strcmp(stats.lane, "cma") != 0)) {
            fprintf(stderr, "rank %d received another state, or over the %s lane: %s\n", (int)rank, stats.lane,
                    stats.reasons);
            return 2;
        }
    }
    if (status != WHERRY_OK) {
        fprintf(stderr, "rank %d: %s\n", (int)rank, error.message);
        return 1;
    }
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
    return 0;
}

static void expect_success(worker *ended) {
    int result;
    assert_int_equal(waitpid(ended->process, &result, 0), ended->process);
    close(ended->pipe);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
}

/**
 * Receivers ask a source that joins later, or a source sends to receivers of which one joins later.
 * All ranks are on one host and use the cma lane.
 */
static void test_the_other_side_joins_later(void **state) {
    (void)state;
    for (int source_first = 0; source_first < 2; source_first++) {
        char meeting[WHERRY_GROUP_MEETING_MAX];
        worker workers[] = {start(ferry, source_first ? 2 : 1, 2), start(ferry, source_first ? 1 : 2, 2)};
        wherry_group *group = host(meeting);
        wherry_transport *transport;
        must(wherry_transport_create(group, NULL, &transport, &error));
        tell(workers, meeting);
        wherry_transfer_options options = job_options(NULL);
        options.timeout_ms = 200;
        wherry_value *received;
        if (!source_first) {
            must_fail(WHERRY_TIMED_OUT, error, wherry_checkpoint_recv(transport, 2, &options, &received, &error));
            assert_int_equal(error.rank, 2);
        } else {
            await_alive(group, 2);
            wh_await_asleep(workers[0].process); /* The source waits in its send. */
        }
        tell(workers + 1, meeting);
        options.timeout_ms = JOB_MS;
        must(wherry_checkpoint_recv(transport, 2, &options, &received, &error));
        job_state expected = job_state_create(7);
        assert_true(job_state_equals(&expected, received));
        job_state_destroy(&expected);
        wherry_value_destroy(received);
        expect_success(workers);
        expect_success(workers + 1);
        wherry_transport_destroy(transport);
        wherry_group_leave(group);
    }
}

/* ---- parts that meet ---- */

/** A rank of a group of five. Its call runs in a thread. */
typedef struct part_rank {
    int32_t rank;
    uint32_t wait_for;
    char meeting[64];
    wh_group *group;
    wherry_status status;
    wherry_error error;
} part_rank;

static void *join_part(void *context) {
    part_rank *own = context;
    char address[128];
    wh_sockets_options options = {.wait_for = own->wait_for};
    snprintf(address, sizeof(address), "tcp://%s?rank=%d&size=5&job=parts", own->meeting, (int)own->rank);
    own->status = wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &own->group, &own->error);
    return NULL;
}

static void *arrive(void *context) {
    part_rank *own = context;
    own->status = wh_sockets_barrier(own->group, 1, wh_deadline_in_ms(SOON_MS), &own->error);
    return NULL;
}

/** Runs a call in each of these ranks at once, which must succeed. */
static void run_all(void *(*call)(void *), part_rank *first, int count) {
    pthread_t threads[5];
    for (int i = 0; i < count; i++) {
        assert_int_equal(pthread_create(threads + i, NULL, call, first + i), 0);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < count; i++) {
        if (first[i].status != WHERRY_OK) {
            fail_msg("rank %d: %s", (int)first[i].rank, first[i].error.message);
        }
    }
}

/**
 * Makes everything that the group knows look old, so that it sends no news to a rank that it meets.
 */
static void grow_old(wh_group *group) {
    wh_sockets *sockets = (wh_sockets *)group;
    pthread_mutex_lock(&sockets->lock);
    for (int32_t rank = 0; rank < sockets->base.size; rank++) {
        sockets->members[rank].changed_at = 0;
    }
    pthread_mutex_unlock(&sockets->lock);
}

/** Two parts that have met at two points become one group as soon as one rank knows both points. */
static void test_two_parts_become_one(void **state) {
    (void)state;
    part_rank ranks[5];
    char points[2][24];
    int listeners[2];
    for (int i = 0; i < 2; i++) {
        snprintf(points[i], sizeof(points[i]), "127.0.0.1:%d", find_port(false, listeners + i));
    }
    close(listeners[0]);
    close(listeners[1]);
    for (int32_t rank = 0; rank < 5; rank++) {
        ranks[rank] = (part_rank){.rank = rank, .wait_for = rank < 4 ? 2 : 5};
        snprintf(ranks[rank].meeting, sizeof(ranks[rank].meeting), "%s", points[rank / 2 % 2]);
    }
    snprintf(ranks[4].meeting, sizeof(ranks[4].meeting), "%s,%s", points[0], points[1]);
    run_all(join_part, ranks, 2);
    run_all(join_part, ranks + 2, 2);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(((wh_sockets *)ranks[i].group)->known, 2);
        grow_old(ranks[i].group);
    }
    run_all(join_part, ranks + 4, 1);
    run_all(arrive, ranks, 5);
    for (int i = 0; i < 5; i++) {
        wh_group_destroy(ranks[i].group);
    }
}

/* ---- names and interfaces that the test chooses ---- */

static const char wandering[] = "wandering.test";
static const char *_Atomic leads_to = "127.0.0.1";
static atomic_int queries;

typedef int (*getaddrinfo_fn)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/** Replaces the function of the C library. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    getaddrinfo_fn real = (getaddrinfo_fn)dlsym(RTLD_NEXT, "getaddrinfo");
    bool wanders = host && strcmp(host, wandering) == 0 && !(hints->ai_flags & AI_NUMERICHOST);
    int result = real(wanders ? atomic_load(&leads_to) : host, service, hints, found);
    atomic_fetch_add(&queries, wanders);
    return result;
}

/** One interface, whose address is for documentation. */
int getifaddrs(struct ifaddrs **all) {
    static char wan[] = "wan";
    static struct sockaddr_in at = {.sin_family = AF_INET};
    static struct ifaddrs one = {.ifa_name = wan, .ifa_addr = (struct sockaddr *)&at};
    at.sin_addr.s_addr = htonl(0xC0000207);
    *all = &one;
    return 0;
}

void freeifaddrs(struct ifaddrs *all) {
    (void)all;
}

static wh_sockets *_Atomic looked_at; /**< Nobody may hold the lock while others look at /proc. */
static atomic_int looks;

/** Replaces the function of the C library. */
DIR *opendir(const char *path) {
    DIR *(*real)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    wh_sockets *sockets = atomic_load(&looked_at);
    if (strcmp(path, "/proc") == 0) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec += SOON_MS / 1000;
        if (sockets) {
            assert_int_equal(pthread_mutex_timedlock(&sockets->lock, &soon), 0);
            pthread_mutex_unlock(&sockets->lock);
        }
        atomic_fetch_add(&looks, 1);
    }
    return real(path);
}

/**
 * If a process does not answer at the meeting point, a joining process looks for it only to name it
 * in a message. It does not keep its own threads waiting meanwhile.
 */
static void test_who_does_not_answer(void **state) {
    (void)state;
    int listeners[2];
    char address[128];
    char why[256];
    char expected[64];
    wh_group *group;
    wh_sockets_options options = {.wait_for = 1};
    int port = find_port(false, listeners);
    close(listeners[0]);
    int silent = find_port(true, listeners + 1);
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%d,127.0.0.1:%d?rank=0&size=2", port, silent);
    must(wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &group, &error));
    wh_sockets *sockets = (wh_sockets *)group;
    atomic_store(&looks, 0);
    atomic_store(&looked_at, sockets);
    pthread_mutex_lock(&sockets->lock);
    wh_meetings_explain(sockets, why, sizeof(why));
    pthread_mutex_unlock(&sockets->lock);
    atomic_store(&looked_at, NULL);
    assert_int_equal(atomic_exchange(&looks, 0), 1);
    snprintf(expected, sizeof(expected), "process %d, which", (int)getpid());
    assert_non_null(strstr(why, expected));
    wh_group_destroy(group);
    /* The process would log this after 3 s, but the log is off. */
    options = (wh_sockets_options){.dial_only = true};
    snprintf(address, sizeof(address), "tcp://127.0.0.1:%d?rank=1&size=2", silent);
    must_fail(WHERRY_TIMED_OUT, error, wh_sockets_join(address, &options, wh_deadline_in_ms(3500), &group, &error));
    assert_int_equal(atomic_load(&looks), 1); /* The process has looked once, for the error. */
    assert_non_null(strstr(error.message, expected));
    close(listeners[1]);
}

/** Without a secret, a group that meets on loopback opens all its ports on loopback only. */
static void test_a_group_without_a_secret_stays_here(void **state) {
    (void)state;
    assert_int_equal(setenv("WHERRY_INTERFACE", "wan", 1), 0);
    for (int i = 0; i < 2; i++) {
        wh_group *group;
        wh_sockets_options options = {.wait_for = 1, .allow_insecure = i == 1};
        must(wh_sockets_join("tcp://127.0.0.1:0?rank=0&size=2", &options, wh_deadline_in_ms(SOON_MS), &group, &error));
        assert_int_equal(strncmp(((wh_sockets *)group)->place, "127.0.0.1:", 10), 0);
        wh_group_destroy(group);
    }
    assert_int_equal(unsetenv("WHERRY_INTERFACE"), 0);
}

/** The name of the meeting point may get another address, but no port is opened beyond loopback. */
static void test_a_name_that_leads_away(void **state) {
    (void)state;
    char address[128];
    wh_group *group;
    wh_sockets_options options = {.wait_for = 1};
    int listener;
    snprintf(address, sizeof(address), "tcp://%s:%d?rank=0&size=2", wandering, find_port(false, &listener));
    close(listener);
    must(wh_sockets_join(address, &options, wh_deadline_in_ms(SOON_MS), &group, &error));
    wh_sockets *sockets = (wh_sockets *)group;
    wh_meeting *meeting = sockets->meetings;
    atomic_store(&leads_to, "192.0.2.7");
    int before = atomic_load(&queries);
    bool taken = false;
    uint64_t limit = wh_clock_now() + SOON_MS * UINT64_C(1000000);
    for (; !taken; usleep(1000)) {
        assert_true(wh_clock_now() < limit);
        pthread_mutex_lock(&sockets->lock);
        meeting->asked = 0; /* The group asks now, not later. */
        taken = atomic_load(&queries) >= before + 2;
        assert_true(wh_is_private(&meeting->at));
        pthread_mutex_unlock(&sockets->lock);
    }
    atomic_store(&leads_to, "127.0.0.1");
    wh_group_destroy(group);
}

int main(void) {
    wherry_log_set_level(WHERRY_LOG_OFF);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_meeting),
        cmocka_unit_test(test_host_dies),
        cmocka_unit_test(test_a_client_without_a_host),
        cmocka_unit_test(test_invalid_options),
        cmocka_unit_test(test_old_options),
        cmocka_unit_test(test_address_of_the_meeting),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_the_other_side_joins_later),
        cmocka_unit_test(test_two_parts_become_one),
        cmocka_unit_test(test_who_does_not_answer),
        cmocka_unit_test(test_a_group_without_a_secret_stays_here),
        cmocka_unit_test(test_a_name_that_leads_away),
    };
    return cmocka_run_group_tests_name("group_meeting", tests, NULL, NULL);
}
