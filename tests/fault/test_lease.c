/*
 * The lease: once a send has returned, with success or not, the source's memory may change or be
 * freed. A receiver that was stopped meanwhile never reports success. A receiver that is stopped
 * does not delay another one.
 */
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/asleep.h"
#include "support/build.h"
#include "support/process_job.h"

enum { SOURCE, RECEIVER, OTHER };

/** Flags of the job. */
enum { SENDING, WOKEN, ROUND_OVER };

/** The other rank must reach its point before the timeout, also on a busy machine. */
enum { TIMEOUT_MS = 4000, AT_ONCE = 12, SCENES_MAX = 100 };

/**
 * How the send or the receive ends while the other side is stopped, and what then happens to the
 * source's memory.
 */
typedef enum ending { TIME_OUT, CANCEL } ending;
typedef enum fate { OVERWRITE, UNMAP } fate;

typedef struct scene {
    char name[120];
    const char *point;
    int count;
    int32_t stopped;
    const char *lane;
    bool tcp;
    ending end;
    fate memory;
    bool in_place;
    bool many; /**< With this many tensors, the offer does not fit into a socket's buffer. */
    wherry_verify verify;
} scene;

static const char *const lanes[] = {"cma", "ring", "stream"};

static job_state sent;
static job_state second;
static job_state target;
static job_state before;
static wherry_value *many;

static wherry_transfer_options options_of(const scene *s) {
    wherry_transfer_options options = job_options(s->lane);
    options.verify = s->verify;
    options.threads = 2;
    return options;
}

/** A call that ends early: by a timeout, or because another thread cancels it. */
typedef struct hurry {
    job_rank *self;
    wherry_cancel *cancel;
    pthread_t thread;
} hurry;

/** Cancels the call once the other side is stopped and the call waits for it. */
static void *cancel_later(void *context) {
    const hurry *h = context;
    const scene *s = h->self->scene;
    job_await_signal(h->self);
    job_await_asleep(h->self, s->stopped);
    wh_await_asleep(getpid());
    wherry_cancel_request(h->cancel);
    return NULL;
}

static void hurry_begin(job_rank *self, hurry *h, wherry_transfer_options *options) {
    const scene *s = self->scene;
    wherry_error error;
    if (s->end == TIME_OUT) {
        options->timeout_ms = TIMEOUT_MS;
        return;
    }
    job_must(self, wherry_cancel_create(&h->cancel, &error), error);
    h->self = self;
    options->cancel = h->cancel;
    job_check(self, pthread_create(&h->thread, NULL, cancel_later, h) == 0, "no thread");
}

static void hurry_end(job_rank *self, hurry *h, wherry_status status, const wherry_error *error) {
    const scene *s = self->scene;
    wherry_status expected = s->end == TIME_OUT ? WHERRY_TIMED_OUT : WHERRY_CANCELLED;
    if (s->end == CANCEL) {
        pthread_join(h->thread, NULL);
        wherry_cancel_destroy(h->cancel);
    }
    job_check(self, status == expected, "%s instead of %s: %s", wherry_status_name(status),
              wherry_status_name(expected), status == WHERRY_OK ? "" : error->message);
    job_check(self, expected != WHERRY_TIMED_OUT || strstr(error->message, "timed out"), "no \"timed out\" in: %s",
              error->message);
    double ms = job_ms_since_signal(self->job);
    job_check(self, ms < TIMEOUT_MS + 5000 * JOB_SLOW, "it took %.0f ms to end: %s", ms, error->message);
}

/** Changes the memory immediately after the send has returned. */
static void spoil(job_state *state, fate memory) {
    if (memory == UNMAP) {
        munmap(state->memory, state->bytes);
    } else {
        memset(state->memory, 0x5A, state->bytes);
    }
}

