/*
 * Transfers of CUDA device memory between processes. The receiver opens the source's memory once
 * and keeps it open if the source allows that, else it closes it. Memory may be mapped. If one
 * process is killed during a transfer, the other one notices soon and can still use the device. The
 * tests use a real device if there is one, else the fake driver.
 */
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/point.h"
#include "lane/cuda_ipc/cuda_ipc.h"
#include "memory/cuda.h"
#include "memory/memory.h"
#include "support/build.h"
#include "support/device_memory.h"
#include "support/fake_driver.h"
#include "support/process_job.h"

enum { SOURCE, RECEIVER, RANKS };

enum { TENSORS = 12, TENSOR_BYTES = (5 << 20) + 64, NOTICE_MS = 2500 * JOB_SLOW };

/** Flags of the job. */
enum { READY, DONE };

static const wherry_device device = {WHERRY_DEVICE_CUDA, 0};

static void fill(job_rank *self, const wherry_storage *storage, uint8_t seed) {
    wherry_error error;
    uint64_t nbytes = wherry_storage_nbytes(storage);
    uint8_t *bytes = malloc(nbytes);
    for (uint64_t i = 0; i < nbytes; i++) {
        bytes[i] = (uint8_t)(seed + 7 * i + (i >> 13));
    }
    job_must(self, wh_memory_cuda.write(wherry_storage_data(storage), bytes, nbytes, &error), error);
    free(bytes);
}

static void check(job_rank *self, const wherry_storage *storage, uint8_t seed) {
    wherry_error error;
    uint64_t nbytes = wherry_storage_nbytes(storage);
    uint8_t *bytes = malloc(nbytes);
    wherry_device place = wherry_storage_device(storage);
    if (place.kind == WHERRY_DEVICE_CPU) {
        memcpy(bytes, wherry_storage_data(storage), nbytes);
    } else {
        job_must(self, wh_cuda_read(place.index, bytes, wherry_storage_data(storage), nbytes, &error), error);
    }
    for (uint64_t i = 0; i < nbytes; i++) {
        job_check(self, bytes[i] == (uint8_t)(seed + 7 * i + (i >> 13)), "byte %llu is wrong", (unsigned long long)i);
    }
    free(bytes);
}

static wherry_value *tensor_over(job_rank *self, wherry_storage *storage) {
    wherry_error error;
    wherry_value *value;
    int64_t size = (int64_t)wherry_storage_nbytes(storage);
    wherry_tensor tensor = {.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = &size};
    job_must(self, wherry_tensor_create(&tensor, &value, &error), error);
    return value;
}

/** Tensors on two devices alternately. If `seed` is 0, they are zero. */
static wherry_value *make_state_on(job_rank *self, uint8_t seed, wherry_device even, wherry_device odd) {
    wherry_error error;
    wherry_value *state;
    job_must(self, wherry_list_create(&state, &error), error);
    for (int i = 0; i < TENSORS; i++) {
        wherry_storage *storage;
        job_must(self, wherry_storage_allocate(TENSOR_BYTES, i % 2 ? odd : even, &storage, &error), error);
        if (seed) {
            fill(self, storage, (uint8_t)(seed + i));
        }
        job_must(self, wherry_sequence_append(state, tensor_over(self, storage), &error), error);
        wherry_storage_unref(storage);
    }
    return state;
}

static wherry_value *make_state(job_rank *self, uint8_t seed) {
    return make_state_on(self, seed, device, device);
}

static void check_state(job_rank *self, const wherry_value *state, uint8_t seed) {
    for (size_t i = 0; i < wherry_sequence_count(state); i++) {
        check(self, wherry_tensor_get(wherry_sequence_at(state, i))->storage, (uint8_t)(seed + i));
    }
}

/** The device must still work in this process, or the error must say that it does not. */
static void check_device(job_rank *self, const wherry_error *reason) {
    wherry_error error;
    wherry_storage *storage;
    wherry_status status = wherry_storage_allocate(4096, device, &storage, &error);
    if (status == WHERRY_OK) {
        fill(self, storage, 3);
        check(self, storage, 3);
        wherry_storage_unref(storage);
    } else {
        job_check(self, strstr(error.message, "is broken") && strstr(reason->message, "is broken"),
                  "the device does not work any more, and the error does not say so: %s; %s", error.message,
                  reason->message);
    }
}

/* ---- open and keep ---- */

enum { TIMES = 4 };

static void send_times(job_rank *self) {
    wherry_error error;
    wherry_value *state = make_state(self, 40);
    for (int i = 0; i < TIMES; i++) {
        wherry_transfer_options options = job_options("cuda_ipc");
        options.flags = i < TIMES - 1 ? WHERRY_SEND_MEMORY_STAYS : 0;
        job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error),
                 error);
    }
    wherry_value_destroy(state);
}

