#include "conformance/group_world.h"

#include <pthread.h>
#include <string.h>

const wh_group_kind *wh_kind;
static wherry_error error;

/** Each rank joins in its own thread, because in some groups the ranks wait for each other. */
typedef struct joiner {
    void *place;
    int32_t rank;
    wh_group *group;
} joiner;

static void *join_world(void *context) {
    joiner *j = context;
    j->group = wh_kind->join(j->place, j->rank);
    return NULL;
}

world wh_world_open(void) {
    world w = {wh_kind->open(RANKS), {NULL}};
    joiner joiners[RANKS];
    pthread_t threads[RANKS];
    for (int32_t i = 0; i < RANKS; i++) {
        joiners[i] = (joiner){w.place, i, NULL};
        assert_int_equal(pthread_create(threads + i, NULL, join_world, joiners + i), 0);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int32_t i = 0; i < RANKS; i++) {
        w.groups[i] = joiners[i].group;
        assert_non_null(w.groups[i]);
        assert_int_equal(w.groups[i]->rank, i);
        assert_int_equal(w.groups[i]->size, RANKS);
    }
    return w;
}

void wh_world_close(world *w) {
    for (int32_t i = 0; i < RANKS; i++) {
        wh_group_destroy(w->groups[i]);
    }
    wh_kind->close(w->place);
}

wh_deadline wh_soon(void) {
    return wh_deadline_in_ms(SOON_MS);
}

void wh_send_text(wh_group *from, int32_t to, uint64_t tag, const char *text) {
    must(wh_group_send(from, to, tag, text, strlen(text), wh_soon(), &error));
}

void wh_expect_text(wh_group *at, int32_t from, uint64_t tag, const char *text, int32_t sender) {
    wh_message message;
    must(wh_group_receive(at, from, tag, wh_soon(), &message, &error));
    assert_int_equal(message.rank, sender);
    assert_true(message.tag == tag);
    assert_int_equal(message.size, strlen(text));
    assert_memory_equal(message.bytes, text, message.size);
    wh_message_clear(&message);
}
