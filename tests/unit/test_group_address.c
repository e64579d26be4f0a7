/*
 * Addresses of a group: valid and invalid texts, the variables of each launcher, and failing
 * allocations.
 */
#include "../support/build.h"
#include "../support/counting_fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/text.h"
#include "group/address.h"

enum { VARIABLES = 14, LONGEST = 107 };

#define TEN "0123456789"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

/** Looks up a name in a NULL-terminated array of "NAME=value". */
static const char *look_up(void *context, const char *name) {
    size_t size = strlen(name);
    for (const char *const *variables = context; *variables; variables++) {
        if (strncmp(*variables, name, size) == 0 && (*variables)[size] == '=') {
            return *variables + size + 1;
        }
    }
    return NULL;
}

/** The meeting points as "host port,host port", or the path. */
static const char *describe(const wh_group_address *address) {
    static char text[1024];
    snprintf(text, sizeof(text), "%s", address->path ? address->path : "");
    for (size_t i = 0; i < address->meeting_count; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, "%s%s %u", i ? "," : "", address->meeting[i].host,
                 (unsigned)address->meeting[i].port);
    }
    return text;
}

typedef struct good_row {
    const char *text;
    const char *variables[VARIABLES];
    wh_address_kind kind;
    int32_t rank;
    int32_t size;
    const char *job;
    const char *meeting; /* The address as describe() returns it. */
    const char *source;
} good_row;

static void must_be(const good_row *row) {
    wh_group_address address;
    wherry_error error;
    wherry_status status = wh_group_address_parse(row->text, look_up, (void *)row->variables, &address, &error);
    if (status != WHERRY_OK) {
        fail_msg("%s with %s: %s", row->text, row->variables[0] ? row->variables[0] : "nothing", error.message);
    }
    assert_int_equal(address.kind, row->kind);
    assert_int_equal(address.rank, row->rank);
    assert_int_equal(address.size, row->size);
    assert_string_equal(address.job, row->job);
    assert_string_equal(describe(&address), row->meeting);
    assert_string_equal(address.source, row->source);
    assert_int_equal(address.path != NULL, row->kind == WH_ADDRESS_UNIX);
    assert_int_equal(address.meeting_count > 0, row->kind == WH_ADDRESS_TCP);
    wh_group_address_clear(&address);
}

#define TCP(text, rank, size, job, meeting)                                                                            \
    { (text), {NULL}, WH_ADDRESS_TCP, (rank), (size), (job), (meeting), "tcp://" }
#define UNIX(text, rank, size, job, path)                                                                              \
    { (text), {NULL}, WH_ADDRESS_UNIX, (rank), (size), (job), (path), "unix://" }

static const good_row good_texts[] = {
    TCP("tcp://host0:29500?rank=0&size=1", 0, 1, "", "host0 29500"),
    TCP("tcp://host0:29500?size=4&job=night&rank=3", 3, 4, "night", "host0 29500"),
    TCP("tcp://127.0.0.1:1?rank=00&size=0002", 0, 2, "", "127.0.0.1 1"),
    TCP("tcp://a.b-c_d.example.:65535?rank=2147483646&size=2147483647", INT32_MAX - 1, INT32_MAX, "",
        "a.b-c_d.example. 65535"),
    TCP("tcp://AZaz09:10?rank=0&size=1", 0, 1, "", "AZaz09 10"),
    TCP("tcp://h:0?rank=1&size=2", 1, 2, "", "h 0"),
    TCP("tcp://[::1]:80?rank=0&size=2", 0, 2, "", "::1 80"),
    TCP("tcp://[fe80::1%eth0]:80?rank=0&size=2", 0, 2, "", "fe80::1%eth0 80"),
    TCP("tcp://[::ffff:10.0.0.1]:80?rank=0&size=2", 0, 2, "", "::ffff:10.0.0.1 80"),
    TCP("tcp://h1:1,[2001:db8::2]:2,10.0.0.3:3,h1:1?rank=1&size=2", 1, 2, "", "h1 1,2001:db8::2 2,10.0.0.3 3,h1 1"),
    TCP("tcp://h:1?rank=%31&size=%32&job=a%20b%26c%25%3d+=?/\xC3\xA9%c3%A9", 1, 2, "a b&c%=+=?/\xC3\xA9\xC3\xA9",
        "h 1"),
    TCP("tcp://h:1?rank=0&size=1&job=" HUNDRED HUNDRED TEN TEN TEN TEN TEN "01234", 0, 1,
        HUNDRED HUNDRED TEN TEN TEN TEN TEN "01234", "h 1"),
    UNIX("unix:///run/meet.sock?rank=1&size=2", 1, 2, "", "/run/meet.sock"),
    UNIX("unix:///a%3fb%20c%ff&d=e?rank=0&size=1&job=j", 0, 1, "j", "/a?b c\xFF&d=e"),
    UNIX("unix:///" HUNDRED "012345?rank=0&size=1", 0, 1, "", "/" HUNDRED "012345"),
    UNIX("unix:///" HUNDRED "01234%35?rank=0&size=1", 0, 1, "", "/" HUNDRED "012345"),
};

