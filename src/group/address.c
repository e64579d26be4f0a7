/* Parsing the address of a group. Text only, no sockets. */
#include "group/address.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

enum {
    /** The longest host name in DNS. */
    HOST_MAX = 253,
    /** Without the final zero. */
    SOCKET_PATH_MAX = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1,
    /** Bytes of the input that a message quotes. */
    SHOWN_MAX = 80,
};

/** Part of a text, without a final zero. */
typedef struct span {
    const char *text;
    size_t size;
} span;

/** The keys of a query, those of env:// first. */
enum { KEY_JOB, KEY_SHORTCUT, KEY_RANK, KEY_SIZE, KEYS };
static const char *const key_names[KEYS] = {"job", "shortcut", "rank", "size"};

typedef struct parser {
    wh_environment environment;
    void *context;
    wherry_error *error;
    const char *example; /**< Of a correct address, for messages. */
    const char *where;   /**< What names the meeting points, for messages. */
    char *values[KEYS];  /**< Of the query, decoded; NULL: absent. */
    size_t capacity;     /**< Of address.meeting. */
    wh_group_address address;
} parser;

static span span_of(const char *text) {
    return (span){text, strlen(text)};
}

/**
 * Cuts off everything up to the first mark, and the mark. @return false if there is none: then
 * part_p is everything, and rest is empty.
 */
static bool split(span *rest, char mark, span *part_p) {
    const char *at = memchr(rest->text, mark, rest->size);
    size_t size = at ? (size_t)(at - rest->text) : rest->size;
    *part_p = (span){rest->text, size};
    rest->text += size + (at != NULL);
    rest->size -= size + (at != NULL);
    return at != NULL;
}

typedef struct shown {
    char text[SHOWN_MAX + sizeof("...")];
} shown;

/** Makes a part of the input short and printable, for a message. */
static shown show(span piece) {
    shown result;
    size_t size = piece.size < SHOWN_MAX ? piece.size : SHOWN_MAX;
    for (size_t i = 0; i < size; i++) {
        char c = piece.text[i];
        result.text[i] = (char)(c >= ' ' && c <= '~' ? c : '?');
    }
    snprintf(result.text + size, sizeof(result.text) - size, "%s", piece.size > size ? "..." : "");
    return result;
}

static shown show_text(const char *text) {
    return show(span_of(text));
}

/** @return WHERRY_INVALID_ARGUMENT, with the message and an example. */
static wherry_status refuse(const parser *p, const char *format, ...) WHERRY_PRINTF(2, 3);
static wherry_status refuse(const parser *p, const char *format, ...) {
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof(what), format, arguments);
    va_end(arguments);
    return wh_fail(p->error, WHERRY_INVALID_ARGUMENT, "%s; for example, write %s", what, p->example);
}

static wherry_status no_memory(const parser *p) {
    return wh_fail_memory(p->error, "the address of a group");
}

/** Reads digits only. Blanks and signs, which strtol would accept, are mistakes in an address. */
static bool read_number(span digits, uint32_t most, uint32_t *number_p) {
    uint64_t number = 0;
    for (size_t i = 0; i < digits.size; i++) {
        char c = digits.text[i];
        number = number * 10 + (uint64_t)(c - '0');
        if (c < '0' || c > '9' || number > most) {
            return false;
        }
    }
    *number_p = (uint32_t)number;
    return digits.size > 0;
}

static bool read_port(span digits, uint16_t *port_p) {
    uint32_t port = 0;
    if (!read_number(digits, UINT16_MAX, &port) || port == 0) {
        return false;
    }
    *port_p = (uint16_t)port;
    return true;
}