/** An ordinary transfer, which must succeed. */
static void transfer_again(job_rank *self) {
    wherry_transfer_options options = options_of(self->scene);
    wherry_error error;
    wherry_value *received;
    if (self->rank == SOURCE) {
        job_must(
            self,
            wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, second.value, &options, NULL, &error),
            error);
    } else {
        job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
        job_check(self, job_state_equals(&second, received), "the second state differs");
        wherry_value_destroy(received);
    }
}

/* ---- the receiver is stopped ---- */

static void revoking_source(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    hurry h = {0};
    job_announce(self, SENDING);
    hurry_begin(self, &h, &options);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    spoil(&sent, s->memory);
    hurry_end(self, &h, status, &error);
    job_send_signal(self, RECEIVER, SIGCONT);
    job_await(self, WOKEN);
    transfer_again(self);
}

static void revoked_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    wherry_report *report;
    wherry_value *received;
    options.report_p = &report;
    if (s->in_place) {
        options.target = job_target;
        options.target_context = target.value;
    }
    job_await(self, SENDING);
    job_await_asleep(self, SOURCE);
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error);
    job_check(self, status == WHERRY_REVOKED, "%s instead of revoked: %s", wherry_status_name(status),
              status == WHERRY_OK ? "" : error.message);
    job_check(self, error.status == status && error.rank == SOURCE, "the error is about rank %d", (int)error.rank);
    if (s->in_place) {
        job_check_report(self, report, &error, &target, &before, NULL);
    }
    wherry_report_destroy(report);
    job_announce(self, WOKEN);
    transfer_again(self);
}

/* ---- the source is stopped ---- */

/** A receiver that gives up before it has the offer may ask again. The same send serves it. */
static bool is_asked_again(const scene *s) {
    return strcmp(s->point, "source was asked") == 0;
}

static void stopped_source(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    job_announce(self, SENDING);
    wherry_status status =
        wherry_checkpoint_send(self->transport, (int32_t[]){RECEIVER}, 1, sent.value, &options, NULL, &error);
    /*
     * If the receiver has said that it has everything, the source confirms that. It cannot know
     * that the receiver no longer waits for the confirmation.
     */
    bool late = strcmp(s->point, "source was told done") == 0 || strcmp(s->lane, "cma") == 0;
    bool right = status == WHERRY_OK ? late || is_asked_again(s) : status == WHERRY_ABORTED && !is_asked_again(s);
    job_check(self, right, "the stopped send: %s: %s", wherry_status_name(status),
              status == WHERRY_OK ? "" : error.message);
    job_announce(self, WOKEN);
    transfer_again(self);
}

static void leaving_receiver(job_rank *self) {
    const scene *s = self->scene;
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    wherry_report *report;
    wherry_value *received;
    hurry h = {0};
    job_await(self, SENDING);
    job_await_asleep(self, SOURCE);
    hurry_begin(self, &h, &options);
    options.target = job_target;
    options.target_context = target.value;
    options.report_p = &report;
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error);
    job_check(self, status != WHERRY_OK, "the receive succeeded without the source");
    job_check_report(self, report, &error, &target, &before, &sent);
    wherry_report_destroy(report);
    memcpy(target.memory, before.memory, before.bytes);
    hurry_end(self, &h, status, &error);
    job_send_signal(self, SOURCE, SIGCONT);
    if (is_asked_again(s)) {
        options = options_of(s);
        job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
        job_check(self, job_state_equals(&sent, received), "the state of the second receive differs");
        wherry_value_destroy(received);
    }
    job_await(self, WOKEN);
    transfer_again(self);
    job_check(self, memcmp(target.memory, before.memory, before.bytes) == 0,
              "the target was written after the receive had returned");
}

/* ---- one of two receivers is stopped ---- */

static const wherry_value *state_of(const scene *s) {
    return s->many ? many : sent.value;
}