static void test_accepts_good_addresses(void **state) {
    (void)state;
    assert_int_equal(strlen("/" HUNDRED "012345"), LONGEST);
    for (size_t i = 0; i < sizeof(good_texts) / sizeof(good_texts[0]); i++) {
        must_be(&good_texts[i]);
    }
}

/** An invalid text, and two parts of the expected message. */
typedef struct bad_row {
    const char *text;
    const char *words;
    const char *more;
} bad_row;

static void must_refuse(const char *text, const char *const *variables, const char *words, const char *more,
                        const char *example) {
    wh_group_address address;
    memset(&address, 0x55, sizeof(address));
    wh_group_address before = address;
    wherry_error error;
    must_fail(WHERRY_INVALID_ARGUMENT, error,
              wh_group_address_parse(text, look_up, (void *)variables, &address, &error));
    if (!strstr(error.message, words) || !strstr(error.message, more) || !strstr(error.message, example)) {
        fail_msg("'%s': the message '%s' lacks '%s', '%s' or '%s'", text ? text : "NULL", error.message, words, more,
                 example);
    }
    assert_true(wh_utf8_valid(error.message, strlen(error.message)));
    assert_memory_equal(&address, &before, sizeof(address));
    assert_int_equal(wh_group_address_parse(text, look_up, (void *)variables, &address, NULL), WHERRY_INVALID_ARGUMENT);
    assert_int_equal(counted.held, 0);
}