/** Checks and stores rank and size. The names are for messages. */
static wherry_status take_rank(parser *p, const char *rank_name, const char *rank_text, const char *size_name,
                               const char *size_text) {
    uint32_t rank = 0;
    uint32_t size = 0;
    if (!read_number(span_of(rank_text), INT32_MAX - 1, &rank)) {
        return refuse(p, "%s is '%s', which is not a whole number from 0 to %d", rank_name, show_text(rank_text).text,
                      INT32_MAX - 1);
    }
    if (!read_number(span_of(size_text), INT32_MAX, &size) || size == 0) {
        return refuse(p, "%s is '%s', which is not a whole number from 1 to %d", size_name, show_text(size_text).text,
                      INT32_MAX);
    }
    if (rank >= size) {
        return refuse(p, "%s is %" PRIu32 " and %s is %" PRIu32 ", but ranks start at 0 and are below the size",
                      rank_name, rank, size_name, size);
    }
    p->address.rank = (int32_t)rank;
    p->address.size = (int32_t)size;
    return WHERRY_OK;
}

/** Checks and stores the job id, which other ranks print in their logs. */
static wherry_status take_job(parser *p, const char *job) {
    size_t size = strlen(job);
    if (size > WH_JOB_MAX) {
        return refuse(p, "the job id '%s' has %zu bytes, more than %d", show_text(job).text, size, WH_JOB_MAX);
    }
    for (size_t i = 0; i < size; i++) {
        if ((unsigned char)job[i] < ' ' || job[i] == '\x7F') {
            return refuse(p, "the job id '%s' contains a control character", show_text(job).text);
        }
    }
    if (!wh_utf8_valid(job, size)) {
        return refuse(p, "the job id '%s' is not UTF-8", show_text(job).text);
    }
    p->address.job = wh_copy_text(job, size);
    return p->address.job ? WHERRY_OK : no_memory(p);
}

/** @return true if it has only characters of host names and interface names. */
static bool is_word(span text) {
    for (size_t i = 0; i < text.size; i++) {
        char c = text.text[i];
        bool alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alphanumeric && c != '-' && c != '_' && c != '.') {
            return false;
        }
    }
    return text.size > 0;
}

static bool is_internet(int family, span host) {
    char text[INET6_ADDRSTRLEN];
    unsigned char bytes[sizeof(struct in6_addr)];
    if (host.size >= sizeof(text)) {
        return false;
    }
    memcpy(text, host.text, host.size);
    text[host.size] = '\0';
    return inet_pton(family, text, bytes) == 1;
}

static bool is_ipv6(span host) {
    span address;
    span zone = host;
    bool has_zone = split(&zone, '%', &address);
    return is_internet(AF_INET6, address) && (!has_zone || is_word(zone));
}

/**
 * @return true for a name or an IPv4 address. "10" is neither, but a resolver reads it as 0.0.0.10.
 */
static bool is_name(span host) {
    bool numeric = true;
    for (size_t i = 0; i < host.size; i++) {
        numeric = numeric && ((host.text[i] >= '0' && host.text[i] <= '9') || host.text[i] == '.');
    }
    return host.size <= HOST_MAX && is_word(host) && (!numeric || is_internet(AF_INET, host));
}

static wherry_status add_endpoint(parser *p, span host, uint16_t port) {
    wh_group_address *address = &p->address;
    bool room = WH_GROW(address->meeting, p->capacity, address->meeting_count);
    char *copy = room ? wh_copy_text(host.text, host.size) : NULL;
    if (!copy) {
        return no_memory(p);
    }
    address->meeting[address->meeting_count++] = (wh_endpoint){copy, port};
    return WHERRY_OK;
}

