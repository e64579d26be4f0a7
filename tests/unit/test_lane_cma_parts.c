/* The parts of the cma lane: its messages, reading memory, reasons for refusal, and permissions. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lane/cma/cma.h"
#include "lane/lane_common.h"
#include "lane/lanes.h"
#include "support/build.h"
#include "support/counting_allocator.h"

enum { PAGE = 4096 };

static wherry_error error;

static void test_offer_and_request_are_encoded_and_decoded(void **state) {
    (void)state;
    wh_cma_offer offer = {.identity = {.process = 4711, .namespace_device = 4, .namespace_inode = 0xF0000001},
                          .address = UINT64_C(0x7fff12345678)};
    wh_cma_offer back;
    wh_string bytes = {0};
    memset(offer.identity.boot, 'b', WH_BOOT_BYTES);
    memset(offer.nonce, 0x5A, WH_NONCE_BYTES);
    wh_cma_append_offer(&bytes, &offer);
    assert_int_equal(bytes.size, WH_CMA_OFFER_BYTES);
    must(wh_cma_parse_offer(bytes.bytes, bytes.size, &back, &error));
    assert_int_equal(back.identity.process, 4711);
    assert_true(back.address == offer.address);
    assert_true(wh_identity_shares_pids(&back.identity, &offer.identity));
    assert_memory_equal(back.nonce, offer.nonce, WH_NONCE_BYTES);
    must_fail(WHERRY_MALFORMED, error, wh_cma_parse_request(bytes.bytes, bytes.size, &back.identity, &error));
    must(wh_cma_parse_request(bytes.bytes, WH_CMA_REQUEST_BYTES, &back.identity, &error));
    bytes.bytes[0]++;
    must_fail(WHERRY_BAD_VERSION, error, wh_cma_parse_offer(bytes.bytes, bytes.size, &back, &error));
    bytes.bytes[0]--;
    memset(bytes.bytes + 1 + WH_BOOT_BYTES, 0, 8);
    must_fail(WHERRY_MALFORMED, error, wh_cma_parse_offer(bytes.bytes, bytes.size, &back, &error));
    bytes.bytes[1 + WH_BOOT_BYTES + 3] = 1;
    must_fail(WHERRY_MALFORMED, error, wh_cma_parse_offer(bytes.bytes, bytes.size, &back, &error));
    must_fail(WHERRY_MALFORMED, error, wh_cma_parse_offer(NULL, 0, &back, &error));
    wh_free(bytes.bytes);
}

static void test_pids_are_shared_only_within_a_namespace(void **state) {
    (void)state;
    wh_identity own;
    must(wh_identity_read(&own, &error));
    assert_int_equal(own.process, getpid());
    wh_identity other = own;
    assert_true(wh_identity_shares_pids(&own, &other));
    other.namespace_inode++;
    assert_false(wh_identity_shares_pids(&own, &other));
    other = own;
    other.namespace_device++;
    assert_false(wh_identity_shares_pids(&own, &other));
    other = own;
    other.boot[WH_BOOT_BYTES - 1] ^= 1;
    assert_false(wh_identity_shares_pids(&own, &other));
}

/** Pages whose middle one is not mapped. */
static uint8_t *map_with_hole(void) {
    uint8_t *pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    memset(pages, 0x77, 3 * PAGE);
    assert_int_equal(munmap(pages + PAGE, PAGE), 0);
    return pages;
}

static wherry_status read_run(const wh_cma_peer *peer, void *from, void *to, size_t size, int *errnum_p) {
    struct iovec remote = {from, size};
    struct iovec local = {to, size};
    wh_cma_batch batch = {&remote, &local, 1, 1};
    return wh_cma_read(peer, &batch, errnum_p, &error);
}

/**
 * Reading or writing unmapped memory is an error that says which side it is on. The bytes before it
 * have been read.
 */
static void test_unmapped_memory_is_an_error(void **state) {
    (void)state;
    uint8_t *hole = map_with_hole();
    uint8_t *good = malloc(2 * PAGE);
    for (int by_memory = 0; by_memory < 2; by_memory++) {
        wh_cma_peer peer;
        int errnum = 0;
        must(wh_cma_peer_open(&peer, getpid(), 3, &error));
        peer.memory = by_memory ? open("/proc/self/mem", O_RDONLY | O_CLOEXEC) : -1;
        assert_true(!by_memory || peer.memory >= 0);
        memset(good, 0, 2 * PAGE);
        must_fail(WHERRY_OUT_OF_BOUNDS, error, read_run(&peer, hole, good, 2 * PAGE, &errnum));
        assert_int_equal(errnum, EFAULT);
        assert_non_null(strstr(error.message, "the memory of rank 3"));
        assert_int_equal(good[PAGE - 1], 0x77);
        must_fail(WHERRY_OUT_OF_BOUNDS, error, read_run(&peer, good, hole + PAGE, 16, NULL));
        assert_non_null(strstr(error.message, "the destination at"));
        must(read_run(&peer, hole + 2 * PAGE, good, PAGE, NULL));
        wh_cma_peer_close(&peer);
        wh_cma_peer_close(&peer);
    }
    free(good);
    munmap(hole, PAGE);
    munmap(hole + 2 * PAGE, PAGE);
}

