#include "lane/nccl/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/** What there is once a process. */
static wh_nccl_library library;
static bool found;
static wherry_error reason;

static bool find_calls(void *file, const char *name) {
#define WH_X(member, symbol, result, arguments)                                                                        \
    *(void **)&library.member = dlsym(file, #symbol);                                                                  \
    if (!library.member) {                                                                                             \
        wh_fail(&reason, WHERRY_UNSUPPORTED, "%s is too old: it has no " #symbol "; NCCL 2.18 has it", name);          \
        return false;                                                                                                  \
    }
    WH_NCCL_CALLS(WH_X)
#undef WH_X
    return true;
}

static void find(void) {
    const char *name = getenv("WHERRY_NCCL_LIBRARY");
    name = name && *name ? name : "libnccl.so.2";
    /* One that is loaded already, such as torch's own from its folder, is found by its name. Two copies in a process would be a waste of devices' memory. */
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    file = file ? file : dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!file) {
        const char *why = dlerror();
        wh_fail(&reason, WHERRY_UNSUPPORTED, "there is no NCCL here: %s", why ? why : name);
        return;
    }
    if (!find_calls(file, name)) {
        return;
    }
    int result = library.get_version(&library.version);
    if (result != WH_NCCL_OK) {
        wh_nccl_fail(&reason, result, NULL, "NCCL does not tell its version");
        reason.status = WHERRY_UNSUPPORTED;
        return;
    }
    if (library.version < WH_NCCL_OLDEST) {
        wh_fail(&reason, WHERRY_UNSUPPORTED, "%s is version %d, and %d is the oldest that is used", name,
                library.version, WH_NCCL_OLDEST);
        return;
    }
    found = true;
}

const wh_nccl_library *wh_nccl_find(wherry_error *error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find);
    if (!found && error) {
        *error = reason;
    }
    return found ? &library : NULL;
}

wherry_status wh_nccl_fail(wherry_error *error, int result, wh_nccl_handle handle, const char *doing) {
    const char *text = library.error_text(result);
    const char *more = handle ? library.last_error(handle) : NULL;
    more = more ? more : "";
    return wh_fail(error, result == WH_NCCL_REMOTE_ERROR ? WHERRY_PEER_LOST : WHERRY_SYSTEM, "%s: NCCL: %s (%d)%s%.*s",
                   doing, text ? text : "an error without a name", result, *more ? ": " : "", (int)strcspn(more, "\n"),
                   more);
}
