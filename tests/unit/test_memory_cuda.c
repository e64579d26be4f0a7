/* CUDA device memory: on a real device if there is one, otherwise on the fake driver. */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/cuda.h"
#include "memory/cuda_queue.h"
#include "memory/cuda_share.h"
#include "memory/memory.h"
#include "memory/pinned.h"
#include "support/device_memory.h"
#include "support/fake_driver.h"

static wherry_error error;

static const wherry_device first = {WHERRY_DEVICE_CUDA, 0};

static void test_allocated_memory_is_zeroed(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1, 4096, (3 << 20) + 5};
    for (size_t i = 0; i < 3; i++) {
        wherry_storage *storage;
        must(wherry_storage_allocate(sizes[i], first, &storage, &error));
        unsigned char *bytes = malloc(sizes[i]);
        memset(bytes, 1, sizes[i]);
        device_copy(0, bytes, wherry_storage_data(storage), sizes[i]);
        for (uint64_t k = 0; k < sizes[i]; k++) {
            assert_int_equal(bytes[k], 0);
        }
        int32_t device = -1;
        must(wh_cuda_device_of((char *)wherry_storage_data(storage) + sizes[i] - 1, &device, &error));
        assert_int_equal(device, 0);
        wherry_storage_unref(storage);
        free(bytes);
    }
}

static void test_refuses_invalid_allocations(void **state) {
    (void)state;
    wherry_storage *storage;
    int32_t device = 0;
    must_fail(WHERRY_INVALID_ARGUMENT, error, wh_cuda_device_of(&device, &device, &error));
    wherry_device none = {WHERRY_DEVICE_CUDA, wh_cuda_device_count()};
    must_fail(WHERRY_INVALID_ARGUMENT, error, wherry_storage_allocate(16, none, &storage, &error));
    must_fail(WHERRY_NO_MEMORY, error, wherry_storage_allocate(UINT64_C(1) << 50, first, &storage, &error));
}

enum { RUNS = 20000, PIECE = 700 };

/** Copies many scattered runs, on the device and to pinned memory. No other byte is written. */
static void copy_many(wh_cuda_run_kind way, size_t align) {
    size_t span = RUNS * PIECE;
    wherry_storage *from = build_device_storage(0, span, 3);
    void *pinned = NULL;
    wherry_storage *device_to = NULL;
    char *to;
    if (way == WH_CUDA_ON_DEVICES) {
        must(wherry_storage_allocate(span, first, &device_to, &error));
        to = wherry_storage_data(device_to);
    } else {
        must(wh_pinned_take(0, span, &pinned, &error));
        memset(pinned, 0, span);
        to = pinned;
    }
    wh_cuda_run *runs = calloc(RUNS, sizeof(*runs));
    uint64_t random = 5;
    for (size_t i = 0; i < RUNS; i++) {
        size_t at = (i * 7919 % RUNS) * PIECE;
        size_t skip = next_random(&random) % 40 / align * align;
        runs[i] = (wh_cuda_run){(char *)wherry_storage_data(from) + i * PIECE / align * align + skip,
                                to + at + skip / 2, next_random(&random) % (PIECE - 100)};
    }
    wh_cuda_queue *queue;
    uint64_t ticket;
    must(wh_cuda_queue_create(0, &queue, &error));
    must(wh_cuda_queue_copy(queue, way, runs, RUNS, &error));
    must(wh_cuda_queue_mark(queue, &ticket, &error));
    must(wh_cuda_queue_wait(queue, ticket, NULL, wh_deadline_in_ms(20000), &error));
    wh_cuda_queue_destroy(queue);
    unsigned char *got = malloc(span);
    unsigned char *expected = calloc(1, span);
    device_copy(0, got, to, span);
    for (size_t i = 0; i < RUNS; i++) {
        size_t begin = (size_t)((const char *)runs[i].from - (const char *)wherry_storage_data(from));
        for (size_t k = 0; k < runs[i].length; k++) {
            expected[(size_t)((char *)runs[i].to - to) + k] = (unsigned char)(3 + 7 * (begin + k));
        }
    }
    assert_memory_equal(got, expected, span);
    free(got);
    free(expected);
    free(runs);
    wh_pinned_give(pinned, span);
    wherry_storage_unref(device_to);
    wherry_storage_unref(from);
}

