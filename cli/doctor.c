/* `wherry doctor`: shows which lane would be used, and what affects speed on this machine. */
#include <dlfcn.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "output.h"
#include "probe.h"

enum {
    PROBE_BYTES = 16 << 20,
    LOAD_SECONDS = 20, /**< Long, because loading a GPU library may start a driver. */
    FINDINGS_MAX = 128,
    TEXT_MAX = 256,
    ADVICE_COLUMN = 24,
    WIDTH = 110,
    CAP_SYS_PTRACE_BIT = 19,
};

extern char **environ;

typedef struct doctor_options {
    wh_common common;
    const char *group;
} doctor_options;

static const wh_option options_taken[] = {
    WH_OPTION(doctor_options, group, TEXT, "group", 'g', "ADDRESS",
              "try the lanes between ranks 0 and 1 of this group, such as env://; every rank must run this command, "
              "and rank 0 prints the result (default: two processes on this machine)"),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_doctor = {
    .name = "doctor",
    .summary = "show which lane would be used, and what prevents a faster one",
    .operands = "",
    .text = "Checks what affects the speed of transfers: permission to read another process's memory, huge pages, "
            "network interfaces, and the installed versions of UCX, CUDA and NCCL. Then two processes try each lane. "
            "A line that starts with ! is a problem, and the next line says how to fix it.\n\n"
            "Exits with 1 if there is a problem. Changes nothing. `wherry bench` measures the lanes.",
    .options = options_taken,
    .json = true,
    .examples = "wherry doctor\n"
                "wherry doctor --json | jq .lane\n"
                "# between two hosts, on each of them:\n"
                "torchrun --nnodes 2 --nproc-per-node 1 --no-python wherry doctor --group env://\n",
    WH_DEFAULTS(doctor_options, .group = NULL),
    .run = run,
};

/* ---- findings ---- */

typedef enum level {
    FACT, /**< Information that is neither good nor bad. */
    GOOD,
    BAD, /**< Something does not work or is slower than necessary; the advice says what to do. */
} level;

typedef struct finding {
    const char *area; /**< The heading, such as "permissions". */
    level level;
    char name[64];
    char value[TEXT_MAX];
    char advice[WHERRY_ERROR_MESSAGE_MAX]; /**< "" if there is nothing to do. */
} finding;

static finding findings[FINDINGS_MAX];
static size_t finding_count;
static size_t problem_count; /**< Number of findings that are BAD. */

/** Adds a finding. @param advice  what to do; NULL if there is nothing to do. */
__attribute__((format(printf, 5, 6))) static void add(const char *area, const char *name, level how, const char *advice,
                                                      const char *format, ...) {
    va_list arguments;
    if (finding_count == FINDINGS_MAX) {
        return;
    }
    finding *one = findings + finding_count++;
    problem_count += how == BAD;
    one->area = area;
    one->level = how;
    snprintf(one->name, sizeof(one->name), "%s", name);
    snprintf(one->advice, sizeof(one->advice), "%s", advice ? advice : "");
    va_start(arguments, format);
    vsnprintf(one->value, sizeof(one->value), format, arguments);
    va_end(arguments);
}

/* ---- the machine ---- */

static void find_machine(void) {
    struct utsname names;
    char size[WH_SIZE_TEXT_MAX];
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (uname(&names) == 0) {
        add("machine", "kernel", FACT, NULL, "%s %s, %s", names.sysname, names.release, names.machine);
    }
    add("machine", "processors", FACT, NULL, "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    add("machine", "memory", FACT, NULL, "%s", wh_size_text(memory, size));
    add("machine", "wherry", FACT, NULL, "%s", wherry_version());
}

/** Finds out whether one process may read another's memory, which the cma lane needs. */
static void find_permissions(void) {
    static const char area[] = "permissions";
    static const char *const modes[] = {"off", "strict", "filter"};
    char text[64];
    struct stat space;
    bool capable = wh_read_field("/proc/self/status", "CapEff:", text, sizeof(text)) &&
                   (strtoull(text, NULL, 16) >> CAP_SYS_PTRACE_BIT & 1);
    add(area, "CAP_SYS_PTRACE", FACT, NULL, "%s", capable ? "yes" : "no");
    if (!wh_read_field("/proc/sys/kernel/yama/ptrace_scope", "", text, sizeof(text))) {
        add(area, "Yama", GOOD, NULL, "not present");
    } else {
        int scope = (int)strtol(text, NULL, 10);
        bool allowed = scope <= 1 || (scope == 2 && capable);
        add(area, "Yama", allowed ? GOOD : BAD,
            allowed      ? NULL
            : scope == 2 ? "the cma lane needs CAP_SYS_PTRACE, or run: sysctl kernel.yama.ptrace_scope=1"
                         : "the cma lane needs a lower kernel.yama.ptrace_scope; changing it takes a reboot",
            "ptrace_scope %d%s", scope,
            scope == 1 ? " (sufficient: a source allows its receivers to read its memory)" : "");
    }
    if (wh_read_field("/proc/self/status", "Seccomp:", text, sizeof(text))) {
        unsigned mode = (unsigned)strtoul(text, NULL, 10);
        add(area, "seccomp", FACT, NULL, "%s", mode < 3 ? modes[mode] : text);
    }
    bool dumpable = prctl(PR_GET_DUMPABLE) == 1;
    add(area, "dumpable", dumpable ? GOOD : BAD,
        dumpable ? NULL : "the cma lane cannot read this process; set PR_SET_DUMPABLE to 1", "%s",
        dumpable ? "yes" : "no");
    if (stat("/proc/self/ns/pid", &space) == 0) {
        add(area, "pid namespace", FACT, NULL,
            "%" PRIu64 "; the cma lane works only between ranks of one pid namespace", (uint64_t)space.st_ino);
    }
    add(area, "user", FACT, NULL, "%d; the cma lane works only between ranks of one user", (int)geteuid());
}

/** Reads the selected word of a file such as "always [madvise] never". @return false if none. */
static bool read_choice(const char *path, char *word, size_t size) {
    char line[256];
    wh_read_field(path, "", line, sizeof(line));
    const char *from = strchr(line, '[');
    if (!from) {
        return false;
    }
    snprintf(word, size, "%.*s", (int)strcspn(from + 1, "]"), from + 1);
    return true;
}

static void find_memory(void) {
    static const char area[] = "memory";
    char word[64] = "none";
    struct rlimit limit;
    struct statvfs shm;
    char sizes[2][WH_SIZE_TEXT_MAX];
    bool there = read_choice("/sys/kernel/mm/transparent_hugepage/enabled", word, sizeof(word));
    bool good = there && strcmp(word, "never") != 0;
    add(area, "huge pages", good ? GOOD : BAD,
        good    ? NULL
        : there ? "without huge pages, receiving into new memory is several times slower; run: echo madvise > "
                  "/sys/kernel/mm/transparent_hugepage/enabled"
                : "this kernel has no transparent huge pages; receive in place instead of into new memory",
        "%s", word);
    if (read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled", word, sizeof(word))) {
        add(area, "huge pages, shared", FACT, NULL, "%s", word);
    }
    if (statvfs("/dev/shm", &shm) == 0) {
        add(area, "/dev/shm", FACT, NULL, "%s, %s free (the ring lane does not use it)",
            wh_size_text((uint64_t)shm.f_blocks * shm.f_frsize, sizes[0]),
            wh_size_text((uint64_t)shm.f_bavail * shm.f_frsize, sizes[1]));
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        add(area, "pinned memory", FACT, NULL, "%s",
            limit.rlim_cur == RLIM_INFINITY ? "no limit" : wh_size_text(limit.rlim_cur, sizes[0]));
    }
}

static void find_interface(const struct ifaddrs *one) {
    char address[INET6_ADDRSTRLEN + IF_NAMESIZE];
    char path[128];
    char speed[32];
    char mtu[32];
    int family = one->ifa_addr ? one->ifa_addr->sa_family : AF_UNSPEC;
    socklen_t size = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (!(one->ifa_flags & IFF_UP) || (family != AF_INET && family != AF_INET6) ||
        getnameinfo(one->ifa_addr, size, address, sizeof(address), NULL, 0, NI_NUMERICHOST) != 0 ||
        strchr(address, '%')) { /* '%' is in link-local addresses, which are skipped */
        return;
    }
    snprintf(path, sizeof(path), "/sys/class/net/%s/speed", one->ifa_name);
    bool known = wh_read_field(path, "", speed, sizeof(speed)) && strtol(speed, NULL, 10) > 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", one->ifa_name);
    wh_read_field(path, "", mtu, sizeof(mtu));
    add("network", one->ifa_name, FACT, NULL, "%s%s%s%s, MTU %s%s", address, known ? ", " : "", known ? speed : "",
        known ? " Mbit/s" : "", *mtu ? mtu : "unknown", one->ifa_flags & IFF_LOOPBACK ? " (loopback)" : "");
}

static void find_network(void) {
    struct ifaddrs *all = NULL;
    const char *wanted = getenv("WHERRY_INTERFACE");
    bool found = false;
    if (getifaddrs(&all) == 0) {
        for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
            find_interface(one);
            found = found || (wanted && strcmp(one->ifa_name, wanted) == 0);
        }
        freeifaddrs(all);
    }
    if (wanted && *wanted && !found) {
        add("network", "WHERRY_INTERFACE", BAD, "set it to one of the interfaces above, or unset it",
            "%s does not exist", wanted);
    }
}

/** Lists the environment variables that begin with WHERRY_. Secrets are not shown. */
static void find_settings(void) {
    for (char **one = environ; *one; one++) {
        const char *value = strchr(*one, '=');
        char name[64];
        if (value && strncmp(*one, "WHERRY_", 7) == 0) {
            snprintf(name, sizeof(name), "%.*s", (int)(value - *one), *one);
            bool secret = strcmp(name, "WHERRY_SECRET") == 0 || strcmp(name, "WHERRY_TOKEN") == 0;
            add("settings", name, FACT, NULL, "%s", secret ? "(set)" : value + 1);
        }
    }
}

/* ---- libraries that are loaded at run time ---- */

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
    char *minor;
    bool old = strtoul(ask(), &minor, 10) == 1 && *minor == '.' && strtoul(minor + 1, NULL, 10) < 15;
    snprintf(text, size, "%s%s", ask(), old ? "; too old, 1.15 or newer is needed" : "");
    return true;
}