/** Splits HOST:PORT, where an IPv6 host has brackets, and checks the host. */
static wherry_status split_endpoint(const parser *p, span endpoint, span *host_p, span *port_p) {
    span rest = endpoint;
    bool bracket = rest.size > 0 && rest.text[0] == '[';
    if (bracket) {
        rest = (span){rest.text + 1, rest.size - 1};
        if (!split(&rest, ']', host_p)) {
            return refuse(p, "%s has '%s': ']' is missing", p->where, show(endpoint).text);
        }
        span between;
        if (!split(&rest, ':', &between) || between.size) {
            return refuse(p, "%s has '%s': ':' and a port must follow ']'", p->where, show(endpoint).text);
        }
    } else if (!split(&rest, ':', host_p)) {
        return endpoint.size ? refuse(p, "%s has '%s', which has no port", p->where, show(endpoint).text)
                             : refuse(p, "%s has an empty meeting point", p->where);
    }
    if (!bracket && memchr(rest.text, ':', rest.size)) {
        return refuse(p, "%s has '%s', which has several ':'; put an IPv6 host in brackets, as in [::1]:29500",
                      p->where, show(endpoint).text);
    }
    if (host_p->size == 0) {
        return refuse(p, "%s has '%s', whose host is empty", p->where, show(endpoint).text);
    }
    if (bracket ? !is_ipv6(*host_p) : !is_name(*host_p)) {
        return refuse(p, "%s has the host '%s', which is not %s", p->where, show(*host_p).text,
                      bracket ? "an IPv6 address" : "a host name or an IPv4 address");
    }
    *port_p = rest;
    return WHERRY_OK;
}