static void test_copies_many_runs(void **state) {
    (void)state;
    static const size_t aligns[] = {1, 2, 4, 8, 16};
    for (size_t i = 0; i < 5; i++) {
        copy_many(WH_CUDA_ON_DEVICES, aligns[i]);
    }
    copy_many(WH_CUDA_WITH_PINNED, 4);
    setenv("WHERRY_PINNED_MIB", "1024", 1);
    copy_many(WH_CUDA_WITH_PAGEABLE, 1);
    unsetenv("WHERRY_PINNED_MIB");
}

/** Long runs take several blocks of threads and several launches. */
static void test_copies_long_runs(void **state) {
    (void)state;
    enum { COUNT = 5 };
    size_t length = (5 << 20) + 3;
    wherry_storage *from = build_device_storage(0, COUNT * length, 9);
    wherry_storage *to = build_device_storage(0, COUNT * length, 1);
    wh_cuda_run runs[COUNT];
    wh_cuda_queue *queue;
    uint64_t ticket;
    for (size_t i = 0; i < COUNT; i++) {
        runs[i] = (wh_cuda_run){(char *)wherry_storage_data(from) + i * length,
                                (char *)wherry_storage_data(to) + i * length, length};
    }
    must(wh_cuda_queue_create(0, &queue, &error));
    must(wh_cuda_queue_copy(queue, WH_CUDA_ON_DEVICES, runs, COUNT, &error));
    must(wh_cuda_queue_mark(queue, &ticket, &error));
    must(wh_cuda_queue_wait(queue, ticket, NULL, wh_deadline_in_ms(20000), &error));
    wh_cuda_queue_destroy(queue);
    unsigned char *got = malloc(COUNT * length);
    device_copy(0, got, wherry_storage_data(to), COUNT * length);
    for (size_t i = 0; i < COUNT * length; i++) {
        assert_int_equal(got[i], (unsigned char)(9 + 7 * i));
    }
    free(got);
    wherry_storage_unref(from);
    wherry_storage_unref(to);
}

/** A run over two adjacent allocations is copied, although the driver copies only inside one. */
static void test_copies_across_adjacent_allocations(void **state) {
    (void)state;
    enum { COUNT = 64, BYTES = 4096 };
    wherry_storage *storages[COUNT];
    unsigned char got[2 * BYTES];
    size_t pairs = 0;
    wh_cuda_queue *queue;
    uint64_t ticket;
    must(wh_cuda_queue_create(0, &queue, &error));
    for (size_t i = 0; i < COUNT; i++) {
        storages[i] = build_device_storage(0, BYTES, (uint8_t)i);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (size_t k = 0; k < COUNT; k++) {
            char *begin = wherry_storage_data(storages[i]);
            if ((char *)wherry_storage_data(storages[k]) != begin + BYTES) {
                continue;
            }
            wh_cuda_run run = {begin, got, sizeof(got)};
            must(wh_cuda_queue_copy(queue, WH_CUDA_WITH_PAGEABLE, &run, 1, &error));
            must(wh_cuda_queue_mark(queue, &ticket, &error));
            must(wh_cuda_queue_wait(queue, ticket, NULL, wh_deadline_in_ms(20000), &error));
            for (size_t at = 0; at < sizeof(got); at++) {
                size_t seed = at < BYTES ? i : k;
                assert_int_equal(got[at], (unsigned char)(seed + 7 * (at % BYTES)));
            }
            pairs++;
        }
    }
    assert_true(pairs > 0);
    wh_cuda_queue_destroy(queue);
    for (size_t i = 0; i < COUNT; i++) {
        wherry_storage_unref(storages[i]);
    }
}

