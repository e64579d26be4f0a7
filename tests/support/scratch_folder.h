/** @file scratch_folder.h  A temporary folder for a test that writes files. */
#ifndef WH_TEST_SCRATCH_FOLDER_H
#define WH_TEST_SCRATCH_FOLDER_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct scratch {
    char path[256];
} scratch;

static inline scratch scratch_open(void) {
    scratch folder;
    const char *where = getenv("TMPDIR");
    snprintf(folder.path, sizeof(folder.path), "%.200s/wherry-test-XXXXXX", where ? where : "/tmp");
    if (!mkdtemp(folder.path)) {
        perror(folder.path);
        abort();
    }
    return folder;
}

/** The path of a file in the folder. Valid until the 8th call after this one. */
static inline const char *scratch_file(const scratch *folder, const char *name) {
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder->path, name);
    return path;
}

/** Number of files in the folder, including hidden ones. */
static inline size_t scratch_count(const scratch *folder) {
    size_t count = 0;
    DIR *entries = opendir(folder->path);
    for (const struct dirent *entry = readdir(entries); entry; entry = readdir(entries)) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(entries);
    return count;
}

static inline void scratch_close(const scratch *folder) {
    DIR *entries = opendir(folder->path);
    for (const struct dirent *entry = readdir(entries); entry; entry = readdir(entries)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            unlinkat(dirfd(entries), entry->d_name, 0);
        }
    }
    closedir(entries);
    rmdir(folder->path);
}

#endif
