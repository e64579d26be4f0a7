/*
 * The chunks of a receive: which source may open a chunk, where its bytes go, how its digest is
 * checked, and which chunks are awaited a second time.
 */
#include "support/build.h"

#include "support/chunks_scene.h"

/* ---- who may open a chunk ---- */

/** A chunk is accepted only if it is wanted, and only once. */
static void test_accepts_each_chunk_once(void **state) {
    (void)state;
    scene s;
    static const uint64_t foreign[] = {4, 5, UINT64_C(1) << 60, UINT64_MAX};
    scene_open(&s, NO_CHECK);
    assert_false(wh_chunks_have_begun(&s.chunks));
    assert_true(s.chunks.current == UINT64_MAX);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(*foreign); i++) {
        refuse(&s, 0, foreign[i]);
    }
    assert_false(wh_chunks_have_begun(&s.chunks));
    must(open_chunk(&s, 0, 1));
    assert_int_equal(state_of(&s, 1), WH_CHUNK_OPEN);
    assert_true(wh_chunks_have_begun(&s.chunks));
    assert_int_equal(s.chunks.current, 1);
    wh_landing kept = s.landing;
    s.landing = (wh_landing){0};
    refuse(&s, 0, 1); /* The chunk is open. */
    wh_landing_destroy(&s.landing);
    s.landing = kept;
    must(close_chunk(&s, 0, NULL, NULL));
    assert_int_equal(state_of(&s, 1), WH_CHUNK_LANDED);
    refuse(&s, 0, 1); /* The chunk has landed. */
    assert_int_equal(state_of(&s, 1), WH_CHUNK_LANDED);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_AWAITED);
    assert_int_equal(state_of(&s, 2), WH_CHUNK_AWAITED);
    assert_int_equal(state_of(&s, 3), WH_CHUNK_AWAITED);
    scene_close(&s);
}

/** A receiver may want only some chunks of its plan. */
static void test_accepts_only_wanted_chunks(void **state) {
    (void)state;
    scene s;
    wherry_digest one = digest_of(1);
    wherry_digest pair[2] = {one, one};
    scene_open_some(&s, BY_MESSAGE, (wherry_interval[]){{1, 1}, {3, 1}}, 2);
    wh_chunks_assign(&s.chunks, 1, 0);
    wh_chunks_assign(&s.chunks, 3, 0);
    refuse(&s, 0, 0);
    refuse(&s, 0, 2);
    land(&s, 0, 3, &one, NULL);
    assert_int_equal(wh_chunks_state(&s.chunks, 0), WH_CHUNK_AWAITED);
    assert_int_equal(wh_chunks_state(&s.chunks, 1), WH_CHUNK_UNCHECKED);
    assert_false(wh_chunks_claim(&s.chunks, 0, 2, pair, 2, true));
    assert_int_equal(state_of(&s, 3), WH_CHUNK_UNCHECKED);
    assert_true(wh_chunks_claim(&s.chunks, 0, 3, &one, 1, true));
    assert_int_equal(state_of(&s, 3), WH_CHUNK_LANDED);
    scene_close(&s);
}

/** Only the source that a chunk is assigned to can send it. */
static void test_accepts_a_chunk_only_from_its_source(void **state) {
    (void)state;
    scene s;
    scene_open_some(&s, NO_CHECK, &(wherry_interval){0, 4}, 1);
    for (uint64_t chunk = 0; chunk < 4; chunk++) { /* No chunk is assigned to a source. */
        refuse(&s, 0, chunk);
        refuse(&s, 1, chunk);
    }
    wh_chunks_assign(&s.chunks, 0, 0);
    wh_chunks_assign(&s.chunks, 1, 1);
    refuse(&s, 0, 1);
    refuse(&s, 1, 0);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_AWAITED);
    assert_int_equal(state_of(&s, 1), WH_CHUNK_AWAITED);
    assert_false(wh_chunks_have_begun(&s.chunks));
    wh_chunks_assign(&s.chunks, 0, 1); /* The chunk has not begun, so another source may get it. */
    refuse(&s, 0, 0);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_AWAITED);
    land(&s, 1, 0, NULL, NULL);
    land(&s, 1, 1, NULL, NULL);
    refuse(&s, 0, 0);
    refuse(&s, 0, 1);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_LANDED);
    assert_int_equal(state_of(&s, 1), WH_CHUNK_LANDED);
    scene_close(&s);
}

enum { RACERS = 4, RACES = 50 };

