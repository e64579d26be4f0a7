/*
 * Linked beside the command, makes one of it that a signal strikes at a known point, for tests in Python:
 *     WHERRY_TEST_SIGNAL="COUNT SIGNAL POINT"   when a point (base/point.h) is passed for the COUNT-th time, the process gets the signal
 * It says "signalled" on standard error before that. One that is not ended by it takes its time at that point from then on, so that it heeds the signal
 * before it could be done.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/point.h"

enum { PACE_US = 200000 };

static long count;
static long number;
static const char *point;
static atomic_int passages;

static void pass(const char *name) {
    if (strcmp(name, point) != 0) {
        return;
    }
    int passage = atomic_fetch_add(&passages, 1) + 1;
    if (passage == count) {
        fprintf(stderr, "signalled\n");
        kill(getpid(), (int)number);
    }
    if (passage >= count) {
        usleep(PACE_US);
    }
}

__attribute__((constructor)) static void prepare(void) {
    const char *text = getenv("WHERRY_TEST_SIGNAL");
    if (!text) {
        return;
    }
    char *rest;
    count = strtol(text, &rest, 10);
    number = strtol(rest, &rest, 10);
    if (count < 1 || number < 1 || *rest != ' ') {
        fprintf(stderr, "WHERRY_TEST_SIGNAL is not \"COUNT SIGNAL POINT\"\n");
        abort();
    }
    point = rest + 1;
    wh_point_hook = pass;
}