static const bad_row bad_tcp[] = {
    {NULL, "the address is NULL", ""},
    {"", "does not begin with", "env://"},
    {"host0:29500", "'host0:29500' does not begin with", "tcp://"},
    {"http://h:1?rank=0&size=1", "'http://h:1", "does not begin with"},
    {"TCP://h:1?rank=0&size=1", "'TCP://h:1", "does not begin with"},
    {" tcp://h:1?rank=0&size=1", "does not begin with", "' tcp"},
    {"tcp:/h:1?rank=0&size=1", "does not begin with", ""},
    {"\xFF\x01" HUNDRED, "'??" TEN, "...'"},

    {"tcp://", "empty meeting point", ""},
    {"tcp://?rank=0&size=1", "empty meeting point", ""},
    {"tcp://h:1,?rank=0&size=1", "empty meeting point", ""},
    {"tcp://h:1,,g:2?rank=0&size=1", "empty meeting point", ""},
    {"tcp://:1?rank=0&size=1", "has no host", "':1'"},
    {"tcp://h:1,:2?rank=0&size=1", "has no host", "':2'"},
    {"tcp://[]:1?rank=0&size=1", "has no host", "'[]:1'"},
    {"tcp://h?rank=0&size=1", "has no port", "'h'"},
    {"tcp://[::1]?rank=0&size=1", "no colon and port follow", "'[::1]'"},
    {"tcp://[::1]x:1?rank=0&size=1", "no colon and port follow", ""},
    {"tcp://[::1:1?rank=0&size=1", "']' is missing", "'[::1:1'"},
    {"tcp://::1:80?rank=0&size=1", "in brackets", "'::1:80'"},
    {"tcp://[", "']' is missing", "'['"},
    {"tcp://[" TEN TEN TEN TEN "abcdef]:1?rank=0&size=1", "not an IPv6 address", ""},
    {"tcp://[h]:1?rank=0&size=1", "not an IPv6 address", "'h'"},
    {"tcp://[10.0.0.1]:1?rank=0&size=1", "not an IPv6 address", ""},
    {"tcp://[::1%]:1?rank=0&size=1", "not an IPv6 address", ""},
    {"tcp://[::1%a b]:1?rank=0&size=1", "not an IPv6 address", ""},
    {"tcp://[" HUNDRED "]:1?rank=0&size=1", "not an IPv6 address", ""},
    {"tcp://h g:1?rank=0&size=1", "not a host name", "'h g'"},
    {"tcp://user@h:1?rank=0&size=1", "not a host name", "'user@h'"},
    {"tcp://h\xC3\xA9:1?rank=0&size=1", "not a host name", "'h?"},
    {"tcp://10:1?rank=0&size=1", "not a host name", "'10'"},
    {"tcp://10.0.0.256:1?rank=0&size=1", "not a host name", ""},
    {"tcp://10.0.0.1.2:1?rank=0&size=1", "not a host name", ""},
    {"tcp://" HUNDRED HUNDRED TEN TEN TEN TEN TEN "abcd:1?rank=0&size=1", "not a host name", ""},

    {"tcp://h:?rank=0&size=1", "the port ''", "from 1 to 65535"},
    {"tcp://h:0,g:1?rank=0&size=1", "the port '0'", "from 1 to 65535"},
    {"tcp://h:1,g:0?rank=0&size=1", "the port '0'", "from 1 to 65535"},
    {"tcp://h:1?rank=0&size=1&shortcut=2", "shortcut is '2'", "0 or 1"},
    {"tcp://h:1?rank=0&size=1&shortcut=no", "shortcut is 'no'", "0 or 1"},
    {"tcp://h:1?rank=0&size=1&shortcut=", "'shortcut=' after '?'", "not KEY=VALUE"},
    {"tcp://h:65536?rank=0&size=1", "the port '65536'", "from 1 to 65535"},
    {"tcp://h:-1?rank=0&size=1", "the port '-1'", ""},
    {"tcp://h:+1?rank=0&size=1", "the port '+1'", ""},
    {"tcp://h: 1?rank=0&size=1", "the port ' 1'", ""},
    {"tcp://h:1x?rank=0&size=1", "the port '1x'", ""},
    {"tcp://h:1/?rank=0&size=1", "the port '1/'", ""},
    {"tcp://h:0x50?rank=0&size=1", "the port '0x50'", ""},
    {"tcp://h:http?rank=0&size=1", "the port 'http'", ""},
    {"tcp://h:18446744073709551617?rank=0&size=1", "the port '18446744073709551617'", ""},

    {"tcp://h:1", "has no rank", ""},
    {"tcp://h:1?", "has no rank", ""},
    {"tcp://h:1?x", "'x' after '?'", "not KEY=VALUE"},
    {"tcp://h:1?size=2", "has no rank", ""},
    {"tcp://h:1?rank=0", "has no size", ""},
    {"tcp://h:1?rank=0&size=2&rank=1", "the key 'rank' twice", ""},
    {"tcp://h:1?job=a&rank=0&size=2&job=a", "the key 'job' twice", ""},
    {"tcp://h:1?rank=0&size=2&color=red", "unknown key 'color'", "rank, size, job, shortcut and bind"},
    {"tcp://h:1?rank=0&size=2&bind=0.0.0.0", "bind has '0.0.0.0'", "no port"},
    {"tcp://h:1?rank=0&size=2&bind=a:1,b:1", "bind takes one", "HOST:PORT"},
    {"tcp://h:1,i:1?rank=0&size=2&bind=a:1", "bind takes one", "one meeting point"},
    {"tcp://h:1?Rank=0&size=2", "unknown key 'Rank'", ""},
    {"tcp://h:1?ran=0&size=2", "unknown key 'ran'", ""},
    {"tcp://h:1?ranks=0&size=2", "unknown key 'ranks'", ""},
    {"tcp://h:1?=0&size=2", "unknown key ''", ""},
    {"tcp://h:1?rank&size=2", "'rank' after '?'", "not KEY=VALUE"},
    {"tcp://h:1?rank=&size=2", "'rank=' after '?'", "not KEY=VALUE"},
    {"tcp://h:1?rank=0&size=2&job=", "'job=' after '?'", "not KEY=VALUE"},
    {"tcp://h:1?rank=0&size=2&", "'' after '?'", "not KEY=VALUE"},
    {"tcp://h:1?rank=0&&size=2", "'' after '?'", "not KEY=VALUE"},

    {"tcp://h:1?rank=-1&size=2", "rank is '-1'", "from 0 to 2147483646"},
    {"tcp://h:1?rank=+1&size=2", "rank is '+1'", ""},
    {"tcp://h:1?rank=%201&size=2", "rank is ' 1'", ""},
    {"tcp://h:1?rank=one&size=2", "rank is 'one'", ""},
    {"tcp://h:1?rank=1.0&size=2", "rank is '1.0'", ""},
    {"tcp://h:1?rank=1/&size=2", "rank is '1/'", ""},
    {"tcp://h:1?rank=2147483647&size=2147483647", "rank is '2147483647'", ""},
    {"tcp://h:1?rank=18446744073709551616&size=2", "rank is '18446744073709551616'", ""},
    {"tcp://h:1?rank=0&size=0", "size is '0'", "from 1 to 2147483647"},
    {"tcp://h:1?rank=0&size=-2", "size is '-2'", ""},
    {"tcp://h:1?rank=0&size=2147483648", "size is '2147483648'", ""},
    {"tcp://h:1?rank=2&size=2", "rank is 2 and size is 2", "ranks are 0 to size - 1"},
    {"tcp://h:1?rank=3&size=2", "rank is 3 and size is 2", "ranks are 0 to size - 1"},

    {"tcp://h:1?rank=0&size=2&job=%", "'%': '%' is not followed", "two hexadecimal digits"},
    {"tcp://h:1?rank=0&size=2&job=%4", "'%4': '%' is not followed", ""},
    {"tcp://h:1?rank=0&size=2&job=%4g", "'%4g': '%' is not followed", ""},
    {"tcp://h:1?rank=0&size=2&job=%g4", "'%g4': '%' is not followed", ""},
    {"tcp://h:1?rank=0&size=2&job=a%00b", "other than 00", ""},
    {"tcp://h:1?rank=0&size=2#top", "'2#top'", "written as %23"},
    {"tcp://h:1?rank=0&size=2&job=a%0Ab", "control character", "'a?b'"},
    {"tcp://h:1?rank=0&size=2&job=a%7Fb", "control character", ""},
    {"tcp://h:1?rank=0&size=2&job=%ff", "not UTF-8", ""},
    {"tcp://h:1?rank=0&size=2&job=" HUNDRED HUNDRED TEN TEN TEN TEN TEN "012345", "256 bytes", "more than 255"},
};

