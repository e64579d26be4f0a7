/* `wherry doctor`: shows which lane would be used, and what affects speed on this machine. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
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
#include <time.h>
#include <unistd.h>

#include <wherry/group.h>

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
    DAY_S = 24 * 60 * 60,
    EXPIRES_DAYS = 14, /**< A certificate that expires earlier is a problem. */
};

extern char **environ;

typedef struct doctor_options {
    wh_common common;
    const char *group;
    bool clean;
} doctor_options;

static const wh_option options_taken[] = {
    WH_OPTION(doctor_options, group, TEXT, "group", 'g', "ADDRESS",
              "try the lanes between ranks 0 and 1 of this group, such as env://; every rank must run this command, "
              "and rank 0 prints the result (default: two processes on this machine)"),
    WH_OPTION(
        doctor_options, clean, FLAG, "clean", 0, NULL,
        "first remove the sockets that your killed processes left where ranks of a host meet; those made in the last "
        "minute may stay"),
    {.name = NULL},
};

static int run(void *context, const wh_operands *operands);

const wh_command wh_command_doctor = {
    .name = "doctor",
    .summary = "show which lane would be used, and what prevents a faster one",
    .operands = "",
    .text = "Checks what affects the speed of transfers: permission to read another process's memory, huge pages, "
            "network interfaces, and the installed versions of UCX, CUDA and NCCL. Then two processes try each lane. "
            "A line that starts with ! is a problem. What to do about it is at the end, the most useful first.\n\n"
            "Exits with 1 if there is a problem. Changes nothing without --clean. `wherry bench` measures the lanes.",
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
static bool has_cuda;
static bool has_loopback; /**< A loopback interface is up. */

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

/**
 * Runs `say` in a child process, because its code may crash or hang. `say` writes a text to a file
 * descriptor. @return how the process ended, as waitpid says it; -1 if it could not be started.
 */
static int ask_child(void (*say)(const void *about, int out), const void *about, char text[TEXT_MAX]) {
    int ends[2];
    int result = -1;
    fflush(NULL);
    pid_t child = pipe(ends) == 0 ? fork() : -1;
    if (child == 0) {
        alarm(LOAD_SECONDS);
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
        say(about, ends[1]);
        _exit(EXIT_SUCCESS);
    }
    if (child > 0) {
        close(ends[1]);
        ssize_t size = read(ends[0], text, TEXT_MAX - 1);
        text[size > 0 ? size : 0] = '\0';
        close(ends[0]);
        waitpid(child, &result, 0);
    }
    return result;
}

static void say_package(const void *python, int out) {
    dup2(out, STDOUT_FILENO);
    execlp(python, python, "-c", "import importlib.metadata as m; print(m.version('wherry'), end='')", (char *)NULL);
}

/**
 * Finds the version of the Python package, which must be that of the command: for the interpreter
 * that has started the command, or python3.
 */
static void find_python(void) {
    char version[TEXT_MAX] = "";
    const char *starter = getenv("WHERRY_PYTHON");
    const char *python = starter && *starter ? starter : "python3";
    if (ask_child(say_package, python, version) == -1) {
        return;
    }
    bool other = *version && strcmp(version, wherry_version()) != 0;
    add("machine", "Python package", other ? BAD : FACT,
        other ? "the command and the Python package wherry differ; install the same version of both" : NULL, "%s%s%s",
        *version ? version : "not installed", *version && !other ? "" : " for ", *version && !other ? "" : python);
}

/** Finds the limits of a container: those of cgroup v2, or of v1. */
static void find_limits(uint64_t memory) {
    char text[64];
    char size[WH_SIZE_TEXT_MAX];
    char *rest = text;
    uint64_t bytes = wh_container_memory();
    if (bytes < memory) {
        add("machine", "container memory", FACT, NULL, "%s", wh_size_text(bytes, size));
    }
    double quota = (double)wh_read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "");
    double period = (double)wh_read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "");
    if (wh_read_field("/sys/fs/cgroup/cpu.max", "", text, sizeof(text))) {
        quota = (double)strtoul(text, &rest, 10);
        period = (double)strtoul(rest, NULL, 10);
    }
    if (quota > 0 && period > 0) {
        add("machine", "container CPUs", FACT, NULL, "%.1f", quota / period);
    }
}

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
    find_python();
    find_limits(memory);
}

