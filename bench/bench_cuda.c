/*
 * bench_cuda [REPEATS [MIB]]: measures GPU to GPU between two processes on one device and prints a
 * table. WHERRY_CUDA_LIBRARY names the driver, as for the library.
 *
 * Each case has its own pair of processes. So its first transfer has to open all memory, and the
 * GPU memory that is measured belongs to this case alone.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { REPEATS = 9, DEFAULT_MIB = 3072, SMALL_TENSORS = 20000, SMALL_BYTES = 4096, NAME_MAX_BYTES = 64 };

/** The functions of the CUDA driver that the benchmark calls. */
typedef struct driver {
    int (*set)(uint64_t address, unsigned char value, size_t size);
    int (*read)(void *to, uint64_t from, size_t size);
    int (*copy)(uint64_t to, uint64_t from, size_t size);
    int (*synchronize)(void);
    int (*info)(size_t *free, size_t *total);
} driver;

typedef struct bench_case {
    const char *name;
    const char *lanes;
    size_t small; /**< Number of tensors of SMALL_BYTES; 0 for layers of a model. */
    uint32_t flags;
    double least_gb_s;   /**< Minimum rate of the data phase; 0 if there is no bound. */
    double most_call_ms; /**< Maximum duration of the whole call; 0 if there is no bound. */
} bench_case;

static const bench_case cases[] = {
    {"7B-shaped, cuda_ipc, in place", "cuda_ipc", 0, WHERRY_SEND_MEMORY_STAYS, 1900, 8.3},
    {"the same, opened anew each time", "cuda_ipc", 0, 0, 0, 0},
    {"7B-shaped, IPC forbidden: ring", "ring", 0, 0, 20, 0},
    {"7B-shaped, IPC forbidden: stream", "stream", 0, 0, 0, 0},
    {"20,000 tensors of 4 KiB, cuda_ipc, in place", "cuda_ipc", SMALL_TENSORS, WHERRY_SEND_MEMORY_STAYS, 0, 0},
    {"20,000 tensors of 4 KiB, ring, in place", "ring", SMALL_TENSORS, 0, 0, 0},
};

typedef struct run {
    const bench_case *what;
    char address[NAME_MAX_BYTES];
    uint64_t mib;
    int repeats;
} run;

static driver find_driver(void) {
    const char *name = getenv("WHERRY_CUDA_LIBRARY");
    void *library = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = NULL;
    int (*retain)(void **, int) = NULL;
    int (*set_current)(void *) = NULL;
    driver found = {0};
    void *context = NULL;
    if (!library) {
        bench_die("cannot load the CUDA driver: %s", dlerror());
    }
    *(void **)&init = dlsym(library, "cuInit");
    *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(library, "cuCtxSetCurrent");
    *(void **)&found.set = dlsym(library, "cuMemsetD8_v2");
    *(void **)&found.read = dlsym(library, "cuMemcpyDtoH_v2");
    *(void **)&found.copy = dlsym(library, "cuMemcpyDtoD_v2");
    *(void **)&found.synchronize = dlsym(library, "cuCtxSynchronize");
    *(void **)&found.info = dlsym(library, "cuMemGetInfo_v2");
    if (!init || !retain || !set_current || !found.set || !found.read || !found.copy || !found.synchronize ||
        !found.info || init(0) != 0 || retain(&context, 0) != 0 || set_current(context) != 0) {
        bench_die("the CUDA driver lacks a function, or cannot be initialized");
    }
    return found;
}

/* ---- states ---- */

/** Adds a tensor with its own allocation of device memory. */
static void add(wherry_value *state, const char *name, int64_t rows, int64_t columns, uint64_t element) {
    int64_t shape[] = {rows, columns};
    wherry_error error;
    wherry_storage *storage;
    wherry_value *value;
    wherry_device device = {WHERRY_DEVICE_CUDA, 0};
    bench_check(wherry_storage_allocate((uint64_t)rows * (uint64_t)columns * element, device, &storage, &error),
                &error);
    wherry_tensor tensor = {
        .storage = storage, .dtype = element == 2 ? WHERRY_BF16 : WHERRY_U8, .ndim = 2, .shape = shape};
    bench_check(wherry_tensor_create(&tensor, &value, &error), &error);
    bench_check(wherry_dict_put(state, name, value, &error), &error);
    wherry_storage_unref(storage);
}