static const bad_row bad_unix[] = {
    {"unix:///s?rank=0&size=2&bind=a:1", "unknown key 'bind'", "rank, size, job and shortcut"},
    {"unix://", "does not begin with '/'", ""},
    {"unix://?rank=0&size=1", "does not begin with '/'", ""},
    {"unix://run/meet.sock?rank=0&size=1", "'run/meet.sock'", "does not begin with '/'"},
    {"unix://%2frun?rank=0&size=1", "does not begin with '/'", ""},
    {"unix:///?rank=0&size=1", "names a directory", "'/'"},
    {"unix:///run/?rank=0&size=1", "names a directory", "'/run/'"},
    {"unix:///run%2f?rank=0&size=1", "names a directory", ""},
    {"unix:///run/a%0?rank=0&size=1", "'/run/a%0': '%' is not followed", ""},
    {"unix:///run/a%00?rank=0&size=1", "other than 00", ""},
    {"unix:///run/a#b?rank=0&size=1", "written as %23", ""},
    {"unix:///" HUNDRED "0123456?rank=0&size=1", "has 108 bytes", "limit for a Unix socket is 107"},
    {"unix:///run/meet.sock", "has no rank", ""},
    {"unix:///run/meet.sock?rank=1&size=1", "rank is 1 and size is 1", ""},
    {"unix:///run/meet.sock?rank=0&size=1&mode=7", "unknown key 'mode'", ""},
};

static const bad_row bad_env[] = {
    {"env://host", "'host' after env://", "?job=ID"},
    {"env:///?job=a", "'/' after env://", ""},
    {"env://?rank=0", "unknown key 'rank'", "job and shortcut"},
    {"env://?size=1", "unknown key 'size'", "job and shortcut"},
    {"env://?job=a&job=b", "the key 'job' twice", ""},
    {"env://?job=", "not KEY=VALUE", ""},
    {"env://?job=%0", "'%' is not followed", ""},
    {"env://?job=%0a", "control character", ""},
};

static void test_reads_the_bind_key(void **state) {
    (void)state;
    wh_group_address address;
    const char *text = "tcp://h:8000?rank=0&size=2&bind=[fe80::1%25eth0]:29700";
    assert_int_equal(wh_group_address_parse(text, NULL, NULL, &address, NULL), WHERRY_OK);
    assert_int_equal(address.meeting_count, 1);
    assert_string_equal(address.meeting[0].host, "h");
    assert_int_equal(address.meeting[0].port, 8000);
    assert_string_equal(address.bind.host, "fe80::1%eth0");
    assert_int_equal(address.bind.port, 29700);
    wh_group_address_clear(&address);
    assert_int_equal(wh_group_address_parse("tcp://h:0?rank=0&size=2&bind=h:0", NULL, NULL, &address, NULL), WHERRY_OK);
    assert_int_equal(address.bind.port, 0);
    wh_group_address_clear(&address);
    assert_int_equal(wh_group_address_parse("tcp://h:1?rank=0&size=2", NULL, NULL, &address, NULL), WHERRY_OK);
    assert_null(address.bind.host);
    wh_group_address_clear(&address);
}

