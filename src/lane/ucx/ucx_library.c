#include "lane/ucx/ucx_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

static const char default_name[] = "libucp.so.0";
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wh_ucx_library loaded;
static bool is_loaded;

/* ---- UCX's log ---- */

enum { LINE_MAX = 512, STOP = 0, CONTINUE = 1, LEVEL_ERROR = 1, LEVEL_WARN = 2 };

static _Thread_local int inside;

void wh_ucx_enter(void) {
    inside++;
}

void wh_ucx_leave(void) {
    inside--;
}

/**
 * A log handler, declared as in ucs/debug/log_def.h, which some header packages do not have. Lines
 * that are not from Wherry's calls go to UCX's own log. UCX logs an error for some events that the
 * lane expects, such as a dead peer. So Wherry logs UCX's errors at the level WHERRY_LOG_INFO.
 */
static int take_line(const char *file, unsigned line, const char *function, int level, const void *config,
                     const char *format, va_list arguments) {
    char text[LINE_MAX];
    (void)file, (void)line, (void)function, (void)config;
    if (!inside) {
        return CONTINUE;
    }
    vsnprintf(text, sizeof(text), format, arguments);
    wh_log(level <= LEVEL_ERROR ? WHERRY_LOG_INFO : WHERRY_LOG_DEBUG, "ucx: %s: %s",
           level <= LEVEL_ERROR  ? "error"
           : level <= LEVEL_WARN ? "warning"
                                 : "note",
           text);
    return STOP;
}

/* ---- signals ---- */

/**
 * The program's signal handlers. UCX replaces the handlers of SIGSEGV, SIGHUP and other signals
 * when it is loaded.
 */
typedef struct signals {
    struct sigaction before[_NSIG];
    bool kept[_NSIG];
} signals;

/**
 * Restores a handler only if it is now a function of UCX, because another thread may have set its
 * own handler meanwhile.
 */
static void restore_signals(const signals *all) {
    for (int number = 1; number < _NSIG; number++) {
        struct sigaction now;
        Dl_info where;
        void *handler = NULL;
        if (all->kept[number] && sigaction(number, NULL, &now) == 0) {
            memcpy(&handler, &now.sa_sigaction, sizeof(handler));
            if (now.sa_sigaction != all->before[number].sa_sigaction && dladdr(handler, &where) && where.dli_fname &&
                strstr(where.dli_fname, "libuc")) {
                sigaction(number, all->before + number, NULL);
            }
        }
    }
}

/* ---- loading ---- */

static void *open_file(const char *name, bool *foreign_p) {
    void *handle = dlopen(default_name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    *foreign_p = handle != NULL;
    if (handle) {
        return handle;
    }
    static signals all; /* Static because it is large. The caller holds `lock`. */
    for (int number = 1; number < _NSIG; number++) {
        all.kept[number] = sigaction(number, NULL, all.before + number) == 0;
    }
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle && !getenv("UCX_HANDLE_ERRORS") && !getenv("UCX_ERROR_SIGNALS")) {
        restore_signals(&all);
    }
    return handle;
}

static wherry_status find_functions(void *handle, const char *name, wh_ucx_library *library, wherry_error *error) {
    const char *missing = NULL;
#define FIND(function)                                                                                                 \
    *(void **)&library->function = dlsym(handle, #function);                                                           \
    missing = library->function ? missing : #function;
    WH_UCX_FUNCTIONS(FIND)
#undef FIND
    if (library->ucp_get_version) {
        unsigned major;
        unsigned release;
        library->ucp_get_version(&major, &library->minor, &release);
        if (major > WH_UCX_MAJOR) {
            return wh_fail(error, WHERRY_UNSUPPORTED, "UCX %u.%u.%u is not supported; version %d.x is needed", major,
                           library->minor, release, WH_UCX_MAJOR);
        }
        if (major < WH_UCX_MAJOR || library->minor < WH_UCX_MINOR) {
            return wh_fail(error, WHERRY_UNSUPPORTED, "UCX %u.%u.%u is too old; %d.%d or newer is needed: %s", major,
                           library->minor, release, WH_UCX_MAJOR, WH_UCX_MINOR,
                           library->foreign
                               ? "the program has already loaded the old one, perhaps for MPI; put a newer UCX "
                                 "first in LD_LIBRARY_PATH"
                               : "install a newer UCX, or set WHERRY_UCX_LIBRARY to its libucp.so.0");
        }
    }
    return missing
               ? wh_fail(error, WHERRY_UNSUPPORTED, "%s is not a usable libucp: it has no function %s", name, missing)
               : WHERRY_OK;
}

static wherry_status load(wherry_error *error) {
    const char *named = getenv("WHERRY_UCX_LIBRARY");
    const char *name = named && *named ? named : default_name;
    wh_ucx_library library;
    void *handle = open_file(name, &library.foreign);
    if (!handle) {
        const char *reason = dlerror();
        return wh_fail(error, WHERRY_UNSUPPORTED,
                       "cannot load UCX: %s; install it, or set WHERRY_UCX_LIBRARY to its libucp.so.0",
                       reason ? reason : name);
    }
    wherry_status status = find_functions(handle, library.foreign ? default_name : name, &library, error);
    if (status != WHERRY_OK) {
        dlclose(handle);
        return status;
    }
    void (*push)(int (*)(const char *, unsigned, const char *, int, const void *, const char *, va_list));
    *(void **)&push = dlsym(handle, "ucs_log_push_handler");
    if (push) {
        push(take_line);
    }
    wh_log(WHERRY_LOG_DEBUG, "ucx: using UCX %s%s", library.ucp_get_version_string(),
           library.foreign ? ", which the program had loaded already" : "");
    loaded = library;
    return WHERRY_OK;
}

const wh_ucx_library *wh_ucx_load(wherry_error *error) {
    wherry_status status = WHERRY_OK;
    pthread_mutex_lock(&lock);
    if (!is_loaded) {
        status = load(error);
        is_loaded = status == WHERRY_OK;
    }
    pthread_mutex_unlock(&lock);
    return status == WHERRY_OK ? &loaded : NULL;
}
