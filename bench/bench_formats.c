/*
 * bench_formats FOLDER [REPEATS]: measures opening large files and writing a state, each
 * alternating with its reference. Prints medians. Creates its files in FOLDER, for example
 * /dev/shm, and removes them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <wherry/file.h>

#include "bench.h"

enum { TENSORS = 20000, MANY = 100000, NAME_BYTES = 160 };

#define GIB (UINT64_C(1) << 30)

static wherry_error error;

static void must(bool good, const char *what) {
    if (!good) {
        bench_die("%s: %s", what, strerror(errno));
    }
}

/** Creates a sparse safetensors file. */
static void make_sparse(const char *path, uint64_t total, size_t tensors) {
    uint64_t each = total / tensors;
    char *header = malloc(tensors * NAME_BYTES);
    must(header, "memory");
    size_t length = 8;
    for (size_t i = 0; i < tensors; i++) {
        length += (size_t)snprintf(
            header + length, NAME_BYTES,
            "%c\"model.layers.%zu.weight\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[%llu,%llu]}",
            i ? ',' : '{', i, (unsigned long long)each, (unsigned long long)each * i,
            (unsigned long long)each * (i + 1));
    }
    header[length++] = '}';
    for (int i = 0; i < 8; i++) {
        header[i] = (char)((length - 8) >> 8 * i);
    }
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    must(fd >= 0 && write(fd, header, length) == (ssize_t)length &&
             ftruncate(fd, (off_t)(length + each * tensors)) == 0,
         path);
    close(fd);
    free(header);
}

static double open_seconds(const char *path) {
    wherry_file *file;
    double begin = bench_now();
    bench_check(wherry_file_open(path, NULL, &file, &error), &error);
    double seconds = bench_now() - begin;
    wherry_file_close(file);
    return seconds;
}

/** Measures the peak memory, in MiB, of a process that only opens a file. */
static double open_memory(const char *path) {
    int ends[2];
    double peak = 0;
    must(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        /* Do not count memory that was inherited from the parent. */
        bool cleared = bench_memory_mark() >= 0;
        open_seconds(path);
        peak = cleared ? (double)bench_memory_peak() / (1 << 20) : 0;
        _exit(write(ends[1], &peak, sizeof(peak)) == (ssize_t)sizeof(peak) ? 0 : 1);
    }
    must(child > 0 && read(ends[0], &peak, sizeof(peak)) == (ssize_t)sizeof(peak), "the process that opens a file");
    waitpid(child, NULL, 0);
    close(ends[0]);
    close(ends[1]);
    return peak;
}

static void bench_open(const char *folder, int repeats) {
    char small[512];
    char large[512];
    char many[512];
    double seconds[3][BENCH_REPEATS_MAX];
    snprintf(small, sizeof(small), "%.400s/bench-small.safetensors", folder);
    snprintf(large, sizeof(large), "%.400s/bench-large.safetensors", folder);
    snprintf(many, sizeof(many), "%.400s/bench-many.safetensors", folder);
    make_sparse(small, 100 << 20, TENSORS);
    make_sparse(large, 100 * GIB, TENSORS);
    make_sparse(many, 100 * GIB, MANY);
    double memory[] = {open_memory(large), open_memory(many)};
    for (int i = -1; i < repeats; i++) {
        for (int k = 0; k < 3; k++) {
            seconds[k][i < 0 ? 0 : i] = open_seconds(k == 0 ? small : k == 1 ? large : many);
        }
    }
    double medians[] = {bench_median(seconds[0], repeats), bench_median(seconds[1], repeats),
                        bench_median(seconds[2], repeats)};
    printf("| opening 100 GiB, %d tensors, against 100 MiB with as many | %.2f ms | %.2f ms | %.2f |\n", TENSORS,
           medians[1] * 1e3, medians[0] * 1e3, medians[1] / medians[0]);
    printf("| memory of a process that opens it, against 64 MiB | %.1f MiB | 64 MiB | %.2f |\n", memory[0],
           memory[0] / 64);
    printf("| the same with %d tensors | %.1f MiB | 64 MiB | %.2f |\n", MANY, memory[1], memory[1] / 64);
    printf("| opening %d tensors, a tensor, against %d | %.2f us | %.2f us | %.2f |\n", MANY, TENSORS,
           medians[2] / MANY * 1e6, medians[1] / TENSORS * 1e6, medians[2] / MANY / (medians[1] / TENSORS));
    unlink(small);
    unlink(large);
    unlink(many);
}

static double write_plainly(const char *path, const wherry_value *state) {
    double begin = bench_now();
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    must(fd >= 0, path);
    for (size_t i = 0; i < wherry_dict_count(state); i++) {
        const wherry_storage *storage = wherry_tensor_get(wherry_dict_at(state, i))->storage;
        ssize_t size = (ssize_t)wherry_storage_nbytes(storage);
        must(write(fd, wherry_storage_data(storage), (size_t)size) == size, path);
    }
    close(fd);
    double seconds = bench_now() - begin;
    unlink(path);
    return seconds;
}

static double write_file(const char *path, const wherry_value *state) {
    double begin = bench_now();
    bench_check(wherry_file_write(path, state, NULL, &error), &error);
    double seconds = bench_now() - begin;
    unlink(path);
    return seconds;
}

static void bench_write(const char *folder, int repeats) {
    static const char *const endings[] = {"safetensors", "wherry"};
    bench_state state = bench_state_uniform(16, GIB / 16);
    bench_state_fill(&state, true);
    for (int k = 0; k < 2; k++) {
        char path[512];
        double ours[BENCH_REPEATS_MAX];
        double plain[BENCH_REPEATS_MAX];
        snprintf(path, sizeof(path), "%.400s/bench-write.%s", folder, endings[k]);
        for (int i = -1; i < repeats; i++) {
            ours[i < 0 ? 0 : i] = write_file(path, state.value);
            plain[i < 0 ? 0 : i] = write_plainly(path, state.value);
        }
        double medians[] = {bench_median(ours, repeats), bench_median(plain, repeats)};
        printf("| writing 1 GiB as .%s, against write() of the same bytes | %.2f GB/s | %.2f GB/s | %.2f |\n",
               endings[k], (double)GIB / medians[0] / 1e9, (double)GIB / medians[1] / 1e9, medians[1] / medians[0]);
    }
    bench_state_destroy(&state);
}

int main(int argc, char **argv) {
    int repeats = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9;
    if (argc < 2 || repeats < 1 || repeats > BENCH_REPEATS_MAX) {
        fprintf(stderr, "usage: bench_formats FOLDER [REPEATS] (at most %d)\n", BENCH_REPEATS_MAX);
        return 2;
    }
    printf("| case | ours | against | ratio |\n| --- | --- | --- | --- |\n");
    bench_open(argv[1], repeats);
    bench_write(argv[1], repeats);
    return EXIT_SUCCESS;
}