/**
 * Bytes from a process that has ended are rejected. This test reads from a living process while the
 * watched one is dead.
 */
static void test_refuses_bytes_of_a_dead_process(void **state) {
    (void)state;
    uint8_t from[64] = {1};
    uint8_t to[64];
    wh_cma_peer peer;
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    must(wh_cma_peer_open(&peer, child, 2, &error));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    peer.process = getpid();
    must_fail(WHERRY_PEER_LOST, error, read_run(&peer, from, to, sizeof(to), NULL));
    assert_int_equal(error.rank, 2);
    wh_cma_peer_close(&peer);
    must_fail(WHERRY_PEER_LOST, error, wh_cma_peer_open(&peer, child, 2, &error));
}

static void must_say(wh_cma_refusal refusal, const char *part, bool assist) {
    bool assist_p = false;
    must_fail(WHERRY_REFUSED, error, wh_cma_refuse(&refusal, &assist_p, &error));
    if (!strstr(error.message, part)) {
        fail_msg("the message \"%s\" lacks \"%s\"", error.message, part);
    }
    assert_int_equal(assist_p, assist);
    assert_int_equal(error.errnum, EPERM);
    assert_int_equal(error.rank, 5);
    assert_true(strlen(error.message) + 1 < sizeof(error.message));
}

/**
 * The receiver asks the source only if it can help: Yama's scope is 1, and nothing else forbids it.
 */
static void test_refusals_name_the_reason(void **state) {
    (void)state;
    wh_cma_refusal refusal = {.process = 4194304,
                              .rank = 5,
                              .call_errnum = EPERM,
                              .memory_errnum = EACCES,
                              .scope = 1,
                              .user = 1000,
                              .own_user = 1000,
                              .dumpable = true};
    must_say(refusal, "Yama's ptrace_scope is 1 and this process is not the ptracer of the source", true);
    refusal.user = -1;
    must_say(refusal, "Yama's ptrace_scope is 1", true);
    refusal.user = 1001;
    must_say(refusal, "runs as user 1001 and this process as user 1000", false);
    refusal.user = 1000;
    refusal.dumpable = false;
    must_say(refusal, "not dumpable", false);
    refusal.dumpable = true;
    refusal.scope = 2;
    must_say(refusal, "Yama's ptrace_scope is 2 and this process has no CAP_SYS_PTRACE", false);
    refusal.scope = 3;
    must_say(refusal, "Yama's ptrace_scope is 3", false);
    refusal.scope = 0;
    must_say(refusal, "may have capabilities", false);
    refusal.scope = -1;
    must_say(refusal, "may have capabilities", false);
}

/**
 * A process has one ptracer. The first receiver becomes it. When a second one asks, any process may
 * read.
 */
static void test_second_receiver_lets_any_process_read(void **state) {
    (void)state;
    uint64_t own = (uint64_t)getpid();
    _Atomic uint64_t slot = 0;
    assert_true(wh_ptracer_choose(&slot, own) == own);
    assert_true(wh_ptracer_choose(&slot, own) == own);
    assert_true(wh_ptracer_choose(&slot, 1) == WH_PTRACER_ANYONE);
    assert_true(wh_ptracer_choose(&slot, own) == WH_PTRACER_ANYONE);
    atomic_store(&slot, 0);
    assert_true(wh_ptracer_choose(&slot, WH_PTRACER_ANYONE) == WH_PTRACER_ANYONE);

    /* If the ptracer has ended, the next receiver takes its place. */
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    atomic_store(&slot, (uint64_t)child);
    assert_true(wh_ptracer_choose(&slot, own) == own);
}

static int32_t nobody(wh_group *group, int32_t rank) {
    (void)group;
    (void)rank;
    return 0;
}

/**
 * The result of PR_SET_PTRACER shows whether the kernel has Yama. The source's answer must match
 * it.
 */
