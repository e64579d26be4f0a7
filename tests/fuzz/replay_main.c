/*
 * A plain main for a fuzzer. It runs the fuzzer on the files and folders given as arguments, so
 * that every build can replay the corpus, with any compiler.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Prints an error and returns -1. */
static int fail(const char *what, const char *path) {
    fprintf(stderr, "replay: cannot %s %s: %s\n", what, path, strerror(errno));
    return -1;
}

/*
 * Replays one file from a buffer of exactly its size, so that a sanitizer detects each read past
 * the end.
 */
static int replay_file(const char *path, size_t size) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        return fail("open", path);
    }
    uint8_t *data = malloc(size > 0 ? size : 1);
    if (!data) {
        fclose(file);
        return fail("allocate memory for", path);
    }
    size_t got = fread(data, 1, size, file);
    fclose(file);
    if (got != size) {
        free(data);
        return fail("read", path);
    }
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

/* Replays a file, or all files of a folder. Returns the number of files, or -1. */
static long replay(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) {
        return fail("find", path);
    }
    if (!S_ISDIR(info.st_mode)) {
        return replay_file(path, (size_t)info.st_size) == 0 ? 1 : -1;
    }
    DIR *folder = opendir(path);
    if (!folder) {
        return fail("open", path);
    }
    long replayed = 0;
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        char below[4096];
        int length = snprintf(below, sizeof(below), "%s/%s", path, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof(below)) {
            errno = ENAMETOOLONG;
            fail("open", path);
            replayed = -1;
            break;
        }
        long count = replay(below);
        if (count < 0) {
            replayed = -1;
            break;
        }
        replayed += count;
    }
    closedir(folder);
    return replayed;
}

int main(int argc, char **argv) {
    long replayed = 0;
    for (int i = 1; i < argc; i++) {
        long count = replay(argv[i]);
        if (count < 0) {
            return EXIT_FAILURE;
        }
        if (count == 0) {
            fprintf(stderr, "replay: %s has no files\n", argv[i]);
            return EXIT_FAILURE;
        }
        replayed += count;
    }
    if (replayed == 0) {
        fprintf(stderr, "usage: %s FILE-OR-FOLDER...\n", argv[0]);
        return EXIT_FAILURE;
    }
    printf("replayed %ld inputs\n", replayed);
    return EXIT_SUCCESS;
}