typedef struct race {
    wh_pull *pull;
    atomic_uint ready;
    atomic_uint opened;
} race;

static void *race_to_open(void *context) {
    race *r = context;
    wh_sink sink = wh_pull_sink(r->pull);
    wherry_error why;
    atomic_fetch_add(&r->ready, 1);
    while (atomic_load(&r->ready) < RACERS) {
        sched_yield();
    }
    for (uint64_t chunk = 0; chunk < 4; chunk++) {
        wh_landing landing = {0};
        if (sink.open(sink.context, chunk, &landing, &why) == WHERRY_OK) {
            atomic_fetch_add(&r->opened, 1);
        }
        wh_landing_destroy(&landing);
    }
    return NULL;
}

/** If several workers get the same chunk at once, one of them can open it. */
static void test_one_of_many_workers_opens_a_chunk(void **state) {
    (void)state;
    scene s;
    scene_open(&s, NO_CHECK);
    for (int i = 0; i < RACES; i++) {
        race r = {.pull = s.pulls};
        pthread_t threads[RACERS];
        for (int k = 0; k < RACERS; k++) {
            assert_int_equal(pthread_create(threads + k, NULL, race_to_open, &r), 0);
        }
        for (int k = 0; k < RACERS; k++) {
            pthread_join(threads[k], NULL);
        }
        assert_int_equal(r.opened, 4);
        for (uint64_t chunk = 0; chunk < 4; chunk++) {
            wh_chunks_take_back(&s.chunks, chunk);
            wh_chunks_assign(&s.chunks, chunk, 0);
        }
    }
    scene_close(&s);
}

/* ---- chunks that are awaited a second time ---- */

/** After a chunk was taken back, no source can open it or claim its digest. */
static void expect_nobodys(scene *s, uint64_t chunk, wh_chunk_state expected) {
    wherry_digest one = digest_of(1);
    assert_int_equal(state_of(s, chunk), expected);
    refuse(s, 0, chunk);
    refuse(s, 1, chunk);
    assert_false(wh_chunks_claim(&s->chunks, 0, chunk, &one, 1, true));
    assert_false(wh_chunks_claim(&s->chunks, 1, chunk, &one, 1, true));
    assert_int_equal(state_of(s, chunk), expected);
}

static void test_takes_chunks_back(void **state) {
    (void)state;
    scene s;
    wherry_digest one = digest_of(1);
    wherry_digest two = digest_of(2);
    scene_open(&s, BY_MESSAGE);
    wh_chunks_take_back(&s.chunks, 0); /* The chunk has not begun. */
    expect_nobodys(&s, 0, WH_CHUNK_AWAITED);
    assert_false(wh_chunks_have_begun(&s.chunks));
    must(open_chunk(&s, 0, 1)); /* open */
    wh_chunks_take_back(&s.chunks, 1);
    wh_landing_destroy(&s.landing);
    s.landing = (wh_landing){0};
    expect_nobodys(&s, 1, WH_CHUNK_AGAIN);
    assert_true(wh_chunks_have_begun(&s.chunks));
    land(&s, 0, 2, &one, NULL); /* The digest of this chunk was not checked. */
    assert_int_equal(wh_chunks_judge(&s.chunks, 2), WH_CHUNK_UNCHECKED);
    wh_chunks_take_back(&s.chunks, 2);
    expect_nobodys(&s, 2, WH_CHUNK_AGAIN);
    land(&s, 0, 3, &one, NULL); /* bad */
    assert_true(wh_chunks_claim(&s.chunks, 0, 3, &two, 1, true));
    assert_int_equal(state_of(&s, 3), WH_CHUNK_BAD);
    wh_chunks_take_back(&s.chunks, 3);
    expect_nobodys(&s, 3, WH_CHUNK_AGAIN);
    for (uint64_t chunk = 0; chunk < 4; chunk++) { /* Another source sends all of them now. */
        wh_chunks_assign(&s.chunks, chunk, 1);
        refuse(&s, 0, chunk);
        land(&s, 1, chunk, &two, NULL);
        assert_int_equal(wh_chunks_judge(&s.chunks, chunk), WH_CHUNK_UNCHECKED);
        assert_true(wh_chunks_claim(&s.chunks, 1, chunk, &two, 1, true));
        assert_int_equal(state_of(&s, chunk), WH_CHUNK_LANDED);
    }
    scene_close(&s);
}