/** Parses HOST:PORT,HOST:PORT,... @param zero  a single one may have port 0. */
static wherry_status parse_endpoints(parser *p, span list, bool zero) {
    bool more = true;
    uint32_t number = 0;
    zero = zero && !memchr(list.text, ',', list.size);
    while (more) {
        span endpoint;
        more = split(&list, ',', &endpoint);
        span host = {"", 0};
        span digits = {"", 0};
        WH_TRY(split_endpoint(p, endpoint, &host, &digits));
        uint16_t port = 0;
        bool chosen = zero && read_number(digits, 0, &number);
        if (!chosen && !read_port(digits, &port)) {
            return refuse(p, "%s has the port '%s', which is not a whole number from 1 to 65535", p->where,
                          show(digits).text);
        }
        WH_TRY(add_endpoint(p, host, port));
    }
    return WHERRY_OK;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/** Decodes percent escapes. *text_p is the caller's. */
static wherry_status decode(const parser *p, span escaped, char **text_p) {
    char *text = wh_alloc(escaped.size + 1);
    if (!text) {
        return no_memory(p);
    }
    const char *fault = NULL;
    size_t size = 0;
    for (size_t at = 0; at < escaped.size && !fault; at++) {
        char c = escaped.text[at];
        if (c == '#') {
            fault = "'#' must be written as %23";
        } else if (c == '%') {
            int high = escaped.size - at > 2 ? hex_digit(escaped.text[at + 1]) : -1;
            int low = escaped.size - at > 2 ? hex_digit(escaped.text[at + 2]) : -1;
            c = high < 0 || low < 0 ? '\0' : (char)(high * 16 + low);
            fault = c ? NULL : "'%' is not followed by two hexadecimal digits other than 00";
            at += 2;
        }
        text[size++] = c;
    }
    if (fault) {
        wh_free(text);
        return refuse(p, "the address has '%s': %s", show(escaped).text, fault);
    }
    text[size] = '\0';
    *text_p = text;
    return WHERRY_OK;
}

/** Parses KEY=VALUE&KEY=VALUE... after '?'. @param keys  how many of the keys are allowed. */
static wherry_status parse_query(parser *p, span query, int keys) {
    bool more = query.size > 0;
    while (more) {
        span pair;
        span key;
        more = split(&query, '&', &pair);
        span value = pair;
        if (!split(&value, '=', &key) || value.size == 0) {
            return refuse(p, "the address has '%s' after '?', which is not KEY=VALUE", show(pair).text);
        }
        int i = 0;
        while (i < keys && (strlen(key_names[i]) != key.size || memcmp(key_names[i], key.text, key.size) != 0)) {
            i++;
        }
        if (i == keys) {
            return refuse(p, "the address has the unknown key '%s'; it may have %s", show(key).text,
                          keys == KEYS ? "rank, size, job and shortcut" : "job and shortcut");
        }
        if (p->values[i]) {
            return refuse(p, "the address has the key '%s' twice", key_names[i]);
        }
        WH_TRY(decode(p, value, &p->values[i]));
    }
    return WHERRY_OK;
}

static wherry_status take_shortcut(parser *p) {
    const char *value = p->values[KEY_SHORTCUT];
    if (value && strcmp(value, "0") != 0 && strcmp(value, "1") != 0) {
        return refuse(p, "shortcut is '%s'; it must be 0 or 1", show_text(value).text);
    }
    p->address.shortcut = !value || *value == '1';
    return WHERRY_OK;
}

/** Rank, size and job, from the address itself. */
static wherry_status parse_membership(parser *p, span query) {
    WH_TRY(parse_query(p, query, KEYS));
    for (int key = KEY_RANK; key <= KEY_SIZE; key++) {
        if (!p->values[key]) {
            return refuse(p, "the address has no %s", key_names[key]);
        }
    }
    WH_TRY(take_rank(p, "rank", p->values[KEY_RANK], "size", p->values[KEY_SIZE]));
    WH_TRY(take_shortcut(p));
    return take_job(p, p->values[KEY_JOB] ? p->values[KEY_JOB] : "");
}

static wherry_status parse_tcp(parser *p, span body) {
    span list;
    span query = body;
    split(&query, '?', &list);
    p->address.kind = WH_ADDRESS_TCP;
    WH_TRY(parse_endpoints(p, list, true));
    return parse_membership(p, query);
}

static wherry_status parse_unix(parser *p, span body) {
    span path;
    span query = body;
    split(&query, '?', &path);
    p->address.kind = WH_ADDRESS_UNIX;
    if (path.size == 0 || path.text[0] != '/') {
        return refuse(p, "the address has the path '%s', which does not begin with '/'", show(path).text);
    }
    wherry_status status = decode(p, path, &p->address.path);
    if (!p->address.path) {
        return status;
    }
    size_t size = strlen(p->address.path);
    if (p->address.path[size - 1] == '/') {
        return refuse(p, "the address has the path '%s', which names a directory", show(path).text);
    }
    if (size > SOCKET_PATH_MAX) {
        return refuse(p, "the path '%s' has %zu bytes; the limit for a Unix socket is %d", show(path).text, size,
                      SOCKET_PATH_MAX);
    }
    return parse_membership(p, query);
}

/**
 * @return NULL if the variable is not set or empty: launch scripts often export empty variables.
 */
static const char *variable(const parser *p, const char *name) {
    const char *value = p->environment ? p->environment(p->context, name) : getenv(name);
    return value && *value ? value : NULL;
}

/** @return true if the variable is that number. */
static bool variable_is(const parser *p, const char *name, int32_t expected) {
    const char *value = variable(p, name);
    uint32_t number = 0;
    return value && read_number(span_of(value), INT32_MAX, &number) && number == (uint32_t)expected;
}

/**
 * Rank and size, from the first launcher that sets one of them. If the other one is missing, that
 * is an error: what the next launcher says would be about another group.
 */
static wherry_status ask_rank(parser *p) {
    static const struct {
        const char *rank;
        const char *size;
        const char *source;
    } launchers[] = {
        {"WHERRY_RANK", "WHERRY_SIZE", "WHERRY_RANK"},
        {"RANK", "WORLD_SIZE", "torchrun"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"},
        /* Before Slurm: ranks of mpiexec inherit Slurm's variables from the batch script. */
        {"PMI_RANK", "PMI_SIZE", "PMI"},
        {"SLURM_PROCID", "SLURM_NTASKS", "Slurm"},
    };
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const char *rank = variable(p, launchers[i].rank);
        const char *size = variable(p, launchers[i].size);
        if (rank && size) {
            p->address.source = launchers[i].source;
            return take_rank(p, launchers[i].rank, rank, launchers[i].size, size);
        }
        bool ignored = strcmp(launchers[i].source, "PMI") == 0 && variable(p, "SLURM_PROCID");
        if ((rank || size) && !ignored) {
            return refuse(p, "the environment has %s but not %s: set both or neither",
                          rank ? launchers[i].rank : launchers[i].size, rank ? launchers[i].size : launchers[i].rank);
        }
    }
    return refuse(p,
                  "the environment does not say which rank this is: start the program with torchrun, srun or mpirun, "
                  "or set WHERRY_RANK and WHERRY_SIZE");
}

/** @return true if MPICH's launcher says that all ranks run on one host. */
static bool hydra_on_one_host(const parser *p) {
    return variable_is(p, "MPI_LOCALNRANKS", p->address.size) && variable_is(p, "PMI_SIZE", p->address.size);
}

/** @return true if any launcher says that all ranks run on one host. */
static bool on_one_host(const parser *p) {
    int32_t size = p->address.size;
    return size == 1 || variable_is(p, "SLURM_NNODES", 1) ||
           (variable_is(p, "LOCAL_WORLD_SIZE", size) && variable_is(p, "WORLD_SIZE", size)) ||
           (variable_is(p, "OMPI_COMM_WORLD_LOCAL_SIZE", size) && variable_is(p, "OMPI_COMM_WORLD_SIZE", size)) ||
           (hydra_on_one_host(p) && p->address.job && *p->address.job);
}

/**
 * The job id of Slurm, with the step if it is the ranks' own: it is not if mpiexec has started
 * another number of ranks than the step has tasks.
 */
static wherry_status take_slurm_job(parser *p, const char *id) {
    bool own_step = strcmp(p->address.source, "PMI") != 0 || !variable(p, "SLURM_NTASKS") ||
                    variable_is(p, "SLURM_NTASKS", p->address.size);
    const char *step = own_step ? variable(p, "SLURM_STEP_ID") : NULL;
    wh_string string = {0};
    wh_string_format(&string, "%s%s%s", id, step ? "." : "", step ? step : "");
    char *job = wh_string_take(&string);
    wherry_status status = job ? take_job(p, job) : no_memory(p);
    wh_free(job);
    return status;
}

/**
 * The id of torchrun. Without --rdzv-id it is "none" for every job; then torch's rendezvous tells
 * the jobs of a host apart.
 */
static wherry_status take_torch_job(parser *p, const char *id) {
    const char *host = variable(p, "MASTER_ADDR");
    const char *port = variable(p, "MASTER_PORT");
    if (strcmp(id, "none") != 0 || !host || !port) {
        return take_job(p, id);
    }
    wh_string string = {0};
    wh_string_format(&string, "%s@%s:%s", id, host, port);
    char *job = wh_string_take(&string);
    wherry_status status = job ? take_job(p, job) : no_memory(p);
    wh_free(job);
    return status;
}

/**
 * MPICH's launcher sets no job id. On each host one process of it starts the ranks, and is at the
 * other end of the socket in PMI_FD: its pid tells the jobs of a host apart. Ranks on another host
 * have another such process, so this works only for jobs on one host.
 */
static wherry_status take_hydra_job(parser *p) {
    const char *value = variable(p, "PMI_FD");
    uint32_t number = 0;
    struct ucred launcher = {0};
    socklen_t size = sizeof(launcher);
    char job[32] = "";
    if (value && hydra_on_one_host(p) && read_number(span_of(value), INT32_MAX, &number) &&
        getsockopt((int)number, SOL_SOCKET, SO_PEERCRED, &launcher, &size) == 0 && launcher.pid > 0) {
        snprintf(job, sizeof(job), "hydra-%d", (int)launcher.pid);
    }
    return take_job(p, job);
}

static wherry_status ask_job(parser *p) {
    const char *job = p->values[KEY_JOB];
    job = job ? job : variable(p, "WHERRY_JOB");
    if (job) {
        return take_job(p, job);
    }
    const char *torch = variable(p, "TORCHELASTIC_RUN_ID");
    if (torch) {
        return take_torch_job(p, torch);
    }
    const char *mpi = variable(p, "OMPI_MCA_ess_base_jobid");
    mpi = mpi ? mpi : variable(p, "PMIX_NAMESPACE");
    const char *slurm = variable(p, "SLURM_JOB_ID");
    /*
     * mpirun starts remote ranks in a Slurm step and local ones in none, so their Slurm ids differ.
     */
    if (slurm && !(mpi && variable(p, "OMPI_COMM_WORLD_RANK"))) {
        return take_slurm_job(p, slurm);
    }
    return mpi ? take_job(p, mpi) : take_hydra_job(p);
}

/** Reads a port from a variable. If it is not set, *port_p stays as it is. */
static wherry_status ask_port(const parser *p, const char *name, uint16_t *port_p) {
    const char *value = variable(p, name);
    if (value && !read_port(span_of(value), port_p)) {
        return refuse(p, "%s is '%s', which is not a whole number from 1 to 65535", name, show_text(value).text);
    }
    return WHERRY_OK;
}

/** The points of WHERRY_RENDEZVOUS. None of them may be torch's own. */
static wherry_status take_rendezvous(parser *p, const char *list) {
    p->where = "WHERRY_RENDEZVOUS";
    WH_TRY(parse_endpoints(p, span_of(list), false));
    const char *master = variable(p, "MASTER_ADDR");
    for (size_t i = 0; master && i < p->address.meeting_count; i++) {
        const wh_endpoint *point = &p->address.meeting[i];
        if (strcmp(point->host, master) == 0 && variable_is(p, "MASTER_PORT", point->port)) {
            return refuse(p,
                          "WHERRY_RENDEZVOUS has MASTER_ADDR with MASTER_PORT, %" PRIu16
                          ", which belongs to torch: choose another port",
                          point->port);
        }
    }
    return WHERRY_OK;
}

/** MASTER_ADDR, with another port than torch's. */
static wherry_status take_master(parser *p, const char *host) {
    uint16_t ours = 0;
    uint16_t torch = 0;
    WH_TRY(ask_port(p, "WHERRY_PORT", &ours));
    WH_TRY(ask_port(p, "MASTER_PORT", &torch));
    span name = span_of(host);
    if (name.size > 2 && name.text[0] == '[' && name.text[name.size - 1] == ']') {
        name = (span){name.text + 1, name.size - 2};
    }
    if (!is_name(name) && !is_ipv6(name)) {
        return refuse(p, "MASTER_ADDR is '%s', which is not a host name or an IP address", show_text(host).text);
    }
    if (!ours && !torch) {
        return refuse(p, "MASTER_ADDR is set, but no port: set WHERRY_PORT, or set MASTER_PORT to use MASTER_PORT + 1");
    }
    if (ours && ours == torch) {
        return refuse(p, "WHERRY_PORT is %" PRIu16 ", as is MASTER_PORT, which belongs to torch: choose another port",
                      ours);
    }
    if (!ours && torch == UINT16_MAX) {
        return refuse(p, "MASTER_PORT is 65535, so that MASTER_PORT + 1 is no port: set WHERRY_PORT");
    }
    return add_endpoint(p, name, ours ? ours : (uint16_t)(torch + 1));
}

/** FNV-1a. Unlike the salted hash of base/index.h, it is the same in all processes. */
static uint64_t fnv1a(uint64_t hash, const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001B3);
    }
    return hash;
}