/** Adds layers of a language model with 7 billion parameters, up to `mib` MiB. */
static void add_layers(wherry_value *state, uint64_t mib) {
    static const int64_t shapes[][2] = {{4096, 4096},  {4096, 4096},  {4096, 4096}, {4096, 4096}, {11008, 4096},
                                        {11008, 4096}, {4096, 11008}, {4096, 1},    {4096, 1}};
    uint64_t bytes = 0;
    for (int layer = 0; bytes < mib << 20; layer++) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes) && bytes < mib << 20; i++) {
            char name[NAME_MAX_BYTES];
            snprintf(name, sizeof(name), "layers.%d.%zu", layer, i);
            add(state, name, shapes[i][0], shapes[i][1], 2);
            bytes += (uint64_t)shapes[i][0] * (uint64_t)shapes[i][1] * 2;
        }
    }
}

/** Adds small tensors. They share a few allocations, as with the allocator of a framework. */
static void add_small(wherry_value *state, size_t count) {
    enum { TOGETHER = 512 };
    wherry_error error;
    wherry_storage *block = NULL;
    wherry_device device = {WHERRY_DEVICE_CUDA, 0};
    for (size_t i = 0; i < count; i++) {
        char name[NAME_MAX_BYTES];
        wherry_storage *storage;
        wherry_value *value;
        int64_t size = SMALL_BYTES;
        if (i % TOGETHER == 0) { /* The block is never freed, because the process ends soon. */
            bench_check(wherry_storage_allocate((uint64_t)TOGETHER * SMALL_BYTES, device, &block, &error), &error);
        }
        char *data = (char *)wherry_storage_data(block) + i % TOGETHER * SMALL_BYTES;
        bench_check(wherry_storage_wrap(data, SMALL_BYTES, device, NULL, NULL, &storage, &error), &error);
        wherry_tensor tensor = {.storage = storage, .dtype = WHERRY_U8, .ndim = 1, .shape = &size};
        bench_check(wherry_tensor_create(&tensor, &value, &error), &error);
        snprintf(name, sizeof(name), "small.%zu", i);
        bench_check(wherry_dict_put(state, name, value, &error), &error);
        wherry_storage_unref(storage);
    }
}

/** Fills each tensor with its own number, or with zeros; or checks both ends of each tensor. */
static uint64_t visit(const driver *cuda, const wherry_value *state, bool fill, bool zeros) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < wherry_dict_count(state); i++) {
        const wherry_tensor *tensor = wherry_tensor_get(wherry_dict_at(state, i));
        uint64_t at = (uint64_t)(uintptr_t)wherry_storage_data(tensor->storage);
        uint64_t size = wherry_storage_nbytes(tensor->storage);
        unsigned char expected = (unsigned char)(i % 251 + 1);
        unsigned char found[2] = {0};
        int result = 0;
        if (fill) {
            result = cuda->set(at, zeros ? 0 : expected, size);
        } else {
            result = cuda->read(found, at, 1) || cuda->read(found + 1, at + size - 1, 1);
        }
        if (result != 0 || (!fill && (found[0] != expected || found[1] != expected))) {
            bench_die("tensor %zu: %s", i, result ? "the CUDA driver failed" : "it has other bytes than were sent");
        }
        bytes += size;
    }
    if (cuda->synchronize() != 0) {
        bench_die("the CUDA driver failed");
    }
    return bytes;
}

/* ---- the processes ---- */

static void transfer(bench_world *world, const run *own, int32_t rank, wherry_transport *transport, wherry_value *state,
                     int repeat) {
    wherry_transfer_options options;
    wherry_error error;
    wherry_transfer_options_init(&options);
    options.lanes = own->what->lanes;
    options.verify = WHERRY_VERIFY_OFF;
    bench_line_up(world);
    world->begin[rank] = bench_now();
    if (rank == 0) {
        options.flags = own->what->flags;
        bench_check(wherry_checkpoint_send(transport, (int32_t[]){1}, 1, state, &options, NULL, &error), &error);
    } else {
        wherry_value *received;
        options.target = bench_give_target;
        options.target_context = state;
        options.stats = world->notes[0].receiver + repeat;
        bench_check(wherry_checkpoint_recv(transport, 0, &options, &received, &error), &error);
        world->seconds[0][repeat] = bench_now() - world->begin[1];
        wherry_value_destroy(received);
    }
    bench_gate(world);
}

