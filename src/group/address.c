/* Parses the address of a group. Does not open sockets. */
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
    /** Maximum length of a host name in DNS. */
    HOST_MAX = 253,
    /** Maximum length of the path of a Unix socket, without the final zero. */
    SOCKET_PATH_MAX = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1,
    /** A message quotes at most this many bytes of the input. */
    SHOWN_MAX = 80,
};

/** Part of a text, without a final zero. */
typedef struct span {
    const char *text;
    size_t size;
} span;

/** The keys of a query. env:// allows only the first two, and unix:// all but the last. */
enum { KEY_JOB, KEY_SHORTCUT, KEY_RANK, KEY_SIZE, KEY_BIND, KEYS };
static const char *const key_names[KEYS] = {"job", "shortcut", "rank", "size", "bind"};

typedef struct parser {
    wh_environment environment;
    void *context;
    wherry_error *error;
    const char *example; /**< A correct address, for messages. */
    /** For messages: what the meeting points come from, "the address" or "WHERRY_RENDEZVOUS". */
    const char *where;
    char *values[KEYS]; /**< The decoded value of each key; NULL: absent. */
    size_t capacity;    /**< The capacity of address.meeting. */
    wh_group_address address;
} parser;

static span span_of(const char *text) {
    return (span){text, strlen(text)};
}

/**
 * Splits `rest` at the first `mark`. *part_p is the text before it, and *rest the text after it.
 * @return false if there is no mark: *part_p is then the whole text, and *rest is empty.
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

/** Returns a short and printable copy of a part of the input, for a message. */
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

/** Fills the error with the message and an example. @return WHERRY_INVALID_ARGUMENT. */
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
        return refuse(p, "%s is %" PRIu32 " and %s is %" PRIu32 ", but ranks are 0 to size - 1", rank_name, rank,
                      size_name, size);
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
    p->address.job = wh_text_copy(job, size);
    return p->address.job ? WHERRY_OK : no_memory(p);
}

/** True if the text has only characters that host names and interface names may have. */
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
 * True for a host name or an IPv4 address. Rejects a number such as "10", because a resolver would
 * read it as 0.0.0.10.
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
    char *copy = room ? wh_text_copy(host.text, host.size) : NULL;
    if (!copy) {
        return no_memory(p);
    }
    address->meeting[address->meeting_count++] = (wh_endpoint){copy, port};
    return WHERRY_OK;
}

/** Splits HOST:PORT and checks the host. An IPv6 host must have brackets. */
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
            return refuse(p, "%s has '%s', in which no colon and port follow the ']'", p->where, show(endpoint).text);
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
        return refuse(p, "%s has '%s', which has no host", p->where, show(endpoint).text);
    }
    if (bracket ? !is_ipv6(*host_p) : !is_name(*host_p)) {
        return refuse(p, "%s has the host '%s', which is not %s", p->where, show(*host_p).text,
                      bracket ? "an IPv6 address" : "a host name or an IPv4 address");
    }
    *port_p = rest;
    return WHERRY_OK;
}

/** Parses HOST:PORT,HOST:PORT,... If `zero` is true, a single meeting point may have port 0. */
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

/** Decodes percent escapes. The caller frees *text_p. */
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
            int high = escaped.size - at > 2 ? wh_hex_digit(escaped.text[at + 1]) : -1;
            int low = escaped.size - at > 2 ? wh_hex_digit(escaped.text[at + 2]) : -1;
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

/** Parses KEY=VALUE&KEY=VALUE... after '?'. Only the first `keys` keys are allowed. */
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
            return refuse(p, "the address has the unknown key '%s'; the allowed keys are %s", show(key).text,
                          keys == KEYS       ? "rank, size, job, shortcut and bind"
                          : keys == KEY_BIND ? "rank, size, job and shortcut"
                                             : "job and shortcut");
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

