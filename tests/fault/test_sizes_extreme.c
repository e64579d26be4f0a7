/*
 * States of extreme size between two processes: very many tensors, and one tensor that is larger
 * than 32 bits can count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "support/build.h"
#include "support/process_job.h"

enum { SOURCE, RECEIVER, RANKS };

typedef struct scene {
    const char *lane;
    bool in_place;
} scene;

static const char *const lanes[] = {"cma", "ring", "stream"};

static void run(const char *name, const job_body *parts, const scene *s) {
    job *all = job_open(name, RANKS, false, 0);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        job_start(all, rank, parts[rank], s, NULL);
    }
    assert_true(job_close(all));
}

static void send_state(job_rank *self, const wherry_value *state) {
    const scene *s = self->scene;
    wherry_transfer_options options = job_options(s->lane);
    wherry_error error;
    job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error),
             error);
}

/* ---- many tensors ---- */

enum { MANY = 100000, MANY_BYTES = 24 };

static wherry_value *many;
static wherry_value *many_target;

static wherry_value *make_many(uint8_t seed) {
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < MANY; i++) {
        int64_t shape = MANY_BYTES - i % 5;
        must(wherry_sequence_append(
            list, build_tensor(build_storage(MANY_BYTES, (uint8_t)(seed + i % 101)), WHERRY_U8, i % 5, 1, &shape, NULL),
            NULL));
    }
    return list;
}

static void many_source(job_rank *self) {
    send_state(self, many);
}

static void many_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = job_options(s->lane);
    wherry_error error;
    wherry_stats stats;
    wherry_value *received;
    options.stats = &stats;
    if (s->in_place) {
        options.target = job_target;
        options.target_context = many_target;
    }
    job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
    wherry_status status = wherry_value_compare(many, received, 0, &error);
    job_check(self, status == WHERRY_OK, "%s: %s", error.path, error.message);
    job_check(self, stats.tensors == MANY, "%llu tensors", (unsigned long long)stats.tensors);
    wherry_value_destroy(received);
}

static void test_many_tensors(void **state) {
    (void)state;
    static const job_body parts[] = {many_source, many_receiver};
    many = make_many(1);
    many_target = make_many(150);
    for (size_t i = 0; i < 3; i++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            run("many tensors", parts, &(scene){lanes[i], in_place});
        }
    }
    wherry_value_destroy(many);
    wherry_value_destroy(many_target);
}

/* ---- one large tensor ---- */

static const uint64_t LARGE = (UINT64_C(4) << 30) + (9 << 20) + 3;

/** Offsets of bytes that are not zero: around the ends of chunks and around 2^31 and 2^32. */
static const uint64_t marks[] = {0,
                                 (4 << 20) - 1,
                                 (UINT64_C(1) << 31) - 1,
                                 UINT64_C(1) << 31,
                                 (UINT64_C(1) << 32) - 1,
                                 UINT64_C(1) << 32,
                                 (UINT64_C(1) << 32) + 5,
                                 (UINT64_C(4) << 30) + (9 << 20) + 2};

enum { MARKS = sizeof(marks) / sizeof(*marks), DIRT_STEP = 1 << 20, NEEDED_GIB = 10 };

/** A tensor over memory that is not allocated until it is touched. */
static wherry_value *large_state(job_rank *self, uint8_t **memory_p) {
    wherry_storage *storage;
    wherry_value *value;
    wherry_value *dict;
    wherry_error error;
    int64_t shape = (int64_t)LARGE;
    *memory_p = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    job_check(self, *memory_p != MAP_FAILED, "no address space");
    job_must(self, wherry_storage_wrap(*memory_p, LARGE, wherry_device_cpu(), NULL, NULL, &storage, &error), error);
    job_must(self, wherry_tensor_create(&(wherry_tensor){storage, WHERRY_U8, 0, 1, 0, &shape, NULL}, &value, &error),
             error);
    job_must(self, wherry_dict_create(&dict, &error), error);
    job_must(self, wherry_dict_put(dict, "large", value, &error), error);
    wherry_storage_unref(storage);
    return dict;
}

static void large_source(job_rank *self) {
    uint8_t *memory;
    wherry_value *state = large_state(self, &memory);
    for (size_t i = 0; i < MARKS; i++) {
        memory[marks[i]] = (uint8_t)(i + 1);
    }
    send_state(self, state);
    wherry_value_destroy(state);
}

/** Every chunk of the target has some bytes that must be overwritten. */
static void large_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = job_options(s->lane);
    wherry_error error;
    uint8_t *memory;
    wherry_value *received;
    wherry_value *target = large_state(self, &memory);
    for (uint64_t at = 0; at < LARGE; at += DIRT_STEP) {
        memory[at] = 0xEE;
        memory[at + 3] = 0xEE;
    }
    options.target = job_target;
    options.target_context = target;
    options.verify = WHERRY_VERIFY_OFF;
    job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
    for (size_t i = 0; i < MARKS; i++) {
        job_check(self, memory[marks[i]] == i + 1, "mark %zu is %d", i, memory[marks[i]]);
        memory[marks[i]] = 0;
    }
    job_check(self, memory[0] == 0 && memcmp(memory, memory + 1, LARGE - 1) == 0, "a byte that must be zero is not");
    wherry_value_destroy(received);
    wherry_value_destroy(target);
}

static long available_gib(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    long kib = 0;
    static const char wanted[] = "MemAvailable:";
    while (file && kib == 0 && fgets(line, sizeof(line), file)) {
        kib = strncmp(line, wanted, sizeof(wanted) - 1) == 0 ? strtol(line + sizeof(wanted) - 1, NULL, 10) : 0;
    }
    if (file) {
        fclose(file);
    }
    return kib >> 20;
}

static void test_one_large_tensor(void **state) {
    (void)state;
    static const job_body parts[] = {large_source, large_receiver};
    if (available_gib() < NEEDED_GIB) {
        fprintf(stderr, "# skipped a tensor of 4 GiB: %ld GiB of memory are available, and it needs %d\n",
                available_gib(), NEEDED_GIB);
        return;
    }
    for (size_t i = 0; i < (JOB_SLOW == 1 ? 3 : 1); i++) {
        run("one large tensor", parts, &(scene){lanes[i], true});
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_tensors),
        cmocka_unit_test(test_one_large_tensor),
    };
    wherry_log_set_level(WHERRY_LOG_OFF);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
