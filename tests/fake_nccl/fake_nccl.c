#include "fake_nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* NCCL's functions have no header here */

enum { OK, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };

enum { ID_BYTES = 128, LISTENERS = 64, LOOK_MS = 5, POLLS = 2 };

typedef struct unique {
    char bytes[ID_BYTES];
} unique;

/** Same layout as in NCCL 2.18. */
typedef struct config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
    int cluster_size;
    int min_blocks;
    int max_blocks;
    const char *network;
    int split_share;
} config;

typedef struct comm {
    int rank;
    unique name;
    int fd;
    int listener;
    atomic_bool met;   /**< True if the thread that connects has ended, successfully or not. */
    atomic_int result; /**< The result of ncclCommGetAsyncError. */
    atomic_bool aborted;
    atomic_int references; /**< One reference for the owner and one per message. */
    struct operation *pending;
    int polls; /**< Number of queries about `pending`. */
} comm;

typedef struct operation {
    comm *comm;
    char *data;
    uint64_t count;
    bool sends;
    void *stream;
} operation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unique listening_names[LISTENERS];
static int listening[LISTENERS];
static size_t listener_count;
static uint64_t calls;
static uint64_t fail_number;
static int fail_result;
static atomic_ulong begun;
static atomic_ulong aborted;
static atomic_ulong messages;

static struct {
    void *(*shadow_part)(const void *address, size_t size, size_t *part_p);
    void (*put)(void *stream, void (*call)(void *context), void *context);
    int (*current)(void **context);
} driver;

static void find_driver(void) {
    void *library = dlopen(getenv("WHERRY_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
        abort();
    }
    *(void **)&driver.shadow_part = dlsym(library, "fake_cuda_shadow_part");
    *(void **)&driver.put = dlsym(library, "fake_cuda_put");
    *(void **)&driver.current = dlsym(library, "cuCtxGetCurrent");
}

static bool is_set(const char *name) {
    const char *text = getenv(name);
    return text && strcmp(text, "1") == 0;
}

/** Counts a call that can fail. @return OK, or the result that the call must return. */
static int count_call(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    pthread_mutex_lock(&lock);
    calls++;
    int result = fail_number && calls == fail_number ? fail_result : OK;
    pthread_mutex_unlock(&lock);
    return result;
}

static bool has_context(void) {
    void *context = NULL;
    return driver.current(&context) == OK && context;
}

void fake_nccl_fail_at(uint64_t number, int result) {
    pthread_mutex_lock(&lock);
    calls = 0;
    fail_number = number;
    fail_result = result;
    pthread_mutex_unlock(&lock);
}

uint64_t fake_nccl_calls(void) {
    pthread_mutex_lock(&lock);
    uint64_t value = calls;
    pthread_mutex_unlock(&lock);
    return value;
}

uint64_t fake_nccl_begun(void) {
    return atomic_load(&begun);
}

uint64_t fake_nccl_aborted(void) {
    return atomic_load(&aborted);
}

uint64_t fake_nccl_messages(void) {
    return atomic_load(&messages);
}

static void release(comm *c) {
    if (atomic_fetch_sub(&c->references, 1) == 1) {
        if (c->fd >= 0) {
            close(c->fd);
        }
        free(c);
    }
}

/* ---- connecting ---- */

static socklen_t address_of(const unique *name, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name->bytes, 32); /* an abstract socket */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 33);
}

/** Waits until a descriptor is ready. @return false if aborted. */
static bool await_fd(const comm *c, int fd, short events) {
    struct pollfd one = {fd, events, 0};
    while (!atomic_load(&c->aborted)) {
        if (poll(&one, 1, LOOK_MS) > 0) {
            return true;
        }
    }
    return false;
}

static int dial(const comm *c) {
    struct sockaddr_un address;
    socklen_t size = address_of(&c->name, &address);
    while (!atomic_load(&c->aborted)) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, size) == 0) {
            return fd;
        }
        close(fd);
        usleep(LOOK_MS * 1000);
    }
    return -1;
}

