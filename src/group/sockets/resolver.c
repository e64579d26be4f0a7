#include "group/sockets/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/stop.h"

struct wh_question {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int users; /**< The thread, and whoever asked. */
    bool answered;
    wh_socket_address answer;
    uint16_t port;
    char host[];
};

bool wh_is_private(const wh_socket_address *at) {
    if (at->storage.ss_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)&at->storage)->sin_addr.s_addr) >> 24 == 127;
    }
    return at->storage.ss_family == AF_UNIX ||
           (at->storage.ss_family == AF_INET6 &&
            IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&at->storage)->sin6_addr));
}

/** Of several addresses the first; one that other hosts reach goes before loopback. */
static bool look_up(const char *host, uint16_t port, int flags, wh_socket_address *result) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof(service), "%u", port);
    *result = (wh_socket_address){.size = 0};
    if (getaddrinfo(host, service, &hints, &found) != 0 || !found) {
        return false;
    }
    for (const struct addrinfo *one = found; one; one = one->ai_next) {
        wh_socket_address at = {.size = one->ai_addrlen};
        memcpy(&at.storage, one->ai_addr, one->ai_addrlen);
        if (!result->size || (wh_is_private(result) && !wh_is_private(&at))) {
            *result = at;
        }
    }
    freeaddrinfo(found);
    return true;
}

bool wh_resolve_numbers(const char *host, uint16_t port, wh_socket_address *result) {
    return look_up(host, port, AI_NUMERICHOST, result);
}

/** The lock is held, and let go. */
static void drop(wh_question *question) {
    bool last = --question->users == 0;
    pthread_mutex_unlock(&question->lock);
    if (last) {
        pthread_cond_destroy(&question->changed);
        pthread_mutex_destroy(&question->lock);
        wh_free(question);
    }
}

static void *answer(void *context) {
    wh_question *question = context;
    wh_socket_address found;
    look_up(question->host, question->port, AI_ADDRCONFIG, &found);
    pthread_mutex_lock(&question->lock);
    question->answer = found;
    question->answered = true;
    pthread_cond_broadcast(&question->changed);
    drop(question);
    return NULL;
}

static bool start(wh_question *question) {
    pthread_t thread;
    bool started = wh_thread_start(&thread, answer, question) == 0;
    if (started) {
        pthread_detach(thread);
    }
    return started;
}

wh_question *wh_resolve_begin(const char *host, uint16_t port) {
    size_t size = strlen(host) + 1;
    wh_question *question = wh_alloc_zeroed(1, sizeof(*question) + size);
    if (!question) {
        return NULL;
    }
    pthread_mutex_init(&question->lock, NULL);
    wh_condition_init(&question->changed);
    memcpy(question->host, host, size);
    question->port = port;
    question->users = 2;
    if (!start(question)) {
        question->users = 1;
        wh_resolve_end(question);
        return NULL;
    }
    return question;
}

bool wh_resolve_wait(wh_question *question, wh_deadline deadline, wh_socket_address *result) {
    bool in_time = true;
    pthread_mutex_lock(&question->lock);
    while (!question->answered && in_time) {
        in_time = wh_wait(&question->changed, &question->lock, deadline);
    }
    bool answered = question->answered;
    if (answered) {
        *result = question->answer;
    }
    pthread_mutex_unlock(&question->lock);
    return answered;
}

void wh_resolve_end(wh_question *question) {
    if (question) {
        pthread_mutex_lock(&question->lock);
        drop(question);
    }
}
