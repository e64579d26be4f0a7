#include "conformance/lane_trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "support/build.h"

/*
 * Tags of the messages between the sides. They differ per trial, so that no message is left for the
 * next one.
 */
enum { TAG_OFFER, TAG_REQUEST, TAG_ROUND, TAG_ASSISTED, TAGS };
enum { STEP_MS = 5, OTHER_SEED = 4711, MESSAGE_MAX = WH_LANE_OFFER_MAX + 1 };

static uint64_t trial_number;

lane_trial lane_trial_of(const wh_lane_ops *ops, lane_data *data) {
    data->claims = ops->traits & WH_LANE_DIGESTS;
    return (lane_trial){.ops = ops,
                        .data = data,
                        .source_threads = 2,
                        .receiver_threads = 2,
                        .no_progress_ms = 10000,
                        .rounds = {{1, 0}},
                        .round_count = 1};
}

typedef struct joiner {
    const wh_group_kind *kind;
    void *place;
    int32_t rank;
    wh_group *group;
} joiner;

static void *join_place(void *context) {
    joiner *j = context;
    j->group = j->kind->join(j->place, j->rank);
    return NULL;
}

lane_world lane_world_open(const wh_group_kind *kind) {
    lane_world world = {.kind = kind, .place = kind->open(2)};
    joiner source = {kind, world.place, 0, NULL};
    joiner receiver = {kind, world.place, 1, NULL};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, join_place, &source), 0);
    join_place(&receiver);
    pthread_join(thread, NULL);
    assert_non_null(source.group);
    assert_non_null(receiver.group);
    world.source = source.group;
    world.receiver = receiver.group;
    return world;
}

void lane_world_close(lane_world *world) {
    wh_group_destroy(world->source);
    wh_group_destroy(world->receiver);
    world->kind->close(world->place);
}

void lane_side_begin(lane_side *side, const lane_trial *trial, wh_group *group, bool is_source) {
    *side = (lane_side){.stop = {.event = -1}};
    side->site = (wh_lane_site){
        .group = group,
        .peer = 1 - group->rank,
        .tag = WH_TAG_CONVERSATION | trial_number,
        .threads = is_source ? trial->source_threads : trial->receiver_threads,
        .stop = &side->stop,
        .deadline = wh_deadline_in_ms(TRIAL_DEADLINE_MS),
        .no_progress_ms = trial->no_progress_ms,
        .ordered = true, /* The suite chooses this lane by its name. */
        .channels = side->channels,
    };
    side->status = wh_stop_init(&side->stop, &side->error);
    if (side->status == WHERRY_OK && is_source) {
        side->status = wh_inbox_open(group, side->site.tag, &side->inbox, &side->error);
    }
}

void lane_side_finish(lane_side *side, const wh_lane_ops *ops) {
    ops->close(side->end);
    side->end = NULL;
    for (size_t i = 0; i < side->site.channel_count; i++) {
        wh_socket_close(&side->channels[i]);
    }
    side->site.channel_count = 0;
    wh_inbox_close(side->inbox);
    side->inbox = NULL;
    wh_stop_destroy(&side->stop);
}

/** Waits for the peer's next channel, and closes all unexpected ones. */
static wherry_status take_channel(lane_side *side) {
    wh_message message;
    wherry_status status = wh_inbox_take(side->inbox, side->site.deadline, &message, &side->error);
    if (status != WHERRY_OK) {
        return status;
    }
    if (message.kind == WH_MESSAGE_LOST) {
        status = wh_fail(&side->error, WHERRY_PEER_LOST, "the peer was lost");
    } else if (message.kind == WH_MESSAGE_CHANNEL && message.rank == side->site.peer &&
               side->site.channel_count < TRIAL_CHANNELS) {
        side->channels[side->site.channel_count++] = message.channel;
        message.channel = WH_NO_SOCKET;
    }
    wh_message_clear(&message);
    return status;
}

void lane_side_accept(lane_side *side, const wh_lane_ops *ops, const void *request, size_t size) {
    bool ready = false;
    while (side->status == WHERRY_OK && ops->accept && !ready) {
        ready = true;
        side->status = ops->accept(&side->site, request, size, &ready, &side->end, &side->error);
        if (side->status == WHERRY_OK && ready) {
            side->site.channel_count = 0; /* The end owns all of the channels now. */
        } else if (side->status == WHERRY_OK) {
            side->status = take_channel(side);
        }
    }
    if (side->end && (side->end->workers < 1 || side->end->workers > side->site.threads)) {
        side->status = wh_fail(&side->error, WHERRY_INTERNAL, "accept: %u workers, but %u threads allowed",
                               side->end->workers, side->site.threads);
    }
}

typedef struct worker {
    const lane_trial *trial;
    lane_side *side;
    uint32_t number;
    wherry_status status;
    wherry_error error;
} worker;

