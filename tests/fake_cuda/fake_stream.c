/* Streams. Each is a thread that does the queued work in order, asynchronously. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_internal.h"

/* The driver's functions have no header here. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

/** Protected by events_lock. */
typedef struct fake_event {
    unsigned long recorded; /**< Number of times that the event was put on a stream. */
    unsigned long reached;  /**< Number of times that a stream has reached the event. */
    bool destroyed;         /**< It is freed once reached == recorded. */
} fake_event;

static pthread_mutex_t events_lock = PTHREAD_MUTEX_INITIALIZER;

typedef enum work_kind { COPY, CLEAR, MARK, LAUNCH, GATE, CALL, QUIT } work_kind;

typedef struct work {
    work_kind kind;
    uint64_t to;
    uint64_t from;
    size_t size;
    unsigned count;
    int device; /**< The device that does the work. */
    fake_event *event;
    void (*call)(void *context);
    void *context;
    struct work *next;
} work;

typedef struct fake_stream {
    int device;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    work *first;
    work **last;
    bool busy;
} fake_stream;

/** Same layout as in cuda_copy.cl. */
typedef struct tile {
    uint64_t from;
    uint64_t to;
    uint64_t length;
} tile;

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_opened = PTHREAD_COND_INITIALIZER;
static bool gate_shut;
static fake_stream *defaults[DEVICES_MAX];
static pthread_mutex_t defaults_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the work ---- */

/** A copy by the device. Both sides must be device memory or pinned, unless `pageable`. */
static void copy_on_device(uint64_t to, uint64_t from, size_t size, bool pageable) {
    while (size) {
        size_t part = size;
        size_t readable = size;
        void *target = fake_resolve_part((void *)(uintptr_t)to, size, &part);
        const void *source = fake_resolve_part((void *)(uintptr_t)from, size, &readable);
        if (pageable) {
            target = target ? target : (void *)(uintptr_t)to;
            source = source ? source : (void *)(uintptr_t)from;
        }
        if (!target || !source) {
            fake_fault(ILLEGAL_ADDRESS);
            return;
        }
        part = part < readable ? part : readable;
        memcpy(target, source, part);
        to += part;
        from += part;
        size -= part;
    }
}

static void wait_at_gate(void) {
    pthread_mutex_lock(&gate_lock);
    while (gate_shut) {
        pthread_cond_wait(&gate_opened, &gate_lock);
    }
    pthread_mutex_unlock(&gate_lock);
}

static void launch(const work *one) {
    fake_kind kind;
    const tile *tiles = fake_resolve((void *)(uintptr_t)one->from, one->count * sizeof(tile), &kind);
    for (unsigned i = 0; tiles && i < one->count; i++) {
        if (!fake_reaches((void *)(uintptr_t)tiles[i].to, one->device) ||
            !fake_reaches((void *)(uintptr_t)tiles[i].from, one->device)) {
            fake_fault(ILLEGAL_ADDRESS);
            return;
        }
        copy_on_device(tiles[i].to, tiles[i].from, tiles[i].length, false);
    }
    if (!tiles) {
        fake_fault(ILLEGAL_ADDRESS);
    }
}

static void clear(const work *one) {
    fake_kind kind;
    void *target = fake_resolve((void *)(uintptr_t)one->to, one->size, &kind);
    if (target) {
        memset(target, 0, one->size);
    } else {
        fake_fault(ILLEGAL_ADDRESS);
    }
}

static void reach(fake_event *event) {
    pthread_mutex_lock(&events_lock);
    bool last = ++event->reached == event->recorded && event->destroyed;
    pthread_mutex_unlock(&events_lock);
    if (last) {
        free(event);
    }
}