static bool cuda_version(void *library, char *text, size_t size) {
    int (*init)(unsigned);
    int version = 0;
    int devices = 0;
    if (!ask_number(library, "cuDriverGetVersion", &version)) {
        return false;
    }
    *(void **)&init = dlsym(library, "cuInit");
    bool works = init && init(0) == 0 && ask_number(library, "cuDeviceGetCount", &devices);
    snprintf(text, size, "driver for CUDA %d.%d, %d device%s%s", version / 1000, version % 1000 / 10, devices,
             devices == 1 ? "" : "s", works ? "" : " (cuInit fails)");
    return true;
}

static bool nccl_version(void *library, char *text, size_t size) {
    int version = 0;
    if (!ask_number(library, "ncclGetVersion", &version)) {
        return false;
    }
    int major = version < 10000 ? 1000 : 10000;
    snprintf(text, size, "%d.%d.%d", version / major, version % major / 100, version % 100);
    return true;
}

static const struct library {
    const char *name;
    const char *variable; /**< The environment variable that overrides `file`. */
    const char *file;
    /** Writes the version of the loaded library. @return false if it is unknown. */
    bool (*version)(void *library, char *text, size_t size);
    const char *missing;
} libraries[] = {
    {"UCX", "WHERRY_UCX_LIBRARY", "libucp.so.0", ucx_version, "RDMA between hosts needs it: install libucx0 or ucx"},
    {"CUDA", "WHERRY_CUDA_LIBRARY", "libcuda.so.1", cuda_version, "GPU memory needs it: install NVIDIA's driver"},
    {"NCCL", "WHERRY_NCCL_LIBRARY", "libnccl.so.2", nccl_version,
     "GPUs on two hosts need it: install libnccl2, or torch with CUDA"},
};