/** A chunk that has landed can be awaited again, from another source. */
static void test_resets_a_landed_chunk(void **state) {
    (void)state;
    scene s;
    wherry_digest one = digest_of(1);
    wherry_digest two = digest_of(2);
    scene_open(&s, BY_MESSAGE);
    assert_true(wh_chunks_claim(&s.chunks, 0, 1, &one, 1, true));
    land(&s, 0, 1, &one, NULL);
    assert_int_equal(wh_chunks_judge(&s.chunks, 1), WH_CHUNK_LANDED);
    wh_chunks_take_back(&s.chunks, 1);
    expect_nobodys(&s, 1, WH_CHUNK_AGAIN);
    assert_true(wh_chunks_have_begun(&s.chunks));
    wh_chunks_assign(&s.chunks, 1, 1);
    assert_int_equal(state_of(&s, 1), WH_CHUNK_AGAIN);
    refuse(&s, 0, 1);
    land(&s, 1, 1, &two, NULL);
    /* The digest that the first source claimed does not count. */
    assert_int_equal(wh_chunks_judge(&s.chunks, 1), WH_CHUNK_UNCHECKED);
    assert_false(wh_chunks_claim(&s.chunks, 0, 1, &one, 1, true));
    assert_true(wh_chunks_claim(&s.chunks, 1, 1, &two, 1, true));
    assert_int_equal(wh_chunks_judge(&s.chunks, 1), WH_CHUNK_LANDED);
    scene_close(&s);
}

/* ---- where bytes go ---- */

/** Segments have the length of the chunk and are within the tensor. */
static void test_segments_are_within_the_tensor(void **state) {
    (void)state;
    scene s;
    scene_open(&s, NO_CHECK);
    char *expected = (char *)memory_of(s.target) + GUARD;
    for (uint64_t chunk = 0; chunk < 4; chunk++) {
        must(open_chunk(&s, 0, chunk));
        assert_int_equal(s.landing.chunk, chunk);
        assert_int_equal(s.landing.segments.bytes, chunk < 3 ? CHUNK : 100);
        assert_int_equal(s.landing.segments.count, 1);
        assert_ptr_equal(s.landing.segments.items[0].iov_base, expected);
        assert_false(s.landing.staged);
        expected += s.landing.segments.bytes;
        must(close_chunk(&s, 0, NULL, NULL));
        assert_int_equal(wh_chunks_judge(&s.chunks, chunk), WH_CHUNK_LANDED);
    }
    /* No bytes are on their way to a device. */
    must(wh_delivery_settle(&s.chunks.delivery, &error));
    scene_close(&s);
}

/** A plan that has "a" and "c", but not "b", which lies between them. */
static wherry_plan *build_gap_plan(wherry_value *source, wherry_value *target) {
    int64_t size = 1000;
    wherry_plan *plan;
    wherry_plan_options options;
    for (int i = 0; i < 3; i++) {
        char name[2] = {(char)('a' + i), 0};
        wherry_value *sent = build_tensor(build_storage(1000, 1), WHERRY_U8, 0, 1, &size, NULL);
        must(wherry_dict_put(source, name, sent, &error));
        if (i != 1) {
            wherry_value *kept = build_tensor(build_storage(1000, 1), WHERRY_U8, 0, 1, &size, NULL);
            must(wherry_dict_put(target, name, kept, &error));
        }
    }
    wherry_plan_options_init(&options);
    options.flags = WHERRY_PLAN_PARTIAL;
    must(wherry_plan_create(build_received(source, -1), target, &options, &plan, &error));
    return plan;
}

/**
 * In a partial plan, bytes between the wanted tensors have no destination. With verify, they are
 * still read.
 */
static void test_bytes_between_tensors_have_no_destination(void **state) {
    (void)state;
    wherry_value *source = build_dict(NULL);
    wherry_value *target = build_dict(NULL);
    wherry_plan *plan = build_gap_plan(source, target);
    for (int verify = 0; verify < 2; verify++) {
        wh_stop stop = {.event = -1};
        wh_chunks chunks = {0};
        wh_pull pull;
        wh_landing landing = {0};
        assert_true(init_chunks(&chunks, plan, &stop, &(wherry_interval){0, 1}, 1));
        pull_open(&pull, &chunks, 0, verify ? BY_MESSAGE : NO_CHECK);
        wh_chunks_assign(&chunks, 0, 0);
        wh_sink sink = wh_pull_sink(&pull);
        assert_int_equal(sink.verify, verify);
        must(sink.open(sink.context, 0, &landing, &error));
        assert_int_equal(landing.segments.bytes, 3000);
        size_t without = 0;
        for (size_t i = 0; i < landing.segments.count && !landing.staged; i++) {
            const struct iovec *item = landing.segments.items + i;
            without += item->iov_base ? 0 : item->iov_len;
        }
        assert_int_equal(without, verify || landing.staged ? 0 : 1000);
        assert_true(landing.staged || landing.scratch_bytes >= 1000);
        wh_landing_destroy(&landing);
        wh_session_close(&pull.session);
        wh_chunks_destroy(&chunks);
    }
    wherry_plan_destroy(plan);
    wherry_value_destroy(target);
    wherry_value_destroy(source);
}

