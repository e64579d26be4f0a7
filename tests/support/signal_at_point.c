/*
 * Linked into copies of the command and of the extension, for tests in Python: with
 * WHERRY_TEST_SIGNAL="COUNT SIGNAL POINT", the process gets the signal when it passes a point
 * (base/point.h) for the COUNT-th time. It prints "signalled" to standard error first. If the
 * process survives, it sleeps briefly at each later pass of that point, so that it handles the
 * signal before it finishes.
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