/**
 * Number of allocations that were open when this rank told the source that it is done. From then
 * on, the source may free them.
 */
static size_t open_when_done;

static void look_when_done(const char *name) {
    if (strcmp(name, "receiver said done") == 0) {
        open_when_done = wh_ipc_open_count();
    }
}

static void receive_times(job_rank *self) {
    wherry_error error;
    wh_point_hook = look_when_done;
    wherry_value *target = make_state(self, 0);
    for (int i = 0; i < TIMES; i++) {
        wherry_value *received;
        wherry_stats stats;
        wherry_transfer_options options = job_options("cuda_ipc");
        options.stats = &stats;
        if (i != 1) { /* The second transfer goes into new memory. */
            options.target = job_target;
            options.target_context = target;
        }
        job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
        check_state(self, received, 40);
        job_check(self, strcmp(stats.lane, "cuda_ipc") == 0, "the lane was %s", stats.lane);
        job_check(self, stats.bytes_moved == (uint64_t)TENSORS * TENSOR_BYTES, "%llu bytes moved",
                  (unsigned long long)stats.bytes_moved);
        size_t open = wh_ipc_open_count();
        job_check(self, i < TIMES - 1 ? open > 0 && open <= TENSORS + 1 : open == 0,
                  "%zu allocations are open after transfer %d", open, i);
        job_check(self, open_when_done == open, "%zu allocations were open at the end of transfer %d, and %zu after it",
                  open_when_done, i, open);
        wherry_value_destroy(received);
    }
    wherry_value_destroy(target);
}

static void test_opened_once(void **state) {
    (void)state;
    job *all = job_open("opened once", RANKS, false, 0);
    job_start(all, SOURCE, send_times, NULL, NULL);
    job_start(all, RECEIVER, receive_times, NULL, NULL);
    assert_true(job_close(all));
}

/* ---- how long memory is kept open ---- */

enum { KEEPING, BY_ANOTHER_LANE, KEEPING_AGAIN, TURNS };

enum { THIRD = RANKS };

static const char *lane_of_turn(int turn) {
    return turn == BY_ANOTHER_LANE ? "ring" : "cuda_ipc";
}

static void send_and_die(job_rank *self) {
    wherry_error error;
    wherry_value *state = make_state(self, 30);
    for (int i = 0; i < TURNS; i++) {
        wherry_transfer_options options = job_options(lane_of_turn(i));
        options.flags = i == BY_ANOTHER_LANE ? 0 : WHERRY_SEND_MEMORY_STAYS;
        job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error),
                 error);
    }
    pause();
}

static void await_death(job_rank *self, pid_t process) {
    int pidfd = (int)syscall(SYS_pidfd_open, process, 0);
    struct pollfd watched = {pidfd, POLLIN, 0};
    job_check(self, pidfd < 0 || poll(&watched, 1, JOB_MS) == 1, "process %d does not end", (int)process);
    close(pidfd);
}

static void receive_and_survive(job_rank *self) {
    wherry_error error;
    wherry_value *target = make_state(self, 0);
    bool dies = self->scene != NULL;
    wh_point_hook = look_when_done;
    for (int i = 0; i < TURNS; i++) {
        wherry_value *received;
        wherry_transfer_options options = job_options(lane_of_turn(i));
        options.target = job_target;
        options.target_context = target;
        job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
        check_state(self, received, 30);
        job_check(self, i == BY_ANOTHER_LANE ? open_when_done == 0 : open_when_done > 0,
                  "%zu allocations were open at the end of turn %d", open_when_done, i);
        wherry_value_destroy(received);
    }
    if (dies) {
        pid_t source = atomic_load(&self->job->pids[SOURCE]);
        job_send_signal(self, SOURCE, SIGKILL);
        await_death(self, source);
        wherry_transfer_options options = job_options("stream");
        job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){THIRD}, 1, target, &options, NULL, &error),
                 error);
        job_check(self, wh_ipc_open_count() == 0, "the memory of a process that has ended is still open");
    } else {
        wherry_transport_destroy(self->transport);
        self->transport = NULL;
        job_check(self, wh_ipc_open_count() == 0, "memory is still open after the transport was destroyed");
        job_send_signal(self, SOURCE, SIGKILL);
    }
    wherry_value_destroy(target);
}