enum { SPREAD = 1000 };

/** A scene whose target has every second byte of its storage, so that the chunk is staged. */
static void staged_open(scene *s, check how) {
    int64_t size = SPREAD;
    int64_t step = 2;
    *s = (scene){.source = tensor_of(SPREAD, 0, 1)};
    wherry_storage *storage = build_storage(2 * SPREAD, 9);
    memset(wherry_storage_data(storage), 0, 2 * SPREAD);
    s->target = build_dict("w", build_tensor(storage, WHERRY_U8, 0, 1, &size, &step), NULL);
    s->plan = build_plan(s->source, s->target);
    assert_false(wherry_plan_chunk_is_direct(s->plan, 0));
    must(wh_stop_init(&s->stop, &error));
    assert_true(init_chunks(&s->chunks, s->plan, &s->stop, &(wherry_interval){0, 1}, 1));
    for (uint8_t i = 0; i < 2; i++) {
        pull_open(s->pulls + i, &s->chunks, i, how);
        s->sinks[i] = wh_pull_sink(s->pulls + i);
    }
    wh_chunks_assign(&s->chunks, 0, 0);
}

/** Lands the staged chunk, with all bytes 5. @return how many bytes of the target are 5 now. */
static size_t land_staged(scene *s, const wherry_digest *digest, const wherry_digest *claimed) {
    const uint8_t *memory = memory_of(s->target);
    size_t written = 0;
    must(open_chunk(s, 0, 0));
    assert_true(s->landing.staged);
    assert_int_equal(s->landing.segments.count, 1);
    assert_int_equal(s->landing.segments.bytes, SPREAD);
    assert_ptr_equal(s->landing.segments.items[0].iov_base, s->landing.scratch);
    memset(s->landing.segments.items[0].iov_base, 5, SPREAD);
    must(close_chunk(s, 0, digest, claimed));
    for (size_t i = 0; i < 2 * SPREAD; i++) {
        written += memory[i] == 5;
        assert_true(memory[i] == 0 || (memory[i] == 5 && i % 2 == 0));
    }
    return written;
}

/** A staged chunk gets to its destination when it is closed, unless it is bad. */
static void test_staged_chunks_are_placed(void **state) {
    (void)state;
    scene s;
    wherry_digest one = digest_of(1);
    wherry_digest two = digest_of(2);
    staged_open(&s, NO_CHECK);
    assert_int_equal(land_staged(&s, NULL, NULL), SPREAD);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_LANDED);
    scene_close(&s);
    staged_open(&s, BY_LANE);
    assert_int_equal(land_staged(&s, &one, &two), 0);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_BAD);
    wh_chunks_assign(&s.chunks, 0, 0);
    assert_int_equal(land_staged(&s, &one, &one), SPREAD);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_LANDED);
    scene_close(&s);
    staged_open(&s, BY_MESSAGE);
    assert_int_equal(land_staged(&s, &one, NULL), SPREAD);
    assert_int_equal(state_of(&s, 0), WH_CHUNK_UNCHECKED);
    scene_close(&s);
}

/**
 * Routes begin at addresses of the source if it gave any, else at positions in the opened chunks.
 */