/** Reads the key `bind`: the address at which this process listens for the meeting point. */
static wherry_status take_bind(parser *p) {
    wh_group_address *address = &p->address;
    const char *value = p->values[KEY_BIND];
    if (!value) {
        return WHERRY_OK;
    }
    if (address->meeting_count != 1 || strchr(value, ',')) {
        return refuse(p, "bind takes one HOST:PORT, and only if there is one meeting point");
    }
    p->where = "bind";
    WH_TRY(parse_endpoints(p, span_of(value), true));
    address->bind = address->meeting[--address->meeting_count];
    return WHERRY_OK;
}

/** Reads rank, size and job from the query of the address. Only the first `keys` are allowed. */
static wherry_status parse_membership(parser *p, span query, int keys) {
    WH_TRY(parse_query(p, query, keys));
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
    WH_TRY(parse_membership(p, query, KEYS));
    return take_bind(p);
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
    return parse_membership(p, query, KEY_BIND);
}

/**
 * Returns the value of a variable; NULL if it is not set or empty, because launch scripts often
 * export empty variables.
 */
static const char *variable(const parser *p, const char *name) {
    const char *value = p->environment ? p->environment(p->context, name) : getenv(name);
    return value && *value ? value : NULL;
}

/** True if the value of the variable is the number `expected`. */
static bool variable_is(const parser *p, const char *name, int32_t expected) {
    const char *value = variable(p, name);
    uint32_t number = 0;
    return value && read_number(span_of(value), INT32_MAX, &number) && number == (uint32_t)expected;
}

/**
 * Reads rank and size from the variables of the first launcher that has set at least one of the
 * two. It is an error if the other is missing, because the variables of the next launcher may
 * belong to another group. Only an incomplete pair of PMI is ignored if Slurm's rank is set.
 */
static wherry_status read_rank(parser *p) {
    static const struct {
        const char *rank;
        const char *size;
        const char *source;
    } launchers[] = {
        {"WHERRY_RANK", "WHERRY_SIZE", "WHERRY_RANK"},
        {"RANK", "WORLD_SIZE", "torchrun"},
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "Open MPI"},
        /*
         * Before Slurm, because ranks of mpiexec inherit Slurm's variables from the batch script.
         */
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

/** True if the variables of MPICH's launcher show that all ranks run on one host. */
static bool hydra_on_one_host(const parser *p) {
    return variable_is(p, "MPI_LOCALNRANKS", p->address.size) && variable_is(p, "PMI_SIZE", p->address.size);
}

/**
 * True if all ranks are known to run on one host. The variables of MPICH's launcher count only if
 * there is a job id. Otherwise the Unix sockets of two jobs would have the same name.
 */
static bool on_one_host(const parser *p) {
    int32_t size = p->address.size;
    return size == 1 || variable_is(p, "SLURM_NNODES", 1) ||
           (variable_is(p, "LOCAL_WORLD_SIZE", size) && variable_is(p, "WORLD_SIZE", size)) ||
           (variable_is(p, "OMPI_COMM_WORLD_LOCAL_SIZE", size) && variable_is(p, "OMPI_COMM_WORLD_SIZE", size)) ||
           (hydra_on_one_host(p) && p->address.job && *p->address.job);
}

/**
 * Takes the job id of Slurm. Adds the step id if all ranks belong to the step. If mpiexec has not
 * started as many ranks as the step has tasks, the ranks do not belong to the step.
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
 * Takes the job id of torchrun. Without --rdzv-id, it is "none" for every job. MASTER_ADDR and
 * MASTER_PORT are then added, to distinguish the jobs of a host.
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
 * Makes a job id for MPICH's launcher, which does not set one. On each host, one process of the
 * launcher starts the ranks. This process is at the other end of the socket in PMI_FD, and its pid
 * distinguishes the jobs of a host. Each host has another such process, so this works only for jobs
 * on one host. For other jobs, the job id is empty.
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

static wherry_status read_job(parser *p) {
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
     * mpirun starts remote ranks in a Slurm step and local ranks without a step, so their Slurm ids
     * differ.
     */
    if (slurm && !(mpi && variable(p, "OMPI_COMM_WORLD_RANK"))) {
        return take_slurm_job(p, slurm);
    }
    return mpi ? take_job(p, mpi) : take_hydra_job(p);
}