static void test_reads_the_shortcut_key(void **state) {
    (void)state;
    static const char *const one[] = {"WHERRY_RANK=0", "WHERRY_SIZE=2", "WHERRY_RENDEZVOUS=h:1", NULL};
    static const struct {
        const char *text;
        bool shortcut;
    } rows[] = {
        {"tcp://h:1?rank=0&size=2", true},
        {"tcp://h:1?rank=0&shortcut=1&size=2", true},
        {"tcp://h:1?rank=0&size=2&shortcut=0", false},
        {"env://", true},
        {"env://?shortcut=0&job=a", false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        wh_group_address address;
        must(wh_group_address_parse(rows[i].text, look_up, (void *)one, &address, NULL));
        assert_int_equal(address.shortcut, rows[i].shortcut);
        wh_group_address_clear(&address);
    }
}

static void test_refuses_bad_addresses(void **state) {
    (void)state;
    static const char *const variables[] = {"WHERRY_RANK=0", "WHERRY_SIZE=1", NULL};
    for (size_t i = 0; i < sizeof(bad_tcp) / sizeof(bad_tcp[0]); i++) {
        must_refuse(bad_tcp[i].text, variables, bad_tcp[i].words, bad_tcp[i].more,
                    "for example, write tcp://host0:29500?rank=0&size=4");
    }
    for (size_t i = 0; i < sizeof(bad_unix) / sizeof(bad_unix[0]); i++) {
        must_refuse(bad_unix[i].text, variables, bad_unix[i].words, bad_unix[i].more,
                    "for example, write unix:///run/meet.sock?rank=0&size=4");
    }
    for (size_t i = 0; i < sizeof(bad_env) / sizeof(bad_env[0]); i++) {
        must_refuse(bad_env[i].text, variables, bad_env[i].words, bad_env[i].more, "WHERRY_RENDEZVOUS=host0:29500");
    }
}

#define MEET "WHERRY_RENDEZVOUS=h:1"
#define WHERRY "WHERRY_RANK=1", "WHERRY_SIZE=8"
#define TORCH "RANK=2", "WORLD_SIZE=8"
#define OPEN_MPI "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=8"
#define SLURM "SLURM_PROCID=4", "SLURM_NTASKS=8"
#define PMI "PMI_RANK=5", "PMI_SIZE=8"
#define MASTER "MASTER_ADDR=node0", "MASTER_PORT=29500"

/* The variables of each launcher, and their precedence if several are set. */
static const good_row launchers[] = {
    {"env://", {WHERRY, MEET}, WH_ADDRESS_TCP, 1, 8, "", "h 1", "WHERRY_RANK"},
    {"env://", {TORCH, MEET}, WH_ADDRESS_TCP, 2, 8, "", "h 1", "torchrun"},
    {"env://", {OPEN_MPI, MEET}, WH_ADDRESS_TCP, 3, 8, "", "h 1", "Open MPI"},
    {"env://", {SLURM, MEET}, WH_ADDRESS_TCP, 4, 8, "", "h 1", "Slurm"},
    {"env://", {PMI, MEET}, WH_ADDRESS_TCP, 5, 8, "", "h 1", "PMI"},
    {"env://", {PMI, SLURM, OPEN_MPI, TORCH, WHERRY, MEET}, WH_ADDRESS_TCP, 1, 8, "", "h 1", "WHERRY_RANK"},
    {"env://", {PMI, SLURM, OPEN_MPI, TORCH, MEET}, WH_ADDRESS_TCP, 2, 8, "", "h 1", "torchrun"},
    {"env://", {PMI, SLURM, OPEN_MPI, MEET}, WH_ADDRESS_TCP, 3, 8, "", "h 1", "Open MPI"},
    {"env://", {PMI, SLURM, MEET}, WH_ADDRESS_TCP, 5, 8, "", "h 1", "PMI"},
    {"env://", {"PMI_RANK=5", SLURM, MEET}, WH_ADDRESS_TCP, 4, 8, "", "h 1", "Slurm"},
    {"env://", {"WHERRY_RANK=", "RANK=", "WORLD_SIZE=", PMI, MEET}, WH_ADDRESS_TCP, 5, 8, "", "h 1", "PMI"},
};

#define TORCH_JOB "TORCHELASTIC_RUN_ID=t"
#define SLURM_JOB "SLURM_JOB_ID=12"
#define SLURM_STEP "SLURM_JOB_ID=12", "SLURM_STEP_ID=0"
#define MPI_JOB "OMPI_MCA_ess_base_jobid=77"
#define PMIX_JOB "PMIX_NAMESPACE=p@1"

static const good_row jobs[] = {
    {"env://?job=q%20r", {PMI, MEET, "WHERRY_JOB=w", TORCH_JOB}, WH_ADDRESS_TCP, 5, 8, "q r", "h 1", "PMI"},
    {"env://?",
     {PMI, MEET, PMIX_JOB, MPI_JOB, SLURM_JOB, TORCH_JOB, "WHERRY_JOB=w"},
     WH_ADDRESS_TCP,
     5,
     8,
     "w",
     "h 1",
     "PMI"},
    {"env://", {PMI, MEET, PMIX_JOB, MPI_JOB, SLURM_STEP, TORCH_JOB}, WH_ADDRESS_TCP, 5, 8, "t", "h 1", "PMI"},
    {"env://", {PMI, MEET, PMIX_JOB, MPI_JOB, SLURM_STEP, "WHERRY_JOB="}, WH_ADDRESS_TCP, 5, 8, "12.0", "h 1", "PMI"},
    {"env://", {PMI, MEET, PMIX_JOB, MPI_JOB, SLURM_JOB}, WH_ADDRESS_TCP, 5, 8, "12", "h 1", "PMI"},
    {"env://", {PMI, MEET, PMIX_JOB, MPI_JOB}, WH_ADDRESS_TCP, 5, 8, "77", "h 1", "PMI"},
    {"env://", {PMI, MEET, PMIX_JOB}, WH_ADDRESS_TCP, 5, 8, "p@1", "h 1", "PMI"},
    {"env://", {OPEN_MPI, MEET, PMIX_JOB, SLURM_STEP}, WH_ADDRESS_TCP, 3, 8, "p@1", "h 1", "Open MPI"},
    {"env://", {OPEN_MPI, MEET, SLURM_STEP}, WH_ADDRESS_TCP, 3, 8, "12.0", "h 1", "Open MPI"},
    {"env://", {PMI, MEET, SLURM, SLURM_STEP}, WH_ADDRESS_TCP, 5, 8, "12.0", "h 1", "PMI"},
    {"env://", {PMI, MEET, "SLURM_PROCID=0", "SLURM_NTASKS=2", SLURM_STEP}, WH_ADDRESS_TCP, 5, 8, "12", "h 1", "PMI"},
    {"env://", {TORCH, MEET, "TORCHELASTIC_RUN_ID=none"}, WH_ADDRESS_TCP, 2, 8, "none", "h 1", "torchrun"},
    {"env://",
     {TORCH, MEET, MASTER, "TORCHELASTIC_RUN_ID=none"},
     WH_ADDRESS_TCP,
     2,
     8,
     "none@node0:29500",
     "h 1",
     "torchrun"},
};

static const good_row meetings[] = {
    {"env://", {TORCH, MASTER}, WH_ADDRESS_TCP, 2, 8, "", "node0 29501", "torchrun"},
    {"env://", {TORCH, MASTER, "WHERRY_PORT=7000"}, WH_ADDRESS_TCP, 2, 8, "", "node0 7000", "torchrun"},
    {"env://", {TORCH, "MASTER_ADDR=::1", "WHERRY_PORT=7000"}, WH_ADDRESS_TCP, 2, 8, "", "::1 7000", "torchrun"},
    {"env://", {TORCH, "MASTER_ADDR=[::1]", "WHERRY_PORT=7"}, WH_ADDRESS_TCP, 2, 8, "", "::1 7", "torchrun"},
    {"env://", {TORCH, "MASTER_ADDR=h", "MASTER_PORT=65534"}, WH_ADDRESS_TCP, 2, 8, "", "h 65535", "torchrun"},
    {"env://", {TORCH, "LOCAL_WORLD_SIZE=8", MASTER}, WH_ADDRESS_TCP, 2, 8, "", "node0 29501", "torchrun"},
    {"env://", {TORCH, MASTER, MEET}, WH_ADDRESS_TCP, 2, 8, "", "h 1", "torchrun"},
    {"env://", {TORCH, MASTER, "WHERRY_RENDEZVOUS=h:29500"}, WH_ADDRESS_TCP, 2, 8, "", "h 29500", "torchrun"},
    {"env://", {TORCH, MASTER, "WHERRY_RENDEZVOUS=node0:2"}, WH_ADDRESS_TCP, 2, 8, "", "node0 2", "torchrun"},
    {"env://", {SLURM, "WHERRY_RENDEZVOUS=a:1,[::2]:2"}, WH_ADDRESS_TCP, 4, 8, "", "a 1,::2 2", "Slurm"},
};

static void test_reads_the_variables_of_launchers(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        must_be(&launchers[i]);
    }
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        must_be(&jobs[i]);
    }
    for (size_t i = 0; i < sizeof(meetings) / sizeof(meetings[0]); i++) {
        must_be(&meetings[i]);
    }
}

