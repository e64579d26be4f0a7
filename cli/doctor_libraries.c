/* Libraries that are loaded at run time: which are here. They are asked in a process of their own, since loading one runs its code. */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor.h"

enum { PATIENCE_S = 20 };

/** Asks a library that was loaded for its version. @return false where it does not answer. */
typedef bool (*version_fn)(void *library, char *text, size_t size);

static bool ask_number(void *library, const char *name, int *number_p) {
    int (*ask)(int *);
    *(void **)&ask = dlsym(library, name);
    return ask && ask(number_p) == 0;
}

static bool ucx_version(void *library, char *text, size_t size) {
    const char *(*ask)(void);
    *(void **)&ask = dlsym(library, "ucp_get_version_string");
    if (!ask) {
        return false;
    }
    unsigned major = 0;
    unsigned minor = 0;
    bool old = sscanf(ask(), "%u.%u", &major, &minor) == 2 && major == 1 && minor < 15;
    snprintf(text, size, "%s%s", ask(), old ? ", too old: 1.15 or newer is needed" : "");
    return true;
}

static bool cuda_version(void *library, char *text, size_t size) {
    int (*start)(unsigned);
    int version = 0;
    int devices = 0;
    if (!ask_number(library, "cuDriverGetVersion", &version)) {
        return false;
    }
    *(void **)&start = dlsym(library, "cuInit");
    bool works = start && start(0) == 0 && ask_number(library, "cuDeviceGetCount", &devices);
    snprintf(text, size, "driver for CUDA %d.%d, %s", version / 1000, version % 1000 / 10,
             works ? "" : "no device works");
    if (works) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%d device%s", devices, devices == 1 ? "" : "s");
    }
    return true;
}

static bool nccl_version(void *library, char *text, size_t size) {
    int version = 0;
    if (!ask_number(library, "ncclGetVersion", &version)) {
        return false;
    }
    if (version < 10000) {
        snprintf(text, size, "%d.%d.%d", version / 1000, version % 1000 / 100, version % 100);
    } else {
        snprintf(text, size, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    }
    return true;
}

static const struct {
    const char *name;
    const char *variable; /**< Of the environment: another file. */
    const char *file;
    version_fn version;
    const char *use;
} libraries[] = {
    {"UCX", "WHERRY_UCX_LIBRARY", "libucp.so.0", ucx_version,
     "RDMA and shared memory between hosts: the package libucx0 or ucx"},
    {"CUDA", "WHERRY_CUDA_LIBRARY", "libcuda.so.1", cuda_version, "GPU memory: the driver of NVIDIA"},
    {"NCCL", "WHERRY_NCCL_LIBRARY", "libnccl.so.2", nccl_version,
     "GPU to GPU between hosts: the package libnccl2, or what torch brings"},
};

/** In the process of its own: one line to the pipe. */
static _Noreturn void ask(size_t number, int pipe_end) {
    char text[WH_FINDING_TEXT_MAX] = "";
    alarm(PATIENCE_S);
    const char *named = getenv(libraries[number].variable);
    void *library = dlopen(named && *named ? named : libraries[number].file, RTLD_NOW | RTLD_LOCAL);
    bool found = library && libraries[number].version(library, text, sizeof(text));
    if (library && !found) {
        snprintf(text, sizeof(text), "found, and does not tell its version");
    }
    _exit(write(pipe_end, text, strlen(text)) >= 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

static void find_library(wh_findings *findings, size_t number) {
    int ends[2];
    char text[WH_FINDING_TEXT_MAX] = "";
    int result = 0;
    fflush(NULL);
    pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child == 0) {
        close(ends[0]);
        ask(number, ends[1]);
    }
    if (child < 0) {
        return;
    }
    close(ends[1]);
    ssize_t size = read(ends[0], text, sizeof(text) - 1);
    text[size > 0 ? size : 0] = '\0';
    close(ends[0]);
    waitpid(child, &result, 0);
    if (WIFSIGNALED(result)) {
        wh_finding_add(findings, "libraries", libraries[number].name, WH_FINDING_BAD,
                       "loading it ends the process: repair or remove it", "ended by a signal: %s",
                       strsignal(WTERMSIG(result)));
    } else if (*text) {
        wh_finding_add(findings, "libraries", libraries[number].name, WH_FINDING_GOOD, NULL, "%s", text);
    } else {
        wh_finding_add(findings, "libraries", libraries[number].name, WH_FINDING_FACT, NULL, "%s is not found; for %s",
                       libraries[number].file, libraries[number].use);
    }
}

void wh_doctor_libraries(wh_findings *findings) {
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        find_library(findings, i);
    }
}