static void do_work(const work *one) {
    const char *delay = getenv("FAKE_CUDA_DELAY_US");
    if (delay && one->kind != QUIT) {
        usleep((useconds_t)strtoul(delay, NULL, 10));
    }
    if (one->kind == MARK) {
        reach(one->event);
    } else if (one->kind == GATE) {
        wait_at_gate();
    } else if (one->kind == CALL) {
        one->call(one->context);
    } else if (!fake_faulted() && one->kind == COPY) {
        copy_on_device(one->to, one->from, one->size, one->count);
    } else if (!fake_faulted() && one->kind == CLEAR) {
        clear(one);
    } else if (!fake_faulted() && one->kind == LAUNCH) {
        launch(one);
    }
}

static void *run(void *context) {
    fake_stream *stream = context;
    bool quit = false;
    while (!quit) {
        pthread_mutex_lock(&stream->lock);
        stream->busy = false;
        pthread_cond_broadcast(&stream->changed);
        while (!stream->first) {
            pthread_cond_wait(&stream->changed, &stream->lock);
        }
        work *one = stream->first;
        stream->first = one->next;
        stream->last = stream->first ? stream->last : &stream->first;
        stream->busy = true;
        pthread_mutex_unlock(&stream->lock);
        do_work(one);
        quit = one->kind == QUIT;
        free(one);
    }
    return NULL;
}

static void put(fake_stream *stream, work what) {
    work *one = malloc(sizeof(*one));
    if (!one) {
        abort();
    }
    *one = what;
    one->next = NULL;
    pthread_mutex_lock(&stream->lock);
    *stream->last = one;
    stream->last = &one->next;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void drain(fake_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    while (stream->first || stream->busy) {
        pthread_cond_wait(&stream->changed, &stream->lock);
    }
    pthread_mutex_unlock(&stream->lock);
}

static fake_stream *make(int device) {
    fake_stream *stream = calloc(1, sizeof(*stream));
    if (!stream) {
        abort();
    }
    stream->device = device;
    stream->last = &stream->first;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    if (pthread_create(&stream->thread, NULL, run, stream) != 0) {
        abort();
    }
    return stream;
}

/** The stream, or the default stream of `device` if it is NULL. */
static fake_stream *stream_of(void *stream, int device) {
    if (stream) {
        return stream;
    }
    pthread_mutex_lock(&defaults_lock);
    if (!defaults[device]) {
        defaults[device] = make(device);
    }
    fake_stream *found = defaults[device];
    pthread_mutex_unlock(&defaults_lock);
    return found;
}

void fake_cuda_shut_gate(void *stream) {
    pthread_mutex_lock(&gate_lock);
    gate_shut = true;
    pthread_mutex_unlock(&gate_lock);
    put(stream_of(stream, 0), (work){.kind = GATE});
}

void fake_cuda_open_gate(void) {
    pthread_mutex_lock(&gate_lock);
    gate_shut = false;
    pthread_cond_broadcast(&gate_opened);
    pthread_mutex_unlock(&gate_lock);
}

void fake_cuda_put(void *stream, void (*call)(void *context), void *context) {
    put(stream_of(stream, fake_current_device()), (work){.kind = CALL, .call = call, .context = context});
}

/* ---- the calls ---- */

int cuStreamCreate(void **stream, unsigned flags) {
    int result = fake_call("cuStreamCreate", true, true);
    (void)flags;
    if (result == OK) {
        *stream = make(fake_current_device());
    }
    return result;
}

int cuStreamDestroy_v2(void *stream) {
    int result = fake_call("cuStreamDestroy_v2", false, true);
    fake_stream *own = stream;
    if (result == OK) {
        put(own, (work){.kind = QUIT});
        pthread_join(own->thread, NULL);
        pthread_mutex_destroy(&own->lock);
        pthread_cond_destroy(&own->changed);
        free(own);
    }
    return result;
}

int cuStreamSynchronize(void *stream) {
    int result = fake_call("cuStreamSynchronize", true, true);
    drain(stream_of(stream, fake_current_device()));
    return result != OK ? result : fake_faulted();
}

int cuStreamGetCtx(void *stream, void **context) {
    int result = fake_call("cuStreamGetCtx", true, false);
    if (result == OK) {
        *context = fake_contexts + stream_of(stream, 0)->device;
    }
    return result;
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
    int result = fake_call("cuMemcpyAsync", true, true);
    fake_kind kind;
    if (result != OK) {
        return result;
    }
    if (fake_is_cut((void *)(uintptr_t)to, size) || fake_is_cut((void *)(uintptr_t)from, size)) {
        return INVALID_VALUE;
    }
    bool pageable = !fake_resolve((void *)(uintptr_t)to, 1, &kind) || !fake_resolve((void *)(uintptr_t)from, 1, &kind);
    fake_stream *own = stream_of(stream, fake_current_device());
    put(own, (work){.kind = COPY, .to = to, .from = from, .size = size, .count = pageable});
    if (pageable) {
        drain(own); /* The driver also waits here, because it copies through its own memory. */
    }
    return OK;
}

int cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void *stream) {
    int result = fake_call("cuMemsetD8Async", true, true);
    if (result == OK && value == 0) {
        put(stream_of(stream, fake_current_device()), (work){.kind = CLEAR, .to = address, .size = size});
    }
    return result;
}