static void test_assist_depends_on_yama(void **state) {
    (void)state;
    static const wh_group_backend group_ops = {.name = "nobody", .process = nobody};
    wh_group group = {.ops = &group_ops, .size = 2};
    wh_lane_site site = {.group = &group, .peer = 1, .threads = 1};
    bool yama = prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0;
    wh_identity own;
    wh_string request = {0};
    must(wh_identity_read(&own, &error));
    wh_cma_append_request(&request, &own);
    wherry_status status = wh_lane_cma.assist(&site, request.bytes, request.size, &error);
    assert_int_equal(status, yama ? WHERRY_OK : WHERRY_UNSUPPORTED);
    site.keep_ptracer = true;
    must_fail(WHERRY_REFUSED, error, wh_lane_cma.assist(&site, request.bytes, request.size, &error));
    assert_non_null(strstr(error.message, "may not set its ptracer, because WHERRY_SEND_NO_PTRACER is set"));
    must_fail(WHERRY_MALFORMED, error, wh_lane_cma.assist(&site, request.bytes, request.size - 1, &error));
    prctl(PR_SET_PTRACER, 0, 0, 0, 0);
    /*
     * A receiver on another host must not make this process readable for all processes of this
     * host.
     */
    site.keep_ptracer = false;
    request.size = 0;
    own.boot[0] ^= 1;
    wh_cma_append_request(&request, &own);
    must_fail(WHERRY_REFUSED, error, wh_lane_cma.assist(&site, request.bytes, request.size, &error));
    assert_non_null(strstr(error.message, "is on another host"));
    wh_free(request.bytes);
}

static uint8_t from_bytes[100];
static uint8_t to_bytes[100];

static bool sink_next(void *context, uint64_t *chunk_p) {
    int *given = context;
    *chunk_p = 0;
    return (*given)++ == 0;
}

static wherry_status sink_origin(void *context, uint64_t chunk, wh_segments *segments, wherry_error *failure) {
    (void)context;
    (void)chunk;
    bool good = wh_segments_add(segments, from_bytes, sizeof(from_bytes));
    return good ? WHERRY_OK : wh_fail_memory(failure, "a list");
}

static wherry_status sink_open(void *context, uint64_t chunk, wh_landing *landing, wherry_error *failure) {
    (void)context;
    (void)chunk;
    bool good = wh_segments_add(&landing->segments, to_bytes, sizeof(to_bytes));
    return good ? WHERRY_OK : wh_fail_memory(failure, "a list");
}

static wherry_status sink_close(void *context, wh_landing *landing, const wherry_digest *digest,
                                const wherry_digest *claimed, wherry_error *failure) {
    (void)context;
    (void)landing;
    (void)failure;
    assert_non_null(digest);
    assert_null(claimed);
    return WHERRY_OK;
}

static void sink_moved(void *context, uint64_t bytes) {
    (void)context;
    assert_int_equal(bytes, sizeof(from_bytes));
}

/** One transfer within this process, from the offer to the close. */
static wherry_status move_once(const wh_lane_site *site) {
    int given = 0;
    bool assist = false;
    wh_sink sink = {.context = &given,
                    .verify = true,
                    .next = sink_next,
                    .origin = sink_origin,
                    .open = sink_open,
                    .close = sink_close,
                    .moved = sink_moved};
    wh_string offer = {0};
    wh_string request = {0};
    wh_lane_end *end = NULL;
    wherry_status status = wh_lane_cma.offer(site, &offer, &error);
    if (status == WHERRY_OK) {
        status = wh_lane_cma.probe(site, offer.bytes, offer.size, &request, &assist, &end, &error);
    }
    if (status == WHERRY_OK) {
        status = wh_lane_cma.pull(end, 0, &sink, &error);
    }
    wh_lane_cma.close(end);
    wh_free(offer.bytes);
    wh_free(request.bytes);
    return status;
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    static const wh_group_backend group_ops = {.name = "nobody", .process = nobody};
    wh_group group = {.ops = &group_ops, .size = 2};
    wh_stop stop;
    wh_lane_site site = {.group = &group, .peer = 1, .threads = 1, .stop = &stop};
    wherry_status status = WHERRY_NO_MEMORY;
    uint64_t fail = 0;
    must(wh_stop_init(&stop, &error));
    memset(from_bytes, 0x3C, sizeof(from_bytes));
    while (status == WHERRY_NO_MEMORY) {
        counting count;
        counting_begin(&count);
        count.fail = ++fail;
        error.status = WHERRY_OK;
        status = move_once(&site);
        wherry_allocator_set(NULL);
        assert_int_equal(count.held, 0);
        assert_int_equal(error.status, status);
    }
    assert_int_equal(status, WHERRY_OK);
    assert_true(fail > 5);
    assert_memory_equal(to_bytes, from_bytes, sizeof(to_bytes));
    wh_stop_destroy(&stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offer_and_request_are_encoded_and_decoded),
        cmocka_unit_test(test_pids_are_shared_only_within_a_namespace),
        cmocka_unit_test(test_unmapped_memory_is_an_error),
        cmocka_unit_test(test_refuses_bytes_of_a_dead_process),
        cmocka_unit_test(test_refusals_name_the_reason),
        cmocka_unit_test(test_second_receiver_lets_any_process_read),
        cmocka_unit_test(test_assist_depends_on_yama),
        cmocka_unit_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests_name("lane_cma_parts", tests, NULL, NULL);
}