static void two_source(job_rank *self) {
    const scene *s = self->scene;
    static const int32_t both[] = {RECEIVER, OTHER};
    wherry_transfer_options options = options_of(s);
    wherry_error error;
    wherry_outcome outcomes[2];
    job_must(self, wherry_checkpoint_send(self->transport, both + 1, 1, state_of(s), &options, NULL, &error), error);
    job_await(self, ROUND_OVER);
    job_announce(self, SENDING);
    options.timeout_ms = 4L * TIMEOUT_MS;
    wherry_status status = wherry_checkpoint_send(self->transport, both, 2, state_of(s), &options, outcomes, &error);
    job_check(self, outcomes[1].status == WHERRY_OK, "the good receiver: %s: %s",
              wherry_status_name(outcomes[1].status), outcomes[1].status == WHERRY_OK ? "" : outcomes[1].error.message);
    job_check(self, status == WHERRY_TIMED_OUT && outcomes[0].status == status && error.rank == RECEIVER,
              "the stopped receiver: %s: %s", wherry_status_name(outcomes[0].status), error.message);
    job_send_signal(self, RECEIVER, SIGCONT);
    job_await(self, WOKEN);
}

static void two_stopped(job_rank *self) {
    wherry_transfer_options options = options_of(self->scene);
    wherry_error error;
    wherry_value *received;
    job_await(self, SENDING);
    wherry_status status = wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error);
    job_check(self, status == WHERRY_REVOKED, "%s instead of revoked: %s", wherry_status_name(status),
              status == WHERRY_OK ? "" : error.message);
    job_announce(self, WOKEN);
}

static double receive_good(job_rank *self) {
    wherry_transfer_options options = options_of(self->scene);
    wherry_error error;
    wherry_value *received;
    uint64_t begin = wh_clock_now();
    job_must(self, wherry_checkpoint_recv(self->transport, SOURCE, &options, &received, &error), error);
    double seconds = (double)(wh_clock_now() - begin) * 1e-9;
    job_check(self, wherry_value_compare(state_of(self->scene), received, WHERRY_COMPARE_ALL, NULL) == WHERRY_OK,
              "the good receiver's state differs");
    wherry_value_destroy(received);
    return seconds;
}

static void two_good(job_rank *self) {
    double usual = receive_good(self);
    job_announce(self, ROUND_OVER);
    job_await_signal(self);
    job_await_asleep(self, RECEIVER); /* stopped */
    double beside = receive_good(self);
    /* far less than the timeout of the send, for which only the stopped receiver may wait */
    job_check(self, beside < 3 * usual + 2e-3 * TIMEOUT_MS,
              "%.0f ms with a stopped receiver, %.0f ms without it: the stopped receiver delayed the other one",
              beside * 1e3, usual * 1e3);
}

/* ---- running the cases ---- */

static job *start(scene *s, const job_body *parts, int32_t ranks) {
    static const char *const endings[] = {"timeout", "cancel"};
    static const char *const fates[] = {"overwritten", "unmapped"};
    job_signal plan = {s->point, s->count, s->stopped, SIGSTOP};
    snprintf(s->name, sizeof(s->name), "\"%s\", %s, %s%s%s, %s%s", s->point, s->lane, endings[s->end],
             s->in_place ? ", in place" : "", s->tcp ? ", tcp" : "", fates[s->memory], s->many ? ", many" : "");
    job *all = job_open(s->name, ranks, s->tcp, 60000);
    for (int32_t rank = 0; rank < ranks; rank++) {
        job_start(all, rank, parts[rank], s, rank == s->stopped ? &plan : NULL);
    }
    return all;
}

static void run(scene *scenes, size_t count, const job_body *parts, int32_t ranks, size_t at_once) {
    size_t failed = 0;
    for (size_t first = 0; first < count; first += at_once) {
        job *at_work[AT_ONCE];
        size_t some = count - first < at_once ? count - first : at_once;
        for (size_t i = 0; i < some; i++) {
            at_work[i] = start(scenes + first + i, parts, ranks);
        }
        for (size_t i = 0; i < some; i++) {
            failed += !job_close(at_work[i]);
        }
    }
    assert_int_equal(failed, 0);
}