/** There may be more tickets than events. Each ticket passes. */
static void test_more_tickets_than_events_pass(void **state) {
    (void)state;
    wherry_storage *memory = build_device_storage(0, 4096, 0);
    wh_cuda_run run = {wherry_storage_data(memory), (char *)wherry_storage_data(memory) + 2048, 2048};
    wh_cuda_queue *queue;
    uint64_t tickets[300];
    must(wh_cuda_queue_create(0, &queue, &error));
    for (size_t i = 0; i < 300; i++) {
        must(wh_cuda_queue_copy(queue, WH_CUDA_ON_DEVICES, &run, 1, &error));
        must(wh_cuda_queue_mark(queue, tickets + i, &error));
        assert_true(i == 0 || tickets[i] > tickets[i - 1]);
    }
    must(wh_cuda_queue_wait(queue, tickets[299], NULL, wh_deadline_in_ms(20000), &error));
    for (size_t i = 0; i < 300; i++) {
        bool passed = false;
        must(wh_cuda_queue_passed(queue, tickets[i], &passed, &error));
        assert_true(passed);
    }
    wh_cuda_queue_destroy(queue);
    wherry_storage_unref(memory);
}

static void test_pinned_memory_is_reused(void **state) {
    (void)state;
    void *one;
    void *two;
    void *large;
    setenv("WHERRY_PINNED_MIB", "9", 1);
    wh_pinned_trim();
    must(wh_pinned_take(0, 100, &one, &error));
    must(wh_pinned_take(0, WH_PINNED_BLOCK, &two, &error));
    memset(two, 7, WH_PINNED_BLOCK);
    must_fail(WHERRY_LIMIT, error, wh_pinned_take(0, 1, &large, &error));
    wh_pinned_give(two, WH_PINNED_BLOCK);
    void *again;
    must(wh_pinned_take(0, 1, &again, &error));
    assert_ptr_equal(again, two);
    wh_pinned_give(again, 1);
    wh_pinned_give(one, 100);
    wh_pinned_trim();
    must(wh_pinned_take(0, 8 << 20, &large, &error));
    wh_pinned_give(large, 8 << 20);
    must(wh_pinned_take(0, 1, &one, &error));
    must(wh_pinned_take(0, 1, &two, &error));
    must_fail(WHERRY_LIMIT, error, wh_pinned_take(0, 8 << 20, &large, &error));
    wh_pinned_give(two, 1);
    wh_pinned_give(one, 1);
    must(wh_pinned_take(0, 8 << 20, &large, &error)); /* This frees the cached blocks. */
    wh_pinned_give(large, 8 << 20);
    unsetenv("WHERRY_PINNED_MIB");
    must(wh_cuda_await_stream(NULL, 1, NULL, wh_deadline_in_ms(5000), &error));
}

enum { SHARED_BYTES = 1 << 20 };

/** The memory that the two processes share. */
typedef struct handover {
    wh_cuda_allocation allocation;
    volatile int described;
    volatile int read;
    wherry_status status;
    char message[256];
    unsigned char bytes[SHARED_BYTES];
} handover;

static void await_flag(const volatile int *flag) {
    for (int i = 0; !*flag && i < 60000; i++) {
        usleep(1000);
    }
}

/** The other process, with its own driver. */
static void read_shared(handover *shared) {
    wherry_error why = {.status = WHERRY_OK};
    wh_cuda_import import;
    await_flag(&shared->described);
    shared->status = wh_cuda_open(&shared->allocation, 0, &import, &why);
    if (shared->status == WHERRY_OK) {
        device_copy(0, shared->bytes, import.data, SHARED_BYTES);
        wh_cuda_close(&import);
        shared->allocation.size = UINT64_C(1) << 40;
        wherry_status too_large = wh_cuda_open(&shared->allocation, 0, &import, &why);
        shared->status = too_large == WHERRY_OUT_OF_BOUNDS ? WHERRY_OK : WHERRY_INTERNAL;
        memset(shared->allocation.handle, 1, sizeof(shared->allocation.handle));
        wherry_status nonsense = wh_cuda_open(&shared->allocation, 0, &import, &why);
        shared->status = nonsense == WHERRY_REFUSED ? shared->status : WHERRY_INTERNAL;
    }
    memcpy(shared->message, why.message, sizeof(shared->message) - 1);
    shared->read = 1;
}