/** A Unix socket whose name all ranks of the job can derive. */
static wherry_status take_local(parser *p) {
    static const char *const names[] = {"XDG_RUNTIME_DIR", "TMPDIR"};
    const char *directory = "/tmp";
    for (size_t i = sizeof(names) / sizeof(names[0]); i-- > 0;) {
        const char *value = variable(p, names[i]);
        /* A relative path would depend on the working directory, which may differ between ranks. */
        directory = value && *value == '/' ? value : directory;
    }
    unsigned user = (unsigned)getuid();
    char user_text[16];
    int digits = snprintf(user_text, sizeof(user_text), "%u", user);
    /* With its final zero, so that the id and the number cannot run together. */
    uint64_t hash = fnv1a(UINT64_C(0xCBF29CE484222325), p->address.job, strlen(p->address.job) + 1);
    hash = fnv1a(hash, user_text, (size_t)digits);

    wh_string string = {0};
    wh_string_format(&string, "%s/wherry-%u-%016" PRIx64 ".sock", directory, user, hash);
    size_t size = string.size;
    p->address.kind = WH_ADDRESS_UNIX;
    p->address.path = wh_string_take(&string);
    if (!p->address.path) {
        return no_memory(p);
    }
    if (size > SOCKET_PATH_MAX) {
        return refuse(
            p,
            "the path of the Unix socket in '%s' would have %zu bytes; the limit is %d: set XDG_RUNTIME_DIR to "
            "a shorter path, or set WHERRY_RENDEZVOUS",
            show_text(directory).text, size, SOCKET_PATH_MAX);
    }
    return WHERRY_OK;
}

