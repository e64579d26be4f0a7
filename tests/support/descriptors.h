/** @file descriptors.h  The number of open descriptors of this process. */
#ifndef TEST_DESCRIPTORS_H
#define TEST_DESCRIPTORS_H

#include <dirent.h>

/**
 * Counts the open descriptors, including the one used for counting. Compare it with an earlier
 * count.
 */
static inline int open_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        closedir(folder);
    }
    return count;
}

#endif