static void receive_as_third(job_rank *self) {
    wherry_error error;
    wherry_value *received;
    wherry_transfer_options options = job_options("stream");
    if (self->scene) {
        job_must(self, wherry_checkpoint_recv(self->transport, RECEIVER, &options, &received, &error), error);
        check_state(self, received, 30);
        wherry_value_destroy(received);
    }
}

/**
 * Memory that was kept open is closed when another lane is used, when its process has ended, and
 * when the transport is destroyed.
 */
static void test_kept_memory_is_closed(void **state) {
    (void)state;
    static const char dies[] = "dies";
    for (int i = 0; i < 2; i++) {
        const char *scene = i ? dies : NULL;
        job *all = job_open(i ? "kept, and the source dies" : "kept, and closed", RANKS + 1, false, 0);
        all->expendable[SOURCE] = true;
        job_start(all, SOURCE, send_and_die, scene, NULL);
        job_start(all, RECEIVER, receive_and_survive, scene, NULL);
        job_start(all, THIRD, receive_as_third, scene, NULL);
        assert_true(job_close(all));
    }
}

/* ---- different devices ---- */

/** The devices of the tensors on each side, in turn; -1: the host. */
typedef struct way {
    int32_t from[2];
    int32_t to[2];
} way;

static const way ways[] = {{{0, 0}, {1, 1}}, {{0, 1}, {1, 0}}, {{1, 1}, {0, 1}}, {{1, 0}, {-1, 1}}, {{1, 1}, {-1, -1}}};

enum { WAYS = sizeof(ways) / sizeof(*ways) };

static wherry_value *state_along(job_rank *self, uint8_t seed, const int32_t at[2]) {
    wherry_device places[2];
    for (int i = 0; i < 2; i++) {
        places[i] = at[i] < 0 ? wherry_device_cpu()
                              : (wherry_device){WHERRY_DEVICE_CUDA, at[i] < wh_cuda_device_count() ? at[i] : 0};
    }
    return make_state_on(self, seed, places[0], places[1]);
}

static void send_along(job_rank *self) {
    wherry_error error;
    for (int i = 0; i < WAYS; i++) {
        wherry_value *state = state_along(self, 60, ways[i].from);
        wherry_transfer_options options = job_options(self->scene);
        job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error),
                 error);
        wherry_value_destroy(state);
    }
}

static void receive_along(job_rank *self) {
    wherry_error error;
    for (int i = 0; i < WAYS; i++) {
        wherry_value *received;
        wherry_stats stats;
        wherry_value *target = state_along(self, 0, ways[i].to);
        wherry_transfer_options options = job_options(self->scene);
        options.stats = &stats;
        options.flags = WHERRY_RECV_ANY_DEVICE;
        options.target = job_target;
        options.target_context = target;
        job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
        check_state(self, received, 60);
        job_check(self, strcmp(stats.lane, "cuda_ipc") == 0, "way %d: lane %s: %s", i, stats.lane, stats.reasons);
        wherry_value_destroy(received);
        wherry_value_destroy(target);
    }
}

/** A device can access only its own memory, and memory that was opened for it. */
static void test_other_devices(void **state) {
    (void)state;
    job *all = job_open("other devices", RANKS, false, 0);
    job_start(all, SOURCE, send_along, "cuda_ipc", NULL);
    job_start(all, RECEIVER, receive_along, "cuda_ipc", NULL);
    assert_true(job_close(all));
}

static void receive_without_peers(job_rank *self) {
    wherry_error error;
    wherry_value *received;
    wherry_stats stats;
    setenv("FAKE_CUDA_NO_PEERS", "1", 1);
    wherry_value *target = state_along(self, 0, (int32_t[]){1, 1});
    wherry_transfer_options options = job_options("cuda_ipc,ring");
    options.stats = &stats;
    options.target = job_target;
    options.target_context = target;
    job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
    check_state(self, received, 40);
    job_check(self, !fake_driver_find().count || strcmp(stats.lane, "ring") == 0, "the lane was %s", stats.lane);
    job_check(self, wh_ipc_open_count() == 0, "memory is open for a lane that was not used");
    wherry_value_destroy(received);
    wherry_value_destroy(target);
}

static void send_once(job_rank *self) {
    wherry_error error;
    wherry_value *state = make_state(self, 40);
    wherry_transfer_options options = job_options("cuda_ipc,ring");
    job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error),
             error);
    wherry_value_destroy(state);
}

/** If devices cannot access each other's memory, it is staged through the host. */
static void test_no_peers(void **state) {
    (void)state;
    job *all = job_open("no peers", RANKS, false, 0);
    job_start(all, SOURCE, send_once, NULL, NULL);
    job_start(all, RECEIVER, receive_without_peers, NULL, NULL);
    assert_true(job_close(all));
}

