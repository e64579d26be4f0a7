/* What the doctor asks the kernel about: permissions, memory, the network. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "doctor.h"
#include "show.h"

enum { CAP_SYS_PTRACE_BIT = 19 };

extern char **environ;

void wh_finding_add(wh_findings *findings, const char *area, const char *name, wh_finding_level level,
                    const char *advice, const char *format, ...) {
    va_list arguments;
    if (findings->count == WH_FINDINGS_MAX) {
        return;
    }
    wh_finding *one = findings->items + findings->count++;
    one->area = area;
    one->level = level;
    snprintf(one->name, sizeof(one->name), "%s", name);
    snprintf(one->advice, sizeof(one->advice), "%s", advice ? advice : "");
    va_start(arguments, format);
    vsnprintf(one->value, sizeof(one->value), format, arguments);
    va_end(arguments);
}

/** Reads the first line of a small file. @return false where there is none. */
static bool read_line(const char *path, char *line, size_t size) {
    FILE *file = fopen(path, "re");
    bool good = file && fgets(line, (int)size, file);
    if (file) {
        fclose(file);
    }
    if (!good) {
        line[0] = '\0';
    }
    line[strcspn(line, "\n")] = '\0';
    return good;
}

/** Finds the text behind a name in a file of lines "NAME TEXT". @return false where there is none. */
static bool read_field(const char *path, const char *name, char *text, size_t size) {
    char line[512];
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof(line), file)) {
        found = strncmp(line, name, strlen(name)) == 0;
    }
    if (file) {
        fclose(file);
    }
    const char *rest = found ? line + strlen(name) : "";
    rest += strspn(rest, " \t");
    snprintf(text, size, "%.*s", (int)strcspn(rest, "\n"), rest);
    return found;
}

/* ---- permissions ---- */

static bool has_ptrace_capability(void) {
    char text[64];
    return read_field("/proc/self/status", "CapEff:", text, sizeof(text)) &&
           (strtoull(text, NULL, 16) >> CAP_SYS_PTRACE_BIT & 1);
}

static void find_yama(wh_findings *findings) {
    static const char area[] = "permissions";
    char line[32];
    bool capable = has_ptrace_capability();
    wh_finding_add(findings, area, "CAP_SYS_PTRACE", WH_FINDING_FACT, NULL, "%s", capable ? "yes" : "no");
    if (!read_line("/proc/sys/kernel/yama/ptrace_scope", line, sizeof(line))) {
        wh_finding_add(findings, area, "Yama", WH_FINDING_GOOD, NULL, "not there");
        return;
    }
    int scope = (int)strtol(line, NULL, 10);
    if (scope <= 1 || (scope == 2 && capable)) {
        wh_finding_add(findings, area, "Yama", WH_FINDING_GOOD, NULL, "ptrace_scope %d%s", scope,
                       scope == 1 ? ": the source names its reader, which Wherry sees to" : "");
    } else {
        wh_finding_add(findings, area, "Yama", WH_FINDING_BAD,
                       scope == 2 ? "the lane cma needs CAP_SYS_PTRACE, or: sysctl kernel.yama.ptrace_scope=1"
                                  : "the lane cma cannot be used until the machine starts with another "
                                    "kernel.yama.ptrace_scope",
                       "ptrace_scope %d", scope);
    }
}

void wh_doctor_permissions(wh_findings *findings) {
    static const char area[] = "permissions";
    static const char *const modes[] = {"none", "strict", "a filter"};
    char text[64];
    struct stat space;
    find_yama(findings);
    if (read_field("/proc/self/status", "Seccomp:", text, sizeof(text))) {
        unsigned mode = (unsigned)strtoul(text, NULL, 10);
        wh_finding_add(findings, area, "seccomp", WH_FINDING_FACT, NULL, "%s", mode < 3 ? modes[mode] : text);
    }
    wh_finding_add(findings, area, "dumpable", prctl(PR_GET_DUMPABLE) == 1 ? WH_FINDING_GOOD : WH_FINDING_BAD,
                   prctl(PR_GET_DUMPABLE) == 1 ? NULL : "the lane cma cannot read this process: PR_SET_DUMPABLE 1",
                   "%s", prctl(PR_GET_DUMPABLE) == 1 ? "yes" : "no");
    if (stat("/proc/self/ns/pid", &space) == 0) {
        wh_finding_add(findings, area, "pid namespace", WH_FINDING_FACT, NULL,
                       "%" PRIu64 "; ranks in another one cannot use the lane cma", (uint64_t)space.st_ino);
    }
    wh_finding_add(findings, area, "user", WH_FINDING_FACT, NULL, "%d; ranks of another user cannot use the lane cma",
                   (int)geteuid());
}

/* ---- memory ---- */

/** "always [madvise] never": the word in brackets. */
static bool read_choice(const char *path, char *word, size_t size) {
    char line[256];
    read_line(path, line, sizeof(line));
    const char *from = strchr(line, '[');
    if (!from) {
        return false;
    }
    snprintf(word, size, "%.*s", (int)strcspn(from + 1, "]"), from + 1);
    return true;
}