/** Loads a library in a child process, because its code runs when it is loaded and may crash. */
static void find_library(const struct library *one) {
    int ends[2];
    char text[TEXT_MAX] = "";
    int result = 0;
    const char *named = getenv(one->variable);
    const char *file = named && *named ? named : one->file;
    fflush(NULL);
    pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child == 0) {
        alarm(LOAD_SECONDS);
        void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (library && !one->version(library, text, sizeof(text))) {
            snprintf(text, sizeof(text), "unknown version");
        }
        _exit(write(ends[1], text, strlen(text)) >= 0 ? EXIT_SUCCESS : EXIT_FAILURE);
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
        add("libraries", one->name, BAD, "loading this library crashes or hangs; repair or remove it",
            "killed by a signal: %s", strsignal(WTERMSIG(result)));
    } else if (*text) {
        add("libraries", one->name, GOOD, NULL, "%s", text);
    } else {
        add("libraries", one->name, FACT, NULL, "%s not found; %s", file, one->missing);
    }
}

/* ---- lanes ---- */

/** Adds the findings about lanes. @return the lane that would be used; "" if none works. */
static const char *find_lanes(const wh_probe *probe) {
    const char *used = probe->lanes[0].status == WHERRY_OK ? probe->lanes[0].used : "";
    for (size_t i = 1; i < probe->count; i++) {
        const wh_probe_lane *lane = probe->lanes + i;
        if (lane->status == WHERRY_OK) {
            add("lanes", lane->name, GOOD, NULL, "works%s", strcmp(used, lane->name) == 0 ? "; would be used" : "");
        } else {
            add("lanes", lane->name, lane->refused ? BAD : FACT, lane->reason, "%s",
                lane->refused ? "does not work" : "not available");
        }
    }
    if (!*used) {
        add("lanes", "all", BAD, probe->lanes[0].reason, "none works");
    }
    return used;
}