static void *work(void *context) {
    worker *own = context;
    const wh_lane_ops *ops = own->trial->ops;
    bool steps = ops->traits & WH_LANE_GROUP;
    bool again = true;
    wh_sink sink = lane_data_sink(own->trial->data);
    wh_feed feed = lane_data_feed(own->trial->data);
    sink.wait_ms = feed.wait_ms = STEP_MS;
    sink.again_p = feed.again_p = steps ? &again : NULL;
    for (own->status = WHERRY_OK; own->status == WHERRY_OK && again;) {
        again = false;
        own->status = own->side == &own->trial->receiver ? ops->pull(own->side->end, own->number, &sink, &own->error)
                                                         : ops->push(own->side->end, own->number, &feed, &own->error);
    }
    if (own->status != WHERRY_OK) {
        wh_stop_request(&own->side->stop);
    }
    return NULL;
}

/** One side's work in a round. The side's error is the first one that was not caused by a stop. */
static void run_workers(lane_trial *trial, lane_side *side) {
    uint32_t count = side->end->workers;
    worker *workers = calloc(count, sizeof(*workers));
    pthread_t *threads = calloc(count, sizeof(*threads));
    for (uint32_t i = 0; i < count; i++) {
        workers[i] = (worker){.trial = trial, .side = side, .number = i};
        if (pthread_create(threads + i, NULL, work, workers + i) != 0) {
            abort();
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        const worker *own = workers + i;
        if (own->status != WHERRY_OK && own->error.status != own->status) {
            trial->data->wrong = "a worker failed, but its error has no message";
        }
        if (own->status != WHERRY_OK && (side->status == WHERRY_OK || side->status == WHERRY_CANCELLED)) {
            side->status = own->status;
            side->error = own->error;
        }
    }
    side->ended = wh_clock_now();
    free(workers);
    free(threads);
}

static void tell(lane_side *side, uint64_t tag, const void *bytes, size_t size) {
    if (side->status == WHERRY_OK) {
        side->status = wh_group_send(side->site.group, side->site.peer, trial_number * TAGS + tag, bytes, size,
                                     side->site.deadline, &side->error);
    }
}

/** Receives a message into a buffer; fails if it is too long. @return its length. */
static size_t hear(lane_side *side, uint64_t tag, void *bytes, size_t size) {
    wh_message message;
    if (side->status == WHERRY_OK) {
        side->status = wh_group_receive(side->site.group, side->site.peer, trial_number * TAGS + tag,
                                        side->site.deadline, &message, &side->error);
    }
    if (side->status != WHERRY_OK) {
        return 0;
    }
    size_t got = message.size;
    if (got > size) {
        side->status = wh_fail(&side->error, WHERRY_INTERNAL, "an offer or a request of %zu bytes is too long", got);
    } else if (got > 0) {
        memcpy(bytes, message.bytes, got);
    }
    wh_message_clear(&message);
    return side->status == WHERRY_OK ? got : 0;
}

/** The source, from the offer on. The first byte of a request is 1 if it asks for assistance. */
static void run_source(lane_trial *trial) {
    lane_side *side = &trial->source;
    const wh_lane_ops *ops = trial->ops;
    uint8_t request[MESSAGE_MAX] = {0};
    wh_string offer = {0};
    if (side->status == WHERRY_OK) {
        side->status = ops->offer(&side->site, &offer, &side->error);
    }
    tell(side, TAG_OFFER, offer.bytes, offer.size);
    wh_free(offer.bytes);
    size_t size = hear(side, TAG_REQUEST, request, sizeof(request));
    while (side->status == WHERRY_OK && request[0] == 1) {
        wherry_status assisted = ops->assist ? ops->assist(&side->site, request + 1, size - 1, &side->error)
                                             : wh_fail(&side->error, WHERRY_UNSUPPORTED, "no assist function");
        tell(side, TAG_ASSISTED, &assisted, sizeof(assisted));
        size = hear(side, TAG_REQUEST, request, sizeof(request));
    }
    if (size > 0) {
        lane_side_accept(side, ops, request + 1, size - 1);
    }
    lane_round round;
    while (side->status == WHERRY_OK && hear(side, TAG_ROUND, &round, sizeof(round)) == sizeof(round)) {
        lane_data_begin_feed(trial->data, round);
        if (side->end && !trial->idle_source) {
            run_workers(trial, side);
        }
        if (side->status == WHERRY_OK && side->end && !trial->idle_source &&
            trial->data->feed_moved != lane_data_bytes(trial->data, round, false)) {
            trial->data->wrong = "the source reported another number of moved bytes than the round has";
        }
        if (side->status == WHERRY_OK && side->end && ops->traits & WH_LANE_STAGES &&
            trial->data->done_chunks != trial->data->gathered_chunks) {
            trial->data->wrong = "the lane did not report each gathered chunk as read";
        }
    }
}

/** Probes, with the source's help if the lane wants it. */
static void probe(lane_trial *trial) {
    lane_side *side = &trial->receiver;
    uint8_t offer[WH_LANE_OFFER_MAX];
    wh_string request = {0};
    bool assist = true;
    size_t size = hear(side, TAG_OFFER, offer, sizeof(offer));
    for (int tries = 0; tries < 2 && assist && (side->status == WHERRY_OK || tries > 0); tries++) {
        assist = false;
        wh_free(request.bytes);
        request = (wh_string){0};
        wh_string_append(&request, "", 1);
        side->status = trial->ops->probe(&side->site, offer, size, &request, &assist, &side->end, &side->error);
        if (side->status != WHERRY_OK && assist && tries == 0) {
            wherry_status assisted;
            request.bytes[0] = 1;
            side->status = WHERRY_OK;
            tell(side, TAG_REQUEST, request.bytes, request.size);
            hear(side, TAG_ASSISTED, &assisted, sizeof(assisted));
        }
    }
    tell(side, TAG_REQUEST, request.bytes, request.size);
    wh_free(request.bytes);
    if (side->end && (side->end->workers < 1 || side->end->workers > side->site.threads)) {
        side->status = wh_fail(&side->error, WHERRY_INTERNAL, "probe: %u workers, but %u threads allowed",
                               side->end->workers, side->site.threads);
    }
}

/** The receiver. It announces each round and the end, even after a failure. */
static void run_receiver(lane_trial *trial) {
    lane_side *side = &trial->receiver;
    probe(trial);
    for (size_t i = 0; i < trial->round_count && side->status == WHERRY_OK; i++) {
        lane_round round = trial->rounds[i];
        lane_data_begin_sink(trial->data, round);
        tell(side, TAG_ROUND, &round, sizeof(round));
        if (side->status == WHERRY_OK && !trial->idle_receiver) {
            run_workers(trial, side);
        }
        const char *wrong =
            side->status == WHERRY_OK && !trial->idle_receiver ? lane_data_check(trial->data) : trial->data->wrong;
        if (wrong) {
            side->status = wh_fail(&side->error, WHERRY_INTERNAL, "round %zu: %s", i, wrong);
        }
    }
    lane_side over = {.site = side->site};
    if (!side->end) {
        tell(&over, TAG_REQUEST, "", 0);
    }
    tell(&over, TAG_ROUND, "", 0);
}

static void *source_thread(void *context) {
    run_source(context);
    return NULL;
}

void lane_trial_run(lane_trial *trial, const lane_world *world) {
    pthread_t thread;
    trial_number++;
    lane_side_begin(&trial->source, trial, world->source, true);
    lane_side_begin(&trial->receiver, trial, world->receiver, false);
    trial->data->feed_stop = &trial->source.stop;
    trial->data->sink_stop = &trial->receiver.stop;
    atomic_store(&trial->begun, true);
    assert_int_equal(pthread_create(&thread, NULL, source_thread, trial), 0);
    run_receiver(trial);
    pthread_join(thread, NULL);
    if (trial->stopper) {
        pthread_join(*trial->stopper, NULL);
    }
    lane_side_finish(&trial->receiver, trial->ops);
    lane_side_finish(&trial->source, trial->ops);
}

static int source_process(lane_trial *trial, const wh_group_kind *kind, void *place, int32_t rank) {
    wh_group *group = kind->join(place, rank);
    if (!group) {
        return 2;
    }
    lane_data_fill(trial->data, OTHER_SEED);
    lane_side_begin(&trial->source, trial, group, true);
    trial->data->feed_stop = &trial->source.stop;
    run_source(trial);
    lane_side_finish(&trial->source, trial->ops);
    wh_group_destroy(group);
    bool good = trial->source.status == WHERRY_OK && !trial->data->wrong;
    if (!good) {
        fprintf(stderr, "the source: %s\n",
                trial->source.status != WHERRY_OK ? trial->source.error.message : trial->data->wrong);
    }
    return good ? 0 : 1;
}

int lane_trial_run_processes(lane_trial *trial, const wh_group_kind *kind, int32_t source_rank, pid_t *source_p) {
    void *place = kind->open(2);
    int status = 0;
    trial_number++;
    *source_p = fork();
    assert_true(*source_p >= 0);
    if (*source_p == 0) {
        wherry_log_set_level(WHERRY_LOG_OFF);
        _exit(source_process(trial, kind, place, source_rank));
    }
    lane_data_expect(trial->data, OTHER_SEED);
    wh_group *group = kind->join(place, 1 - source_rank);
    assert_non_null(group);
    lane_side_begin(&trial->receiver, trial, group, false);
    trial->data->sink_stop = &trial->receiver.stop;
    run_receiver(trial);
    lane_side_finish(&trial->receiver, trial->ops);
    assert_int_equal(waitpid(*source_p, &status, 0), *source_p);
    wh_group_destroy(group);
    kind->close(place);
    return status;
}