/* ---- one device of several ---- */

static void check_contexts(job_rank *self) {
    fake_driver fake = fake_driver_find();
    job_check(self, !fake.contexts || fake.contexts() == 1U << 1, "there are contexts on other devices: %x",
              fake.contexts ? fake.contexts() : 0);
}

static void send_of_second(job_rank *self) {
    wherry_error error;
    wherry_value *state = state_along(self, 50, (int32_t[]){1, 1});
    wherry_transfer_options options = job_options(self->scene);
    job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error),
             error);
    check_contexts(self);
    wherry_value_destroy(state);
}

static void receive_to_second(job_rank *self) {
    wherry_error error;
    wherry_value *received;
    wherry_value *target = state_along(self, 0, (int32_t[]){1, 1});
    wherry_transfer_options options = job_options(self->scene);
    options.target = job_target;
    options.target_context = target;
    job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
    check_state(self, received, 50);
    check_contexts(self);
    wherry_value_destroy(received);
    wherry_value_destroy(target);
}

/** A context takes hundreds of MiB of its device. A device without tensors gets none. */
static void test_one_device_of_several(void **state) {
    (void)state;
    static const char *const lanes[] = {"cuda_ipc", "ring"};
    for (size_t i = 0; i < 2; i++) {
        job *all = job_open(lanes[i], RANKS, false, 0);
        job_start(all, SOURCE, send_of_second, lanes[i], NULL);
        job_start(all, RECEIVER, receive_to_second, lanes[i], NULL);
        assert_true(job_close(all));
    }
}

/* ---- mapped memory ---- */

enum { PIECE = 4 << 20, PIECES = 3 };

static wherry_value *mapped_state(job_rank *self, uint8_t seed) {
    wherry_error error;
    wherry_value *state;
    wherry_storage *storage;
    char *memory = map_device_pieces(PIECE, PIECES);
    job_check(self, memory != NULL, "memory cannot be mapped");
    job_must(self, wherry_list_create(&state, &error), error);
    wherry_device unsaid = {WHERRY_DEVICE_CUDA, -1};
    job_must(self,
             wherry_storage_wrap(memory + 512, (uint64_t)PIECE * PIECES - 1024, unsaid, NULL, NULL, &storage, &error),
             error);
    job_check(self, wherry_storage_device(storage).index == 0, "the device was not found from the address");
    fill(self, storage, seed);
    job_must(self, wherry_sequence_append(state, tensor_over(self, storage), &error), error);
    wherry_storage_unref(storage);
    return state;
}

/** If the driver does not export mappings, the reason says so, with the driver's answer. */
static void check_refusal(job_rank *self, const wherry_value *state) {
    const void *data = wherry_storage_data(wherry_tensor_get(wherry_sequence_at(state, 0))->storage);
    wh_cuda_allocation allocation;
    wherry_error error;
    if (!fake_driver_find().shadow) {
        return; /* A real driver cannot be made to fail. */
    }
    setenv("FAKE_CUDA_NO_IPC", "1", 1);
    job_check(self, wh_cuda_describe(data, &allocation, &error) == WHERRY_UNSUPPORTED,
              "the memory was described, although it cannot be shared");
    unsetenv("FAKE_CUDA_NO_IPC");
    job_check(self, strstr(error.message, "was not allocated for sharing") && strstr(error.message, "(801)"),
              "the reason is \"%s\"", error.message);
}

static void send_mapped(job_rank *self) {
    wherry_error error;
    wherry_value *state = mapped_state(self, 90);
    check_refusal(self, state);
    for (int i = 0; i < 2; i++) {
        wherry_transfer_options options = job_options(i ? "ring" : "cuda_ipc");
        job_must(self, wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error),
                 error);
    }
    wherry_value_destroy(state);
}

static void receive_mapped(job_rank *self) {
    wherry_error error;
    wherry_value *target = mapped_state(self, 1);
    for (int i = 0; i < 2; i++) {
        wherry_value *received;
        wherry_transfer_options options = job_options(i ? "ring" : "cuda_ipc");
        options.target = job_target;
        options.target_context = target;
        job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
        check_state(self, received, 90);
        job_check(self, wh_ipc_open_count() == 0, "mappings stay open");
        fill(self, wherry_tensor_get(wherry_sequence_at(target, 0))->storage, 1);
        wherry_value_destroy(received);
    }
    wherry_value_destroy(target);
}

static void test_mapped_memory(void **state) {
    (void)state;
    job *all = job_open("mapped memory", RANKS, false, 0);
    job_start(all, SOURCE, send_mapped, NULL, NULL);
    job_start(all, RECEIVER, receive_mapped, NULL, NULL);
    assert_true(job_close(all));
}

