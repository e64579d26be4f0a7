/*
 * The nccl lane between processes, with a real device and NCCL or with the fakes: transfers, either
 * side killed or stopped midway, a side without NCCL or with another version. NCCL rejects two
 * processes on one device unless they claim to be on different hosts, so each rank does so before
 * it loads NCCL.
 */
#include <stdio.h>
#include <unistd.h>

#include "lane/nccl/nccl_comm.h"
#include "memory/cuda.h"
#include "support/build.h"
#include "support/device_memory.h"
#include "support/fake_library.h"
#include "support/process_job.h"

enum { SOURCE, RECEIVER, RANKS };

/** Flags of the job. */
enum { SENDING };

enum { LARGE = 44 << 20, LITTLE = 5 << 20, SMALL = 300, SMALL_BYTES = 4096, DEAD_AFTER_MS = 3000 * JOB_SLOW };

/** How soon a survivor must notice; a real NCCL needs a second or two to create a communicator. */
enum { MARGIN_MS = 3000 * JOB_SLOW };

typedef struct scene {
    const char *point;
    int count;
    int32_t at;
    int32_t victim;
    int signal;
} scene;

/** Settings with which NCCL accepts two processes on one device. */
static void look_remote(const job_rank *self) {
    char host[32];
    snprintf(host, sizeof(host), "wherry-%d-%d", (int)self->rank, (int)getpid());
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 0);
}

static wherry_value *make_state(uint8_t seed, int64_t large) {
    wherry_error error;
    wherry_value *list = build_list(NULL);
    for (int i = 0; i < SMALL; i++) {
        int64_t bytes = SMALL_BYTES;
        wherry_value *one =
            build_tensor(build_device_storage(0, SMALL_BYTES, (uint8_t)(seed + i)), WHERRY_U8, 0, 1, &bytes, NULL);
        if (wherry_sequence_append(list, one, &error) != WHERRY_OK) {
            abort();
        }
    }
    return build_dict("small", list, "large",
                      build_tensor(build_device_storage(0, (uint64_t)large, seed), WHERRY_U8, 0, 1, &large, NULL),
                      NULL);
}

/** True if a tensor has the bytes of a seed. */
static bool has_bytes(const wherry_value *tensor, uint64_t nbytes, uint8_t seed) {
    uint8_t *bytes = malloc(nbytes);
    device_copy(0, bytes, wherry_storage_data(wherry_tensor_get(tensor)->storage), nbytes);
    bool same = true;
    for (uint64_t i = 0; i < nbytes && same; i++) {
        same = bytes[i] == (uint8_t)(seed + 7 * i);
    }
    free(bytes);
    return same;
}

static void check_state(job_rank *self, const wherry_value *state, uint64_t large, uint8_t seed) {
    const wherry_value *list = wherry_dict_get(state, "small");
    job_check(self, has_bytes(wherry_dict_get(state, "large"), large, seed), "the large tensor is not right");
    for (size_t i = 0; i < SMALL; i += 97) {
        job_check(self, has_bytes(wherry_sequence_at(list, i), SMALL_BYTES, (uint8_t)(seed + i)),
                  "small tensor %zu differs", i);
    }
}

static wherry_status send_to(job_rank *self, const wherry_value *state, const char *lanes, wherry_outcome *outcome,
                             wherry_error *error) {
    wherry_transfer_options options = job_options(lanes);
    return wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, outcome, error);
}

/** @param target NULL to receive into new memory */
static wherry_status receive(job_rank *self, wherry_value *target, const char *lanes, wherry_value **received_p,
                             wherry_stats *stats, wherry_error *error) {
    wherry_transfer_options options = job_options(lanes);
    options.verify = WHERRY_VERIFY_OFF;
    options.stats = stats;
    if (target) {
        options.target = job_target;
        options.target_context = target;
    }
    return wherry_checkpoint_recv(self->transport, SOURCE, &options, received_p, error);
}

/* ---- transfers that succeed ---- */

/** Prints the speed on a real device. */
static int64_t good_size(void) {
    return fake_nccl_find().fail_at ? LARGE : 512 << 20;
}

enum { TIMES = 3 };

