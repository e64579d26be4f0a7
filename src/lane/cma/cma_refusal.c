#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "lane/cma/cma.h"

enum { REASON_MAX = 384 };

/** Reads the beginning of a small file as a text. @return false where it cannot be read. */
static bool read_text(const char *path, char *text, size_t size) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0) {
        close(file);
    }
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/** The user that a process acts as, as /proc/PID/status has it: the second number behind "Uid:". -1: unknown. */
static int64_t user_of(int32_t process) {
    char path[64];
    char text[2048];
    snprintf(path, sizeof(path), "/proc/%d/status", process);
    char *line = read_text(path, text, sizeof(text)) ? strstr(text, "\nUid:") : NULL;
    if (!line) {
        return -1;
    }
    char *end;
    strtoll(line + 5, &end, 10);
    return strtoll(end, NULL, 10);
}

void wh_cma_investigate(wh_cma_refusal *refusal) {
    char path[64];
    char text[32];
    struct stat at;
    bool yama = read_text("/proc/sys/kernel/yama/ptrace_scope", text, sizeof(text));
    refusal->scope = yama ? (int)strtol(text, NULL, 10) : -1;
    refusal->own_user = geteuid();
    refusal->user = user_of(refusal->process);
    snprintf(path, sizeof(path), "/proc/%d/status", refusal->process);
    /* The files of a process that is not dumpable are root's, whoever's the process is. */
    refusal->dumpable = refusal->user <= 0 || stat(path, &at) != 0 || at.st_uid != 0;
}

/** Whether the way would be free but for Yama. */
static bool only_yama(const wh_cma_refusal *refusal) {
    return refusal->dumpable && (refusal->user < 0 || refusal->user == refusal->own_user);
}

static void explain(const wh_cma_refusal *refusal, char *reason, size_t size) {
    if (!refusal->dumpable) {
        snprintf(
            reason, size,
            "the source is not dumpable (PR_SET_DUMPABLE 0, or it changed its user), which forbids it: set it to 1 "
            "there if other processes of its user may read it");
    } else if (!only_yama(refusal)) {
        snprintf(reason, size,
                 "the source runs as user %" PRId64 " and this process as user %" PRId64
                 ": run both as one user, or give this one CAP_SYS_PTRACE",
                 refusal->user, refusal->own_user);
    } else if (refusal->scope == 1) {
        snprintf(reason, size,
                 "Yama's ptrace_scope is 1 and the source has not named this process its ptracer: let it do so by "
                 "PR_SET_PTRACER, or set /proc/sys/kernel/yama/ptrace_scope to 0");
    } else if (refusal->scope == 2) {
        snprintf(reason, size,
                 "Yama's ptrace_scope is 2 and this process has no CAP_SYS_PTRACE: give it that, or set "
                 "/proc/sys/kernel/yama/ptrace_scope to 1 or 0");
    } else if (refusal->scope == 3) {
        snprintf(reason, size, "Yama's ptrace_scope is 3, which forbids it to everybody until the machine restarts");
    } else {
        snprintf(reason, size,
                 "the source may hold capabilities that this process has not, or rules of a container or a security "
                 "module forbid it: start both alike, in one container, with CAP_SYS_PTRACE where that is not enough");
    }
}

wherry_status wh_cma_refuse(const wh_cma_refusal *refusal, bool *assist_p, wherry_error *error) {
    char reason[REASON_MAX];
    char one[64];
    char other[64];
    explain(refusal, reason, sizeof(reason));
    if (refusal->scope == 1 && only_yama(refusal)) {
        *assist_p = true;
    }
    wh_fail(error, WHERRY_REFUSED, "process_vm_readv on process %d of rank %d: %s; /proc/%d/mem: %s; %s",
            refusal->process, refusal->rank, strerror_r(refusal->call_errnum, one, sizeof(one)), refusal->process,
            strerror_r(refusal->memory_errnum, other, sizeof(other)), reason);
    if (error) {
        error->errnum = refusal->call_errnum;
        error->rank = refusal->rank;
    }
    return WHERRY_REFUSED;
}