/* ---- killed in the middle ---- */

typedef struct scene {
    const char *lane;
    int32_t victim;
    job_signal plan;
} scene;

static void judge(job_rank *self, wherry_status status, const wherry_error *error) {
    double ms = job_ms_since_signal(self->job);
    job_check(self, status == WHERRY_PEER_LOST, "%s: %s", wherry_status_name(status), error->message);
    job_check(self, ms < NOTICE_MS, "it took %.0f ms to notice", ms);
    check_device(self, error);
}

static void send_to_stopped(job_rank *self) {
    const scene *s = self->scene;
    wherry_error error = {.status = WHERRY_OK};
    wherry_value *state = make_state(self, 20);
    wherry_transfer_options options = job_options(s->lane);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error);
    judge(self, status, &error);
    wherry_value_destroy(state);
}

static void receive_until_stopped(job_rank *self) {
    const scene *s = self->scene;
    wherry_error error = {.status = WHERRY_OK};
    wherry_value *received;
    wherry_value *target = make_state(self, 0);
    wherry_transfer_options options = job_options(s->lane);
    options.target = job_target;
    options.target_context = target;
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error);
    judge(self, status, &error);
    wherry_value_destroy(target);
}

static void test_killed(void **state) {
    (void)state;
    static const scene scenes[] = {
        {"cuda_ipc", SOURCE, {"receiver opened a chunk", 3, SOURCE, SIGKILL}},
        {"cuda_ipc", RECEIVER, {"receiver opened a chunk", 3, RECEIVER, SIGKILL}},
        {"ring", SOURCE, {"receiver closed a chunk", 3, SOURCE, SIGKILL}},
        {"ring", RECEIVER, {"receiver closed a chunk", 3, RECEIVER, SIGKILL}},
    };
    for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
        job *all = job_open(scenes[i].lane, RANKS, true, 0);
        all->expendable[scenes[i].victim] = true;
        job_start(all, SOURCE, send_to_stopped, scenes + i, NULL);
        job_start(all, RECEIVER, receive_until_stopped, scenes + i, &scenes[i].plan);
        assert_true(job_close(all));
    }
}

/* ---- one of two sources is killed in the middle ---- */

enum { OTHER = RANKS, THREE, STEP = 4 };

static void send_beside(job_rank *self) {
    const scene *s = self->scene;
    wherry_error error;
    wherry_value *state = make_state(self, 20);
    wherry_transfer_options options = job_options(s->lane);
    options.step = STEP;
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, state, &options, NULL, &error);
    job_check(self, self->rank == s->victim || status == WHERRY_OK, "%s", error.message);
    wherry_value_destroy(state);
}

static void receive_from_both(job_rank *self) {
    const scene *s = self->scene;
    wherry_error error;
    wherry_value *target = make_state(self, 0);
    wherry_transfer_options options = job_options(s->lane);
    options.step = STEP;
    options.target = job_target;
    options.target_context = target;
    job_must(self, wherry_checkpoint_recv_from(self->transport, (int32_t[]){SOURCE, OTHER}, 2, &options, NULL, &error),
             error);
    check_state(self, target, 20);
    wherry_value_destroy(target);
}

static void test_another_source_replaces_a_killed_one(void **state) {
    (void)state;
    static const char *const lanes[] = {"cuda_ipc", "ring"};
    for (int i = 0; i < 4; i++) {
        int32_t victim = i % 2 ? OTHER : SOURCE;
        scene s = {
            lanes[i / 2], victim, {i / 2 ? "receiver closed a chunk" : "receiver opened a chunk", 3, victim, SIGKILL}};
        job *all = job_open(s.lane, THREE, false, 0);
        all->expendable[victim] = true;
        job_start(all, SOURCE, send_beside, &s, NULL);
        job_start(all, RECEIVER, receive_from_both, &s, &s.plan);
        job_start(all, OTHER, send_beside, &s, NULL);
        assert_true(job_close(all));
    }
}

static bool has_device(wherry_error *error) {
    return wh_cuda_check(error) == WHERRY_OK;
}

int main(void) {
    if (!job_probe(has_device)) {
        printf("1..0 # SKIP needs a CUDA device\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opened_once),
        cmocka_unit_test(test_kept_memory_is_closed),
        cmocka_unit_test(test_other_devices),
        cmocka_unit_test(test_no_peers),
        cmocka_unit_test(test_one_device_of_several),
        cmocka_unit_test(test_mapped_memory),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_another_source_replaces_a_killed_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