/** Reads a port from a variable. If the variable is not set, *port_p does not change. */
static wherry_status read_port_variable(const parser *p, const char *name, uint16_t *port_p) {
    const char *value = variable(p, name);
    if (value && !read_port(span_of(value), port_p)) {
        return refuse(p, "%s is '%s', which is not a whole number from 1 to 65535", name, show_text(value).text);
    }
    return WHERRY_OK;
}

/** Takes the meeting points of WHERRY_RENDEZVOUS. None of them may be torch's rendezvous. */
static wherry_status take_rendezvous(parser *p, const char *list) {
    p->where = "WHERRY_RENDEZVOUS";
    WH_TRY(parse_endpoints(p, span_of(list), false));
    const char *master = variable(p, "MASTER_ADDR");
    for (size_t i = 0; master && i < p->address.meeting_count; i++) {
        const wh_endpoint *point = &p->address.meeting[i];
        if (strcmp(point->host, master) == 0 && variable_is(p, "MASTER_PORT", point->port)) {
            return refuse(p,
                          "WHERRY_RENDEZVOUS uses port %" PRIu16
                          " of MASTER_ADDR, which torch itself needs (MASTER_PORT): choose another port",
                          point->port);
        }
    }
    return WHERRY_OK;
}

/** Takes MASTER_ADDR as the meeting point, with a port other than torch's. */
static wherry_status take_master(parser *p, const char *host) {
    uint16_t ours = 0;
    uint16_t torch = 0;
    WH_TRY(read_port_variable(p, "WHERRY_PORT", &ours));
    WH_TRY(read_port_variable(p, "MASTER_PORT", &torch));
    span name = span_of(host);
    if (name.size > 2 && name.text[0] == '[' && name.text[name.size - 1] == ']') {
        name = (span){name.text + 1, name.size - 2};
    }
    if (!is_name(name) && !is_ipv6(name)) {
        return refuse(p, "MASTER_ADDR is '%s', which is not a host name or an IP address", show_text(host).text);
    }
    if (!ours && !torch) {
        return refuse(
            p, "MASTER_ADDR is set, but no port is set: set WHERRY_PORT, or set MASTER_PORT to use MASTER_PORT + 1");
    }
    if (ours && ours == torch) {
        return refuse(p,
                      "WHERRY_PORT and MASTER_PORT are both %" PRIu16
                      ", but MASTER_PORT belongs to torch: set WHERRY_PORT to another port",
                      ours);
    }
    if (!ours && torch == UINT16_MAX) {
        return refuse(p, "MASTER_PORT is 65535, so MASTER_PORT + 1 is not a valid port: set WHERRY_PORT");
    }
    return add_endpoint(p, name, ours ? ours : (uint16_t)(torch + 1));
}

/**
 * Computes FNV-1a. Unlike the salted hash of base/index.h, the result is the same in all processes.
 */
static uint64_t fnv1a(uint64_t hash, const char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001B3);
    }
    return hash;
}

/** Takes a Unix socket as the meeting point. All ranks of the job compute the same name for it. */
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
    /* The final zero is hashed too, to separate the job id from the user number. */
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
                     "more ranks, or set MASTER_ADDR and WHERRY_PORT");
}

static wherry_status parse_environment(parser *p, span body) {
    span before;
    span query = body;
    split(&query, '?', &before);
    if (before.size) {
        return refuse(p, "the address has '%s' after env://; only ?job=ID, ?shortcut=0 or both may follow",
                      show(before).text);
    }
    WH_TRY(parse_query(p, query, KEY_SHORTCUT + 1));
    WH_TRY(take_shortcut(p));
    WH_TRY(read_rank(p));
    WH_TRY(read_job(p));
    return ask_meeting(p);
}

/** Chooses the parser by the scheme of the address. */
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
        return refuse(p, "the address is NULL");
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
    wh_free(address->bind.host);
    wh_free(address->path);
    wh_free(address->job);
    *address = (wh_group_address){0};
}