static void *meet(void *context) {
    comm *c = context;
    while (is_set("FAKE_NCCL_DEAF") && !atomic_load(&c->aborted)) {
        usleep(LOOK_MS * 1000);
    }
    if (is_set("FAKE_NCCL_REFUSE")) {
        atomic_store(&c->result, INVALID_USAGE);
    } else if (c->rank == 0) {
        c->fd = await_fd(c, c->listener, POLLIN) ? accept4(c->listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    } else {
        c->fd = dial(c);
    }
    int in_progress = IN_PROGRESS;
    atomic_compare_exchange_strong(&c->result, &in_progress, c->fd >= 0 ? OK : SYSTEM_ERROR);
    if (c->listener >= 0) {
        close(c->listener);
    }
    atomic_store(&c->met, true);
    return NULL;
}

int ncclGetVersion(int *version) {
    const char *text = getenv("FAKE_NCCL_VERSION");
    *version = text ? (int)strtol(text, NULL, 10) : 22707;
    return OK;
}

const char *ncclGetErrorString(int result) {
    return result == REMOTE_ERROR ? "remote process exited or there was a network error" : "an error of the fake NCCL";
}

const char *ncclGetLastError(comm *c) {
    (void)c;
    return is_set("FAKE_NCCL_REFUSE") ? "Duplicate GPU detected\n" : "";
}

int ncclGetUniqueId(unique *name) {
    static const char digits[] = "0123456789abcdef";
    struct sockaddr_un address;
    int result = count_call();
    uint8_t random[32];
    if (result != OK || getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        return result != OK ? result : SYSTEM_ERROR;
    }
    memset(name, 0, sizeof(*name));
    for (size_t i = 0; i < sizeof(random); i++) {
        name->bytes[i] = digits[random[i] % 16];
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = address_of(name, &address);
    pthread_mutex_lock(&lock);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 4) != 0 ||
        listener_count == LISTENERS) {
        abort();
    }
    listening_names[listener_count] = *name;
    listening[listener_count++] = fd;
    pthread_mutex_unlock(&lock);
    return OK;
}

