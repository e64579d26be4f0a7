/*
 * bench_file FROM TO CONNECTIONS: copies a file over plain TCP sockets, with one thread at each end
 * of each connection, and prints the seconds. It is the reference for `wherry fetch`.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

enum { PIECE = 1 << 20 };

/** One end of a connection, and its part of the file. */
typedef struct end {
    int socket;
    int file;
    const char *from; /**< The mapped file at the sender. */
    uint64_t begin;
    uint64_t length;
} end;

static void *send_part(void *context) {
    const end *own = context;
    for (uint64_t at = 0; at < own->length;) {
        uint64_t size = own->length - at < PIECE ? own->length - at : PIECE;
        ssize_t sent = write(own->socket, own->from + own->begin + at, size);
        if (sent <= 0) {
            bench_die("a socket failed: %s", strerror(errno));
        }
        at += (uint64_t)sent;
    }
    return NULL;
}

static void *receive_part(void *context) {
    const end *own = context;
    char *buffer = bench_alloc(1, PIECE);
    for (uint64_t at = 0; at < own->length;) {
        ssize_t got = read(own->socket, buffer, PIECE);
        if (got <= 0 || pwrite(own->file, buffer, (size_t)got, (off_t)(own->begin + at)) != got) {
            bench_die("a socket or the file failed: %s", strerror(errno));
        }
        at += (uint64_t)got;
    }
    free(buffer);
    return NULL;
}

static void run_ends(end *ends, uint32_t count, void *(*work)(void *)) {
    pthread_t threads[BENCH_STREAMS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        if (pthread_create(threads + i, NULL, work, ends + i) != 0) {
            bench_die("cannot start a thread");
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
}

typedef struct task {
    const char *from;
    const char *to;
    uint32_t connections;
} task;

static void play(bench_world *world, int32_t rank, void *context) {
    const task *t = context;
    end ends[BENCH_STREAMS_MAX];
    struct stat info;
    int source = open(t->from, O_RDONLY | O_CLOEXEC);
    int target = rank == 1 ? open(t->to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (source < 0 || fstat(source, &info) != 0 || (rank == 1 && target < 0)) {
        bench_die("cannot open a file: %s", strerror(errno));
    }
    uint64_t size = (uint64_t)info.st_size;
    const char *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, source, 0);
    if (bytes == MAP_FAILED) {
        bench_die("cannot map %s: %s", t->from, strerror(errno));
    }
    for (uint32_t i = 0; i < t->connections; i++) {
        uint64_t begin = size * i / t->connections;
        ends[i] =
            (end){world->streams[i][rank == 0 ? 0 : 1], target, bytes, begin, size * (i + 1) / t->connections - begin};
    }
    bench_line_up(world);
    double began = bench_now();
    run_ends(ends, t->connections, rank == 0 ? send_part : receive_part);
    if (rank == 1) {
        world->seconds[0][0] = bench_now() - began;
    }
}

int main(int argc, char **argv) {
    task t = {argc == 4 ? argv[1] : "", argc == 4 ? argv[2] : "", argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0};
    if (t.connections < 1 || t.connections > BENCH_STREAMS_MAX) {
        bench_die("usage: %s FROM TO CONNECTIONS, 1 to %d", argv[0], BENCH_STREAMS_MAX);
    }
    bench_world *world = bench_world_create(2);
    bool good = bench_world_run(world, play, &t);
    printf("%.6f\n", world->seconds[0][0]);
    bench_world_destroy(world);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