/** Forks before this process uses the driver, so that the child can load its own. */
static handover *shared_memory;
static pid_t child;

static void test_another_process_reads_device_memory(void **state) {
    (void)state;
    wherry_storage *storage = build_device_storage(0, SHARED_BYTES, 77);
    must(wh_cuda_describe((char *)wherry_storage_data(storage) + 100, &shared_memory->allocation, &error));
    assert_int_equal(shared_memory->allocation.fd, -1);
    assert_true(shared_memory->allocation.base <= (uintptr_t)wherry_storage_data(storage));
    uint64_t into = (uintptr_t)wherry_storage_data(storage) - shared_memory->allocation.base;
    assert_true(shared_memory->allocation.size >= into + SHARED_BYTES);
    assert_int_equal(into, 0);
    shared_memory->described = 1;
    await_flag(&shared_memory->read);
    int end;
    assert_int_equal(waitpid(child, &end, 0), child);
    if (shared_memory->status != WHERRY_OK) {
        print_error("%s\n", shared_memory->message);
    }
    assert_int_equal(shared_memory->status, WHERRY_OK);
    for (size_t i = 0; i < SHARED_BYTES; i++) {
        assert_int_equal(shared_memory->bytes[i], (unsigned char)(77 + 7 * i));
    }
    wherry_storage_unref(storage);
}

/** The message says that the context is broken if, and only if, the error breaks it. */
static void test_message_says_if_the_context_is_broken(void **state) {
    (void)state;
    static const int answers[] = {214, 220, 700, 719, 704, 999};
    fake_driver fake = fake_driver_find();
    for (size_t i = 0; i < 6 && fake.break_context; i++) {
        wherry_storage *storage;
        fake.break_context(answers[i]);
        must_fail(WHERRY_SYSTEM, error, wherry_storage_allocate(16, first, &storage, &error));
        fake.break_context(0);
        assert_int_equal(strstr(error.message, "the CUDA context of this process is broken") != NULL, i < 4);
    }
}

/** The driver does not work in a forked child, and the error says what to do. */
static void test_forked_child_gets_an_error(void **state) {
    (void)state;
    int end;
    wherry_storage *storage;
    if (!fake_driver_find().shadow) {
        return; /* The behaviour of a real driver is undefined here. */
    }
    pid_t forked = fork();
    if (forked == 0) {
        wherry_status status = wherry_storage_allocate(16, first, &storage, &error);
        _exit(status == WHERRY_SYSTEM && strstr(error.message, "forked after CUDA was used") ? 0 : 1);
    }
    assert_int_equal(waitpid(forked, &end, 0), forked);
    assert_true(WIFEXITED(end) && WEXITSTATUS(end) == 0);
}

int main(void) {
    shared_memory = mmap(NULL, sizeof(*shared_memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    child = fork();
    if (child == 0) {
        read_shared(shared_memory);
        _exit(0);
    }
    if (wh_cuda_check(&error) != WHERRY_OK) {
        fprintf(stderr, "%s\n", error.message);
        printf("1..0 # SKIP needs a CUDA device\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_another_process_reads_device_memory),
        cmocka_unit_test(test_allocated_memory_is_zeroed),
        cmocka_unit_test(test_refuses_invalid_allocations),
        cmocka_unit_test(test_copies_many_runs),
        cmocka_unit_test(test_copies_long_runs),
        cmocka_unit_test(test_copies_across_adjacent_allocations),
        cmocka_unit_test(test_more_tickets_than_events_pass),
        cmocka_unit_test(test_pinned_memory_is_reused),
        cmocka_unit_test(test_message_says_if_the_context_is_broken),
        cmocka_unit_test(test_forked_child_gets_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
