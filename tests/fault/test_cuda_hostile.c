/*
 * Offers of the cuda_ipc lane that are truncated, have impossible values, or name memory that is
 * not the source's. On the fake driver.
 */
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "conformance/hub_place.h"
#include "conformance/transfer_world.h"
#include "lane/cuda_ipc/cuda_ipc.h"
#include "lane/lanes.h"
#include "support/device_memory.h"
#include "support/fake_driver.h"

enum { SIZE = 1 << 20 };

static wherry_error error;

/** A valid offer of two allocations, of which the second is mapped. */
static wh_ipc_offer good_offer(wh_cuda_allocation allocations[2]) {
    wh_ipc_offer offer = {
        .identity.process = 1, .keeps = true, .nonce_address = 4096, .device_count = 2, .allocation_count = 2};
    offer.devices[1] = 1;
    memset(offer.nonce, 7, sizeof(offer.nonce));
    allocations[0] = (wh_cuda_allocation){.base = 4096, .size = WH_NONCE_BYTES, .fd = -1};
    allocations[1] = (wh_cuda_allocation){.base = 1 << 20, .size = SIZE, .device = 1, .fd = 5};
    offer.allocations = allocations;
    return offer;
}

static wherry_status parse(const wh_ipc_offer *offer) {
    wh_string text = {0};
    wh_ipc_offer parsed = {.allocations = NULL};
    wh_ipc_append_offer(&text, offer);
    wherry_status status = wh_ipc_parse_offer(text.bytes, text.size, &parsed, &error);
    wh_free(parsed.allocations);
    wh_free(text.bytes);
    return status;
}

static void test_truncated_offers(void **state) {
    (void)state;
    wh_cuda_allocation allocations[2];
    wh_ipc_offer offer = good_offer(allocations);
    wh_ipc_offer parsed;
    wh_string text = {0};
    wh_ipc_append_offer(&text, &offer);
    must(wh_ipc_parse_offer(text.bytes, text.size, &parsed, &error));
    assert_true(parsed.keeps && parsed.allocation_count == 2 && parsed.allocations[1].fd == 5);
    wh_free(parsed.allocations);
    for (size_t size = 0; size < text.size; size++) {
        must_fail(WHERRY_MALFORMED, error, wh_ipc_parse_offer(text.bytes, size, &parsed, &error));
    }
    text.bytes[0]++;
    must_fail(WHERRY_BAD_VERSION, error, wh_ipc_parse_offer(text.bytes, text.size, &parsed, &error));
    wh_string_append(&text, "", 1);
    text.bytes[0]--;
    must_fail(WHERRY_MALFORMED, error, wh_ipc_parse_offer(text.bytes, text.size, &parsed, &error));
    wh_free(text.bytes);
}

static void test_impossible_offers(void **state) {
    (void)state;
    wh_cuda_allocation allocations[2];
    wh_ipc_offer offer = good_offer(allocations);
    must(parse(&offer));
    offer.nonce_address = 4095;
    must_fail(WHERRY_MALFORMED, error, parse(&offer));
    offer.nonce_address = 4097; /* The end of the nonce is outside the allocation. */
    must_fail(WHERRY_MALFORMED, error, parse(&offer));
    offer = good_offer(allocations);
    allocations[1].base = UINT64_MAX - SIZE + 1;
    must_fail(WHERRY_MALFORMED, error, parse(&offer));
    offer = good_offer(allocations);
    allocations[1].size = 0;
    must_fail(WHERRY_MALFORMED, error, parse(&offer));
    offer = good_offer(allocations);
    offer.allocation_count = 0;
    must_fail(WHERRY_MALFORMED, error, parse(&offer));
}

/* ---- the kernel refuses to pass descriptors ---- */

static int32_t nobody(wh_group *group, int32_t rank) {
    (void)group;
    (void)rank;
    return 0;
}

static const wh_group_backend group_ops = {.name = "nobody", .process = nobody};
static wh_group group = {.ops = &group_ops, .size = 2};

/**
 * True if a probe by a user who may not access the source's process is refused and asks for
 * assistance.
 */
static bool is_refused(pid_t source) {
    wh_cuda_allocation allocations[2];
    wh_ipc_offer offer = good_offer(allocations);
    wh_lane_site site = {.group = &group, .peer = 1, .threads = 1, .deadline = wh_deadline_in_ms(20000)};
    wh_identity receiver;
    wh_string text = {0};
    wh_string request = {0};
    wh_lane_end *end = NULL;
    bool assist = false;
    must(wh_identity_read(&offer.identity, &error));
    offer.identity.process = (uint64_t)source;
    allocations[0].fd = 0;
    wh_ipc_append_offer(&text, &offer);
    wherry_status status = wh_lane_cuda_ipc.probe(&site, text.bytes, text.size, &request, &assist, &end, &error);
    if (status != WHERRY_REFUSED || !assist) {
        fprintf(stderr, "%s: %s\n", wherry_status_name(status), error.message);
        return false;
    }
    return wh_ipc_parse_request(request.bytes, request.size, &receiver, &error) == WHERRY_OK &&
           receiver.process == (uint64_t)getpid();
}

/** Must be the first test, because the driver does not work after a fork. */
static void test_not_permitted(void **state) {
    (void)state;
    enum { NOBODY = 65534 };
    int end;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: a receiver of another user needs root\n");
        return;
    }
    pid_t source = getpid();
    pid_t receiver = fork();
    if (receiver == 0) {
        _exit(setgid(NOBODY) == 0 && setuid(NOBODY) == 0 && is_refused(source) ? 0 : 1);
    }
    assert_int_equal(waitpid(receiver, &end, 0), receiver);
    assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
}