static int64_t free_bytes(const driver *cuda) {
    size_t available = 0;
    size_t total = 0;
    cuda->info(&available, &total);
    return (int64_t)available;
}

static void play(bench_world *world, int32_t rank, void *context) {
    const run *own = context;
    driver cuda = find_driver();
    wherry_error error;
    wherry_group *group;
    wherry_transport *transport;
    wherry_value *state;
    char address[2 * NAME_MAX_BYTES];
    snprintf(address, sizeof(address), "%s?rank=%d&size=2", own->address, (int)rank);
    bench_check(wherry_dict_create(&state, &error), &error);
    if (own->what->small) {
        add_small(state, own->what->small);
    } else {
        add_layers(state, own->mib);
    }
    visit(&cuda, state, true, rank == 1);
    bench_check(wherry_group_join(address, NULL, &group, &error), &error);
    bench_check(wherry_transport_create(group, NULL, &transport, &error), &error);
    bench_gate(world);
    int64_t before = free_bytes(&cuda);
    /* The first repeat opens and pins memory. */
    for (int repeat = 0; repeat <= own->repeats; repeat++) {
        transfer(world, own, rank, transport, state, repeat);
    }
    world->notes[0].growth[rank] = before - free_bytes(&cuda);
    visit(&cuda, state, false, false);
    bench_gate(world);
    wherry_value_destroy(state);
    wherry_transport_destroy(transport);
    wherry_group_leave(group);
}

/* ---- the table ---- */

/** Prints the row of a case. @return false if the case is slower than its bounds. */
static bool print_row(const run *own, bench_world *world) {
    double data[BENCH_REPEATS_MAX];
    double calls[BENCH_REPEATS_MAX];
    const wherry_stats *stats = world->notes[0].receiver;
    for (int i = 0; i < own->repeats; i++) {
        data[i] = stats[i + 1].data_seconds;
        calls[i] = world->seconds[0][i + 1];
    }
    double bytes = (double)stats[1].bytes_moved;
    double middle = bench_median(data, own->repeats);
    double call = bench_median(calls, own->repeats);
    printf("| %s | %s | %.3f ms (%.3f-%.3f) | %.1f GB/s | %.2f ms (%.2f-%.2f) | %.1f ms | %.0f MiB |\n",
           own->what->name, stats[1].lane, middle * 1e3, data[0] * 1e3, data[own->repeats - 1] * 1e3,
           bytes / middle * 1e-9, call * 1e3, calls[0] * 1e3, calls[own->repeats - 1] * 1e3, world->seconds[0][0] * 1e3,
           (double)world->notes[0].growth[1] / (1 << 20));
    fflush(stdout);
    const bench_case *what = own->what;
    bool fast =
        bytes / middle * 1e-9 >= what->least_gb_s && (what->most_call_ms == 0 || call * 1e3 <= what->most_call_ms);
    if (!fast) {
        fprintf(stderr, "%s: slower than %.0f GB/s or %.1f ms\n", what->name, what->least_gb_s, what->most_call_ms);
    }
    return fast;
}

int main(int count, char **arguments) {
    long repeats = count > 1 ? strtol(arguments[1], NULL, 10) : REPEATS;
    long mib = count > 2 ? strtol(arguments[2], NULL, 10) : DEFAULT_MIB;
    bool good = repeats > 0 && repeats < BENCH_REPEATS_MAX && mib > 0;
    if (!good) {
        bench_die("usage: bench_cuda [REPEATS [MIB]]");
    }
    wherry_log_set_level(WHERRY_LOG_ERROR);
    printf("| case | lane | data phase | rate | whole call | first call | GPU memory taken |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        run own = {.what = cases + i, .mib = (uint64_t)mib, .repeats = (int)repeats};
        bench_world *world = bench_world_create(2);
        snprintf(own.address, sizeof(own.address), "unix:///tmp/wherry-bench-cuda-%d-%zu.sock", (int)getpid(), i);
        if (bench_world_run(world, play, &own)) {
            good = print_row(&own, world) && good;
        } else {
            printf("| %s | failed | | | | | |\n", own.what->name);
            good = false;
        }
        bench_world_destroy(world);
    }
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
