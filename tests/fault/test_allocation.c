/*
 * Every allocation fails in turn. The function that needed the memory returns WHERRY_NO_MEMORY,
 * frees everything it has allocated, and does not change its arguments.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <wherry/wherry.h>
#include <cmocka.h>

#include "manifest/manifest.h"
#include "support/random_state.h"

enum { STATES = 25 };

static long allocations; /* allocations made so far */
static long live;        /* blocks not freed yet */
static long failing;     /* the number of the allocation that fails; -1: none */

static int fails(void) {
    return allocations++ == failing;
}

static void *allocate(void *context, size_t size) {
    (void)context;
    void *memory = fails() ? NULL : malloc(size);
    live += memory != NULL;
    return memory;
}

static void *reallocate(void *context, void *memory, size_t size) {
    (void)context;
    void *grown = fails() ? NULL : realloc(memory, size);
    live += grown && !memory;
    return grown;
}

static void release(void *context, void *memory) {
    (void)context;
    live--;
    free(memory);
}

static int set_up(void **state) {
    (void)state;
    static const wherry_allocator counting = {allocate, reallocate, release, NULL};
    failing = -1;
    wherry_allocator_set(&counting);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    wherry_allocator_set(NULL);
    return 0;
}

/** The arguments of a body. */
typedef struct subject {
    wherry_value *source;
    wherry_value *target;
    wherry_value *thin; /**< The same state without some of its leaves. */
    void *bytes;
    size_t size;
    wherry_error error;
} subject;

/** Does one thing, frees everything, and returns its status. */
typedef wherry_status (*body)(subject *s);

/** Runs a body with the first allocation failing, then the second, until it succeeds. */
static void fail_each(const char *name, body run, subject *s) {
    for (long n = 0;; n++) {
        long before = live;
        allocations = 0;
        failing = n;
        memset(&s->error, 0, sizeof(s->error));
        wherry_status status = run(s);
        failing = -1;
        if (live != before) {
            fail_msg("%s, allocation %ld: %ld blocks leaked", name, n, live - before);
        }
        if (status == WHERRY_OK) {
            if (allocations > n) {
                fail_msg("%s: allocation %ld failed, but the call succeeded", name, n);
            }
            return;
        }
        if (status != WHERRY_NO_MEMORY || s->error.status != WHERRY_NO_MEMORY) {
            fail_msg("%s, allocation %ld: %s: %s", name, n, wherry_status_name(status), s->error.message);
        }
    }
}

static wherry_status encode(subject *s) {
    wherry_prepared *prepared;
    void *bytes;
    size_t size;
    wherry_prepare_options options;
    wherry_prepare_options_init(&options);
    options.max_gap = 0;
    wherry_status status = wherry_prepare(s->source, &options, &prepared, &s->error);
    if (status != WHERRY_OK) {
        return status;
    }
    status = wherry_manifest_encode(prepared, &bytes, &size, &s->error);
    if (status == WHERRY_OK) {
        wherry_free(bytes);
    }
    wherry_prepared_destroy(prepared);
    return status;
}

/** Prepares in one walk, with the same result as in two. */
static wherry_status encode_at_once(subject *s) {
    wherry_prepared *prepared;
    void *bytes;
    size_t size;
    wherry_status status = wh_manifest_prepare(s->source, NULL, &prepared, &bytes, &size, &s->error);
    if (status == WHERRY_OK) {
        assert_true(size == s->size && memcmp(bytes, s->bytes, size) == 0);
        wherry_free(bytes);
        wherry_prepared_destroy(prepared);
    }
    return status;
}

static wherry_status decode(subject *s) {
    wherry_prepared *prepared;
    wherry_status status = wherry_manifest_decode(s->bytes, s->size, NULL, &prepared, &s->error);
    if (status == WHERRY_OK) {
        wherry_prepared_destroy(prepared);
    }
    return status;
}

/**
 * Decoding may not fail here, only planning. A state that could not be planned is planned again.
 */