static wherry_status ask_meeting(parser *p) {
    p->address.kind = WH_ADDRESS_TCP;
    const char *list = variable(p, "WHERRY_RENDEZVOUS");
    if (list) {
        return take_rendezvous(p, list);
    }
    const char *master = variable(p, "MASTER_ADDR");
    if (master) {
        return take_master(p, master);
    }
    if (on_one_host(p)) {
        return take_local(p);
    }
    return refuse(p, "the environment does not say where the ranks meet: set WHERRY_RENDEZVOUS to HOST:PORT of one or "
                     "more of them, or MASTER_ADDR and WHERRY_PORT");
}

static wherry_status parse_environment(parser *p, span body) {
    span before;
    span query = body;
    split(&query, '?', &before);
    if (before.size) {
        return refuse(p, "the address has '%s' after env://; only ?job=ID and shortcut=0 may follow",
                      show(before).text);
    }
    WH_TRY(parse_query(p, query, KEY_SHORTCUT + 1));
    WH_TRY(take_shortcut(p));
    WH_TRY(ask_rank(p));
    WH_TRY(ask_job(p));
    return ask_meeting(p);
}

/** Chooses the form by the scheme. */
static wherry_status parse(parser *p, const char *text) {
    static const struct {
        const char *scheme;
        const char *example;
        wherry_status (*parse)(parser *p, span body);
    } forms[] = {
        {"tcp://", "tcp://host0:29500?rank=0&size=4", parse_tcp},
        {"unix://", "unix:///run/meet.sock?rank=0&size=4", parse_unix},
        {"env://", "env:// with WHERRY_RANK=0 WHERRY_SIZE=4 WHERRY_RENDEZVOUS=host0:29500", parse_environment},
    };
    p->example = forms[0].example;
    if (!text) {
        return refuse(p, "there is no address");
    }
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        size_t size = strlen(forms[i].scheme);
        if (strncmp(text, forms[i].scheme, size) == 0) {
            p->example = forms[i].example;
            p->address.source = forms[i].scheme;
            return forms[i].parse(p, span_of(text + size));
        }
    }
    return refuse(p, "the address '%s' does not begin with tcp://, unix:// or env://", show_text(text).text);
}

wherry_status wh_group_address_parse(const char *text, wh_environment environment, void *context,
                                     wh_group_address *address_p, wherry_error *error) {
    parser p = {.environment = environment, .context = context, .error = error, .where = "the address"};
    wherry_status status = parse(&p, text);
    for (int key = 0; key < KEYS; key++) {
        wh_free(p.values[key]);
    }
    if (status == WHERRY_OK) {
        *address_p = p.address;
    } else {
        wh_group_address_clear(&p.address);
    }
    return status;
}

void wh_group_address_clear(wh_group_address *address) {
    if (!address) {
        return;
    }
    for (size_t i = 0; i < address->meeting_count; i++) {
        wh_free(address->meeting[i].host);
    }
    wh_free(address->meeting);
    wh_free(address->path);
    wh_free(address->job);
    *address = (wh_group_address){0};
}