static void test_receiver_is_stopped(void **state) {
    (void)state;
    static const struct {
        const char *point;
        int count;
    } points[] = {{"receiver asked", 1},          {"receiver has the offer", 1},  {"receiver planned", 1},
                  {"receiver probed", 1},         {"receiver sent the plan", 1},  {"receiver opened a chunk", 1},
                  {"receiver opened a chunk", 3}, {"receiver closed a chunk", 2}, {"receiver has all bytes", 1}};
    static const job_body parts[] = {revoking_source, revoked_receiver};
    scene scenes[SCENES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
        for (size_t k = 0; k < 3; k++) {
            for (int memory = OVERWRITE; memory <= UNMAP; memory++) {
                scenes[count] = (scene){.point = points[i].point,
                                        .count = points[i].count,
                                        .stopped = RECEIVER,
                                        .lane = lanes[k],
                                        .end = (i + (size_t)memory) % 2 ? CANCEL : TIME_OUT,
                                        .memory = (fate)memory,
                                        .in_place = (i + k) % 2,
                                        .verify = i % 3 == 0 ? WHERRY_VERIFY_ON : WHERRY_VERIFY_OFF};
                scenes[count].tcp = k == 2 && memory == OVERWRITE;
                count++;
            }
        }
    }
    run(scenes, count, parts, 2, AT_ONCE);
}

static void test_source_is_stopped(void **state) {
    (void)state;
    static const char *const points[] = {"source was asked", "source offered", "source has the plan",
                                         "source gathers a chunk", "source was told done"};
    static const job_body parts[] = {stopped_source, leaving_receiver};
    scene scenes[SCENES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
        for (size_t k = strcmp(points[i], "source gathers a chunk") == 0; k < 3; k++) {
            scenes[count++] = (scene){.point = points[i],
                                      .count = 1,
                                      .stopped = SOURCE,
                                      .lane = lanes[k],
                                      .end = (i + k) % 2 ? CANCEL : TIME_OUT};
        }
    }
    run(scenes, count, parts, 2, AT_ONCE);
}

static void test_one_of_two_receivers_is_stopped(void **state) {
    (void)state;
    static const char *const points[] = {"receiver asked", "receiver sent the plan", "receiver opened a chunk",
                                         "receiver has all bytes"};
    static const job_body parts[] = {two_source, two_stopped, two_good};
    scene scenes[SCENES_MAX];
    size_t count = 0;
    for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
        for (size_t k = 0; k < 3; k++) {
            scenes[count++] = (scene){.point = points[i], .count = 1, .stopped = RECEIVER, .lane = lanes[k]};
        }
    }
    for (size_t k = 0; k < 3; k++) {
        scenes[count++] =
            (scene){.point = "receiver asked", .count = 1, .stopped = RECEIVER, .lane = lanes[k], .many = true};
    }
    run(scenes, count, parts, 3, 2);
}

static wherry_value *make_many(void) {
    wherry_value *list = build_list(NULL);
    for (int64_t i = 0; i < 40000; i++) {
        int64_t bytes = 8;
        must(wherry_sequence_append(list, build_tensor(build_storage(8, (uint8_t)i), WHERRY_U8, 0, 1, &bytes, NULL),
                                    NULL));
    }
    return list;
}

static int set_up(void **state) {
    (void)state;
    wherry_log_set_level(WHERRY_LOG_OFF);
    sent = job_state_create(1);
    second = job_state_create(3);
    target = job_state_create(2);
    before = job_state_create(2);
    many = make_many();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    job_state_destroy(&sent);
    job_state_destroy(&second);
    job_state_destroy(&target);
    job_state_destroy(&before);
    wherry_value_destroy(many);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_receiver_is_stopped),
        cmocka_unit_test(test_source_is_stopped),
        cmocka_unit_test(test_one_of_two_receivers_is_stopped),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