/** Finds, or removes, the sockets of killed processes where groups of env:// meet on one host. */
static void find_leftovers(bool clean) {
    const char *folders[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        bool again = false;
        for (size_t k = 0; k < i; k++) {
            again = again || (folders[i] && folders[k] && strcmp(folders[i], folders[k]) == 0);
        }
        uint64_t count = again ? 0 : wherry_group_clean(folders[i], clean);
        if (count) {
            add("machine", "left behind", FACT,
                clean ? NULL : "the next group there, or wherry doctor --clean, removes them",
                "%" PRIu64 " socket%s of killed processes in %s%s", count, count == 1 ? "" : "s", folders[i],
                clean ? ", now removed" : "");
        }
    }
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
    bool hidden = access("/sys/kernel", F_OK) != 0;
    add(area, "huge pages",
        good     ? GOOD
        : hidden ? FACT
                 : BAD,
        good || hidden ? NULL
        : there        ? "without huge pages, receiving into new memory is several times slower; run: echo madvise > "
                         "/sys/kernel/mm/transparent_hugepage/enabled"
                       : "this kernel has no transparent huge pages; receive in place instead of into new memory",
        "%s", hidden ? "unknown: /sys is not mounted here" : word);
    if (read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled", word, sizeof(word))) {
        add(area, "huge pages, shared", FACT, NULL, "%s", word);
    }
    if (statvfs("/dev/shm", &shm) == 0) {
        add(area, "/dev/shm", FACT, NULL, "%s, %s free (the ring lane does not use it)",
            wh_size_text((uint64_t)shm.f_blocks * shm.f_frsize, sizes[0]),
            wh_size_text((uint64_t)shm.f_bavail * shm.f_frsize, sizes[1]));
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        add(area, "locked memory", FACT, NULL, "%s%s", limit.rlim_cur == RLIM_INFINITY ? "" : "at most ",
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
        strchr(address, '%')) { /* '%' is in link-local addresses, which are skipped. */
        return;
    }
    snprintf(path, sizeof(path), "/sys/class/net/%s/speed", one->ifa_name);
    bool known = wh_read_field(path, "", speed, sizeof(speed)) && strtol(speed, NULL, 10) > 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", one->ifa_name);
    wh_read_field(path, "", mtu, sizeof(mtu));
    add("network", one->ifa_name, FACT, NULL, "%s%s%s%s%s%s%s", address, known ? ", " : "", known ? speed : "",
        known ? " Mbit/s" : "", *mtu ? ", MTU " : "", mtu, one->ifa_flags & IFF_LOOPBACK ? " (loopback)" : "");
}

static void find_network(void) {
    struct ifaddrs *all = NULL;
    const char *wanted = getenv("WHERRY_INTERFACE");
    bool found = false;
    if (getifaddrs(&all) == 0) {
        for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
            find_interface(one);
            found = found || (wanted && strcmp(one->ifa_name, wanted) == 0);
            has_loopback = has_loopback || (one->ifa_flags & (IFF_LOOPBACK | IFF_UP)) == (IFF_LOOPBACK | IFF_UP);
        }
        freeifaddrs(all);
    }
    if (!has_loopback) {
        add("network", "loopback", BAD, "turn the loopback interface on: ip link set lo up", "down");
    }
    if (wanted && *wanted && !found) {
        add("network", "WHERRY_INTERFACE", BAD, "set it to one of the interfaces above, or unset it",
            "%s does not exist", wanted);
    }
}

/**
 * Lists the environment variables that begin with WHERRY_. Secrets are not shown, and WHERRY_PYTHON
 * is set by the script that pip installs.
 */