static void send_well(job_rank *self) {
    wherry_error error;
    wherry_outcome outcome;
    look_remote(self);
    wherry_value *state = make_state(3, good_size());
    for (int i = 0; i < TIMES; i++) {
        job_must(self, send_to(self, state, "nccl", &outcome, &error), error);
    }
    wherry_value_destroy(state);
}

static void receive_well(job_rank *self) {
    wherry_error error;
    look_remote(self);
    wherry_value *target = make_state(9, good_size());
    for (int i = 0; i < TIMES; i++) {
        wherry_value *received;
        wherry_stats stats;
        job_must(self, receive(self, i ? target : NULL, "nccl", &received, &stats, &error), error);
        job_check(self, strcmp(stats.lane, "nccl") == 0, "the lane is %s", stats.lane);
        check_state(self, received, (uint64_t)good_size(), 3);
        fprintf(stderr, "%s: %.1f ms, %.2f GB/s\n", i ? "in place" : "the first transfer, into new memory",
                stats.data_seconds * 1e3, (double)stats.bytes_moved / stats.data_seconds / 1e9);
        wherry_value_destroy(received);
    }
    job_check(self, wh_nccl_count(1U << WH_NCCL_IDLE) == 1, "%zu communicators are kept",
              wh_nccl_count(1U << WH_NCCL_IDLE));
    wherry_value_destroy(target);
}

static void test_well(void **state) {
    (void)state;
    job *all = job_open("well", RANKS, false, 0);
    job_start(all, SOURCE, send_well, NULL, NULL);
    job_start(all, RECEIVER, receive_well, NULL, NULL);
    assert_true(job_close(all));
}

/* ---- a victim ---- */

/** The survivor gets an error about the other in time, and its device and NCCL still work. */
static void survive(job_rank *self, wherry_status status, const wherry_error *error) {
    const scene *s = self->scene;
    job_check(self, status == WHERRY_PEER_LOST, "%s: %s", wherry_status_name(status),
              status == WHERRY_OK ? "" : error->message);
    job_check(self, error->rank == s->victim, "the error is about rank %d: %s", (int)error->rank, error->message);
    double limit = s->signal == SIGSTOP ? DEAD_AFTER_MS + MARGIN_MS : MARGIN_MS;
    job_check(self, job_ms_since_signal(self->job) < limit, "it took %.0f ms to notice",
              job_ms_since_signal(self->job));
    job_check(self, wh_nccl_count(1U << WH_NCCL_BUSY | 1U << WH_NCCL_IDLE) == 0, "a communicator is left");
    wherry_storage *memory = build_device_storage(0, SMALL_BYTES, 5);
    wherry_storage_unref(memory);
    wh_nccl_unique unique;
    job_check(self, wh_nccl_find(NULL)->get_unique(&unique) == WH_NCCL_OK, "NCCL does not work any more");
    if (s->signal == SIGSTOP) {
        job_send_signal(self, s->victim, SIGKILL);
    }
}

static void send_and_see(job_rank *self) {
    const scene *s = self->scene;
    wherry_error error;
    wherry_outcome outcome;
    look_remote(self);
    wherry_value *state = make_state(3, LARGE);
    job_announce(self, SENDING);
    wherry_status status = send_to(self, state, "nccl", &outcome, &error);
    if (s->victim != SOURCE) {
        survive(self, status, &error);
    }
    wherry_value_destroy(state);
}

static void receive_and_see(job_rank *self) {
    const scene *s = self->scene;
    wherry_error error;
    wherry_stats stats;
    wherry_value *received;
    look_remote(self);
    wherry_value *target = make_state(9, LARGE);
    job_await(self, SENDING);
    wherry_status status = receive(self, target, "nccl", &received, &stats, &error);
    if (s->victim != RECEIVER) {
        survive(self, status, &error);
    }
    wherry_value_destroy(target);
}