int cuEventCreate(fake_event **event, unsigned flags) {
    int result = fake_call("cuEventCreate", true, true);
    (void)flags;
    if (result == OK) {
        *event = calloc(1, sizeof(**event));
    }
    return result;
}

int cuEventDestroy_v2(fake_event *event) {
    int result = fake_call("cuEventDestroy_v2", false, true);
    pthread_mutex_lock(&events_lock);
    bool last = event->reached == event->recorded;
    event->destroyed = true;
    pthread_mutex_unlock(&events_lock);
    if (last) {
        free(event);
    }
    return result;
}

int cuEventRecord(fake_event *event, void *stream) {
    int result = fake_call("cuEventRecord", true, true);
    if (result == OK) {
        pthread_mutex_lock(&events_lock);
        event->recorded++;
        pthread_mutex_unlock(&events_lock);
        put(stream_of(stream, fake_current_device()), (work){.kind = MARK, .event = event});
    }
    return result;
}

int cuEventQuery(fake_event *event) {
    int result = fake_call("cuEventQuery", true, true);
    if (result != OK) {
        return result;
    }
    pthread_mutex_lock(&events_lock);
    bool reached = event->reached == event->recorded;
    pthread_mutex_unlock(&events_lock);
    return reached ? OK : NOT_READY;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra) {
    int result = fake_call("cuLaunchKernel", true, true);
    (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared, (void)extra;
    if (result == OK && (!function || grid_x == 0)) {
        result = INVALID_VALUE;
    }
    if (result == OK) {
        unsigned count = *(unsigned *)arguments[1];
        fake_stream *own = stream_of(stream, fake_current_device());
        put(own, (work){.kind = LAUNCH,
                        .device = own->device,
                        .from = *(uint64_t *)arguments[0],
                        .count = count < grid_x ? count : grid_x});
    }
    return result;
}

/* Synchronous calls, used by benchmarks and tests but not by the library. */

static int copy_now(uint64_t to, uint64_t from, size_t size) {
    fake_stream *own = stream_of(NULL, fake_current_device());
    put(own, (work){.kind = COPY, .to = to, .from = from, .size = size, .count = 1});
    drain(own);
    return fake_faulted();
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    return copy_now((uint64_t)(uintptr_t)to, from, size);
}

int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t size) {
    return copy_now(to, from, size);
}

int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size) {
    fake_kind kind;
    void *target = fake_resolve((void *)(uintptr_t)address, size, &kind);
    if (target) {
        memset(target, value, size);
    }
    return target ? OK : INVALID_VALUE;
}

int cuCtxSynchronize(void) {
    drain(stream_of(NULL, fake_current_device()));
    return fake_faulted();
}