static wherry_status plan(subject *s, const wherry_value *target, uint32_t flags) {
    long n = failing;
    wherry_prepared *prepared;
    wherry_plan *made;
    wherry_plan_options options;
    wherry_plan_options_init(&options);
    options.rank = 3;
    options.flags = flags;
    failing = -1;
    assert_int_equal(wherry_manifest_decode(s->bytes, s->size, NULL, &prepared, NULL), WHERRY_OK);
    allocations = 0;
    failing = n;
    wherry_status status = wherry_plan_create(prepared, target, &options, &made, &s->error);
    failing = -1;
    if (status == WHERRY_OK) {
        wherry_plan_destroy(made);
        return status;
    }
    assert_int_equal(wherry_plan_create(prepared, target, &options, &made, NULL), WHERRY_OK);
    wherry_plan_destroy(made);
    return status;
}

static wherry_status plan_new(subject *s) {
    return plan(s, NULL, 0);
}

static wherry_status plan_in_place(subject *s) {
    return plan(s, s->target, 0);
}

static wherry_status plan_partly_new(subject *s) {
    return plan(s, s->thin, WHERRY_PLAN_NEW);
}

static wherry_status copy(subject *s) {
    wherry_value *made;
    wherry_status status = wherry_value_copy(s->source, &made, &s->error);
    if (status == WHERRY_OK) {
        wherry_value_destroy(made);
    }
    return status;
}

/** Lists the leaves, and reads the text of each path back. */
static wherry_status paths(subject *s) {
    wherry_flat *flat;
    wherry_status status = wherry_flatten(s->source, &flat, &s->error);
    if (status != WHERRY_OK) {
        return status;
    }
    for (size_t i = 0; i < wherry_flat_count(flat) && i < 5 && status == WHERRY_OK; i++) {
        char *text;
        wherry_path *path;
        status = wherry_path_format(wherry_flat_path(flat, i), &text, &s->error);
        if (status != WHERRY_OK) {
            break;
        }
        status = wherry_path_parse(text, strlen(text), &path, &s->error);
        if (status == WHERRY_OK) {
            wherry_path_destroy(path);
        }
        wherry_free(text);
    }
    wherry_flat_destroy(flat);
    return status;
}

static wherry_status compare(subject *s) {
    return wherry_value_compare(s->source, s->source, WHERRY_COMPARE_ALL, &s->error);
}

static void each_state(const char *name, body run) {
    for (uint64_t seed = 1; seed <= STATES; seed++) {
        wh_random random = {seed};
        long before = live;
        subject s = {.source = wh_random_state(&random)};
        s.target = wh_random_target(&random, s.source, seed & 1);
        s.thin = wh_random_thinned(&random, s.target);
        wherry_prepared *prepared;
        assert_int_equal(wherry_prepare(s.source, NULL, &prepared, NULL), WHERRY_OK);
        assert_int_equal(wherry_manifest_encode(prepared, &s.bytes, &s.size, NULL), WHERRY_OK);
        wherry_prepared_destroy(prepared);
        fail_each(name, run, &s);
        wherry_free(s.bytes);
        wherry_value_destroy(s.source);
        wherry_value_destroy(s.target);
        wherry_value_destroy(s.thin);
        assert_int_equal(live, before);
    }
}

#define ALLOCATION_TEST(name)                                                                                          \
    static void test_##name(void **state) {                                                                            \
        (void)state;                                                                                                   \
        each_state(#name, name);                                                                                       \
    }

ALLOCATION_TEST(encode)
ALLOCATION_TEST(encode_at_once)
ALLOCATION_TEST(decode)
ALLOCATION_TEST(plan_new)
ALLOCATION_TEST(plan_in_place)
ALLOCATION_TEST(plan_partly_new)
ALLOCATION_TEST(copy)
ALLOCATION_TEST(paths)
ALLOCATION_TEST(compare)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),   cmocka_unit_test(test_encode_at_once), cmocka_unit_test(test_decode),
        cmocka_unit_test(test_plan_new), cmocka_unit_test(test_plan_in_place),  cmocka_unit_test(test_plan_partly_new),
        cmocka_unit_test(test_copy),     cmocka_unit_test(test_paths),          cmocka_unit_test(test_compare),
    };
    return cmocka_run_group_tests_name("allocation", tests, set_up, tear_down);
}