static void test_routes_lead_into_the_tensor(void **state) {
    (void)state;
    for (int addressed = 0; addressed < 2; addressed++) {
        scene s;
        wh_routes routes = {0};
        wh_segments origin = {0};
        scene_open(&s, NO_CHECK);
        uint64_t address = (uint64_t)(uintptr_t)memory_of(s.source);
        uint8_t encoded[8];
        wh_store_be64(encoded, address);
        s.chunks.sources[0].addresses = addressed ? encoded : NULL;
        wh_sink *sink = s.sinks;
        for (uint64_t chunk = 1; chunk < 4; chunk += 2) { /* Chunks 1 and 3 are not contiguous. */
            must(sink->route(sink->context, chunk, &routes, &error));
            assert_int_equal(state_of(&s, chunk), WH_CHUNK_OPEN);
            refuse(&s, 0, chunk);
            const wh_route *last = routes.items + routes.count - 1;
            uint64_t at = chunk == 1 ? 0 : CHUNK;
            assert_true(last->from == (addressed ? address + chunk * CHUNK : at));
            assert_ptr_equal(last->to, memory_of(s.target) + GUARD + chunk * CHUNK);
            assert_int_equal(last->length, chunk == 1 ? CHUNK : 100);
            assert_int_equal(last->device, -1);
        }
        assert_int_equal(routes.count, 2);
        assert_int_equal(routes.bytes, CHUNK + 100);
        assert_int_equal(routes.span, CHUNK + 100);
        must(sink->arrived(sink->context, 1, &error));
        assert_int_equal(state_of(&s, 1), WH_CHUNK_LANDED);
        assert_int_equal(state_of(&s, 3), WH_CHUNK_OPEN);
        if (addressed) {
            must(sink->origin(sink->context, 2, &origin, &error));
            assert_int_equal(origin.bytes, CHUNK);
            assert_ptr_equal(origin.items[0].iov_base, memory_of(s.source) + 2 * CHUNK);
        }
        wh_segments_destroy(&origin);
        wh_routes_destroy(&routes);
        scene_close(&s);
    }
}

/** The chunks of one tensor follow each other in the memory of the source. */
static void test_tells_which_chunks_continue(void **state) {
    (void)state;
    scene s;
    scene_open(&s, NO_CHECK);
    wh_sink *sink = s.sinks;
    assert_int_equal(sink->continues(sink->context, 0), 0);
    assert_int_equal(sink->continues(sink->context, 1), CHUNK);
    assert_int_equal(sink->continues(sink->context, 3), 100);
    scene_close(&s);
}

/* ---- digests ---- */

/** If the lane carries digests, a chunk with a wrong digest or none is bad at once. */
static void test_digests_from_the_lane_are_compared(void **state) {
    (void)state;
    scene s;
    wherry_digest one = digest_of(1);
    wherry_digest two = digest_of(2);
    scene_open(&s, BY_LANE);
    land(&s, 0, 0, &one, &one);
    land(&s, 0, 1, &one, &two);
    land(&s, 0, 2, &one, NULL);
    land(&s, 0, 3, NULL, &two);
    assert_int_equal(wh_chunks_judge(&s.chunks, 0), WH_CHUNK_LANDED);
    for (uint64_t chunk = 1; chunk < 4; chunk++) {
        assert_int_equal(wh_chunks_judge(&s.chunks, chunk), WH_CHUNK_BAD);
        refuse(&s, 0, chunk); /* The chunk was not requested again yet. */
        wh_chunks_assign(&s.chunks, chunk, chunk == 2 ? 1 : 0);
        assert_int_equal(wh_chunks_judge(&s.chunks, chunk), WH_CHUNK_AGAIN);
    }
    refuse(&s, 0, 0); /* Chunk 0 was right, so it is not sent again. */
    refuse(&s, 0, 2); /* Chunk 2 comes from source 1 now. */
    for (uint64_t chunk = 1; chunk < 4; chunk++) {
        land(&s, chunk == 2 ? 1 : 0, chunk, &two, &two);
        assert_int_equal(wh_chunks_judge(&s.chunks, chunk), WH_CHUNK_LANDED);
    }
    scene_close(&s);
}

