/**
 * @file meeting.h  A new address at which the processes of a test meet: a Unix socket in a new
 * folder, or a free port on loopback.
 */
#ifndef WH_TESTS_MEETING_H
#define WH_TESTS_MEETING_H

#include <arpa/inet.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "group/sockets/sockets.h"

typedef struct wh_test_meeting {
    char folder[64]; /**< Folder of the Unix socket. */
    int port;        /**< TCP; 0: Unix. */
    bool near;       /**< Uses TCP to meet, and Unix sockets after that. */
} wh_test_meeting;

static inline int wh_test_open_unix(void **state) {
    wh_test_meeting *meeting = calloc(1, sizeof(*meeting));
    wherry_log_set_level(WHERRY_LOG_OFF);
    snprintf(meeting->folder, sizeof(meeting->folder), "/tmp/wherry-test-XXXXXX");
    *state = meeting;
    return mkdtemp(meeting->folder) ? 0 : -1;
}

/**
 * A port on loopback that is free now; 0: none was found. The system gives ports of this range to
 * nobody who asks for any port, so no other test gets it before the caller listens there.
 */
static inline int wh_test_free_port(void) {
    enum { LOWEST = 12000, COUNT = 16000, TRIES = 1000 };
    int port = 0;
    for (int i = 0; i < TRIES && !port; i++) {
        uint16_t any = 0;
        bool known = getrandom(&any, sizeof(any), 0) == sizeof(any);
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)(LOWEST + any % COUNT)),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (known && bind(probe, (struct sockaddr *)&at, sizeof(at)) == 0) {
            port = ntohs(at.sin_port);
        }
        close(probe);
    }
    return port;
}

static inline int wh_test_open_tcp(void **state) {
    wh_test_meeting *meeting = calloc(1, sizeof(*meeting));
    wherry_log_set_level(WHERRY_LOG_OFF);
    *state = meeting;
    meeting->port = wh_test_free_port();
    return meeting->port ? 0 : -1;
}

/** Like wh_test_open_tcp, but the processes use Unix sockets once they have met. */
static inline int wh_test_open_near(void **state) {
    int result = wh_test_open_tcp(state);
    ((wh_test_meeting *)*state)->near = true;
    return result;
}

/** Killed processes leave their sockets in the folder, so remove them. */
static inline int wh_test_close(void **state) {
    wh_test_meeting *meeting = *state;
    int result = 0;
    if (*meeting->folder) {
        char pattern[sizeof(meeting->folder) + 2];
        glob_t found;
        snprintf(pattern, sizeof(pattern), "%s/*", meeting->folder);
        if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
            for (size_t i = 0; i < found.gl_pathc; i++) {
                unlink(found.gl_pathv[i]);
            }
            globfree(&found);
        }
        result = rmdir(meeting->folder);
    }
    free(meeting);
    return result;
}

static inline wherry_status wh_test_join(const wh_test_meeting *meeting, int32_t rank, int32_t size, int64_t ms,
                                         wh_group **group_p, wherry_error *error) {
    char address[256];
    wh_sockets_options options = {0};
    if (meeting->port) {
        snprintf(address, sizeof(address), "tcp://127.0.0.1:%d?rank=%d&size=%d&job=test&shortcut=%d", meeting->port,
                 (int)rank, (int)size, meeting->near);
    } else {
        snprintf(address, sizeof(address), "unix://%s/meet?rank=%d&size=%d&job=test", meeting->folder, (int)rank,
                 (int)size);
    }
    return wh_sockets_join(address, &options, wh_deadline_in_ms(ms), group_p, error);
}

#endif