static void find_settings(void) {
    for (char **one = environ; *one; one++) {
        const char *value = strchr(*one, '=');
        char name[64];
        if (value && strncmp(*one, "WHERRY_", 7) == 0 && strncmp(*one, "WHERRY_PYTHON=", 14) != 0) {
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
    {"UCX", "WHERRY_UCX_LIBRARY", "libucp.so.0", ucx_version,
     "RDMA between hosts needs version 1.15 or newer: dnf install ucx, or pip install libucx-cu12"},
    {"CUDA", "WHERRY_CUDA_LIBRARY", "libcuda.so.1", cuda_version, "GPU memory needs it: install NVIDIA's driver"},
    {"NCCL", "WHERRY_NCCL_LIBRARY", "libnccl.so.2", nccl_version,
     "GPUs on two hosts need it: install libnccl2, or torch with CUDA"},
};

static void say_library(const void *about, int out) {
    const struct library *one = about;
    const char *named = getenv(one->variable);
    char text[TEXT_MAX] = "";
    void *library = dlopen(named && *named ? named : one->file, RTLD_NOW | RTLD_LOCAL);
    if (library && !one->version(library, text, sizeof(text))) {
        snprintf(text, sizeof(text), "unknown version");
    }
    dprintf(out, "%s", text);
}

static void find_library(const struct library *one) {
    char text[TEXT_MAX] = "";
    const char *named = getenv(one->variable);
    int result = ask_child(say_library, one, text);
    if (result == -1) {
        return;
    }
    if (WIFSIGNALED(result)) {
        add("libraries", one->name, BAD, "loading this library crashes or hangs; repair or remove it",
            "killed by a signal: %s", strsignal(WTERMSIG(result)));
    } else if (*text) {
        add("libraries", one->name, GOOD, NULL, "%s", text);
        has_cuda = has_cuda || one->version == cuda_version;
    } else {
        add("libraries", one->name, FACT, NULL, "%s not found; %s", named && *named ? named : one->file, one->missing);
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
        } else if (wh_probe_suits(lane->name)) {
            add("lanes", lane->name, lane->refused ? BAD : FACT, lane->reason, "%s",
                lane->refused ? "does not work" : "not available");
        } else if (strcmp(lane->name, "blocks") != 0) { /* This is for groups without sockets. */
            add("lanes", lane->name, FACT, NULL, "%s",
                has_cuda ? "not tried: it moves memory of GPUs" : "not available: no CUDA");
        }
    }
    if (!*used) {
        add("lanes", "all lanes", BAD, probe->lanes[0].reason, "none works");
    }
    return used;
}

/* ---- the group ---- */

static void find_certificate(const char *area, const char *subject, int64_t expires) {
    int64_t days = (expires - (int64_t)time(NULL)) / DAY_S;
    add(area, "certificate", days < EXPIRES_DAYS ? BAD : GOOD,
        days < EXPIRES_DAYS ? "renew it: ranks cannot connect when it has expired" : NULL, "%s%s%" PRId64 " more days",
        subject, *subject ? ", for " : "good for ", days);
}

/** Finds how ranks on two hosts would be protected by the settings of the environment. */
static void find_security(void) {
    static const char area[] = "security";
    const char *encrypt = getenv("WHERRY_ENCRYPT");
    bool all = encrypt && strcmp(encrypt, "all") == 0;
    wherry_group_link link = {.local = false};
    wherry_group *group = NULL;
    wherry_error error;
    /* A group of one rank opens no socket. */
    wherry_status status = wherry_group_join("tcp://127.0.0.1:1?rank=0&size=1", NULL, &group, &error);
    WH_THEN(status, wherry_group_describe(group, 0, &link, &error));
    wherry_group_leave(group);
    if (status != WHERRY_OK) {
        add(area, "between hosts", BAD, error.message, "the settings cannot be used");
    } else if (!*link.cipher) {
        add(area, "between hosts", FACT, NULL, "no secret and no certificate: groups stay on this host");
    } else {
        add(area, "between hosts", GOOD, NULL, "%s, by %s; %s", link.cipher, link.expires ? "certificates" : "a secret",
            all ? "data is encrypted, too" : "data is not encrypted (WHERRY_ENCRYPT=all)");
    }
    if (status == WHERRY_OK && link.expires) {
        find_certificate(area, "", link.expires);
    }
}

/** Finds whether the meeting point of a group that failed can be reached, if that is known. */
static void find_meeting(const char *address) {
    double seconds;
    if (strncmp(address, "tcp://", 6) == 0 && wh_connect(address, &seconds)) {
        add("group", "meeting point", GOOD, NULL, "can be reached, in %.1f ms", seconds * 1000);
    } else if (strncmp(address, "tcp://", 6) == 0) {
        add("group", "meeting point", FACT, NULL, "cannot be reached: %s", strerror(errno));
    }
}

/** Adds the findings about the connection to rank 1 of --group. */
static void find_group(const wh_probe *probe) {
    static const char area[] = "group";
    const wherry_group_link *link = &probe->link;
    double connect = probe->lanes[0].connect_seconds;
    char reached[TEXT_MAX] = "";
    if (connect > 0) {
        snprintf(reached, sizeof(reached), "rank 1 reaches it in %.1f ms; ", connect * 1000);
    }
    add(area, "meeting point", FACT, NULL, "%sall had joined after %.2f s", reached, probe->join_seconds);
    if (!probe->linked) {
        return;
    }
    if (link->local) {
        add(area, "messages", GOOD, NULL, "over a Unix socket, which does not leave this host");
    } else if (*link->cipher) {
        add(area, "messages", GOOD, NULL, "encrypted: %s", link->cipher);
    } else {
        add(area, "messages", BAD,
            "set WHERRY_SECRET on all ranks: without TLS, others on the network can read messages", "not encrypted");
    }
    if (link->expires) {
        find_certificate(area, link->subject, link->expires);
    }
}

/* ---- the result ---- */

/** Prints the advice. Problems that make transfers fail come before those that only slow them. */
static void print_advice(void) {
    static const char *const order[] = {"network", "security",    "lanes",     "group",
                                        "machine", "permissions", "libraries", "memory"};
    int width = 0;
    for (size_t i = 0; i < finding_count; i++) {
        int length = findings[i].level == BAD ? (int)strlen(findings[i].name) : 0;
        width = length > width ? length : width;
    }
    printf("%s", problem_count ? "\nto do\n" : "");
    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++) {
        for (size_t i = 0; i < finding_count; i++) {
            const finding *one = findings + i;
            if (one->level == BAD && strcmp(one->area, order[k]) == 0) {
                printf("  %-*s  ", width, one->name);
                wh_print_wrapped(stdout, one->advice, width + 4, WIDTH);
            }
        }
    }
}

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
        printf("  %s %-18s  ", one->level == BAD ? "!" : " ", one->name);
        wh_print_wrapped(stdout, one->value, ADVICE_COLUMN, WH_WIDTH_ANY);
        if (*one->advice && one->level != BAD) {
            printf("%*s", ADVICE_COLUMN, "");
            wh_print_wrapped(stdout, one->advice, ADVICE_COLUMN, WIDTH);
        }
    }
    print_advice();
    printf("%s%s%s%s", *area ? "\n" : "", *lane ? "checkpoints would use the " : "no lane works", lane,
           *lane ? " lane" : "");
    printf("; %zu problem%s\n", problem_count, problem_count == 1 ? "" : "s");
}