static void find_shared_memory(wh_findings *findings) {
    struct statvfs room;
    char sizes[2][WH_SIZE_TEXT_MAX];
    if (statvfs("/dev/shm", &room) == 0) {
        uint64_t all = (uint64_t)room.f_blocks * room.f_frsize;
        uint64_t left = (uint64_t)room.f_bavail * room.f_frsize;
        wh_finding_add(findings, "memory", "/dev/shm", WH_FINDING_FACT, NULL, "%s, %s free; rings do not count there",
                       wh_size_text(all, sizes[0]), wh_size_text(left, sizes[1]));
    }
}

void wh_doctor_memory(wh_findings *findings) {
    static const char area[] = "memory";
    char word[64];
    struct rlimit limit;
    char size[WH_SIZE_TEXT_MAX];
    if (read_choice("/sys/kernel/mm/transparent_hugepage/enabled", word, sizeof(word))) {
        bool good = strcmp(word, "never") != 0;
        wh_finding_add(findings, area, "huge pages", good ? WH_FINDING_GOOD : WH_FINDING_BAD,
                       good ? NULL
                            : "new memory is received several times slower: echo madvise > "
                              "/sys/kernel/mm/transparent_hugepage/enabled",
                       "%s", word);
    } else {
        wh_finding_add(findings, area, "huge pages", WH_FINDING_BAD,
                       "this kernel has no transparent huge pages; receive in place rather than into new memory",
                       "none");
    }
    if (read_choice("/sys/kernel/mm/transparent_hugepage/shmem_enabled", word, sizeof(word))) {
        wh_finding_add(findings, area, "huge pages, shared", WH_FINDING_FACT, NULL, "%s", word);
    }
    find_shared_memory(findings);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        wh_finding_add(findings, area, "pinned memory", WH_FINDING_FACT, NULL, "%s",
                       limit.rlim_cur == RLIM_INFINITY ? "without limit" : wh_size_text(limit.rlim_cur, size));
    }
}

/* ---- network ---- */

static void describe_link(const char *name, char *text, size_t size) {
    char path[128];
    char speed[32];
    char mtu[32];
    snprintf(path, sizeof(path), "/sys/class/net/%s/speed", name);
    bool known = read_line(path, speed, sizeof(speed)) && strtol(speed, NULL, 10) > 0;
    snprintf(path, sizeof(path), "/sys/class/net/%s/mtu", name);
    read_line(path, mtu, sizeof(mtu));
    snprintf(text, size, "%s%s%smtu %s", known ? speed : "", known ? " Mbit/s" : "", known ? ", " : "",
             *mtu ? mtu : "unknown");
}

static void find_interface(wh_findings *findings, const struct ifaddrs *one) {
    char address[INET6_ADDRSTRLEN] = "";
    char link[96];
    if (!one->ifa_addr || !(one->ifa_flags & IFF_UP)) {
        return;
    }
    if (one->ifa_addr->sa_family == AF_INET) {
        const struct sockaddr_in *at = (const void *)one->ifa_addr;
        inet_ntop(AF_INET, &at->sin_addr, address, sizeof(address));
    } else if (one->ifa_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *at = (const void *)one->ifa_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&at->sin6_addr)) {
            return;
        }
        inet_ntop(AF_INET6, &at->sin6_addr, address, sizeof(address));
    } else {
        return;
    }
    describe_link(one->ifa_name, link, sizeof(link));
    wh_finding_add(findings, "network", one->ifa_name, WH_FINDING_FACT, NULL, "%s, %s%s", address, link,
                   one->ifa_flags & IFF_LOOPBACK ? ", this host alone" : "");
}

void wh_doctor_network(wh_findings *findings) {
    struct ifaddrs *all = NULL;
    const char *wanted = getenv("WHERRY_INTERFACE");
    bool found = false;
    if (getifaddrs(&all) == 0) {
        for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
            find_interface(findings, one);
            found = found || (wanted && strcmp(one->ifa_name, wanted) == 0);
        }
        freeifaddrs(all);
    }
    if (wanted && *wanted && !found) {
        wh_finding_add(findings, "network", "WHERRY_INTERFACE", WH_FINDING_BAD,
                       "name one of the interfaces above, or unset it", "%s, which is not there", wanted);
    }
}

/* ---- settings ---- */

void wh_doctor_settings(wh_findings *findings) {
    for (char **one = environ; *one; one++) {
        const char *value = strchr(*one, '=');
        if (!value || strncmp(*one, "WHERRY_", 7) != 0) {
            continue;
        }
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)(value - *one), *one);
        bool secret = strcmp(name, "WHERRY_SECRET") == 0 || strcmp(name, "WHERRY_TOKEN") == 0;
        wh_finding_add(findings, "settings", name, WH_FINDING_FACT, NULL, "%s", secret ? "(set)" : value + 1);
    }
}