/** Digests may arrive by message before or after the bytes. */
static void test_digests_by_message_are_compared(void **state) {
    (void)state;
    scene s;
    wherry_digest ones[4] = {digest_of(1), digest_of(1), digest_of(1), digest_of(1)};
    wherry_digest two = digest_of(2);
    scene_open(&s, BY_MESSAGE);
    assert_true(wh_chunks_claim(&s.chunks, 0, 0, ones, 2, true));
    assert_int_equal(wh_chunks_judge(&s.chunks, 0), WH_CHUNK_AWAITED);
    for (uint64_t chunk = 0; chunk < 4; chunk++) {
        land(&s, 0, chunk, chunk % 2 ? &two : ones, NULL);
        assert_int_equal(state_of(&s, chunk), WH_CHUNK_UNCHECKED);
    }
    assert_int_equal(wh_chunks_judge(&s.chunks, 0), WH_CHUNK_LANDED);
    assert_int_equal(wh_chunks_judge(&s.chunks, 1), WH_CHUNK_BAD);
    assert_int_equal(wh_chunks_judge(&s.chunks, 2), WH_CHUNK_UNCHECKED);
    assert_int_equal(wh_chunks_judge(&s.chunks, 3), WH_CHUNK_UNCHECKED);
    /* This call also judges the chunks. */
    assert_true(wh_chunks_claim(&s.chunks, 0, 2, ones, 2, true));
    assert_int_equal(state_of(&s, 2), WH_CHUNK_LANDED);
    assert_int_equal(state_of(&s, 3), WH_CHUNK_BAD);
    /* These digests come too late to change the result. */
    assert_true(wh_chunks_claim(&s.chunks, 0, 2, &two, 1, true));
    assert_int_equal(wh_chunks_judge(&s.chunks, 2), WH_CHUNK_LANDED);
    wh_chunks_assign(&s.chunks, 3, 0);
    land(&s, 0, 3, ones, NULL);
    /* The digest of the first time no longer counts. */
    assert_int_equal(wh_chunks_judge(&s.chunks, 3), WH_CHUNK_UNCHECKED);
    assert_true(wh_chunks_claim(&s.chunks, 0, 3, ones, 1, true));
    assert_int_equal(wh_chunks_judge(&s.chunks, 3), WH_CHUNK_LANDED);
    scene_close(&s);
}

static void test_refuses_bad_claims(void **state) {
    (void)state;
    static wherry_digest digests[8];
    scene s;
    scene_open(&s, BY_MESSAGE);
    assert_false(wh_chunks_claim(&s.chunks, 0, 4, digests, 1, true));
    assert_false(wh_chunks_claim(&s.chunks, 0, 3, digests, 2, true));
    assert_false(wh_chunks_claim(&s.chunks, 0, UINT64_MAX, digests, 1, true));
    assert_false(wh_chunks_claim(&s.chunks, 0, UINT64_MAX - 1, digests, 8, true));
    assert_true(wh_chunks_claim(&s.chunks, 0, 99, digests, 0, true));
    scene_close(&s);
    scene_open(&s, NO_CHECK); /* No digests were requested. */
    assert_false(wh_chunks_claim(&s.chunks, 0, 0, digests, 1, true));
    scene_close(&s);
}

/** A source cannot claim the digest of a chunk that another source sends. */
static void test_refuses_claims_of_another_source(void **state) {
    (void)state;
    scene s;
    wherry_digest ones[2] = {digest_of(1), digest_of(1)};
    wherry_digest two = digest_of(2);
    scene_open(&s, BY_MESSAGE);
    wh_chunks_assign(&s.chunks, 2, 1);
    land(&s, 1, 2, &two, NULL);
    assert_false(wh_chunks_claim(&s.chunks, 0, 2, &two, 1, true));
    /* Chunk 1 belongs to source 0, but chunk 2 does not. */
    assert_false(wh_chunks_claim(&s.chunks, 0, 1, ones, 2, true));
    assert_false(wh_chunks_claim(&s.chunks, WH_NO_SOURCE, 2, &two, 1, true));
    assert_int_equal(wh_chunks_judge(&s.chunks, 2), WH_CHUNK_UNCHECKED);
    /* The chunk has not landed yet. */
    assert_false(wh_chunks_claim(&s.chunks, 1, 0, ones, 1, true));
    land(&s, 0, 0, ones, NULL);
    assert_int_equal(wh_chunks_judge(&s.chunks, 0), WH_CHUNK_UNCHECKED);
    assert_true(wh_chunks_claim(&s.chunks, 1, 2, &two, 1, true));
    assert_int_equal(wh_chunks_judge(&s.chunks, 2), WH_CHUNK_LANDED);
    scene_close(&s);
}

/**
 * Each source has its own lane. One source may be checked by message, another one by its lane or
 * not at all.
 */
static void test_sources_are_checked_in_their_own_way(void **state) {
    (void)state;
    static const check ways[] = {NO_CHECK, BY_LANE};
    wherry_digest one = digest_of(1);
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        scene s;
        scene_open(&s, BY_MESSAGE);
        wh_session_close(&s.pulls[1].session);
        pull_open(s.pulls + 1, &s.chunks, 1, ways[i]);
        s.sinks[1] = wh_pull_sink(s.pulls + 1);
        land(&s, 0, 0, &one, NULL);
        assert_int_equal(wh_chunks_judge(&s.chunks, 0), WH_CHUNK_UNCHECKED);
        wh_chunks_take_back(&s.chunks, 0);
        wh_chunks_assign(&s.chunks, 0, 1);
        wherry_digest *digest = ways[i] == BY_LANE ? &one : NULL;
        land(&s, 1, 0, digest, digest);
        assert_int_equal(wh_chunks_judge(&s.chunks, 0), WH_CHUNK_LANDED);
        scene_close(&s);
    }
}

