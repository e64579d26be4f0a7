#include "conformance/sockets_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "group/sockets/sockets.h"
#include "support/meeting.h"

enum { JOIN_MS = 20000, TEXT_MAX = 256 };

/** The parts of an address, without the rank. */
typedef struct meeting_place {
    char folder[64];
    char text[TEXT_MAX];
    int32_t size;
    const char *secret;
    const char *query; /**< The rest of the address. */
    uint32_t encrypt;
} meeting_place;

static void *new_place(int32_t size, const char *secret) {
    meeting_place *place = calloc(1, sizeof(*place));
    place->size = size;
    place->secret = secret;
    place->query = "";
    return place;
}

void *wh_open_unix_place(int32_t size) {
    meeting_place *place = new_place(size, NULL);
    snprintf(place->folder, sizeof(place->folder), "/tmp/wherry-test-XXXXXX");
    if (!mkdtemp(place->folder)) {
        abort();
    }
    snprintf(place->text, sizeof(place->text), "unix://%s/meet", place->folder);
    return place;
}

void *wh_open_near_place(int32_t size) {
    meeting_place *place = new_place(size, "a secret of many words");
    snprintf(place->text, sizeof(place->text), "tcp://127.0.0.1:%d", wh_test_free_port());
    return place;
}

void *wh_open_tcp_place(int32_t size) {
    meeting_place *place = wh_open_near_place(size);
    place->query = "&shortcut=0";
    return place;
}

void *wh_open_sealed_place(int32_t size) {
    meeting_place *place = wh_open_tcp_place(size);
    place->encrypt = WHERRY_ENCRYPT_ALL;
    return place;
}

wh_group *wh_join_place(void *context, int32_t rank) {
    const meeting_place *place = context;
    char address[TEXT_MAX + 64];
    wh_sockets_options options = {
        .secret = place->secret, .secret_size = place->secret ? 22 : 0, .encrypt = place->encrypt};
    wh_group *group = NULL;
    wherry_error error;
    snprintf(address, sizeof(address), "%s?rank=%d&size=%d&job=suite%s", place->text, (int)rank, (int)place->size,
             place->query);
    if (wh_sockets_join(address, &options, wh_deadline_in_ms(JOIN_MS), &group, &error) != WHERRY_OK) {
        fprintf(stderr, "rank %d: %s\n", (int)rank, error.message);
    }
    return group;
}

void wh_close_place(void *context) {
    meeting_place *place = context;
    if (*place->folder) {
        char lock[TEXT_MAX];
        snprintf(lock, sizeof(lock), "%s/meet.lock", place->folder);
        unlink(lock);
        if (rmdir(place->folder) != 0) {
            perror("a file was left behind in the meeting folder");
            abort();
        }
    }
    free(place);
}