static const scene scenes[] = {
    {"receiver probed", 1, RECEIVER, SOURCE, SIGKILL},
    {"receiver probed", 1, RECEIVER, RECEIVER, SIGKILL},
    {"source gathers a chunk", 7, SOURCE, SOURCE, SIGKILL},
    {"source gathers a chunk", 10, SOURCE, RECEIVER, SIGKILL},
    {"receiver opened a chunk", 7, RECEIVER, RECEIVER, SIGKILL},
    {"receiver has all bytes", 1, RECEIVER, RECEIVER, SIGKILL},
    {"receiver closed a chunk", 5, RECEIVER, SOURCE, SIGKILL},
    {"receiver closed a chunk", 5, RECEIVER, RECEIVER, SIGKILL},
    {"source gathers a chunk", 10, SOURCE, SOURCE, SIGSTOP},
    {"receiver closed a chunk", 5, RECEIVER, RECEIVER, SIGSTOP},
};

static void test_victims(void **state) {
    (void)state;
    bool fine = true;
    for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
        const scene *s = scenes + i;
        char name[96];
        snprintf(name, sizeof(name), "rank %d gets signal %d when the %s (%d)", (int)s->victim, s->signal, s->point,
                 s->count);
        job *all = job_open(name, RANKS, false, DEAD_AFTER_MS);
        job_signal plan = {s->point, s->count, s->victim, s->signal};
        all->expendable[s->victim] = true;
        job_start(all, SOURCE, send_and_see, s, s->at == SOURCE ? &plan : NULL);
        job_start(all, RECEIVER, receive_and_see, s, s->at == RECEIVER ? &plan : NULL);
        fine = job_close(all) && fine;
    }
    assert_true(fine);
}

/* ---- a side without NCCL ---- */

/** A fault at one side, and the error that it causes at the receiver. */
typedef struct lack {
    int32_t at;
    const char *name; /**< Name of an environment variable; the next member is its value. */
    const char *value;
    const char *words;
} lack;

static const lack lacks[] = {
    {RECEIVER, "WHERRY_NCCL_LIBRARY", "/nowhere/libnccl.so.2", "cannot load NCCL"},
    {SOURCE, "WHERRY_NCCL_LIBRARY", "/nowhere/libnccl.so.2", "cannot load NCCL"},
    {RECEIVER, "WHERRY_NCCL_LIBRARY", "libm.so.6", "too old"},
    {SOURCE, "FAKE_NCCL_VERSION", "22000", "both need the same version"},
    {RECEIVER, "FAKE_NCCL_VERSION", "21703", "or newer is needed"},
};

static void be_without(const job_rank *self) {
    const lack *l = self->scene;
    look_remote(self);
    if (self->rank == l->at) {
        setenv(l->name, l->value, 1);
    }
}

static void send_without(job_rank *self) {
    wherry_error error;
    wherry_outcome outcome;
    be_without(self);
    wherry_value *state = make_state(3, LITTLE);
    job_must(self, send_to(self, state, "nccl,stream", &outcome, &error), error);
    wherry_value_destroy(state);
}

static void receive_without(job_rank *self) {
    const lack *l = self->scene;
    wherry_error error;
    wherry_stats stats;
    wherry_value *received;
    be_without(self);
    job_must(self, receive(self, NULL, "nccl,stream", &received, &stats, &error), error);
    job_check(self, strcmp(stats.lane, "stream") == 0, "the lane is %s", stats.lane);
    job_check(self, strstr(stats.reasons, l->words), "no \"%s\" in: %s", l->words, stats.reasons);
    check_state(self, received, LITTLE, 3);
    wherry_value_destroy(received);
}

static void test_lacks(void **state) {
    (void)state;
    bool fine = true;
    for (size_t i = 0; i < sizeof(lacks) / sizeof(*lacks); i++) {
        if (strncmp(lacks[i].name, "FAKE", 4) == 0 && !fake_nccl_find().fail_at) {
            continue;
        }
        job *all = job_open(lacks[i].words, RANKS, false, 0);
        job_start(all, SOURCE, send_without, lacks + i, NULL);
        job_start(all, RECEIVER, receive_without, lacks + i, NULL);
        fine = job_close(all) && fine;
    }
    assert_true(fine);
}

static bool is_there(wherry_error *error) {
    return wh_cuda_check(error) == WHERRY_OK && wh_nccl_find(error);
}

int main(void) {
    if (!job_probe(is_there)) {
        printf("1..0 # SKIP needs a CUDA device and NCCL\n");
        return 0;
    }
    wherry_log_set_level(WHERRY_LOG_OFF);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_well),
        cmocka_unit_test(test_victims),
        cmocka_unit_test(test_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