/* ---- events ---- */

typedef struct events {
    wherry_trace_event items[8];
    size_t count;
} events;

static void keep_event(void *context, const wherry_trace_event *event) {
    events *all = context;
    assert_true(all->count < 8);
    all->items[all->count++] = *event;
}

static void expect_event(const wherry_trace_event *event, uint64_t chunk, const char *lane, int32_t rank) {
    assert_string_equal(event->name, "chunk");
    assert_string_equal(event->lane, lane);
    assert_int_equal(event->chunk, chunk);
    assert_int_equal(event->bytes, chunk < 3 ? CHUNK : 100);
    assert_int_equal(event->peer, rank);
    assert_int_equal(event->thread, (uint32_t)gettid());
    assert_true(event->begin_ns && event->begin_ns <= event->end_ns);
    assert_true(event->end_ns <= wh_clock_now());
}

/** Each chunk that was closed is an event, with the rank and the lane of its source. */
static void test_reports_events(void **state) {
    (void)state;
    scene s;
    events all = {.count = 0};
    wh_routes routes = {0};
    scene_options = (wherry_transfer_options){.trace = keep_event, .trace_context = &all};
    scene_open(&s, NO_CHECK);
    s.chunks.sources[0].rank = 7;
    s.chunks.sources[0].lane = &(wh_lane_ops){.name = "first"};
    s.chunks.sources[1].rank = 8;
    s.chunks.sources[1].lane = &(wh_lane_ops){.name = "second"};
    wh_chunks_assign(&s.chunks, 3, 1);
    uint64_t before = wh_clock_now();
    land(&s, 0, 0, NULL, NULL);
    land(&s, 1, 3, NULL, NULL);
    assert_int_equal(all.count, 2);
    assert_true(all.items[0].begin_ns >= before);
    expect_event(all.items + 0, 0, "first", 7);
    expect_event(all.items + 1, 3, "second", 8);
    must(open_chunk(&s, 0, 1)); /* The chunk was begun and taken back, so there is no event. */
    wh_chunks_take_back(&s.chunks, 1);
    refuse(&s, 0, 1);
    assert_int_equal(all.count, 2);
    wh_chunks_assign(&s.chunks, 1, 1);
    must(s.sinks[1].route(s.sinks[1].context, 1, &routes, &error));
    must(s.sinks[1].arrived(s.sinks[1].context, 1, &error));
    assert_int_equal(all.count, 3);
    expect_event(all.items + 2, 1, "second", 8);
    wh_chunks_take_back(&s.chunks, 0); /* The chunk landed twice, so there are two events. */
    wh_chunks_assign(&s.chunks, 0, 1);
    land(&s, 1, 0, NULL, NULL);
    assert_int_equal(all.count, 4);
    expect_event(all.items + 3, 0, "second", 8);
    wh_routes_destroy(&routes);
    scene_close(&s);
    scene_options.trace = NULL;
}

static void test_works_without_a_trace(void **state) {
    (void)state;
    scene s;
    scene_open(&s, NO_CHECK);
    land(&s, 0, 0, NULL, NULL);
    assert_null(s.chunks.opened);
    scene_close(&s);
}

/* ---- other ---- */

static void test_counts_bytes(void **state) {
    (void)state;
    scene s;
    scene_open(&s, NO_CHECK);
    s.sinks[0].moved(s.sinks[0].context, 5);
    s.sinks[1].moved(s.sinks[1].context, 100);
    s.sinks[0].moved(s.sinks[0].context, 6);
    assert_int_equal(s.pulls[0].session.moved, 11);
    assert_int_equal(s.pulls[1].session.moved, 100);
    assert_int_equal(s.chunks.moved, 111);
    scene_close(&s);
}

/** Waits on the inbox. @return true if the wait was ended before its time. */
static bool was_woken(wh_inbox *inbox, uint32_t wait_ms) {
    wh_message message = {.channel = WH_NO_SOCKET};
    wh_deadline deadline = wh_deadline_in_ms(wait_ms);
    uint64_t since = wh_clock_now();
    assert_int_equal(wh_inbox_take(inbox, deadline, &message, &error), WHERRY_TIMED_OUT);
    return (wh_clock_now() - since) / 1000000 < wait_ms / 2;
}