/* ---- the result ---- */

static void print_text(const char *lane, bool quiet) {
    const char *area = "";
    for (size_t i = 0; i < finding_count; i++) {
        const finding *one = findings + i;
        if (quiet && one->level != BAD) {
            continue;
        }
        if (strcmp(area, one->area) != 0) {
            printf("%s%s\n", *area ? "\n" : "", one->area);
            area = one->area;
        }
        printf("  %s %-18s  %s\n", one->level == BAD ? "!" : " ", one->name, one->value);
        if (*one->advice) {
            printf("%*s", ADVICE_COLUMN, "");
            wh_print_wrapped(stdout, one->advice, ADVICE_COLUMN, WIDTH);
        }
    }
    printf("%s%s%s%s", *area ? "\n" : "", *lane ? "checkpoints would use the " : "no lane works", lane,
           *lane ? " lane" : "");
    printf("; %zu problem%s\n", problem_count, problem_count == 1 ? "" : "s");
}

static void print_json(const char *lane) {
    static const char *const levels[] = {[FACT] = "fact", [GOOD] = "good", [BAD] = "bad"};
    wh_json json = {.out = stdout};
    wh_json_open(&json, NULL, '{');
    wh_json_text(&json, "version", wherry_version());
    wh_json_open(&json, "findings", '[');
    for (size_t i = 0; i < finding_count; i++) {
        const finding *one = findings + i;
        wh_json_open(&json, NULL, '{');
        wh_json_text(&json, "area", one->area);
        wh_json_text(&json, "name", one->name);
        wh_json_text(&json, "level", levels[one->level]);
        wh_json_text(&json, "value", one->value);
        wh_json_text(&json, "advice", one->advice);
        wh_json_close(&json, '}');
    }
    wh_json_close(&json, ']');
    if (*lane) {
        wh_json_text(&json, "lane", lane);
    } else {
        wh_json_null(&json, "lane");
    }
    wh_json_close(&json, '}');
}

static int run(void *context, const wh_operands *operands) {
    const doctor_options *options = context;
    (void)operands;
    static wh_probe probe;
    wherry_error error;
    wh_interrupt_catch();
    wh_set_log(&options->common, WHERRY_LOG_OFF);
    find_machine();
    find_permissions();
    find_memory();
    find_network();
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        find_library(libraries + i);
    }
    find_settings();
    probe.group = options->group;
    probe.bytes = PROBE_BYTES;
    wherry_status status = wh_probe_run(&probe, &error);
    if (wh_interrupt_code()) {
        return wh_interrupt_code();
    }
    if (status != WHERRY_OK) {
        return wh_fail_status(&wh_command_doctor, "cannot try the lanes", &error);
    }
    if (probe.rank != 0) {
        return WH_EXIT_OK;
    }
    const char *lane = find_lanes(&probe);
    if (options->common.json) {
        print_json(lane);
    } else {
        print_text(lane, options->common.quiet);
    }
    return problem_count ? WH_EXIT_FAILED : WH_EXIT_OK;
}