static void print_json(const char *lane) {
    static const char *const levels[] = {[FACT] = "fact", [GOOD] = "good", [BAD] = "bad"};
    wh_json json = {.out = stdout};
    wh_json_begin(&json);
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
    wh_json_text(&json, "lane", *lane ? lane : NULL);
    if (!*lane) {
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
    find_leftovers(options->clean);
    find_permissions();
    find_memory();
    find_network();
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        find_library(libraries + i);
    }
    find_settings();
    find_security();
    probe.group = options->group;
    probe.bytes = PROBE_BYTES;
    wherry_status status = wh_probe_run(&probe, &error);
    if (wh_interrupt_code()) {
        return wh_interrupt_code();
    }
    if (probe.rank != 0) {
        return status == WHERRY_OK ? WH_EXIT_OK : wh_fail_status(&wh_command_doctor, "cannot try the lanes", &error);
    }
    const char *lane = "";
    if (status == WHERRY_OK) {
        lane = find_lanes(&probe);
    } else {
        /* The line about the loopback interface says what to do. */
        bool known = !has_loopback && !options->group;
        /* If --group is wrong, the error itself comes last. */
        bool wrong = options->group && status == WHERRY_INVALID_ARGUMENT;
        add("lanes", "all lanes", known ? FACT : BAD,
            known   ? NULL
            : wrong ? "correct --group"
                    : error.message,
            "could not be tried%s", known ? " without the loopback interface" : "");
    }
    if (options->group && status == WHERRY_OK) {
        find_group(&probe);
    } else if (options->group) {
        find_meeting(options->group);
    }
    if (options->common.json) {
        print_json(lane);
    } else {
        print_text(lane, options->common.quiet);
    }
    if (options->group && status == WHERRY_INVALID_ARGUMENT) { /* The address is wrong. */
        return wh_fail_status(&wh_command_doctor, "cannot try the lanes", &error);
    }
    return problem_count ? WH_EXIT_FAILED : WH_EXIT_OK;
}