static void test_assist(void **state) {
    (void)state;
    wh_lane_site site = {.group = &group, .peer = 1, .threads = 1};
    bool yama = prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0;
    wh_identity own;
    wh_string request = {0};
    must(wh_identity_read(&own, &error));
    wh_ipc_append_request(&request, &own);
    for (size_t size = 0; size < request.size; size++) {
        must_fail(WHERRY_MALFORMED, error, wh_lane_cuda_ipc.assist(&site, request.bytes, size, &error));
    }
    assert_int_equal(wh_lane_cuda_ipc.assist(&site, request.bytes, request.size, &error),
                     yama ? WHERRY_OK : WHERRY_UNSUPPORTED);
    site.keep_ptracer = true;
    must_fail(WHERRY_REFUSED, error, wh_lane_cuda_ipc.assist(&site, request.bytes, request.size, &error));
    wh_free(request.bytes);
}

/* ---- memory that is not the source's ---- */

/** A real source in this process, and its offer. */
typedef struct scene {
    ferry_world world;
    wherry_storage *storage;
    wh_cuda_allocation described;
    wh_stop stop;
    wh_lane_site site;
    wh_ipc_offer offer;
} scene;

static void scene_open(scene *s) {
    wh_string text = {0};
    s->world = ferry_open();
    s->storage = build_device_storage(0, SIZE, 3);
    must(wh_stop_init(&s->stop, &error));
    must(wh_cuda_describe(wherry_storage_data(s->storage), &s->described, &error));
    wh_shared_memory shared = {.items = &s->described, .count = 1, .keeps = true};
    s->site = (wh_lane_site){.group = s->world.groups[1],
                             .threads = 1,
                             .stop = &s->stop,
                             .deadline = wh_deadline_in_ms(20000),
                             .no_progress_ms = 20000,
                             .shared = &shared};
    must(wh_lane_cuda_ipc.offer(&s->site, &text, &error));
    must(wh_ipc_parse_offer(text.bytes, text.size, &s->offer, &error));
    wh_free(text.bytes);
    assert_int_equal(s->offer.allocation_count, 2);
}

static void scene_close(scene *s) {
    assert_int_equal(wh_ipc_open_count(), 0);
    wh_free(s->offer.allocations);
    wh_stop_destroy(&s->stop);
    wherry_storage_unref(s->storage);
    ferry_close(&s->world);
}

static wherry_status probe(scene *s) {
    wh_string text = {0};
    wh_string request = {0};
    wh_lane_end *end = NULL;
    bool assist;
    wh_ipc_append_offer(&text, &s->offer);
    wherry_status status = wh_lane_cuda_ipc.probe(&s->site, text.bytes, text.size, &request, &assist, &end, &error);
    wh_lane_cuda_ipc.close(end);
    wh_free(request.bytes);
    wh_free(text.bytes);
    return status;
}

/**
 * A process that has received from another one knows that process's nonce, and may forge an offer
 * to it. The offer may be of memory that is not on a device, or of more memory than there is.
 */
static void test_an_offer_with_the_receivers_nonce(void **state) {
    (void)state;
    scene s;
    char host[4096];
    scene_open(&s);
    must(probe(&s));
    wh_cuda_allocation *one = s.offer.allocations + 1;
    wh_cuda_allocation good = *one;
    one->device = 255;
    must(probe(&s)); /* The driver knows the true size of the memory. */
    *one = good;
    one->base = (uint64_t)(uintptr_t)host;
    one->size = sizeof(host);
    must_fail(WHERRY_REFUSED, error, probe(&s));
    *one = good;
    one->size += 4096;
    must_fail(WHERRY_REFUSED, error, probe(&s));
    one->size = UINT64_MAX - one->base;
    must_fail(WHERRY_REFUSED, error, probe(&s));
    *one = good;
    one->base += 4096;
    one->size -= 4096;
    must_fail(WHERRY_REFUSED, error, probe(&s));
    scene_close(&s);
}

/** Handles and descriptors that do not refer to the memory in the offer. */
static void test_an_offer_with_another_nonce(void **state) {
    (void)state;
    scene s;
    int pipes[2];
    scene_open(&s);
    assert_int_equal(pipe(pipes), 0);
    s.offer.nonce[0] ^= 1;
    /* The driver does not open handles of its own process. */
    must_fail(WHERRY_REFUSED, error, probe(&s));
    wh_cuda_allocation *one = s.offer.allocations;
    const int numbers[] = {0, pipes[0], 1 << 30};
    for (size_t i = 0; i < 3; i++) {
        memset(one->handle, 0, sizeof(one->handle));
        one->fd = numbers[i];
        must_fail(WHERRY_REFUSED, error, probe(&s));
    }
    s.offer.identity.boot[0] ^= 1;
    must_fail(WHERRY_UNSUPPORTED, error, probe(&s));
    close(pipes[0]);
    close(pipes[1]);
    scene_close(&s);
}

int main(void) {
    static const wh_group_kind local = {"local", wh_open_local_place, wh_join_local_place, wh_close_local_place};
    if (!fake_driver_find().shadow) {
        printf("1..0 # SKIP needs the fake driver: WHERRY_CUDA_LIBRARY\n");
        return 0;
    }
    ferry_kind = &local;
    ferry_lane = "cuda_ipc";
    wherry_log_set_level(WHERRY_LOG_OFF);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_permitted),
        cmocka_unit_test(test_assist),
        cmocka_unit_test(test_truncated_offers),
        cmocka_unit_test(test_impossible_offers),
        cmocka_unit_test(test_an_offer_with_the_receivers_nonce),
        cmocka_unit_test(test_an_offer_with_another_nonce),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
