#include <wherry/base.h>

const char *wherry_status_name(wherry_status status) {
    switch (status) {
#define WHERRY_X(name, value, group, text)                                                                             \
    case WHERRY_##name:                                                                                                \
        return "WHERRY_" #name;
        WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
    }
    return "WHERRY_?";
}

const char *wherry_status_text(wherry_status status) {
    switch (status) {
#define WHERRY_X(name, value, group, text)                                                                             \
    case WHERRY_##name:                                                                                                \
        return text;
        WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
    }
    return "an unknown status";
}

wherry_status_group wherry_status_group_of(wherry_status status) {
    switch (status) {
#define WHERRY_X(name, value, group, text)                                                                             \
    case WHERRY_##name:                                                                                                \
        return WHERRY_GROUP_##group;
        WHERRY_STATUS_LIST(WHERRY_X)
#undef WHERRY_X
    }
    return WHERRY_GROUP_BUG;
}

const char *wherry_version(void) {
    return WHERRY_VERSION_STRING;
}