static const struct {
    const char *variables[VARIABLES];
    const char *words;
    const char *more;
} bad_environments[] = {
    {{NULL}, "does not say which rank", "set WHERRY_RANK and WHERRY_SIZE"},
    {{"WHERRY_RANK=0", TORCH, MEET}, "has WHERRY_RANK", "but not WHERRY_SIZE"},
    {{"WHERRY_SIZE=1", TORCH, MEET}, "has WHERRY_SIZE", "but not WHERRY_RANK"},
    {{"RANK=0", "WORLD_SIZE=", MEET}, "has RANK", "but not WORLD_SIZE"},
    {{"WORLD_SIZE=1", MEET}, "has WORLD_SIZE", "but not RANK"},
    {{"OMPI_COMM_WORLD_RANK=0", MEET}, "has OMPI_COMM_WORLD_RANK", "but not OMPI_COMM_WORLD_SIZE"},
    {{"SLURM_NTASKS=2", MEET}, "has SLURM_NTASKS", "but not SLURM_PROCID"},
    {{"PMI_SIZE=2", MEET}, "has PMI_SIZE", "but not PMI_RANK"},
    {{"RANK=x", "WORLD_SIZE=2", MEET}, "RANK is 'x'", "not a whole number"},
    {{"RANK=0", "WORLD_SIZE=-2", MEET}, "WORLD_SIZE is '-2'", "not a whole number"},
    {{"SLURM_PROCID=2", "SLURM_NTASKS=2", MEET}, "SLURM_PROCID is 2 and SLURM_NTASKS is 2", "ranks are 0 to size - 1"},

    {{TORCH, MEET, "WHERRY_JOB=a\nb"}, "control character", "'a?b'"},
    {{TORCH, MEET, "WHERRY_JOB=\xFF"}, "not UTF-8", "'?'"},
    {{SLURM, MEET, "SLURM_JOB_ID=" HUNDRED HUNDRED, "SLURM_STEP_ID=" HUNDRED}, "301 bytes", "more than 255"},

    {{TORCH, "WHERRY_RENDEZVOUS=h"}, "WHERRY_RENDEZVOUS has 'h'", "no port"},
    {{TORCH, "WHERRY_RENDEZVOUS=h:1,"}, "WHERRY_RENDEZVOUS has an empty", ""},
    {{TORCH, "WHERRY_RENDEZVOUS=h:1, g:2"}, "the host ' g'", ""},
    {{TORCH, "WHERRY_RENDEZVOUS=h:0"}, "the port '0'", ""},
    {{TORCH, "WHERRY_RENDEZVOUS=tcp://h:1"}, "several ':'", ""},
    {{TORCH, "WHERRY_RENDEZVOUS=h:x"}, "the port 'x'", ""},
    {{TORCH, MASTER, "WHERRY_RENDEZVOUS=h:1,node0:29500"}, "torch itself needs", "WHERRY_RENDEZVOUS uses port"},
    {{TORCH, MASTER, "WHERRY_RENDEZVOUS=node0:29500"}, "torch itself needs", "29500"},
    {{TORCH, "MASTER_ADDR=h"}, "no port", "set WHERRY_PORT"},
    {{TORCH, "MASTER_ADDR=h g", "MASTER_PORT=1"}, "MASTER_ADDR is 'h g'", ""},
    {{TORCH, "MASTER_ADDR=[]", "MASTER_PORT=1"}, "MASTER_ADDR is '[]'", ""},
    {{TORCH, "MASTER_ADDR=ab]", "MASTER_PORT=1"}, "MASTER_ADDR is 'ab]'", ""},
    {{TORCH, "MASTER_ADDR=h:1", "MASTER_PORT=1"}, "MASTER_ADDR is 'h:1'", ""},
    {{TORCH, "MASTER_ADDR=h", "MASTER_PORT=0"}, "MASTER_PORT is '0'", "from 1 to 65535"},
    {{TORCH, "MASTER_ADDR=h", "MASTER_PORT=65535"}, "MASTER_PORT is 65535", "set WHERRY_PORT"},
    {{TORCH, MASTER, "WHERRY_PORT=65536"}, "WHERRY_PORT is '65536'", "from 1 to 65535"},
    {{TORCH, MASTER, "WHERRY_PORT=29500"}, "WHERRY_PORT and MASTER_PORT are both 29500", "belongs to torch"},

    {{TORCH}, "does not say where the ranks meet", "set WHERRY_RENDEZVOUS"},
    {{TORCH, "LOCAL_WORLD_SIZE=4"}, "where the ranks meet", ""},
    {{TORCH, "LOCAL_WORLD_SIZE=x"}, "where the ranks meet", ""},
    {{WHERRY, "LOCAL_WORLD_SIZE=8", "WORLD_SIZE=16"}, "where the ranks meet", ""},
    {{WHERRY, "LOCAL_WORLD_SIZE=4", "WORLD_SIZE=4"}, "where the ranks meet", ""},
    {{OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE=4"}, "where the ranks meet", ""},
    {{SLURM, "SLURM_NNODES=2"}, "where the ranks meet", ""},
    {{PMI}, "where the ranks meet", ""},
    {{TORCH, "LOCAL_WORLD_SIZE=8", "TMPDIR=/" HUNDRED}, "the limit is 107", "set WHERRY_RENDEZVOUS"},
};

static void test_refuses_bad_environments(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(bad_environments) / sizeof(bad_environments[0]); i++) {
        must_refuse("env://", bad_environments[i].variables, bad_environments[i].words, bad_environments[i].more,
                    "for example, write env:// with WHERRY_RANK=0");
    }
}

static uint64_t fnv1a(const char *bytes, size_t size) {
    uint64_t hash = UINT64_C(14695981039346656037);
    while (size--) {
        hash ^= (uint8_t)*bytes++;
        hash *= UINT64_C(1099511628211);
    }
    return hash;
}

/** The path of the socket at which the ranks of this user and job meet. */
static const char *socket_of(const char *directory, const char *job) {
    static char path[256];
    char hashed[300];
    int size = snprintf(hashed, sizeof(hashed), "%s%c%u", job, 0, (unsigned)getuid());
    snprintf(path, sizeof(path), "%s/wherry-%u-%016" PRIx64 ".sock", directory, (unsigned)getuid(),
             fnv1a(hashed, (size_t)size));
    return path;
}

static const struct {
    const char *variables[VARIABLES];
    const char *directory;
    const char *job;
} on_one_host[] = {
    {{TORCH, "LOCAL_WORLD_SIZE=8"}, "/tmp", ""},
    {{TORCH, "LOCAL_WORLD_SIZE=8", "TMPDIR=/var/tmp", "WHERRY_JOB=j"}, "/var/tmp", "j"},
    {{TORCH, "LOCAL_WORLD_SIZE=8", "TMPDIR=/var/tmp", "XDG_RUNTIME_DIR=/run/u", "WHERRY_JOB=k"}, "/run/u", "k"},
    {{TORCH, "LOCAL_WORLD_SIZE=8", "TMPDIR=/var/tmp", "XDG_RUNTIME_DIR=run"}, "/var/tmp", ""},
    {{TORCH, "LOCAL_WORLD_SIZE=8", "TMPDIR=tmp", "XDG_RUNTIME_DIR="}, "/tmp", ""},
    {{OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE=8", MPI_JOB}, "/tmp", "77"},
    {{SLURM, "SLURM_NNODES=1", SLURM_STEP}, "/tmp", "12.0"},
    {{"PMI_RANK=0", "PMI_SIZE=1"}, "/tmp", ""},
};

static void test_ranks_on_one_host_meet_at_a_socket(void **state) {
    (void)state;
    assert_true(fnv1a("foobar", 6) == UINT64_C(0x85944171F73967E8));
    for (size_t i = 0; i < sizeof(on_one_host) / sizeof(on_one_host[0]); i++) {
        wh_group_address address;
        must(wh_group_address_parse("env://", look_up, (void *)on_one_host[i].variables, &address, NULL));
        assert_int_equal(address.kind, WH_ADDRESS_UNIX);
        assert_null(address.meeting);
        assert_int_equal(address.meeting_count, 0);
        assert_string_equal(address.path, socket_of(on_one_host[i].directory, on_one_host[i].job));
        wh_group_address_clear(&address);
    }
}

/* The length of the socket's name depends on the user ID. */
static void test_refuses_a_directory_that_is_too_long(void **state) {
    (void)state;
    char variable[sizeof("TMPDIR=") + LONGEST];
    int zeros = (int)(LONGEST - strlen(socket_of("", "")) - 1);
    snprintf(variable, sizeof(variable), "TMPDIR=/%0*d", zeros, 0);
    const char *variables[] = {"PMI_RANK=0", "PMI_SIZE=1", variable, NULL};
    wh_group_address address;
    must(wh_group_address_parse("env://", look_up, variables, &address, NULL));
    assert_int_equal(strlen(address.path), LONGEST);
    wh_group_address_clear(&address);

    snprintf(variable, sizeof(variable), "TMPDIR=/%0*d", zeros + 1, 0);
    must_refuse("env://", variables, "would have 108 bytes", "the limit is 107", "WHERRY_RANK=0");
}

static void test_uses_the_environment_of_the_process(void **state) {
    (void)state;
    setenv("WHERRY_RANK", "6", 1);
    setenv("WHERRY_SIZE", "9", 1);
    setenv("WHERRY_RENDEZVOUS", "here:1", 1);
    wh_group_address address;
    must(wh_group_address_parse("env://?job=j", NULL, NULL, &address, NULL));
    unsetenv("WHERRY_RANK");
    unsetenv("WHERRY_SIZE");
    unsetenv("WHERRY_RENDEZVOUS");
    assert_int_equal(address.rank, 6);
    assert_int_equal(address.size, 9);
    assert_string_equal(describe(&address), "here 1");
    wh_group_address_clear(&address);
}

static void test_clear_can_be_repeated(void **state) {
    (void)state;
    wh_group_address address;
    must(wh_group_address_parse("tcp://h:1?rank=0&size=1", NULL, NULL, &address, NULL));
    wh_group_address_clear(&address);
    wh_group_address_clear(&address);
    assert_null(address.job);
    assert_int_equal(address.meeting_count, 0);
    wh_group_address_clear(NULL);
}

/** Makes each allocation fail in turn, until the call succeeds. */
static void fail_each(const char *text, const char *const *variables) {
    for (uint64_t n = 1;; n++) {
        wh_group_address address;
        wherry_error error;
        counted.calls = 0;
        counted.fail = n;
        wherry_status status = wh_group_address_parse(text, look_up, (void *)variables, &address, &error);
        counted.fail = 0;
        if (status == WHERRY_OK) {
            assert_true(n > 1);
            wh_group_address_clear(&address);
            return;
        }
        assert_int_equal(status, WHERRY_NO_MEMORY);
        assert_int_equal(error.status, WHERRY_NO_MEMORY);
        assert_int_equal(counted.held, 0);
    }
}

static void test_reports_failed_allocations(void **state) {
    (void)state;
    static const char *const slurm[] = {SLURM, SLURM_STEP, "SLURM_NNODES=1", NULL};
    static const char *const torch[] = {TORCH, MASTER, NULL};
    static const char *const meet[] = {PMI, "WHERRY_RENDEZVOUS=a:1,b:2", NULL};
    fail_each("tcp://a:1,b:2,c:3,d:4,e:5,f:6,g:7,h:8,i:9?rank=0&size=1&job=j", slurm);
    fail_each("unix:///run/meet.sock?rank=0&size=1&job=j", slurm);
    fail_each("env://", slurm);
    fail_each("env://?job=j", torch);
    fail_each("env://", meet);
}

/**
 * Jobs of MPICH's launcher on one host are told apart by the launcher's process, which is the peer
 * of a socket.
 */
static void test_jobs_of_hydra_are_told_apart(void **state) {
    (void)state;
    int ends[2];
    char fd[32];
    char job[32];
    wh_group_address address;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    snprintf(fd, sizeof(fd), "PMI_FD=%d", ends[0]);
    snprintf(job, sizeof(job), "hydra-%d", (int)getpid());
    const char *here[VARIABLES] = {PMI, "MPI_LOCALNRANKS=8", fd};
    must(wh_group_address_parse("env://", look_up, (void *)here, &address, NULL));
    assert_int_equal(address.kind, WH_ADDRESS_UNIX);
    assert_string_equal(address.job, job);
    assert_string_equal(address.path, socket_of("/tmp", job));
    wh_group_address_clear(&address);
    const char *named[VARIABLES] = {PMI, "MPI_LOCALNRANKS=8", fd, "WHERRY_JOB=own"};
    must(wh_group_address_parse("env://", look_up, (void *)named, &address, NULL));
    assert_string_equal(address.job, "own");
    wh_group_address_clear(&address);
    const char *elsewhere[VARIABLES] = {PMI, "MPI_LOCALNRANKS=4", fd};
    must_refuse("env://", elsewhere, "where the ranks meet", "", "");
    const char *none[VARIABLES] = {PMI, "MPI_LOCALNRANKS=8", "PMI_FD=12345"};
    must_refuse("env://", none, "where the ranks meet", "", "");
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        counted_test(test_accepts_good_addresses),
        counted_test(test_reads_the_shortcut_key),
        counted_test(test_reads_the_bind_key),
        counted_test(test_refuses_bad_addresses),
        counted_test(test_reads_the_variables_of_launchers),
        counted_test(test_refuses_bad_environments),
        counted_test(test_ranks_on_one_host_meet_at_a_socket),
        counted_test(test_jobs_of_hydra_are_told_apart),
        counted_test(test_refuses_a_directory_that_is_too_long),
        counted_test(test_uses_the_environment_of_the_process),
        counted_test(test_clear_can_be_repeated),
        counted_test(test_reports_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