static int take_listener(const unique *name) {
    int fd = -1;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < listener_count && fd < 0; i++) {
        if (memcmp(listening_names + i, name, sizeof(*name)) == 0) {
            fd = listening[i];
            listener_count--;
            listening[i] = listening[listener_count];
            listening_names[i] = listening_names[listener_count];
        }
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

int ncclCommInitRankConfig(comm **comm_p, int count, unique name, int rank, config *options) {
    int result = count_call();
    bool sane = options->magic == 0xcafebeef && options->version >= 21800 && options->size >= sizeof(*options) &&
                options->blocking == 0 && options->max_blocks > 0 && options->cluster_size == INT_MIN;
    if (result != OK) {
        return result;
    }
    if (!sane || count != 2 || rank < 0 || rank > 1 || !has_context()) {
        return INVALID_ARGUMENT;
    }
    comm *c = calloc(1, sizeof(*c));
    if (!c) {
        return SYSTEM_ERROR;
    }
    c->rank = rank;
    c->name = name;
    c->fd = -1;
    c->listener = rank == 0 ? take_listener(&name) : -1;
    atomic_store(&c->result, IN_PROGRESS);
    atomic_store(&c->references, 1);
    pthread_t thread;
    if ((rank == 0 && c->listener < 0) || pthread_create(&thread, NULL, meet, c) != 0) {
        free(c);
        return INVALID_USAGE;
    }
    pthread_detach(thread);
    atomic_fetch_add(&begun, 1);
    *comm_p = c;
    return IN_PROGRESS;
}

int ncclCommAbort(comm *c) {
    atomic_store(&c->aborted, true);
    atomic_fetch_add(&aborted, 1);
    while (!atomic_load(&c->met)) {
        usleep(1000);
    }
    if (c->pending) {
        atomic_fetch_sub(&c->references, 1);
        free(c->pending);
    }
    if (c->fd >= 0) {
        shutdown(c->fd, SHUT_RDWR);
    }
    release(c);
    return OK;
}

/* ---- messages ---- */

/** Moves bytes in host memory. @return false if aborted or the peer is gone. */
static bool move_bytes(comm *c, char *data, uint64_t count, bool sends) {
    while (count) {
        if (!await_fd(c, c->fd, sends ? POLLOUT : POLLIN)) {
            return false;
        }
        ssize_t moved =
            sends ? send(c->fd, data, count, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(c->fd, data, count, MSG_DONTWAIT);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
            continue;
        }
        if (moved <= 0) {
            return false;
        }
        data += moved;
        count -= (uint64_t)moved;
    }
    return true;
}

/** True if the whole message is in device memory. */
static bool is_device_memory(const char *data, size_t count) {
    size_t part = 0;
    while (count && driver.shadow_part(data, count, &part)) {
        data += part;
        count -= part;
    }
    return count == 0;
}

/** Moves a message, one allocation at a time. */
static bool move_message(comm *c, const char *data, size_t count, bool sends) {
    size_t part = 0;
    bool fine = true;
    for (; count && fine; data += part, count -= part) {
        char *bytes = driver.shadow_part(data, count, &part);
        fine = bytes && move_bytes(c, bytes, part, sends);
    }
    return fine;
}

static bool stalls(void) {
    const char *text = getenv("FAKE_NCCL_STALL");
    return text && atomic_load(&messages) >= strtoul(text, NULL, 10);
}

/** Runs on the stream: moves one message. */
static void work(void *context) {
    operation *o = context;
    comm *c = o->comm;
    uint64_t theirs = o->count;
    int fault = OK;
    if (!is_device_memory(o->data, o->count)) {
        fault = CUDA_ERROR;
    } else if (!stalls() && move_bytes(c, (char *)&theirs, sizeof(theirs), o->sends)) {
        fault = theirs != o->count ? INVALID_USAGE : !move_message(c, o->data, o->count, o->sends) ? REMOTE_ERROR : OK;
        atomic_fetch_add(&messages, fault == OK);
    } else {
        fault = stalls() ? OK : REMOTE_ERROR;
    }
    int fine = OK;
    if (fault != OK && !atomic_load(&c->aborted)) {
        atomic_compare_exchange_strong(&c->result, &fine, fault);
    }
    while ((fault != OK || stalls()) && !atomic_load(&c->aborted)) {
        usleep(LOOK_MS * 1000); /* Waits, as a kernel waits for its peer. */
    }
    release(c);
    free(o);
}

int ncclCommGetAsyncError(comm *c, int *result) {
    *result = atomic_load(&c->result);
    if (*result == OK && c->pending && ++c->polls < POLLS) {
        *result = IN_PROGRESS;
    }
    /* Queries in progress are not counted, because their number varies. */
    int answer = *result == IN_PROGRESS ? OK : count_call();
    if (answer == OK && *result == OK && c->pending) {
        driver.put(c->pending->stream, work, c->pending);
        c->pending = NULL;
    }
    return answer;
}

static int begin(comm *c, char *data, size_t count, int type, bool sends, int peer, void *stream) {
    int result = count_call();
    if (result != OK) {
        return result;
    }
    if (atomic_load(&c->result) != OK || c->pending || type != 0 || peer != !c->rank || !count || !has_context()) {
        return INVALID_ARGUMENT;
    }
    operation *o = malloc(sizeof(*o));
    if (!o) {
        return SYSTEM_ERROR;
    }
    *o = (operation){c, data, count, sends, stream};
    atomic_fetch_add(&c->references, 1);
    c->pending = o;
    c->polls = 0;
    return IN_PROGRESS;
}

int ncclSend(const void *from, size_t count, int type, int peer, comm *c, void *stream) {
    return begin(c, (char *)from, count, type, true, peer, stream);
}

int ncclRecv(void *to, size_t count, int type, int peer, comm *c, void *stream) {
    return begin(c, to, count, type, false, peer, stream);
}