/** The inbox is woken after each chunk if more may be requested, otherwise not. */
static void test_wakes_the_inbox(void **state) {
    (void)state;
    scene s;
    wh_inbox *inbox;
    wh_routes routes = {0};
    wh_local_hub *hub = wh_local_hub_create(1);
    wh_group *group = wh_local_join(hub, 0);
    must(wh_inbox_open(group, WH_TAG_CONVERSATION | 1, &inbox, &error));
    scene_open(&s, NO_CHECK);
    s.pulls[0].session.inbox = inbox;
    land(&s, 0, 0, NULL, NULL);
    assert_false(was_woken(inbox, 100));
    s.pulls[0].session.queue.last = false;
    must(open_chunk(&s, 0, 1));
    assert_false(was_woken(inbox, 100));
    must(close_chunk(&s, 0, NULL, NULL));
    assert_true(was_woken(inbox, LONG_MS));
    must(s.sinks[0].route(s.sinks[0].context, 2, &routes, &error));
    must(s.sinks[0].arrived(s.sinks[0].context, 2, &error));
    assert_true(was_woken(inbox, LONG_MS));
    wh_routes_destroy(&routes);
    scene_close(&s);
    wh_inbox_close(inbox);
    wh_group_destroy(group);
    wh_local_hub_release(hub);
}

/** After a leak, the struct is empty, and the destinations of an open chunk still exist. */
static void test_leaves_memory_that_is_in_use(void **state) {
    (void)state;
    scene s;
    staged_open(&s, BY_MESSAGE);
    must(open_chunk(&s, 0, 0));
    wh_chunks_leak(&s.chunks);
    assert_null(s.chunks.states);
    assert_null(s.chunks.digests);
    assert_int_equal(s.chunks.wanted.total, 0);
    assert_false(wh_chunks_have_begun(&s.chunks));
    memset(s.landing.segments.items[0].iov_base, 5, SPREAD);
    scene_close(&s);
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    scene s;
    events all = {.count = 0};
    scene_open(&s, BY_LANE);
    scene_options = (wherry_transfer_options){.trace = keep_event, .trace_context = &all};
    bool ok = false;
    for (uint64_t fail = 1; !ok; fail++) {
        counting count;
        wh_chunks chunks = {0};
        counting_begin(&count);
        count.fail = fail;
        ok = init_chunks(&chunks, s.plan, &s.stop, &(wherry_interval){0, 4}, 1) && wh_chunks_reserve_digests(&chunks);
        wh_chunks_destroy(&chunks);
        assert_int_equal(count.held, 0);
        assert_int_equal(count.wrong, 0);
        wherry_allocator_set(NULL);
        /*
         * The eight allocations: two lists of two arrays (the caller has made one of the lists),
         * and four other arrays.
         */
        assert_true(ok == (fail > 8));
    }
    scene_options.trace = NULL;
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts_each_chunk_once),
        cmocka_unit_test(test_accepts_only_wanted_chunks),
        cmocka_unit_test(test_accepts_a_chunk_only_from_its_source),
        cmocka_unit_test(test_one_of_many_workers_opens_a_chunk),
        cmocka_unit_test(test_takes_chunks_back),
        cmocka_unit_test(test_resets_a_landed_chunk),
        cmocka_unit_test(test_segments_are_within_the_tensor),
        cmocka_unit_test(test_bytes_between_tensors_have_no_destination),
        cmocka_unit_test(test_staged_chunks_are_placed),
        cmocka_unit_test(test_routes_lead_into_the_tensor),
        cmocka_unit_test(test_tells_which_chunks_continue),
        cmocka_unit_test(test_digests_from_the_lane_are_compared),
        cmocka_unit_test(test_digests_by_message_are_compared),
        cmocka_unit_test(test_refuses_bad_claims),
        cmocka_unit_test(test_refuses_claims_of_another_source),
        cmocka_unit_test(test_sources_are_checked_in_their_own_way),
        cmocka_unit_test(test_reports_events),
        cmocka_unit_test(test_works_without_a_trace),
        cmocka_unit_test(test_counts_bytes),
        cmocka_unit_test(test_wakes_the_inbox),
        cmocka_unit_test(test_leaves_memory_that_is_in_use),
        cmocka_unit_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests_name("chunks", tests, NULL, NULL);
}
